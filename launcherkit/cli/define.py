"""``launcherkit define``: translates a domain document and defines it in libvirt."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from launcherkit.cli.templates import NO_DOMAIN, add_domain_arguments, has_one_domain, read_domain_inputs
from launcherkit.errors import EX_USAGE
from launcherkit.host.source import host_of
from launcherkit.process.arguments import Options
from launcherkit.process.edge import print_message, print_notes, write_stdout
from launcherkit.run.connection import connect
from launcherkit.run.define import define, refuse_needed_by_host, version_of

DESCRIPTION = """\
Put the allocated devices into a domain document, as translate does, and define it in libvirt. Prints the domain's name.
On an error nothing stays defined, and an existing domain of that name is unchanged."""

EPILOG = """\
examples:
  launcherkit define --domain vm.xml --vmi vmi.json
  launcherkit define --domain vm.xml --vmi vmi.json --start
  launcherkit define --template q35 --set name=gpu-vm --set disk=/vm/disk.qcow2 --start
  launcherkit define --domain vm.xml --connect qemu:///session"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    add_domain_arguments(parser, env)
    Options(parser, env).switch("--start", "start it too")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Translate, define, and start if asked to."""
    if not has_one_domain(args):
        print_message("error", "launcherkit define: no domain, or two", env)
        print_message("help", NO_DOMAIN, env)
        return EX_USAGE
    inputs = read_domain_inputs(args, env)
    translation = inputs.translate()
    refuse_needed_by_host(translation.plan, host_of(args.host, env, inputs.policy).text)
    connection = connect(args.connect)
    try:
        if translation.plan.window is not None:
            translation = inputs.translate(version_of(connection))  # an old libvirt can't take all of it (P5)
        name = define(connection, translation.domain_xml, translation.plan, start=args.start)
    finally:
        connection.close()
    print_notes(translation.notes, env)
    write_stdout(f"{name}\n".encode())
    return 0
