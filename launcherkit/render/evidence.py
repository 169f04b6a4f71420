"""What an explanation is made of, beside the plan."""

from __future__ import annotations

from dataclasses import dataclass

from launcherkit.model.address import HostAddress
from launcherkit.model.host import HostFacts
from launcherkit.model.request import Allocation, Request
from launcherkit.sources.pci_ids import PciNames


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the VMI and where its answer is looked for (E1)."""

    request: Request
    variable: str | None
    """The variable that answers it; None where there is none."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was asked, what the variables hold, and what the host says of it."""

    name: str
    """What the domain document is called."""
    asked: tuple[Asked, ...] | None
    """The VMI's requests; None where there is no VMI."""
    allocations: dict[str, Allocation]
    """Every ``*_RESOURCE_*`` variable by name, as far as its entries can be read."""
    hostdevs: tuple[HostAddress, ...]
    """What the document has already."""
    facts: HostFacts
    names: PciNames
