"""The arguments that bind, unbind and status share, and the parts that they work with."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from launcherkit.errors import BadPciAddress, Collector, LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.process.edge import tell
from launcherkit.sources.host import Host
from launcherkit_plugin.binding.binder import Binder
from launcherkit_plugin.binding.in_use import Holders
from launcherkit_plugin.binding.ledger import Ledger, boot_id
from launcherkit_plugin.cli.options import switch_from, text_from
from launcherkit_plugin.cli.places import pod_resources_of, proc_of
from launcherkit_plugin.host.drivers import STEP_SECONDS, Sysfs
from launcherkit_plugin.host.processes import OpenNodes, pod_states, read_open_nodes
from launcherkit_plugin.kubelet.checkpoint import CHECKPOINT
from launcherkit_plugin.kubelet.usage import read_usage
from launcherkit_plugin.model.errors import StepFailed
from launcherkit_plugin.model.usage import Usage

_NOBODY = Usage("checkpoint", {})
"""On a machine that has no kubelet no pod holds anything."""


def add_change_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare what commands have that change something."""
    group = parser.add_argument_group("how")
    group.add_argument("--dry-run", action="store_true", help="check everything, and change nothing")
    group.add_argument(
        "--step-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=text_from("--step-timeout", env) or STEP_SECONDS,
        help=f"the longest that the kernel may take for one step (default: {STEP_SECONDS:g})",
    )
    group.add_argument(
        "--force",
        action="store_true",
        default=switch_from("--force", env),
        help="go on if the holder of a device can't be determined, or if the host itself uses it; a device is never "
        "taken from a known holder",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 86400:
        raise ValueError
    return seconds


class BindingParts(NamedTuple):
    """What the commands work with."""

    root: str
    proc: str
    host: Host
    sysfs: Sysfs
    ledger: Ledger
    holders: Holders
    binder: Binder
    usage: Callable[[], Usage]
    open_nodes: Callable[[], OpenNodes]


def open_parts(args: argparse.Namespace, env: Mapping[str, str]) -> BindingParts:
    """Put together what the arguments say.

    Raises:
        NoSysfs: there is no host at that place.
    """
    proc = proc_of(args)
    host = Host.from_sysfs(args.host)

    reported: set[str] = set()

    def usage() -> Usage:
        return usage_of(args, env, reported)

    def open_nodes() -> OpenNodes:
        return read_open_nodes(proc)

    sysfs = Sysfs(args.host, getattr(args, "step_timeout", STEP_SECONDS))
    ledger = Ledger(args.ledger, boot_id(proc))
    holders = Holders(host, usage, open_nodes, unknown_is_free=getattr(args, "force", False))
    return BindingParts(
        args.host, proc, host, sysfs, ledger, holders, Binder(sysfs, ledger, holders), usage, open_nodes
    )


def usage_of(args: argparse.Namespace, env: Mapping[str, str], reported: set[str] | None = None) -> Usage:
    """Who has what, by the kubelet that the arguments name.

    Why nothing is known is reported on stderr, once: ``reported`` has the messages so far.
    """
    reported = set() if reported is None else reported
    if args.pod_resources is None and not os.path.lexists(args.kubelet_dir):
        return _NOBODY
    problems: list[LauncherkitError] = []
    checkpoint = os.path.join(args.kubelet_dir, CHECKPOINT)
    states = partial(pod_states, kubelet_dir=args.kubelet_dir, proc=proc_of(args))
    usage = asyncio.run(read_usage(pod_resources_of(args), checkpoint, states=states, tell=problems.append))
    for problem in problems:
        if not usage.known and problem.message not in reported:
            reported.add(problem.message)
            tell("note", problem.message, env)
    return usage


def read_addresses(texts: Iterable[str]) -> list[PciAddress]:
    """The functions that are named.

    Raises:
        BadPciAddress, SeveralErrors: some are no addresses.
    """
    errors = Collector()
    found = []
    for text in texts:
        try:
            found.append(PciAddress.parse(text))
        except ValueError as problem:
            errors.add(
                BadPciAddress(f"{text!r} is no PCI address: {problem}", "Give it as lspci -D does: 0000:01:00.0.")
            )
    errors.raise_if_any()
    return list(dict.fromkeys(found))


def prepare(parts: BindingParts, env: Mapping[str, str], *, dry_run: bool) -> None:
    """See that something may be changed, and bring to an end what an earlier command could not.

    Raises:
        StepFailed: it may not.
        LauncherkitError: the ledger can't be read.
    """
    if dry_run:
        return
    if not parts.sysfs.may_write():
        raise StepFailed(
            f"{os.path.join(parts.root, 'sys/bus/pci/drivers_probe')} can't be written to",
            "Binding takes root and a /sys that can be written to: in a container, a privileged one. --dry-run needs "
            "neither.",
        )
    for settled in parts.binder.recover():
        what = ", ".join(str(entry.address) for entry in settled.record.entries)
        if settled.error is not None:
            tell("warning", f"{what}: left half done by another process, and so for now: {settled.error.message}", env)
        else:
            end = "all is bound" if settled.end == "bound" else "all is as it was"
            tell("note", f"{what}: left half done by another process; {end} now", env)


@contextmanager
def collected(errors: Collector) -> Iterator[None]:
    """What goes wrong with one group doesn't keep the next one from being tried."""
    try:
        yield
    except LauncherkitError as error:
        for leaf in error.leaves():
            errors.add(leaf)
