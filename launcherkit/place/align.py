"""Decides behind which root complex of the guest each card belongs (P4)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.errors import NO_INITIATORS, NOT_ALIGNED, LauncherkitError, NoPlace
from launcherkit.model.address import GuestAddress, PciAddress
from launcherkit.model.domain import ROOT_BUS, Affinity, DomainFacts, GuestCell, GuestTree
from launcherkit.model.host import HostFacts, NumaNode, switches_above
from launcherkit.model.plan import Note
from launcherkit.model.policy import Topology


class Card(NamedTuple):
    """A card, with those of its PCI functions that are attached."""

    functions: tuple[PciAddress, ...]
    """In order."""
    fixed: bool
    """Whether the document gives its place."""
    guest: GuestAddress | None
    """That place, if it is a PCI address."""

    @property
    def first(self) -> PciAddress:
        """Its lowest attached function, by which it is named."""
        return self.functions[0]


class Alignment(NamedTuple):
    """The affinities of cards, by first function; cards without one are placed as if the guest had no cells."""

    affinities: Mapping[PciAddress, Affinity]
    notes: tuple[Note, ...] = ()
    errors: tuple[LauncherkitError, ...] = ()
    """`NOT_ALIGNED` under ``topology: strict``, `NO_INITIATORS`."""
    nodesets: Mapping[PciAddress, frozenset[int]] = {}
    """The cells of each function that is a generic initiator (P7)."""
    cells: tuple[int, ...] = ()
    """Those of these cells that must be added to the guest."""


# The NUMA cell of the guest for a node of the host (P4).


class Nearest(NamedTuple):
    """A cell, and its host node if that isn't the device's own."""

    cell: int
    instead: int | None = None


class CellMap:
    """The guest's cells by host node, as in KubeVirt: by ``<memnode>`` first, else by the pinned vCPUs."""

    def __init__(self, cells: Sequence[GuestCell], numa: Mapping[int, NumaNode]) -> None:
        self._numa = numa
        self._by_memory = _unambiguous((node, cell.id) for cell in cells for node in cell.nodes)
        # A host CPU to which vCPUs of two cells are pinned says nothing about either.
        self._by_cpu = _unambiguous((cpu, cell.id) for cell in cells for cpu in cell.cpus)

    def find(self, node: int) -> Nearest | None:
        """The cell for a device on a host node.

        No vCPU can be pinned to a node without CPUs. If no memory is bound to it either, the cell is that of the
        nearest node that has one, and of equally near ones the lowest.
        """
        own = self._own(node)
        if own is not None:
            return Nearest(own)
        numa_node = self._numa.get(node)
        if numa_node is None or numa_node.cpus:
            return None
        others = [(distance, other) for other, distance in numa_node.distances.items() if other != node]
        for _, other in sorted(others):
            cell = self._own(other)
            if cell is not None:
                return Nearest(cell, other)
        return None

    def _own(self, node: int) -> int | None:
        if node in self._by_memory:
            return self._by_memory[node]
        numa_node = self._numa.get(node)
        cpus = () if numa_node is None else sorted(numa_node.cpus)
        return next((self._by_cpu[cpu] for cpu in cpus if cpu in self._by_cpu), None)


