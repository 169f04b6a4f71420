"""``launcherkit translate``: the pipeline on files."""

from __future__ import annotations

from launcherkit.inputs import add_arguments, run

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Put the allocated devices, with their sibling functions, into a domain document. The new document goes to standard
output, notes go to standard error."""

EPILOG = """\
examples:
  in the container that got the devices:
    launcherkit translate --domain vm.xml --vmi vmi.json > vm-with-gpu.xml
  anywhere else, with what that container and its host looked like:
    launcherkit translate --domain vm.xml --vmi vmi.json --env-file env.txt --host host.json --diff"""
