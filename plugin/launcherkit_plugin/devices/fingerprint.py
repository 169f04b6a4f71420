"""Whether what an answer rests on is still so: a few links, where a new look would be dozens of reads.

The kubelet asks for devices that were looked at seconds ago, and is answered with groups and nodes as they are at that
moment (K2). What could have changed the answer is the members of a group, their drivers, and the nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts


class Fingerprint(NamedTuple):
    """What was seen. Every path is whole."""

    drivers: tuple[tuple[str, str | None], ...]
    """Links of functions to their drivers, with the name of the driver."""
    members: tuple[tuple[str, frozenset[str]], ...]
    """Directories with their entries: of IOMMU groups, and those that name VFIO's character devices."""


def fingerprint_of(addresses: Iterable[PciAddress], host: HostFacts, root: str) -> Fingerprint:
    """What the facts say of some functions, of those in their slots and of all members of the groups of these."""
    known = [host.functions[address] for address in addresses if address in host.functions]
    nearby = {each.address: each for function in known for each in host.slot_functions(function.address)}
    groups = {function.iommu_group for function in nearby.values()}
    members = {group: host.groups.get(group, ()) for group in groups if group is not None}
    nearby |= {each: host.functions[each] for ones in members.values() for each in ones if each in host.functions}
    return Fingerprint(
        tuple(
            (f"{root}/sys/bus/pci/devices/{address}/driver", function.driver)
            for address, function in sorted(nearby.items())
        ),
        (
            *(
                (f"{root}/sys/kernel/iommu_groups/{group}/devices", frozenset(map(str, addresses)))
                for group, addresses in members.items()
            ),
            *(
                (f"{root}/sys/bus/pci/devices/{address}/vfio-dev", frozenset({detail.vfio_dev}))
                for address in sorted(nearby)
                if (detail := host.details.get(address)) is not None and detail.vfio_dev is not None
            ),
        ),
    )


def is_still_so(fingerprint: Fingerprint) -> bool:
    """Whether a new look would see the same."""
    for path, entries in fingerprint.members:
        try:
            if entries != set(os.listdir(path)):
                return False
        except OSError:
            return False
    for path, driver in fingerprint.drivers:
        try:
            target: str | None = os.readlink(path)
        except FileNotFoundError:
            target = None
        except OSError:  # unknown is not absent
            return False
        if (target if target is None else target[target.rfind("/") + 1 :]) != driver:
            return False
    return True
