"""``launcherkit-plugin status``: shows the drivers of functions, their records in the ledger, and who holds them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from launcherkit.errors import Collector, LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction, bound_to_vfio, describe, is_bridge
from launcherkit.process.edge import print_message, write_stdout
from launcherkit.process.terminal import write_text
from launcherkit.show.layout import columns, visible
from launcherkit_plugin.allocation.keeper import records_in
from launcherkit_plugin.binding.group import not_on_host
from launcherkit_plugin.binding.in_use import by_address, holders_of
from launcherkit_plugin.binding.ledger import By, Entry, Ledger, Record
from launcherkit_plugin.binding.lent import Lent
from launcherkit_plugin.binding.vf_records import VfRecord, VfRecords
from launcherkit_plugin.cli.binding import read_addresses, usage_of, wiring_of
from launcherkit_plugin.cli.options import add_output_argument, add_place_arguments, add_state_argument
from launcherkit_plugin.codec import encode
from launcherkit_plugin.daemon.wiring import Wiring
from launcherkit_plugin.fabric.activations import Activated, ActivatedPartitions
from launcherkit_plugin.host.driver_nodes import driver_nodes, nvidia_uuids
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.host.processes import boot_id
from launcherkit_plugin.model.device import Usage
from launcherkit_plugin.model.same_device import Kept
from launcherkit_plugin.telemetry.summary import other_gpus
from launcherkit_plugin.vgpu.mig_records import MadeRecords
from launcherkit_plugin.vgpu.nvml import Placed

DESCRIPTION = """\
Show functions with their drivers, what `launcherkit-plugin bind` has recorded about them, which pod or process holds
them, which have to be cleaned after a pod, or are in quarantine, and which virtual functions the daemon has made.
Without addresses: those that have a VFIO driver or are on record, with the rest of their IOMMU groups. It only reads;
without root it can't see which processes have them open, and shows a question mark."""

EPILOG = """\
examples:
  launcherkit-plugin status
  launcherkit-plugin status --output json 0000:e1:00.0"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    parser.add_argument("addresses", metavar="BDF", nargs="*", help="a PCI function: 0000:e1:00.0")
    add_place_arguments(parser, env)
    add_state_argument(parser, env)
    add_output_argument(parser, env)


class _Line(NamedTuple):
    """The state of one function."""

    address: PciAddress
    function: PciFunction | None
    vfio: bool
    entry: Entry | None
    by: By | None
    holders: tuple[str, ...]
    complete: bool
    """Whether these are all holders."""
    lent: Lent | None = None
    """The record that it has to be cleaned after its pod."""
    kept: Kept | None = None
    """The VM that had it, if that may have it again."""
    made: VfRecord | None = None
    """The record of its virtual functions, or of those to which it belongs."""
    activated: Activated | None = None
    """The fabric partition that was activated for it."""
    instances: tuple[Placed, ...] = ()
    """The GPU instances that were made on it."""


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Print the state of functions.

    Raises:
        NotOnHost, SeveralErrors: some functions are neither on this host nor on record.
    """
    wiring = wiring_of(args)._replace(state=args.state)
    lines, problems = _look(read_addresses(args.addresses), wiring, partial(usage_of, args, env, wiring.reporter))
    if args.output == "json":
        write_stdout(json.dumps([_document(line) for line in lines], indent=2).encode() + b"\n")
    elif lines:
        rows = [_HEAD, *map(_row, lines)]
        for heading, cell, applies in _MORE:
            if any(map(applies, lines)):
                rows = [(*row, more) for row, more in zip(rows, [heading, *map(cell, lines)], strict=True)]
        write_text("".join(f"{line}\n" for line in columns(rows, indent="")), env)
    if not lines:
        others = other_gpus(wiring.host.scan(details=False))
        text = "no function has a VFIO driver or is on record"
        print_message("note", f"{text}; there are: {others}" if others else f"{text}, and there is no GPU", env)
    for problem in problems:
        print_message("warning", problem.message, env)
    return 0


def _look(
    addresses: Sequence[PciAddress], wiring: Wiring, usage_now: Callable[[], Usage]
) -> tuple[list[_Line], list[LauncherkitError]]:
    records, problems = _on_record(wiring.open_ledger())
    recorded = {entry.address: (entry, record.by) for record in records for entry in record.entries}
    lent = {function: each for each in wiring.open_lent().read().values() for function in each.functions}
    kept: Mapping[str, Kept] = {}
    with suppress(OSError):
        kept = records_in(wiring.state).read().whole
    made, unread = _made_vfs(wiring)
    partitions = ActivatedPartitions(wiring.fabric_records, boot_id(wiring.proc)).read()
    activated = {card: partition for partition in partitions.values() for card in partition.cards}
    records_of_mig = MadeRecords(wiring.gpu_instances, boot_id(wiring.proc)).read()
    instances = {PciAddress.parse(name): tuple(sorted(each.instances)) for name, each in records_of_mig.items()}
    asked = list(addresses) or sorted(
        {*recorded, *lent, *made, *instances, *_with_vfio(wiring.host.scan(details=False))}
    )
    facts = wiring.host.facts(asked)
    errors = Collector()
    for address in addresses:
        if address not in facts.functions and address not in recorded:
            errors.add(not_on_host(address))
    errors.raise_if_any()
    endpoints = _endpoints(asked, facts)
    devices = {address: driver_nodes(wiring.root, wiring.proc, [address]) for address in endpoints}
    nodes = wiring.open_nodes({node: number for of_one in devices.values() for node, number in of_one.items()})
    usage = by_address(usage_now(), nvidia_uuids(wiring.proc))
    lines = [
        _line(
            address,
            facts,
            recorded.get(address),
            tuple(dict.fromkeys(holders_of([address], facts, usage, nodes, devices[address]))),
            complete=usage.known and nodes.complete,
        )._replace(
            lent=lent.get(address),
            kept=kept.get(str(address)),
            made=made.get(address),
            activated=activated.get(address),
            instances=instances.get(address, ()),
        )
        for address in endpoints
    ]
    return lines, [*problems, *unread]


