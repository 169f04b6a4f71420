"""The operator's choices for single functions: ROM and driver (X1)."""

from __future__ import annotations

from collections.abc import Mapping

from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.host import HostFacts


def chosen(choices: Mapping[str, str], source: HostAddress, host: HostFacts) -> str | None:
    """The choice for a function, by its address, else by its vendor and device; None if there is none.

    Args:
        choices: by address or vendor and device: ``0000:65:00.0``, ``10de:2342``.
        source: a hostdev's; choices are only for PCI functions.
        host: has vendor and device.
    """
    if not isinstance(source, PciAddress):
        return None
    function = host.functions.get(source)
    model = "" if function is None else function.ids
    return choices.get(str(source), choices.get(model))
