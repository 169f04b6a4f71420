"""The tree of a host, with its functions named, from which every picture is drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.resolve.pci_class import class_name
from launcherkit.resolve.readiness import readiness_of
from launcherkit.sources.pci_ids import find_names
from launcherkit.topology.build import build
from launcherkit.topology.host_topology import HostTopology


def topology_of(
    facts: HostFacts, tables: Iterable[str], *, every: bool, only: Collection[PciAddress] | None = None
) -> HostTopology:
    """The tree of a host.

    Args:
        facts: a scan.
        tables: where ``pci.ids`` may be.
        every, only: as for `build`.
    """
    named = facts.functions if only is None else only
    names = find_names((facts.functions[each] for each in named), tables)
    return build(
        facts,
        readiness_of(facts),
        lambda function: (names.class_(function) or class_name(function), names.device(function)),
        every=every,
        only=only,
    )
