"""What the operator has chosen for single functions: ROM and driver (X1)."""

from __future__ import annotations

from collections.abc import Mapping

from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.host import HostFacts


def chosen(choices: Mapping[str, str], source: HostAddress, host: HostFacts) -> str | None:
    """The choice for a function: that for its address, else that for its vendor and device; None where there is none.

    Args:
        choices: by ``0000:65:00.0`` or ``10de:2342``.
        source: of a hostdev; only PCI functions are chosen for.
        host: knows vendor and device.
    """
    if not isinstance(source, PciAddress):
        return None
    function = host.functions.get(source)
    model = "" if function is None else f"{function.vendor:04x}:{function.device:04x}"
    return choices.get(str(source), choices.get(model))
