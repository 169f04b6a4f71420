"""``launcherkit demo``: the real pipeline on a bundled example host."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace

import launcherkit
from launcherkit.atomic import write_atomically
from launcherkit.cli.explanation import gather
from launcherkit.colour import Colours, colours_for, paint_diff
from launcherkit.diff import unified_diff
from launcherkit.errors import UNWRITABLE_FILE
from launcherkit.host.pci_ids import find_names
from launcherkit.host.source import DeferredHost
from launcherkit.inputs import Inputs, RememberingHost
from launcherkit.model.policy import Policy
from launcherkit.process.arguments import Options
from launcherkit.process.edge import stdout_is_terminal, write_stdout
from launcherkit.request.dra import DraFiles
from launcherkit.request.envfile import read_env_file
from launcherkit.request.fields import read_file
from launcherkit.request.vmi import read_vmi
from launcherkit.show.evidence import binding, describe_function
from launcherkit.show.layout import columns
from launcherkit.show.plan import explain_plan

DESCRIPTION = """\
Show what launcherkit does, on a bundled example: a host with two graphics cards of two functions each, what a device
plugin put into the environment, and a VM that asks for two GPUs. Nothing on this machine is read or changed; with --dir
the files of the example are written there, to try the other commands with."""

EPILOG = """\
examples:
  launcherkit demo
  launcherkit demo --dir launcherkit-demo"""

_DATA = os.path.join(os.path.dirname(os.path.abspath(launcherkit.__file__)), "demo_data")
_FILES = ("domain.xml", "vmi.json", "env.txt", "host.json")


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    text = "write the example's files there, and print commands to try on them"
    Options(parser, env).add("--dir", "DIR", text)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Print the example, or write its files."""
    colours = colours_for(stdout_is_terminal(), env)
    text = _next_steps(_write_files(args.dir), colours) if args.dir else _show(colours)
    write_stdout(text.encode("utf-8", "surrogateescape"))
    return 0


def _example() -> Inputs:
    """The bundled inputs, as `launcherkit translate` reads them; variables of this process are ignored."""
    return Inputs(
        domain_xml=_data("domain.xml"),
        domain_name="domain.xml",
        env=read_env_file(_path("env.txt")).variables,
        host=DeferredHost(_path("host.json")),
        dra=DraFiles(_path("no-claims")),
        vmi=read_vmi(_data("vmi.json"), "vmi.json"),
        policy=Policy(),
    )


def _show(colours: Colours) -> str:
    inputs = _example()
    host = RememberingHost(inputs.host, topology=True)
    translation = replace(inputs, host=host).translate()
    evidence = gather(inputs, host, (_path("pci.ids"),))
    facts = evidence.facts
    endpoints = [function for function in facts.functions.values() if not function.is_bridge_by_class]
    names = find_names(endpoints, (_path("pci.ids"),))
    rows = [
        (str(function.address), binding(function.address, facts, colours), describe_function(function, names))
        for function in endpoints
    ]
    parts = (
        _section("On the host (host.json, made by `launcherkit snapshot`):", colours),
        *(line + "\n" for line in columns(rows)),
        _section("In the VM's container (env.txt, set by the device plugin):", colours),
        *(f"  {name}=\n    {value}\n" for name, value in inputs.env.items()),
        _section("What launcherkit does with it (`launcherkit explain`):", colours),
        explain_plan(translation, evidence, colours, groups=False),
        _section("What changes in the domain (`launcherkit translate --diff`):", colours),
        paint_diff(unified_diff(inputs.domain_xml, translation.domain_xml, inputs.domain_name).decode(), colours),
        _section("Next:", colours),
        "  launcherkit demo --dir launcherkit-demo   writes these files, and says what to run on them\n",
        "  launcherkit snapshot -o host.json         what this machine has\n",
    )
    return "".join(parts).lstrip("\n")


def _section(title: str, colours: Colours) -> str:
    return f"\n{colours.head('== ' + title)}\n"


def _write_files(directory: str) -> str:
    """Write the example's files; an existing one with other content is not touched.

    Raises:
        UnwritableFile: an existing file has other content, or one can't be written; then none is.
    """
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as problem:
        raise UNWRITABLE_FILE(
            f"{directory}: {problem.strerror}", "Name a directory that exists or can be created.", file=directory
        ) from problem
    for name in _FILES:
        path = os.path.join(directory, name)
        if os.path.lexists(path) and (not os.path.isfile(path) or read_file(path) != _data(name)):
            raise UNWRITABLE_FILE(
                f"{path} is there already and is not the demo's",
                "Name another directory, or move that file away.",
                file=path,
            )
    for name in _FILES:
        write_atomically(os.path.join(directory, name), _data(name))
    return directory


def _next_steps(directory: str, colours: Colours) -> str:
    import shlex

    inputs = "--domain domain.xml --vmi vmi.json --env-file env.txt --host host.json"
    return (
        f"Wrote {', '.join(_FILES)}. {colours.head('Try:')}\n"
        f"  cd {shlex.quote(directory)}\n"
        f"  launcherkit explain {inputs}\n"
        f"  launcherkit translate {inputs} --diff\n"
        f"  launcherkit translate {inputs} --siblings none --diff\n"
        "Then give one audio function back to the host's own driver, and let it explain what is wrong:\n"
        "  sed -i '/e1:00.1/s/vfio.pci/snd_hda_intel/g' host.json\n"
        f"  launcherkit explain {inputs}\n"
        "  launcherkit explain LK204\n"
    )


def _path(name: str) -> str:
    return os.path.join(_DATA, name)


def _data(name: str) -> bytes:
    return read_file(_path(name))