def _unambiguous(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The value of each key that has only one."""
    values_of: dict[int, set[int]] = {}
    for key, value in pairs:
        values_of.setdefault(key, set()).add(value)
    return {key: next(iter(values)) for key, values in values_of.items() if len(values) == 1}


def describe_cells(cells: Iterable[GuestCell]) -> str:
    """The cells with what they are bound to, for messages."""
    return "; ".join(f"cell {cell.id}: {_bound(cell)}" for cell in cells if not cell.empty)


def _bound(cell: GuestCell) -> str:
    if cell.nodes:
        return f"host node {', '.join(map(str, sorted(cell.nodes)))}"
    return "vCPUs pinned" if cell.cpus else "bound to nothing"


def align(cards: Sequence[Card], domain: DomainFacts, host: HostFacts, topology: Topology) -> Alignment:
    """Find the affinity of each card that can go anywhere; ``numa`` and ``strict`` also check the places of the others.

    Args:
        cards: in the order of the plan.
        domain: the guest's cells and controllers.
        host: with NUMA nodes and the paths of functions: `Host.facts` with ``topology``.
        topology: the policy; not ``flat``.
    """
    by_cell = topology in ("numa", "strict")
    cards = [card for card in cards if not card.fixed or (card.guest is not None and by_cell)]
    cells = _cell_map(cards, domain, host, topology)
    switches = _shared_switches(cards, host) if topology == "switches" else {}
    tree = domain.tree
    affinities: dict[PciAddress, Affinity] = {}
    missed: dict[str, list[PciAddress]] = {}
    notes: list[Note] = []
    for card in cards:
        first, guest = card.first, card.guest
        target = None if cells is None else find_cell(first, cells, domain, host)
        if guest is not None:
            target = _wrong_place(guest, target.cell, tree) if isinstance(target, Nearest) else target
        elif isinstance(target, Nearest) or first in switches:
            cell = target.cell if isinstance(target, Nearest) else ROOT_BUS
            affinities[first] = Affinity(cell, root_complex_of(first, host), switches.get(first, ""))
        if isinstance(target, str):
            missed.setdefault(target, []).append(first)
        elif target is not None:
            notes += nearest_note(first, target)
    return _without_cells(Alignment(affinities, tuple(notes)), missed, topology)


def _wrong_place(guest: GuestAddress, cell: int, tree: GuestTree) -> str | None:
    """Why a card that the document places isn't aligned with a cell; None if it is."""
    expander = tree.expander_above(guest)
    if expander is not None and expander.cell == cell:
        return None
    actual = "no cell" if expander is None else f"cell {expander.cell}"
    return f"{guest} in the guest belongs to {actual}, not to cell {cell}"


def _without_cells(alignment: Alignment, missed: Mapping[str, Sequence[PciAddress]], topology: Topology) -> Alignment:
    """The alignment with what follows from cards that can't be aligned: under ``strict`` errors, else notes.

    Args:
        alignment: of the other cards.
        missed: the cards, by the reason in words.
        topology: the policy.
    """
    if topology == "strict":
        errors = [_not_aligned(first, reason) for reason, firsts in missed.items() for first in firsts]
        return alignment._replace(errors=(*alignment.errors, *errors))
    notes = [Note("not-aligned", f"{', '.join(map(str, firsts))}: {reason}") for reason, firsts in missed.items()]
    return alignment._replace(notes=(*alignment.notes, *notes))


def _cell_map(cards: Iterable[Card], domain: DomainFacts, host: HostFacts, topology: Topology) -> CellMap | None:
    """The host nodes of the guest's cells; None if the policy doesn't place cards by them."""
    if topology not in ("numa", "strict"):
        several = domain.has_several_cells and domain.is_bound and _has_expanders(domain)
        if not several or all(_node(card.first, host) is None for card in cards):
            return None
    return CellMap(domain.cells, host.numa)


def _has_expanders(domain: DomainFacts) -> bool:
    """Whether libvirt accepts ``pcie-expander-bus``: on q35 and Arm's virt, but not on riscv64's virt."""
    return domain.pci_root == "pcie" and domain.machine.startswith(("x86_64/", "i686/", "aarch64/virt"))


def find_cell(first: PciAddress, cells: CellMap, domain: DomainFacts, host: HostFacts) -> Nearest | str:
    """The cell of a card, or why there is none."""
    if not _has_expanders(domain):
        return f"{domain.machine} can't have a pcie-expander-bus"
    node = _node(first, host)
    if node is None:
        return "its host node is not known"
    return cells.find(node) or f"no cell of the guest is on its host node {node} ({describe_cells(domain.cells)})"


def nearest_note(first: PciAddress, nearest: Nearest) -> Iterator[Note]:
    """A note if the cell is not that of the card's own node."""
    if nearest.instead is not None:
        text = f"its host node has no CPUs; cell {nearest.cell} is nearest, by host node {nearest.instead}"
        yield Note("nearest-cell", f"{first}: {text}")


def _node(first: PciAddress, host: HostFacts) -> int | None:
    function = host.functions.get(first)
    return None if function is None else function.numa_node


def root_complex_of(first: PciAddress, host: HostFacts) -> str:
    """The host's root complex above a function, such as ``pci0000:e0``; empty if unknown."""
    return next(iter(_path_of(first, host)), "")


def _path_of(first: PciAddress, host: HostFacts) -> tuple[str, ...]:
    """The path to a function below ``/sys/devices``, the root complex first; empty if unknown."""
    detail = host.details.get(first)
    return () if detail is None else detail.parents


def _shared_switches(cards: Iterable[Card], host: HostFacts) -> dict[PciAddress, str]:
    """The upstream port of the host switch above each card that shares a switch with another card."""
    below: dict[str, list[PciAddress]] = {}
    for card in cards:
        switches = switches_above(_path_of(card.first, host))
        if card.guest is None and switches:
            below.setdefault(switches[-1], []).append(card.first)
    return {first: switch for switch, firsts in below.items() if len(firsts) > 1 for first in firsts}


def _not_aligned(address: PciAddress, reason: str) -> NoPlace:
    return NOT_ALIGNED(
        f"{address} can't be placed by NUMA cell, as `topology: strict` wants it: {reason}",
        "Run the VM on the nodes of its devices: bind its cells with <memnode> or pin its vCPUs there, or take devices "
        "of its nodes. `topology: numa` or `auto` place such a device without a cell.",
        device=str(address),
    )


def no_initiators(address: PciAddress, reason: str) -> NoPlace:
    return NO_INITIATORS(
        f"{address} can't be a generic initiator, as `genericInitiators: yes` wants it: {reason}",
        "Add what the domain lacks, take the address out of the GPU's hostdev, or set genericInitiators: no.",
        device=str(address),
    )


def without_room(alignment: Alignment, topology: Topology) -> Alignment:
    """Drop all affinities: there are too few slots for the expanders on the root bus, or too few bus numbers."""
    reason = "the guest has no room for another pcie-expander-bus"
    alone = sorted(first for first, affinity in alignment.affinities.items() if affinity.alone)
    firsts = sorted(alignment.affinities.keys() - alone)
    errors = (*alignment.errors, *(no_initiators(first, reason) for first in alone))
    return _without_cells(
        alignment._replace(affinities={}, errors=errors), {reason: firsts} if firsts else {}, topology
    )
