"""Looks at the node: everything a little, and what may be advertised closely."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit.sources.host import Host
from launcherkit.sources.sysfs import IdentityMemory


class _Judged(NamedTuple):
    """Which functions are wanted, in their order."""

    wanted: Callable[[PciFunction], bool] | None
    functions: Mapping[PciAddress, PciFunction]
    yes: Mapping[PciAddress, None]


_NOT_JUDGED = _Judged(None, {}, {})


class NodeReader:
    """Looks at one node again and again.

    A node may have thousands of functions, virtual ones, and it is looked at every few seconds. Who a function is
    doesn't change while it is there, so that is read once; what can change is read of the wanted ones, each time.
    """

    def __init__(self, *, numa: bool = False) -> None:
        """With ``numa`` the NUMA nodes of what is not wanted are read, too."""
        self._numa = numa
        self._memory = IdentityMemory(numa=numa)
        self._judged = _NOT_JUDGED

    def read(
        self, host: Host, wanted: Callable[[PciFunction], bool], *, vgpu: bool, without: Collection[str] = ()
    ) -> HostFacts:
        """Who all functions are and who is in which group; details, drivers and nodes of what is wanted alone.

        Args:
            host: the same one each time, in whatever way it is read.
            wanted: whether the rest about a function, its slot and its group is read: driver and NUMA node, details,
                and which of the device nodes are there. Nodes of others are not among ``nodes``. It must not depend on
                the driver or the NUMA node, and be equal for the same answers.
            vgpu: whether mediated devices with their nodes, and the parents of such, are read.
            without: names of functions that are not really read this time.

        Raises:
            UnreadableFile: the host can't be looked at: nothing is known then (T2).
        """
        identity = host.identities(self._memory, without)
        addresses = self._wanted_of(identity, wanted)
        mediated = host.mdevs() if vgpu else NO_FACTS
        needed = host.facts(addresses, map(MdevAddress, mediated.mdevs), numa=True)
        if any(_has_moved(function, identity) for function in needed.functions.values()):
            self._memory = IdentityMemory(numa=self._numa)
            return self.read(host, wanted, vgpu=vgpu, without=without)
        paths = host.paths(address for address in addresses if address in needed.functions)
        details = {
            address: detail._replace(parents=paths.get(address, detail.parents))
            for address, detail in needed.details.items()
        }
        return identity._replace(
            functions={**identity.functions, **needed.functions},
            groups={**identity.groups, **needed.groups},
            details=details,
            nodes=needed.nodes,
            mdevs=mediated.mdevs,
            mdev_parents=mediated.mdev_parents,
            unknown={**identity.unknown, **needed.unknown},
        )

    def _wanted_of(self, identity: HostFacts, wanted: Callable[[PciFunction], bool]) -> list[PciAddress]:
        last = self._judged
        if last.wanted != wanted:
            last = _NOT_JUDGED
        if last.functions is not identity.functions:
            yes = [
                address
                for address, function in identity.functions.items()
                if (address in last.yes if last.functions.get(address) is function else wanted(function))
            ]
            last = _Judged(wanted, identity.functions, dict.fromkeys(yes))
        self._judged = last
        return list(last.yes)


def _has_moved(function: PciFunction, identity: HostFacts) -> bool:
    """Whether a function is in another group than when it was read first: then nothing that is remembered holds."""
    known = identity.functions.get(function.address)
    return known is not None and known.iommu_group != function.iommu_group


def read_node(host: Host, wanted: Callable[[PciFunction], bool], *, vgpu: bool) -> HostFacts:
    """One look at everything: see `NodeReader.read`."""
    return NodeReader(numa=True).read(host, wanted, vgpu=vgpu)
