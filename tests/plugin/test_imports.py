"""What processes of the plugin really import. What may import what is in ``[tool.importlinter]``: `./dev lint`."""

from __future__ import annotations

import subprocess
import sys

from tests.support.imports import ROOT

HEAVY = {"pydantic", "yaml", "kubernetes", "urllib3", "jinja2", "lxml", "libvirt"}
"""Not in the process that serves the kubelet: docs/decisions/0006-the-serving-process-stays-small.md."""


def test_the_process_that_serves_imports_nothing_that_is_large() -> None:
    """Nor ssl, with a library of 5 MB, which asyncio and grpclib can do without; nor shutil, for its options."""
    program = """import contextlib, sys
from launcherkit_plugin.__main__ import run
with contextlib.suppress(SystemExit):
    run(["serve"], {})
from launcherkit_plugin.cli.serve import without_ssl
with without_ssl():
    import launcherkit_plugin.daemon.serve, launcherkit_plugin.vgpu.providers
print(*sys.modules)
import ssl"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = done.stdout.split()
    assert {name.partition(".")[0] for name in loaded} & {*HEAVY, "ssl", "hashlib", "_hashlib", "shutil"} == set()
    assert [name for name in loaded if name.startswith("launcherkit_plugin.dra")] == []  # until a rule asks for it
    assert [name for name in loaded if name.startswith("launcherkit.show")] == []  # another process draws


def test_the_process_that_draws_the_page_imports_nothing_that_is_large() -> None:
    program = "import sys, launcherkit_plugin.page.drawing; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {*HEAVY, "grpclib", "google", "asyncio"} == set()