def _endpoints(addresses: Sequence[PciAddress], facts: HostFacts) -> list[PciAddress]:
    """The functions and the other members of their IOMMU groups, without bridges."""
    shown = set(addresses)
    for address in addresses:
        function = facts.functions.get(address)
        if function is not None and function.iommu_group is not None:
            shown.update(facts.groups[function.iommu_group])
    return [address for address in sorted(shown) if not _is_bridge(address, facts)]


def _is_bridge(address: PciAddress, facts: HostFacts) -> bool:
    function = facts.functions.get(address)
    return function is not None and is_bridge(function, facts.details.get(address))


def _on_record(ledger: Ledger) -> tuple[list[Record], list[LauncherkitError]]:
    """The records, and the errors of those that can't be read."""
    try:
        return ledger.records(), list(ledger.unreadable().values())
    except LauncherkitError as problem:
        return [], [problem]


def _made_vfs(wiring: Wiring) -> tuple[dict[PciAddress, VfRecord], list[LauncherkitError]]:
    """The records of virtual functions, by physical and virtual function; errors of those that can't be read."""
    try:
        made, unread = VfRecords(wiring.vf_records, boot_id(wiring.proc)).read()
    except LauncherkitError as problem:
        return {}, [problem]
    of_vfs = {vf: record for physfn, record in made.items() for vf in Sysfs(wiring.root).vfs(physfn)}
    return {**made, **of_vfs}, list(unread.values())


def _with_vfio(host: HostFacts) -> Iterable[PciAddress]:
    """The functions with a VFIO driver, by the driver's name. One with an unusual name is only recognised if the
    function is asked for."""
    return (address for address, function in host.functions.items() if bound_to_vfio(function, None))


def _line(
    address: PciAddress,
    facts: HostFacts,
    recorded: tuple[Entry, By] | None,
    holders: tuple[str, ...],
    *,
    complete: bool,
) -> _Line:
    function = facts.functions.get(address)
    entry, by = recorded or (None, None)
    return _Line(
        address,
        function,
        function is not None and bound_to_vfio(function, facts.details.get(address)),
        entry,
        by,
        holders,
        complete,
    )


_HEAD = ("FUNCTION", "GROUP", "DRIVER", "ON RECORD", "HELD")


def _row(line: _Line) -> tuple[str, ...]:
    function, entry = line.function, line.entry
    record = "-"
    if entry is not None:
        record = f"{entry.state}, had {entry.driver or 'no driver'}, by {line.by}"
    held = "; ".join(line.holders) or ("no" if line.complete else "?")
    if function is None:
        return f"{line.address} is gone", "-", "-", record, visible(held)
    group = "-" if function.iommu_group is None else str(function.iommu_group)
    return describe(function), group, visible(function.driver or "-"), visible(record), visible(held)


def _instances(line: _Line) -> str:
    """The GPU instances that were made on a function; NVML has the names of their profiles."""
    return ", ".join(f"profile {each.profile} at {each.start}" for each in line.instances) or "-"


def _kept(line: _Line) -> str:
    """For which VM a function is kept."""
    return "-" if line.kept is None else visible(f"{line.kept.wish}, {line.kept}")


def _made(line: _Line) -> str:
    """What is on record of virtual functions."""
    if line.made is None:
        return "-"
    text = f"{line.made.number} {line.made.state}" if line.address == line.made.physfn else f"of {line.made.physfn}"
    return visible(text)


def _activated(line: _Line) -> str:
    """Which fabric partition was activated for a card."""
    return "-" if line.activated is None else visible(f"{line.activated.number} for {line.activated.resource}")


def _cleaned(line: _Line) -> str:
    """Whether a function is clean since a pod had it."""
    if line.lent is None:
        return "yes"
    return visible(str(line.lent))


_MORE: tuple[tuple[str, Callable[[_Line], str], Callable[[_Line], object]], ...] = (
    ("CLEANED", _cleaned, lambda line: line.lent),
    ("KEPT", _kept, lambda line: line.kept),
    ("VFS", _made, lambda line: line.made),
    ("FABRIC", _activated, lambda line: line.activated),
    ("GPU INSTANCES", _instances, lambda line: line.instances),
)
"""Further columns: the heading, the cell of a line, and whether a line has something to show there."""


def _document(line: _Line) -> dict[str, object]:
    function, entry = line.function, line.entry
    record = None
    if entry is not None:
        record = {"state": entry.state, "driver": entry.driver, "override": entry.override, "by": line.by}
    return {
        "address": str(line.address),
        "present": function is not None,
        "group": function.iommu_group if function else None,
        "driver": function.driver if function else None,
        "vfio": line.vfio,
        "record": record,
        "lent": line.lent and {"state": line.lent.state, "since": line.lent.since, "text": line.lent.text},
        "holders": list(line.holders),
        "holdersKnown": line.complete,
        "kept": encode(line.kept),
        "virtualFunctions": line.made
        and {"of": str(line.made.physfn), "count": line.made.number, "state": line.made.state},
        "partition": line.activated and {"id": line.activated.number, "resource": line.activated.resource},
        "gpuInstances": [each._asdict() for each in line.instances],
    }
