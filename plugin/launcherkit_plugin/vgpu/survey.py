"""The vGPUs of a node and their holders, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launcherkit.choose.nodes import own_nodes
from launcherkit.model.host import HostFacts
from launcherkit.show.layout import columns, visible
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.model.device import Usage
from launcherkit_plugin.vgpu.cards import Instance, VgpuCard, cards, instances_on, kinds_of
from launcherkit_plugin.vgpu.layout import free_on
from launcherkit_plugin.vgpu.mdev_slots import made_for
from launcherkit_plugin.vgpu.nvml import MigCard


class VgpuUse(NamedTuple):
    """The holders of a vGPU."""

    users: tuple[str, ...]
    """Pods and processes."""
    complete: bool
    """Whether these are known to be all."""


def use_of(instance: Instance, host: HostFacts, usage: Usage, opened: OpenNodes) -> VgpuUse:
    """The holders of a vGPU according to the kubelet, and the processes that have it open."""
    holders = [
        str(holder)
        for devices in usage.kept.values()
        for device, holder in devices.items()
        if device == instance.device
    ]
    processes = [str(process) for node in own_nodes(instance.address, host) for process in opened.holders.get(node, ())]
    return VgpuUse(tuple(dict.fromkeys([*holders, *processes])), usage.known and opened.complete)


def why_it_stays(instance: Instance, host: HostFacts, usage: Usage, opened: OpenNodes) -> str | None:
    """Why a vGPU can't be removed, or None."""
    users, _ = use_of(instance, host, usage, opened)
    name = f"{instance.type_name} on {instance.parent}, {instance.device},"
    if users:
        return f"{name} is in use by {', '.join(users)}"
    if not usage.known:
        return f"{name} may be a pod's: neither the kubelet's PodResources nor its checkpoint can be read"
    if opened.unseen:
        return f"{name} may be in use: {opened.unseen}"
    return None


class CardType(NamedTuple):
    """A type of a card."""

    type_id: str
    name: str
    existing: int
    room: int


def kinds(card: VgpuCard, host: HostFacts) -> list[CardType]:
    """The types of a card, with how many there are and how many more there could be."""
    existing = instances_on(card, host)
    return [
        CardType(
            type_id, name, sum(each.type_id == type_id for each in existing), len(free_on(card, type_id, name, host))
        )
        for type_id, name in sorted(kinds_of(card, host).items())
    ]


def document(host: HostFacts, usage: Usage, opened: OpenNodes, mig: Mapping[str, MigCard] = {}) -> dict[str, Any]:
    """As JSON; docs/reference/vgpu.md has its shape."""
    return {
        "cards": [
            {
                "name": card.name,
                "types": [
                    {"id": kind.type_id, "name": kind.name, "there": kind.existing, "room": kind.room}
                    for kind in kinds(card, host)
                ],
                "gpuInstances": _instances(mig.get(card.name)),
                "vgpus": [_document(instance, host, usage, opened) for instance in instances_on(card, host)],
            }
            for card in cards(host)
        ]
    }


def _instances(state: MigCard | None) -> list[dict[str, Any]]:
    placed = [] if state is None else state.named()
    return [{"profile": {"id": at.profile, "name": name}, "start": at.start, "size": at.size} for at, name in placed]


def _document(instance: Instance, host: HostFacts, usage: Usage, opened: OpenNodes) -> dict[str, Any]:
    users, complete = use_of(instance, host, usage, opened)
    return {
        "device": instance.device,
        "parent": instance.parent,
        "type": {"id": instance.type_id, "name": instance.type_name},
        "madeFor": made_for(instance),
        **dict(zip(("placement", "gpuInstance"), _place(instance, host), strict=True)),
        "users": list(users),
        "usersKnown": complete,
    }


def tables(host: HostFacts, usage: Usage, opened: OpenNodes, mig: Mapping[str, MigCard] = {}) -> Iterator[str]:
    """Lines: the types of each card, then GPU instances, then the vGPUs."""
    types = [
        (card.name, kind.type_id, visible(kind.name), str(kind.existing), str(kind.room))
        for card in cards(host)
        for kind in kinds(card, host)
    ]
    vgpus = [_row(instance, host, usage, opened) for card in cards(host) for instance in instances_on(card, host)]
    yield from columns([("CARD", "ID", "TYPE", "EXISTING", "FREE"), *types], "")
    placed = [(card, at, name) for card, state in mig.items() for at, name in state.named()]
    if placed:
        rows = [(card, name, str(at.start), str(at.size)) for card, at, name in placed]
        yield ""
        yield from columns([("CARD", "GPU INSTANCE", "START", "SIZE"), *rows], "")
    if vgpus:
        yield ""
        places = [_place(instance, host) for card in cards(host) for instance in instances_on(card, host)]
        table = _with_places([("DEVICE", "PARENT", "TYPE", "MADE FOR", "USED BY"), *vgpus], places)
        yield from columns(table, "")


def _with_places(
    table: Sequence[tuple[str, ...]], places: Sequence[tuple[int | None, int | None]]
) -> list[tuple[str, ...]]:
    """A table of vGPUs with a column for places and one for GPU instances, if the driver says any."""
    rows = list(table)
    for at, head in enumerate(("PLACE", "GPU INSTANCE")):
        if any(place[at] is not None for place in places):
            cells = [head, *("-" if place[at] is None else str(place[at]) for place in places)]
            rows = [(*row[:-1], cell, row[-1]) for row, cell in zip(rows, cells, strict=True)]
    return rows


def _row(instance: Instance, host: HostFacts, usage: Usage, opened: OpenNodes) -> tuple[str, ...]:
    users, complete = use_of(instance, host, usage, opened)
    used = ", ".join(users) or ("-" if complete else "?")
    return instance.device, instance.parent, visible(instance.type_name), made_for(instance) or "-", visible(used)


def _place(instance: Instance, host: HostFacts) -> tuple[int | None, int | None]:
    """The placement and the GPU instance that the driver has chosen for a vGPU, as far as it says so."""
    state = None if instance.vf is None else host.details[instance.vf].vgpu
    return (None, None) if state is None else (state.placement, state.gpu_instance)
