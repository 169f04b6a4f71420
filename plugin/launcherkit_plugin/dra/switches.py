"""The PCIe switches above devices, as attributes by which claims ask for devices that are close together (D2)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.model.host import HostFacts, PciFunction, is_bridge, switches_above

SWITCH = "launcherkit.io/pcieSwitch"
"""The nearest switch. With a number appended, that of a level: 0 is next to the root complex."""
_LEVELS = 4
"""The most levels that are published: a device has room for 32 attributes."""


_SHORTEST = 4
"""The parts of the path to a device below a switch: a root complex, a root port, and the switch's two ports."""


class _Below(NamedTuple):
    """An endpoint below a switch."""

    vendor: int
    base_class: int
    slot: PciSlot
    """Of a VF, that of its physical function."""


class Switches:
    """The switches of a host.

    Some cards have a switch of their own: AMD's and Intel's GPUs, BlueField. It is left out, because nothing else can
    be below it, and the switch that the card shares with others is the one above it.

    Args:
        host: with the details of all devices that are published.
    """

    def __init__(self, host: HostFacts) -> None:
        self._host = host
        places = {
            (detail.parents, self._endpoint(function))
            for address, detail in host.details.items()
            if len(detail.parents) >= _SHORTEST
            and (function := host.functions.get(address))
            and not is_bridge(function, detail)
        }
        self._below: dict[str, set[_Below]] = {}
        for path, endpoint in places:
            for switch in switches_above(path):
                self._below.setdefault(switch, set()).add(endpoint)
        self._above = cache(self._shared)

    def above(self, function: PciFunction) -> tuple[str, ...]:
        """The upstream ports of the switches above a function, from the root complex down, but for its card's own."""
        detail = self._host.details.get(function.address)
        if detail is None or len(detail.parents) < _SHORTEST:
            return ()
        return self._above(detail.parents, self._endpoint(function))

    def _shared(self, path: tuple[str, ...], endpoint: _Below) -> tuple[str, ...]:
        return tuple(switch for switch in switches_above(path) if not self._is_of_card(switch, endpoint))

    def attributes(self, function: PciFunction) -> dict[str, int | bool | str]:
        """``{"launcherkit.io/pcieSwitch": "0000:01:00.0", "launcherkit.io/pcieSwitch0": "0000:01:00.0"}``."""
        switches = self.above(function)
        levels = {f"{SWITCH}{level}": switch for level, switch in enumerate(switches[:_LEVELS])}
        return {SWITCH: switches[-1], **levels} if switches else {}

    def _is_of_card(self, switch: str, endpoint: _Below) -> bool:
        """Whether a switch is part of a card: all that is below it is of the switch's vendor, and nothing of the
        endpoint's kind is in another slot."""
        port = self._host.functions.get(PciAddress.parse(switch))
        if port is None:
            return False
        below = self._below.get(switch, set())
        same_kind = {other.slot for other in below if other.base_class == endpoint.base_class}
        return {other.vendor for other in below} == {port.vendor} and same_kind == {endpoint.slot}

    def _endpoint(self, function: PciFunction) -> _Below:
        owner = self._host.physical_function(function.address)
        return _Below(function.vendor, function.class_code >> 16, owner.slot)
