"""What bind, unbind and status share: arguments, `Wiring` and output."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from launcherkit.errors import BAD_PCI_ADDRESS, Collector, LauncherkitError, shown
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction, describe
from launcherkit.process.edge import print_message, write_stdout
from launcherkit.process.terminal import write_text
from launcherkit.show.layout import columns
from launcherkit_plugin.binding.binder import Binder, Changed
from launcherkit_plugin.binding.in_use import Holders
from launcherkit_plugin.cli.options import (
    add_output_argument,
    add_place_arguments,
    plugin_options,
    pod_resources_of,
    proc_of,
)
from launcherkit_plugin.daemon.wiring import Wiring
from launcherkit_plugin.dra.claim_files import with_claims
from launcherkit_plugin.host.drivers import STEP_SECONDS, Sysfs
from launcherkit_plugin.host.processes import boot_id, pod_states
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.kubelet.usage import CHECKPOINT, read_usage
from launcherkit_plugin.model.device import Usage, with_cards
from launcherkit_plugin.model.errors import STEP_FAILED
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped

Group = tuple[int | None, Sequence[PciFunction], Sequence[Changed]]
"""An IOMMU group: its number, its members, and their changes."""


_DAY = 86_400
_NOBODY = Usage("checkpoint", {})
"""Usage on a machine without a kubelet: no pod holds anything."""


def add_function_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the arguments of bind and unbind."""
    parser.add_argument("addresses", metavar="BDF", nargs="+", help="a PCI function: 0000:e1:00.0")
    group = parser.add_argument_group("how")
    group.add_argument("--dry-run", action="store_true", help="check everything, but change nothing")
    text = "how long the kernel may take for one step"
    options = plugin_options(group, env)
    options.add("--step-timeout", "SECONDS", text, f"{STEP_SECONDS:g}", read=_seconds)
    options.switch(
        "--force",
        "go on even if it can't be determined who holds a device, or if the host itself uses it; a device is never "
        "taken from a known holder",
    )
    add_place_arguments(parser, env)
    add_output_argument(parser, env)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < _DAY:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number of seconds, more than 0 and less than {_DAY}")
    return seconds


def wiring_of(args: argparse.Namespace) -> Wiring:
    """The wiring that the arguments of a command describe.

    Raises:
        NoSysfs: there is no sysfs at the given root.
    """
    host = Host.from_sysfs(args.host)
    return Wiring(host, args.host, Reporter(), WorkQueue(), Stopped(), proc=proc_of(args), ledger=args.ledger)


def usage_of(args: argparse.Namespace, env: Mapping[str, str], reporter: Reporter | None = None) -> Usage:
    """Usage, from the kubelet that the arguments name.

    If it is unknown, the reason is printed to stderr, once for each ``reporter``.
    """
    reporter = reporter or Reporter()
    if args.pod_resources is None and not os.path.lexists(args.kubelet_dir):
        return _NOBODY
    problems: list[LauncherkitError] = []
    checkpoint = os.path.join(args.kubelet_dir, CHECKPOINT)
    states = partial(pod_states, kubelet_dir=args.kubelet_dir, proc=proc_of(args))
    queue = WorkQueue()
    usage = asyncio.run(
        read_usage(pod_resources_of(args), checkpoint, states=states, notify=problems.append, queue=queue)
    )
    for problem in problems:
        if not usage.known and reporter.is_new(problem.message, problem.message):
            print_message("note", problem.message, env)
    return with_cards(with_claims(usage, args.kubelet_dir, boot_id(proc_of(args))))


def read_addresses(texts: Iterable[str]) -> list[PciAddress]:
    """Parse the addresses of functions; each is returned once.

    Raises:
        BAD_PCI_ADDRESS, SeveralErrors: some are no addresses.
    """
    errors = Collector()
    addresses = []
    for text in texts:
        try:
            addresses.append(PciAddress.parse(text))
        except ValueError as problem:
            errors.add(
                BAD_PCI_ADDRESS(
                    f"{text!r} is no PCI address: {problem}", "Give it as lspci -D prints it: 0000:01:00.0.", key=text
                )
            )
    errors.raise_if_any()
    return list(dict.fromkeys(addresses))


def begin(args: argparse.Namespace, env: Mapping[str, str]) -> tuple[Wiring, Binder, list[PciAddress]]:
    """The wiring and the binder for bind and unbind, and the functions that the arguments name.

    Raises:
        LauncherkitError: see `wiring_of`, `read_addresses` and `_prepare`.
    """
    wiring = wiring_of(args)
    usage = partial(usage_of, args, env, wiring.reporter)
    holders = Holders(
        wiring.host, usage, wiring.open_nodes, root=wiring.root, proc=wiring.proc, unknown_is_free=args.force
    )
    binder = Binder(wiring.host, Sysfs(args.host, args.step_timeout), wiring.open_ledger(), holders, wiring.proc)
    addresses = read_addresses(args.addresses)
    if not args.dry_run:
        _prepare(binder, env)
    return wiring, binder, addresses


def _prepare(binder: Binder, env: Mapping[str, str]) -> None:
    """Check that sysfs is writable, and complete the changes that earlier commands left incomplete.

    Raises:
        StepFailed: it isn't writable.
        LauncherkitError: the ledger can't be read.
    """
    if not binder.sysfs.may_write():
        probe = os.path.join(binder.sysfs.root, "sys/bus/pci/drivers_probe")
        raise STEP_FAILED(
            f"{probe} can't be written to",
            "Binding needs root and a writable /sys: in a container, a privileged one. --dry-run needs neither.",
            file=probe,
        )
    for settled in binder.recover():
        addresses = ", ".join(str(entry.address) for entry in settled.record.entries)
        if settled.error is not None:
            print_message(
                "warning",
                f"{addresses}: half done by another process; this could not be resolved: {settled.error.message}",
                env,
            )
        else:
            end = "all is bound" if settled.end == "bound" else "all is as it was"
            print_message("note", f"{addresses}: half done by another process; now {end}", env)


def write_changes(groups: Iterable[Group], output: str, env: Mapping[str, str]) -> None:
    """Print a line for each function, or a JSON document."""
    if output == "json":
        write_stdout(json.dumps([_document(*group) for group in groups], indent=2).encode() + b"\n")
    else:
        lines = (line for number, members, changed in groups for line in _lines(number, members, changed))
        write_text("".join(f"{line}\n" for line in lines), env)


def _lines(number: int | None, members: Sequence[PciFunction], changed: Sequence[Changed]) -> Iterable[str]:
    yield "no IOMMU group" if number is None else f"IOMMU group {number}"
    after = {change.address: change for change in changed}
    names = {member.address: describe(member) for member in members}
    drivers = {member.address: member.driver for member in members}
    yield from columns([_row(address, names, drivers, after) for address in sorted({*names, *after})])


def _row(
    address: PciAddress,
    names: dict[PciAddress, str],
    drivers: dict[PciAddress, str | None],
    after: dict[PciAddress, Changed],
) -> tuple[str, str]:
    name, change = names.get(address, str(address)), after.get(address)
    if change is None:
        return name, f"stays with {drivers[address] or 'no driver'}"
    return name, f"{change.before or 'no driver'} -> {change.after or 'no driver'}"


def _document(number: int | None, members: Sequence[PciFunction], changed: Sequence[Changed]) -> dict[str, object]:
    after = {change.address: (change.before, change.after) for change in changed}
    both = {member.address: (member.driver, member.driver) for member in members} | after
    functions = [
        {"address": str(address), "before": before, "after": now} for address, (before, now) in sorted(both.items())
    ]
    return {"group": number, "functions": functions}
