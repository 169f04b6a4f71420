"""What there is of vGPUs, and who has it: for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.render.columns import columns, visible
from launcherkit.resolve.vfio import cdev_node, group_node
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.model.device import Usage
from launcherkit_plugin.vgpu.cards import Card, cards, is_vgpu_class
from launcherkit_plugin.vgpu.layout import Instance, free_on, instances_on, is_vf, kinds_of
from launcherkit_plugin.vgpu.mdev_slots import slot_of


def is_wanted(function: PciFunction) -> bool:
    """Whether details of a function must be read to know of all vGPUs."""
    return function.is_vf and is_vgpu_class(function)


class VgpuUse(NamedTuple):
    """Who has a vGPU."""

    users: tuple[str, ...]
    """Pods and processes."""
    known: bool
    """Whether there can be no others."""


def use_of(instance: Instance, host: HostFacts, usage: Usage, opened: OpenNodes) -> VgpuUse:
    """Who has a vGPU, by the kubelet's word and by the processes that have it open."""
    holders = [
        str(holder)
        for devices in usage.kept.values()
        for device, holder in devices.items()
        if device == instance.device
    ]
    processes = [str(process) for node in nodes_of(instance, host) for process in opened.holders.get(node, ())]
    return VgpuUse(tuple(dict.fromkeys([*holders, *processes])), usage.known and opened.complete)


def why_it_stays(instance: Instance, host: HostFacts, usage: Usage, opened: OpenNodes) -> str | None:
    """Why a vGPU can't go, or None."""
    users, _ = use_of(instance, host, usage, opened)
    what = f"{instance.what} on {instance.parent}, {instance.device},"
    if users:
        return f"{what} is in use by {', '.join(users)}"
    if not usage.known:
        return f"{what} may be a pod's: neither the kubelet's PodResources nor its checkpoint can be read"
    if opened.unseen:
        return f"{what} may be in use: {opened.unseen}"
    return None


def nodes_of(instance: Instance, host: HostFacts) -> list[str]:
    """The device nodes by which a vGPU is opened."""
    if not is_vf(instance):
        mdev = host.mdevs.get(instance.device)
        return [node for node in (group_node(mdev.iommu_group if mdev else None),) if node]
    vf = PciAddress.parse(instance.device)
    function = host.functions.get(vf)
    found = (group_node(function.iommu_group if function else None), cdev_node(host.details.get(vf)))
    return [node for node in found if node]


def made_for(instance: Instance) -> str | None:
    """What an mdev of ours was made for; None for VFs, and for those of others."""
    slot = slot_of(instance.device, instance.parent, instance.type_id)
    return None if slot is None else slot.purpose


class CardType(NamedTuple):
    """A type of a card."""

    type_id: str
    name: str
    there: int
    room: int


def kinds(card: Card, host: HostFacts) -> list[CardType]:
    """The types of a card, with how many there are and how many more there could be."""
    there = instances_on(card, host)
    return [
        CardType(type_id, name, sum(each.type_id == type_id for each in there), len(free_on(card, type_id, name, host)))
        for type_id, name in sorted(kinds_of(card, host).items())
    ]


def document(host: HostFacts, usage: Usage, opened: OpenNodes) -> dict[str, Any]:
    """As JSON; docs/reference/vgpu.md has its shape."""
    return {
        "cards": [
            {
                "name": card.name,
                "types": [
                    {"id": kind.type_id, "name": kind.name, "there": kind.there, "room": kind.room}
                    for kind in kinds(card, host)
                ],
                "vgpus": [_document(instance, host, usage, opened) for instance in instances_on(card, host)],
            }
            for card in cards(host)
        ]
    }


def _document(instance: Instance, host: HostFacts, usage: Usage, opened: OpenNodes) -> dict[str, Any]:
    users, known = use_of(instance, host, usage, opened)
    return {
        "device": instance.device,
        "parent": instance.parent,
        "type": {"id": instance.type_id, "name": instance.what},
        "madeFor": made_for(instance),
        "users": list(users),
        "usersKnown": known,
    }


def tables(host: HostFacts, usage: Usage, opened: OpenNodes) -> Iterator[str]:
    """Lines: the types of each card, then the vGPUs."""
    types = [
        (card.name, kind.type_id, visible(kind.name), str(kind.there), str(kind.room))
        for card in cards(host)
        for kind in kinds(card, host)
    ]
    vgpus = [_row(instance, host, usage, opened) for card in cards(host) for instance in instances_on(card, host)]
    yield from _table(("CARD", "ID", "TYPE", "THERE", "ROOM"), types)
    if vgpus:
        yield ""
        yield from _table(("DEVICE", "ON", "TYPE", "MADE FOR", "USED BY"), vgpus)


def _row(instance: Instance, host: HostFacts, usage: Usage, opened: OpenNodes) -> tuple[str, ...]:
    users, known = use_of(instance, host, usage, opened)
    used = ", ".join(users) or ("-" if known else "?")
    return instance.device, instance.parent, visible(instance.what), made_for(instance) or "-", visible(used)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield from columns([head, *rows], "")
