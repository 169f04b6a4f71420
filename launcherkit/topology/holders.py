"""Who holds what: devices of pods and claims, brought to the functions of the tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.topology.tree import HeldDevice, HostTopology

_LAUNCHER = re.compile("virt-launcher-(.+)-[a-z0-9]{5}")
_LONGEST_NAME = 63
"""Kubernetes cuts what is before the five characters of its own: a pod's name this long may lack some of its VM's."""
_OF_CLAIM = re.compile(r"(?:.*-)?([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])")
_MDEV_OF_CLAIM = re.compile("mdev-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


def vm_of(pod: str) -> str | None:
    """The VM of a launcher pod of KubeVirt's by the pod's ``namespace/name``; None where that doesn't tell."""
    name = pod.rpartition("/")[2]
    found = _LAUNCHER.fullmatch(name)
    return found[1] if found and len(name) < _LONGEST_NAME else None


def with_holders(topology: HostTopology, held: Iterable[HeldDevice]) -> HostTopology:
    """A tree with who holds what of it; what isn't a device of PCI is left out.

    Args:
        topology: of the host.
        held: devices by their IDs as the kubelet has them: an address, a UUID, or an IOMMU group's number, as in
            KubeVirt's own plugin and in NVIDIA's up to 1.4; of a claim the name in the pool, if it has the address.
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
    """A number is a group's only if guests can have all of that: other plugins count their devices from 0."""
    functions = [each for place in topology.places() for each in place.slot.functions if each.group == number]
    if functions and all(each.state == "ready" for each in functions):
        yield from (str(each.address) for each in functions)
