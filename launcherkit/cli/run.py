"""``launcherkit run``: the entrypoint of a launcher pod."""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Mapping
from functools import cache

from launcherkit.cli.templates import NO_DOMAIN, add_domain_arguments, has_one_domain, read_domain_inputs
from launcherkit.errors import BAD_SETTING, EX_USAGE
from launcherkit.host.source import host_of
from launcherkit.model.plan import Note
from launcherkit.pipeline import Translation
from launcherkit.process.arguments import Options, variable_of
from launcherkit.process.edge import print_message, print_notes
from launcherkit.run.children import Children, Wakeups
from launcherkit.run.connection import connect, import_libvirt
from launcherkit.run.daemons import Daemons, report_slow_host_name
from launcherkit.run.define import refuse_needed_by_host
from launcherkit.run.launcher import Settings, World, run_guest

DESCRIPTION = """\
Run one VM from its definition to its end: put the allocated devices into the domain, wait for libvirt or start it,
define and start the domain, and stay until it ends. SIGTERM asks the guest to shut down. No guest is left
behind."""

EPILOG = """\
examples:
  launcherkit run --domain /vm/domain.xml --vmi /vm/vmi.json
  launcherkit run --template q35 --set name=gpu-vm --set disk=/vm/disk.qcow2 --console --liveness /run/alive

exit codes in addition to those of every command: 0 the guest has shut down, 10 it or its QEMU has crashed, 11 it was
destroyed by someone else, 12 it has ended and libvirt doesn't know how, 13 it did not shut down in time and was
destroyed, 69 libvirt doesn't answer, or went away and did not come back"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    add_domain_arguments(parser, env)
    group = parser.add_argument_group("the guest's life")
    options = Options(group, env)
    options.switch("--console", "copy the output of its first serial console to standard output")
    options.add(
        "--grace",
        "SECONDS",
        "how long it may take to shut down after SIGTERM, before it is destroyed; a second signal destroys it at once",
        "30",
    )
    options.add(
        "--wait", "SECONDS", "how long to wait for libvirt, at the start and after its connection was lost", "60"
    )
    options.switch("--no-daemon", "don't start virtlogd and virtqemud or libvirtd if nothing answers at their sockets")
    options.add(
        "--owner",
        "NAME",
        "the guest's owner: what an earlier run of the same owner left behind is cleaned up (default: the host "
        "name, which is the pod's name)",
    )
    options.add("--liveness", "FILE", "touch this file about twice a second while libvirt answers, for a probe")


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Run the guest and report how it ended."""
    if not has_one_domain(args):
        print_message("error", "launcherkit run: no domain, or two", env)
        print_message("help", NO_DOMAIN, env)
        return EX_USAGE

    told: list[Note] = []
    inputs = cache(lambda: read_domain_inputs(args, env))

    def make(libvirt: tuple[int, ...] | None) -> Translation:
        translation = inputs().translate(libvirt)
        refuse_needed_by_host(translation.plan, host_of(args.host, env, inputs().policy).text)
        import_libvirt()
        new = [each for each in translation.notes if each not in told]
        print_notes(new, env)
        told.extend(new)
        return translation

    def note(text: str) -> None:
        print_message("note", text, env)

    settings = Settings(
        args.connect,
        args.owner or socket.gethostname(),
        _seconds("--grace", args.grace, env),
        _seconds("--wait", args.wait, env),
        args.console,
        args.liveness,
    )
    children = Children()
    with Wakeups() as wakeups:
        world = World(
            connect,
            Daemons(args.connect, children, allowed=not args.no_daemon),
            children,
            wakeups,
            time.monotonic,
            note,
        )
        if world.daemons.wanted:
            report_slow_host_name(socket.gethostname(), note)
        return int(run_guest(settings, world, make))


def _seconds(flag: str, text: str, env: Mapping[str, str]) -> float:
    """A length of time, from a flag or its variable."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        name = variable_of(flag) if env.get(variable_of(flag)) == text else flag
        raise BAD_SETTING(f"{name}={text!r} is not a number of seconds", f"Give {flag} a number, such as 30.", key=name)
    return value
