"""What a picture shows of a host and of a guest, before it has places: nodes, lanes, frames, cards, findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from launcherkit.errors import LauncherkitError, counted
from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.show.guest_rows import GuestBox, guest_of_tree, refused_guest
from launcherkit.show.item import Item
from launcherkit.show.layout import short_address, visible
from launcherkit.show.outline import node_label, outline
from launcherkit.show.state import LOOKS, NO_REPORTS, CardState, Report, States, first_of
from launcherkit.show.topology import HostTopology, RootComplex, TreeBridge, TreeFunction, TreeNode, TreeSlot


@dataclass(frozen=True, slots=True)
class CardFunction:
    """A function of a card."""

    number: int
    state: CardState
    driver: str
    """Empty for none."""
    kind: str
    group: int | None
    trouble: str
    """Why it keeps itself, or its group, from guests: ``bound to snd_hda_intel``; empty if it doesn't."""


@dataclass(frozen=True, slots=True)
class CardShares:
    """VFs, or mediated devices of a type, of one card."""

    label: str
    kind: str
    """``VFs``, or the mediated devices' type."""
    states: tuple[CardState, ...]


@dataclass(frozen=True, slots=True)
class HostCard:
    """A slot's functions: a tile of the picture."""

    slot: PciSlot
    name: str
    state: CardState
    functions: tuple[CardFunction, ...]
    link: str
    """``PCIe 16 GT/s x16``; empty if unknown."""
    width: str
    """``x16``, or ``x4 of 16`` if it could have more lanes."""
    port: str
    """The port that leads to it; empty if it has none of its own."""
    narrow: bool
    """Whether its link could have more lanes."""
    owners: tuple[str, ...]
    """``VM train``, ``pod team/web``: who holds it, or some of it."""
    requests: tuple[str, ...]
    """The requests of a VM that it answers."""
    shares: tuple[CardShares, ...]
    names: tuple[str, ...]
    """The addresses and UUIDs of all that is on it."""
    details: tuple[str, ...]
    """All that is known of it, in lines."""

    @property
    def groups(self) -> tuple[int, ...]:
        """The IOMMU groups of its functions."""
        return tuple(dict.fromkeys(each.group for each in self.functions if each.group is not None))


