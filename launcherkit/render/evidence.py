"""What an explanation needs besides the plan."""

from __future__ import annotations

from dataclasses import dataclass

from launcherkit.model.address import HostAddress
from launcherkit.model.host import HostFacts
from launcherkit.model.request import Allocation, Request
from launcherkit.sources.pci_ids import PciNames


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A request of the VMI, and where its answer is looked for (E1, E5)."""

    request: Request
    variable: str | None
    """The variable, or the file of a claim's metadata, that answers it; None if there is none."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The requests, the contents of the variables, and the host's facts about them."""

    name: str
    """The name of the domain document."""
    asked: tuple[AskedRequest, ...] | None
    """The VMI's requests; None without a VMI."""
    allocations: dict[str, Allocation]
    """Every ``*_RESOURCE_*`` variable, and what claims of the VMI got, by name, as far as it can be read."""
    hostdevs: tuple[HostAddress, ...]
    """The devices that the document already has."""
    facts: HostFacts
    names: PciNames
