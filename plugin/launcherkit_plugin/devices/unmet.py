"""Rules that select functions of which none becomes a device, and why: nobody should have to guess."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.render.columns import counted
from launcherkit.resolve.pci_class import describe
from launcherkit.resolve.vfio import is_bridge
from launcherkit_plugin.devices.selectors import compile_rules
from launcherkit_plugin.model.config import PciRule


def unmet_rules(
    rules: Sequence[PciRule], host: HostFacts, primaries: Iterable[tuple[PciFunction, PciRule]]
) -> Iterator[str]:
    """A line for each rule that selects something and gets nothing.

    Rules of which only what is bound to a VFIO driver is advertised are left out: to get nothing is usual for them.

    Args:
        rules: of the configuration, in order.
        host: a scan, with the details of what rules select.
        primaries: the functions that are devices, each with its rule.
    """
    devices = list(primaries)
    numbers = {id(rule): number for number, rule in enumerate(rules, 1)}
    served = {id(rule) for _, rule in devices}
    for rule in rules:
        if rule.only_vfio or id(rule) in served:
            continue
        selects = compile_rules([rule], bridges=True)
        selected = [function for function in host.functions.values() if selects(function) is not None]
        if selected:
            earlier = {function.address: numbers[id(other)] for function, other in devices}
            whys = dict.fromkeys(_why(function, host, earlier) for function in sorted(selected))
            name = f" ({rule.name})" if rule.name else ""
            yield (
                f"rule {numbers[id(rule)]}{name} selects {counted(len(selected), 'PCI function')}, "
                f"and none of them becomes a device: {'; '.join(list(whys)[:3])}"
            )


def _why(function: PciFunction, host: HostFacts, earlier: Mapping[PciAddress, int]) -> str:
    detail = host.details.get(function.address)
    if is_bridge(function, detail):
        return "bridges can't be passed through, by the header type of their config space"
    if function.address in earlier:
        return f"rule {earlier[function.address]} comes before it and has {describe(function)}"
    if detail is not None and (detail.vgpu is not None or detail.virtfns):
        return f"vGPUs are made of {describe(function)}"
    return f"another function of its card is the device, not {describe(function)}"
