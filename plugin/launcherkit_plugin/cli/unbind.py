"""``launcherkit-plugin unbind``: gives functions back to the drivers that they had before bind (K8)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from launcherkit.errors import Collector
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, bound_to_vfio, describe
from launcherkit.process.edge import print_message
from launcherkit_plugin.binding.binder import Binder, Changed
from launcherkit_plugin.binding.group import not_on_host
from launcherkit_plugin.binding.ledger import Record
from launcherkit_plugin.cli.binding import add_function_arguments, begin, write_changes
from launcherkit_plugin.model.errors import NOT_BOUND_BY_US

DESCRIPTION = """\
Give functions back to the drivers that they had before `launcherkit-plugin bind` or the daemon bound them, together
with everything that was bound with them. Nothing is taken from a pod or from a process that has it open, and functions
that something else has bound are not touched."""

EPILOG = """\
examples:
  launcherkit-plugin unbind 0000:e1:00.0
  launcherkit-plugin unbind --dry-run 0000:e1:00.0
exit codes: 0 done, or nothing to do; 65 bound by something else; 69 held, or holder unknown, or a step failed"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    add_function_arguments(parser, env)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Give back, and print the drivers of each function.

    Raises:
        LauncherkitError: the functions of a record can't be given back, or not all of them.
    """
    wiring, binder, addresses = begin(args, env)
    facts = wiring.host.facts(addresses)
    records = _records(addresses, facts, binder, env)
    errors = Collector()
    done = []
    for record in records:
        functions = [facts.functions[entry.address] for entry in record.entries if entry.address in facts.functions]
        number = next((function.iommu_group for function in functions), None)
        with errors:
            if args.dry_run:
                binder.holders.check([entry.address for entry in record.entries], giving_back=True)
                changed = [
                    Changed(entry.address, record.driver_of(entry.address), entry.driver) for entry in record.entries
                ]
            else:
                changed = binder.restore(record)
            done.append((number, functions, changed))
    write_changes(done, args.output, env)
    errors.raise_if_any()
    return 0


def _records(addresses: Sequence[PciAddress], facts: HostFacts, binder: Binder, env: Mapping[str, str]) -> list[Record]:
    """The records of these functions, each once. For a function that has its host driver, a note is printed."""
    errors = Collector()
    by_leader: dict[PciAddress, Record] = {}
    for address in addresses:
        function = facts.functions.get(address)
        group = () if function is None or function.iommu_group is None else facts.groups[function.iommu_group]
        record = binder.ledger.find({address, *group})
        if record is not None:
            by_leader[record.leader] = record
        elif function is None:
            errors.add(not_on_host(address))
        elif bound_to_vfio(function, facts.details.get(address)):
            path = f"/sys/bus/pci/devices/{address}"
            errors.add(
                NOT_BOUND_BY_US(
                    f"{describe(function)} was bound to {function.driver} by something else, and its previous driver "
                    "is not on record",
                    "Undo it where it was done: vfio-pci.ids on the kernel's command line, modprobe.d, another tool. "
                    f"By hand:\necho > {path}/driver_override\necho {address} > {path}/driver/unbind\n"
                    f"echo {address} > /sys/bus/pci/drivers_probe",
                    device=str(address),
                    driver=function.driver or "",
                )
            )
        else:
            driver = f"is bound to {function.driver}" if function.driver else "has no driver"
            print_message(
                "note", f"{describe(function)} {driver}, and is not on record: there is nothing to give back", env
            )
    errors.raise_if_any()
    return list(by_leader.values())
