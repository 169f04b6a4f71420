"""The cards on which vGPUs are created, their types, and the rule that applies to a type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, MdevParent, PciFunction
from launcherkit_plugin.model.config import VgpuRule
from launcherkit_plugin.model.texts import type_key


class VgpuCard(NamedTuple):
    """A device on which vGPUs are created: as its own mdevs, as mdevs of its VFs, or as VFs with a type (G4)."""

    name: str
    """The BDF of the card, or of its physical function if it has VFs. A parent that isn't a PCI device has a name."""
    address: PciAddress | None
    parents: tuple[MdevParent, ...]
    vfs: tuple[PciAddress, ...]
    """The VFs whose type can be set."""


def cards(host: HostFacts) -> tuple[VgpuCard, ...]:
    """The cards of a host, sorted by address; those without one come last."""
    parents: dict[str, list[MdevParent]] = {}
    vfs: dict[str, list[PciAddress]] = {}
    addresses: dict[str, PciAddress | None] = {}
    for parent in host.mdev_parents.values():
        address = None if parent.address is None else host.physical_function(parent.address)
        name = parent.name if address is None else str(address)
        addresses[name] = address
        parents.setdefault(name, []).append(parent)
    for vf, detail in host.details.items():
        if detail.vgpu is not None:
            card = host.physical_function(vf)
            addresses[str(card)] = card
            vfs.setdefault(str(card), []).append(vf)
    all_cards = [
        VgpuCard(name, address, tuple(sorted(parents.get(name, ()), key=_by_address)), tuple(sorted(vfs.get(name, ()))))
        for name, address in addresses.items()
    ]
    return tuple(sorted(all_cards, key=_by_address))


def _by_address(thing: VgpuCard | MdevParent) -> tuple[bool, tuple[int, ...], str]:
    return thing.address is None, thing.address or (), thing.name


class Instance(NamedTuple):
    """A vGPU that exists or could be created: an mdev, or a VF with a type."""

    device: str
    """UUID or BDF."""
    parent: str
    """Of an mdev, its parent; of a VF, the card."""
    type_id: str
    type_name: str
    """The name of its type, or the type's ID if it has no name."""
    named: bool = True
    """Whether the name of its type is known: the driver doesn't list types for which there is no room."""

    @property
    def vf(self) -> PciAddress | None:
        """The VF; None for an mdev."""
        try:
            return PciAddress.parse(self.device)
        except ValueError:
            return None

    @property
    def address(self) -> PciAddress | MdevAddress:
        """The device that a guest gets."""
        return self.vf or MdevAddress(self.device)

    def __str__(self) -> str:
        return (
            f"{self.type_name} on {self.device}"
            if self.vf
            else f"{self.type_name} on {self.parent}, mdev {self.device}"
        )


def kinds_of(card: VgpuCard, host: HostFacts) -> dict[str, str]:
    """The types that a card offers or has: from ID to name."""
    kinds = {kind.id: kind.name or kind.id for parent in card.parents for kind in parent.types}
    states = [state for vf in card.vfs if (state := host.details[vf].vgpu) is not None]
    kinds |= {str(state.current_type): str(state.current_type) for state in states if state.current_type}
    return kinds | {str(number): name for state in states for number, name in state.creatable}


def instances_on(card: VgpuCard, host: HostFacts) -> list[Instance]:
    """The existing vGPUs of a card."""
    parents = {parent.name for parent in card.parents}
    instances = [
        Instance(uuid, mdev.parent, mdev.type_id, mdev.type_name or mdev.type_id)
        for uuid, mdev in sorted(host.mdevs.items())
        if mdev.parent in parents
    ]
    kinds = kinds_of(card, host)
    for vf in card.vfs:
        state = host.details[vf].vgpu
        if state is not None and state.current_type:
            number = str(state.current_type)
            instances.append(Instance(str(vf), card.name, number, kinds[number], kinds[number] != number))
    return instances


def parent_name(vf: PciAddress, host: HostFacts) -> str:
    """The name of the card to which a VF belongs."""
    return str(host.physical_function(vf))


def is_meant(pattern: str, names: Iterable[str]) -> bool:
    """Whether one of a parent's or card's names matches a glob."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for name in names)


def is_type(pattern: str, type_id: str, name: str | None) -> bool:
    """Whether a type matches a glob, by its ID or name. As in KubeVirt, spaces and ``_`` are equal."""
    sought = type_key(pattern)
    return any(fnmatchcase(type_key(text), sought) for text in (type_id, name) if text)


def rank_of(patterns: Sequence[str], type_id: str, name: str | None) -> int | None:
    """The index of the first glob that a type matches; None if it matches none."""
    return next((at for at, pattern in enumerate(patterns) if is_type(pattern, type_id, name)), None)


def may_be_vgpu(function: PciFunction) -> bool:
    """Whether a function may be a vGPU: a VF that is a display controller or an accelerator."""
    return function.is_vf and function.class_code >> 16 in (0x03, 0x12)


NameOf: TypeAlias = Callable[[str, int | None], str]
"""The automatic name of a resource (K6), from the name of a type and the card's vendor."""


def rule_for(rules: Sequence[VgpuRule], parents: Iterable[str], type_id: str, name: str | None) -> VgpuRule | None:
    """The first rule that applies to a type on a parent.

    Args:
        rules: in order.
        parents: the names of the parent: its own, and its card's.
        type_id: of the type.
        name: of the type; None if it has none.
    """
    names = tuple(parents)
    return next(
        (
            rule
            for rule in rules
            if any(is_type(pattern, type_id, name) for pattern in rule.types) and is_from(rule, names)
        ),
        None,
    )


def is_from(rule: VgpuRule, names: Iterable[str]) -> bool:
    """Whether a rule applies to a parent with these names."""
    of_card = tuple(names)
    return not rule.parents or any(is_meant(pattern, of_card) for pattern in rule.parents)
