"""One look at the node: everything a little, and what may be advertised closely."""

from __future__ import annotations

from collections.abc import Callable

from launcherkit.model.address import MdevAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit.sources.host import Host


def read_node(host: Host, wanted: Callable[[PciFunction], bool], *, vgpu: bool) -> HostFacts:
    """Who all functions are and who is in which group; details and nodes of what is wanted alone.

    A node may have thousands of functions, virtual ones, and it is looked at every few seconds.

    Args:
        host: read anew.
        wanted: whether the rest about a function, its slot and its group is read: details, and which of the device
            nodes are there. Those of others are not among ``nodes``.
        vgpu: whether mediated devices with their nodes, and the parents of such, are read.
    """
    identity = host.scan(details=False)
    addresses = [function.address for function in identity.functions.values() if wanted(function)]
    mediated = host.mdevs() if vgpu else NO_FACTS
    needed = host.facts(addresses, map(MdevAddress, mediated.mdevs))
    paths = host.paths(addresses)
    details = {
        address: detail._replace(parents=paths.get(address, detail.parents))
        for address, detail in needed.details.items()
    }
    return identity._replace(
        details=details,
        nodes=needed.nodes,
        mdevs=mediated.mdevs,
        mdev_parents=mediated.mdev_parents,
        unknown={**identity.unknown, **needed.unknown},
    )
