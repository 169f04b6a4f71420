"""What bind and unbind print: what has become of each function."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.process.edge import write_stdout
from launcherkit.render.columns import columns
from launcherkit.resolve.pci_class import describe
from launcherkit_plugin.binding.binder import Changed

Group = tuple[int | None, Sequence[PciFunction], Sequence[Changed]]
"""Number, members, and what has changed of them."""


def write_changes(groups: Iterable[Group], output: str) -> None:
    """Print a line a function, or a JSON document."""
    if output == "json":
        text = json.dumps([_document(*group) for group in groups], indent=2) + "\n"
    else:
        text = "".join(f"{line}\n" for number, members, changed in groups for line in _lines(number, members, changed))
    write_stdout(text.encode("utf-8", "backslashreplace"))


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
