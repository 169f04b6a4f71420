"""The exec hook ``onDefineDomain``, as KubeVirt's sidecar-shim calls it.

``onDefineDomain --vmi <VMI JSON> --domain <domain XML>``: the new domain goes to stdout, whole or not at all; messages
go to stderr; an exit code other than 0 fails the VM. It may be called any number of times on its own output (X2).

Every VM start waits for this process, so it imports no more than it uses: its two options are read by hand.
"""

from __future__ import annotations

import gc

gc.disable()  # before the imports, which is where the collector would run; see `main`

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from launcherkit import __version__
from launcherkit.errors import EX_USAGE
from launcherkit.host.source import host_of
from launcherkit.model.policy import POLICY_KEYS
from launcherkit.pipeline import translate
from launcherkit.process.edge import guarded, print_message, print_notes, write_stdout
from launcherkit.process.variables import warn_of_unknown
from launcherkit.request.policy import resolve_policy
from launcherkit.request.vmi import read_vmi

USAGE = "usage: onDefineDomain --vmi VMI_JSON --domain DOMAIN_XML"


def main() -> NoReturn:
    """The console script.

    A process that lives for 40 ms frees nothing and collects nothing: without the collector and the interpreter's
    teardown it is 5 ms quicker (docs/decisions/0003-the-hook-is-a-short-process.md).
    """
    arguments, env = sys.argv[1:], os.environ
    os._exit(guarded(lambda: run(arguments, env), env))


def run(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Translate the domain among the arguments and write it to stdout.

    Raises:
        LauncherkitError: the domain can't be translated; nothing has been written.
    """
    options = _options(arguments)
    if isinstance(options, str):
        if options:
            write_stdout(options.encode())
            return 0
        print_message("error", f"{USAGE}; got {_shown(arguments)}", env)
        print_message("help", "Give both options once, each with its text; see `onDefineDomain --help`.", env)
        return EX_USAGE
    vmi_json, domain_xml = options
    for text in warn_of_unknown(env):
        print_message("note", text, env)
    vmi = read_vmi(_bytes_of(vmi_json), "--vmi", interfaces=False)
    policy = resolve_policy({}, env, vmi, None)
    host = host_of(None, env, policy)
    translation = translate(_bytes_of(domain_xml), env=env, host=host, vmi=vmi, policy=policy, hook=True)
    print_notes(translation.notes, env)
    write_stdout(translation.domain_xml)
    return 0


def _options(arguments: Sequence[str]) -> tuple[str, str] | str:
    """The VMI and the domain, or a text to print; the text is empty if the arguments are wrong."""
    if any(argument in ("-h", "--help") for argument in arguments):
        return _help()
    if list(arguments) == ["--version"]:
        return f"launcherkit {__version__}\n"
    values: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        text = value if equals else next(rest, None)
        if name not in ("--vmi", "--domain") or name in values or text is None:
            return ""
        values[name] = text
    return (values["--vmi"], values["--domain"]) if len(values) == 2 else ""


def _help() -> str:
    texts = {"LAUNCHERKIT_HOST": "root of the host's file system, a snapshot, a recording, or none"}
    texts["LAUNCHERKIT_POLICY"] = "a policy file"
    texts |= {key.variable: key.kind.values.replace("`", "") for key in POLICY_KEYS if key.variable}
    texts["LAUNCHERKIT_LOG_FORMAT"] = "text, json"
    width = max(map(len, texts))
    variables = "\n".join(f"  {variable:{width}}  {text}" for variable, text in texts.items())
    return f"""{USAGE}

KubeVirt's exec hook: puts the allocated devices, with their sibling functions, into the domain. KubeVirt's
sidecar-shim calls it; the VMI and the domain are given as text, not as files.

options:
  --vmi VMI_JSON       the VirtualMachineInstance as JSON
  --domain DOMAIN_XML  the domain as libvirt is going to define it
  --version            the version of launcherkit
  -h, --help           this text

It is configured by variables:
{variables}
The VMI's annotation launcherkit.io/policy may narrow siblings for one VM. `launcherkit explain configuration` says
more of all these.

examples:
  onDefineDomain --vmi "$(kubectl get vmi gpu-vm -o json)" --domain "$(virsh dumpxml --inactive gpu-vm)"
"""


def _bytes_of(argument: str) -> bytes:
    """The bytes of an argument as the caller gave them, whatever this process's locale is."""
    return os.fsencode(argument)


def _shown(arguments: Sequence[str]) -> str:
    return (
        " ".join(argument if len(argument) <= 40 else argument[:37] + "..." for argument in arguments) or "no arguments"
    )