@dataclass(frozen=True, slots=True)
class Frame:
    """Those cards of one lane that share an IOMMU group."""

    group: int
    blocked: bool
    elsewhere: tuple[PciSlot, ...]
    """Cards of the group that are not in this lane."""
    cards: tuple[HostCard, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """A root complex, or a switch, with what is behind it."""

    label: str
    units: tuple[HostCard | Frame | Lane, ...]


@dataclass(frozen=True, slots=True)
class NumaBox:
    """A NUMA node."""

    label: str
    counts: Mapping[CardState, int]
    """How many cards are in each state."""
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps functions from guests, once for all that it concerns."""

    code: str
    text: str
    slots: tuple[PciSlot, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a picture shows."""

    findings: tuple[Obstacle, ...]
    nodes: tuple[NumaBox, ...]
    guest: GuestBox | None
    cards: Mapping[CardState, int]
    """How many have each state."""
    shares: Mapping[CardState, int]
    """The same of VFs and mediated devices."""
    notes: tuple[str, ...]


def contents_of(
    topology: HostTopology,
    reports: Mapping[str, Report] = NO_REPORTS,
    refused: tuple[str, Sequence[LauncherkitError]] | None = None,
) -> Contents:
    """What a picture shows.

    Args:
        topology: of a host, with a guest where there is one.
        reports: what the device plugin says of devices, by address or UUID.
        refused: the name of a guest that can't have its devices, and why.
    """
    cards = _Cards(topology, reports)
    nodes = tuple(map(cards.node, topology.nodes))
    guest = refused_guest(*refused) if refused else None if topology.guest is None else guest_of_tree(topology.guest)
    of_cards = Counter(card.state for card in cards.all)
    of_shares = Counter(state for card in cards.all for each in card.shares for state in each.states)
    notes = []
    if topology.left_out:
        notes.append(f"{counted(topology.left_out, 'other function')} not shown; launcherkit topology --all shows all")
    return Contents(tuple(_findings(topology)), nodes, guest, of_cards, of_shares, tuple(notes))


class _Cards:
    """Makes the cards of a host, and the lanes that they are in."""

    def __init__(self, topology: HostTopology, reports: Mapping[str, Report]) -> None:
        self._states = States(topology, reports)
        self._reports = reports
        self._owners: dict[str, list[str]] = {}
        for held in topology.held or ():
            who = f"VM {held.vm}" if held.vm else f"pod {held.pod}" if held.pod else f"claim {held.claim}"
            self._owners.setdefault(held.device, []).append(visible(who))
        self._requests = (
            {each.source: visible(each.request) for each in topology.guest.functions()} if topology.guest else {}
        )
        places = list(topology.places())
        items = _slots(outline(topology).nodes)
        self._of = {_key(place.slot): self._card(place.slot, item) for place, item in zip(places, items, strict=True)}
        self.all = tuple(self._of.values())
        self._blocked = {group.number for group in topology.groups if group.blockers}
        on = Counter(group for card in self.all for group in card.groups)
        self._wide = {group for group, number in on.items() if number > 1}
        """The groups of several cards."""

    def _card(self, slot: TreeSlot, item: Item) -> HostCard:
        functions = tuple(self._function(function) for function in slot.functions)
        main = next((each for each in slot.functions if each.state not in ("host", "unused")), slot.functions[0])
        width, wider = _width(slot)
        names = tuple(_names(slot))
        return HostCard(
            slot=slot.slot,
            name=_name(main),
            state=first_of(function.state for function in functions),
            functions=functions,
            link=next((part.text for part in item.parts if part.role == "detail"), ""),
            width=width + (f" of {wider}" if wider else ""),
            port="",
            narrow=wider is not None,
            owners=tuple(dict.fromkeys(owner for name in names for owner in self._owners.get(name, ()))),
            requests=tuple(dict.fromkeys(self._requests[name] for name in names if name in self._requests)),
            shares=tuple(_shares(slot.functions, self._states)),
            names=names,
            details=tuple(self._details(item, [function.state for function in functions], names)),
        )

    def _function(self, function: TreeFunction) -> CardFunction:
        own = (visible(blocker.why) for blocker in function.blockers if blocker.device == function.address)
        return CardFunction(
            number=function.address.function,
            state=self._states.of(function),
            driver=visible(function.driver or ""),
            kind=visible(function.kind),
            group=function.group,
            trouble=next(own, ""),
        )

    def _details(self, item: Item, states: Sequence[CardState], names: Iterable[str]) -> Iterator[str]:
        yield "  ".join((item.label, *item.details, *([item.badge] if item.badge else ())))
        rest = iter(states)
        for inner in _leaves(item.items):
            if inner.kind == "function":
                yield "  ".join((inner.label, LOOKS[next(rest)].word, *filter(None, (inner.name,)), *inner.details))
            else:
                yield "  ".join((inner.label, *inner.details))
        yield from (visible(self._reports[name].text) for name in names if name in self._reports)

    def node(self, node: TreeNode) -> NumaBox:
        """A NUMA node with its lanes."""
        lanes = tuple(self._complex(root) for root in node.complexes)
        states = Counter(card.state for lane in lanes for card in cards_in(lane))
        return NumaBox(node_label(node) + (f"  CPUs {node.cpus}" if node.cpus else ""), states, lanes)

    def _complex(self, root: RootComplex) -> Lane:
        label, units = visible(root.name or "on a path that isn't known"), self._units(root)
        if len(units) == 1 and isinstance(units[0], Lane):
            return Lane(f"{label} \u203a {units[0].label}", units[0].units)
        return Lane(label, units)

    def _units(self, branch: RootComplex | TreeBridge) -> tuple[HostCard | Frame | Lane, ...]:
        """Cards, with those behind ports of their own; then switches, and ports that lead to several slots."""
        cards = [self._of[_key(slot)] for slot in branch.slots]
        lanes = []
        for bridge in branch.bridges:
            label = f"{short_address(bridge.address)} {bridge.kind}"
            while len(bridge.bridges) == 1 and not bridge.slots:
                (bridge,) = bridge.bridges  # noqa: PLW2901  # to the end of the chain
                label += f" \u203a {short_address(bridge.address)} {bridge.kind}"
            if not bridge.bridges and len(bridge.slots) == 1:
                cards.append(replace(self._of[_key(bridge.slots[0])], port=short_address(visible(bridge.address))))
            else:
                lanes.append(Lane(visible(label), self._units(bridge)))
        return (*self._framed(cards), *lanes)

    def _framed(self, cards: Sequence[HostCard]) -> Iterator[HostCard | Frame]:
        """The cards of a lane, those of one IOMMU group together in a frame."""
        done: set[PciSlot] = set()
        for card in cards:
            group = next((group for group in card.groups if group in self._wide), None)
            if card.slot in done:
                continue
            if group is None:
                yield card
                continue
            members = tuple(each for each in cards if group in each.groups and each.slot not in done)
            done.update(each.slot for each in members)
            here = {each.slot for each in members}
            others = (each.slot for each in self.all if group in each.groups and each.slot not in here)
            yield Frame(group, group in self._blocked, tuple(others), members)


def _key(slot: TreeSlot) -> PciAddress:
    """Unlike its number, its first function is in one place only."""
    return slot.functions[0].address


def cards_in(unit: HostCard | Frame | Lane) -> Iterator[HostCard]:
    """All cards of a lane or frame."""
    if isinstance(unit, HostCard):
        yield unit
        return
    for inner in unit.units if isinstance(unit, Lane) else unit.cards:
        yield from cards_in(inner)


def _slots(items: Iterable[Item]) -> Iterator[Item]:
    """The slots of an outline, in its order."""
    for item in items:
        if item.kind == "slot":
            yield item
        else:
            yield from _slots(item.items)


def _leaves(items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        yield item
        yield from _leaves(item.items)


def _width(slot: TreeSlot) -> tuple[str, int | None]:
    """The lanes of its link, and how many it could have if it has fewer."""
    for function in slot.functions:
        if function.link is not None and function.link.width:
            return f"x{function.link.width}", function.wider
    return "", None


def _names(slot: TreeSlot) -> Iterator[str]:
    """The addresses and UUIDs of all that is on a card."""
    for function in slot.functions:
        yield str(function.address)
    for function in slot.functions:
        yield from (str(vf) for vfs in function.vfs for vf in vfs.addresses)
        yield from (uuid for mdevs in function.mdevs for uuid in mdevs.uuids)


def _name(function: TreeFunction) -> str:
    """What is in brackets in the name of a device is what it is sold as."""
    name = visible(function.name or "")
    sold = name.rpartition("[")[2].partition("]")[0] if name.endswith("]") else ""
    return sold or name or f"{visible(function.kind)} {function.ids}"


def _shares(functions: Iterable[TreeFunction], states: States) -> Iterator[CardShares]:
    for function in functions:
        vfs = [state for each in function.vfs for state in states.of_vfs(each)]
        if vfs:
            types = dict.fromkeys(visible(each.type) for each in function.vfs if each.type)
            total = f" of {function.possible_vfs}" if function.possible_vfs not in (None, len(vfs)) else ""
            yield CardShares(" ".join((f"{len(vfs)}{total} VFs", *types)), "VFs", tuple(vfs))
        for mdevs in function.mdevs:
            more = "" if mdevs.possible is None else f" +{mdevs.possible}"
            label = f"{len(mdevs.uuids)}{more} {visible(mdevs.type)}"
            yield CardShares(label, visible(mdevs.type), tuple(map(states.of_name, mdevs.uuids)))


def _findings(topology: HostTopology) -> Iterator[Obstacle]:
    alike: dict[tuple[str, str], list[tuple[str, PciSlot, int | None]]] = {}
    for blocker, group in topology.blockers():
        alike.setdefault((blocker.code, blocker.why), []).append((str(blocker.device), blocker.device.slot, group))
    for (code, reason), causes in alike.items():
        devices = tuple(dict.fromkeys(device for device, _, _ in causes))
        slots = tuple(dict.fromkeys(slot for _, slot, _ in causes))
        groups = sorted({group for _, _, group in causes if group is not None})
        verb = "keep" if devices[1:] else "keeps"
        names = f"IOMMU {'groups' if groups[1:] else 'group'} {', '.join(map(str, groups))}"
        text = visible(reason) + (f", {verb} {names} from guests" if groups else "")
        where = ", ".join(short_address(slot) for slot in slots)
        yield Obstacle(
            code, f"{len(devices)} functions {text}: {where}" if devices[1:] else f"{text}: {devices[0]}", slots
        )
