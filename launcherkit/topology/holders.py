"""Adds to the tree which pods and claims hold which devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.topology.host_topology import HeldDevice, HostTopology

_LAUNCHER = re.compile("virt-launcher-(.+)-[a-z0-9]{5}")
_LONGEST_NAME = 63
"""Kubernetes cuts the part before its own five characters: a name of this length may lack some of the VM's."""
_OF_CLAIM = re.compile(r"(?:.*-)?([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])")
_MDEV_OF_CLAIM = re.compile("mdev-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


def vm_of(pod: str) -> str | None:
    """The VM of a KubeVirt launcher pod, by the pod's ``namespace/name``; None if that doesn't tell."""
    name = pod.rpartition("/")[2]
    found = _LAUNCHER.fullmatch(name)
    return found[1] if found and len(name) < _LONGEST_NAME else None


def with_holders(topology: HostTopology, held: Iterable[HeldDevice]) -> HostTopology:
    """A tree with the holders of its devices; devices that aren't PCI are left out.

    Args:
        topology: the host's.
        held: devices by the kubelet's IDs: an address, a UUID, or the number of an IOMMU group, as in KubeVirt's own
            plugin and in NVIDIA's up to 1.4; for a claim, the name in the pool, if it contains the address.
    """
    placed = (replace(each, device=device) for each in held for device in _devices(each, topology))
    return replace(topology, held=tuple(sorted(dict.fromkeys(placed), key=lambda each: (each.device, each.pod))))


def _devices(held: HeldDevice, topology: HostTopology) -> Iterator[str]:
    text = held.device.lower()
    if held.claim:
        mdev, function = _MDEV_OF_CLAIM.fullmatch(text), _OF_CLAIM.fullmatch(text)
        text = mdev[1] if mdev else "{}:{}:{}.{}".format(*function.groups()) if function else ""
    if text.isascii() and text.isdecimal():
        yield from _of_group(int(text), topology)
        return
    for kind in (PciAddress, MdevAddress):
        try:
            yield str(kind.parse(text))
        except ValueError:
            continue


def _of_group(number: int, topology: HostTopology) -> Iterator[str]:
    """A number is a group's only if guests can have the whole group: other plugins number devices from 0."""
    functions = [each for place in topology.places() for each in place.slot.functions if each.group == number]
    if functions and all(each.state == "ready" for each in functions):
        yield from (str(each.address) for each in functions)
