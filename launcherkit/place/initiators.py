"""Cells of the guest for the memory of Grace's GPUs, which are generic initiators in ACPI's terms (P7)."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import NamedTuple

from launcherkit.model.address import PciAddress
from launcherkit.model.domain import Affinity, DomainFacts
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit.place.align import (
    Alignment,
    Card,
    CellMap,
    find_cell,
    nearest_note,
    no_initiators,
    root_complex_of,
)

CELLS = 8
"""Cells for each GPU: for its memory and that of its MIG instances."""
_DRIVER = "nvgrace_gpu_vfio_pci"
_MODELS = frozenset((0x10DE, device) for device in (0x2342, 0x2345, 0x2348, 0x2941, 0x31C2, 0x3041))
"""GH200, GB200 and GB300, from that driver's table of devices; Vera Rubin, which KubeVirt treats alike (its #19070)."""


class Gpu(NamedTuple):
    """An attached Grace GPU."""

    address: PciAddress
    card: Card


def is_coherent_gpu(function: PciFunction) -> bool:
    """Whether the host's CPUs share its memory: it has the driver that passes such memory on, or is a known model."""
    driver = (function.driver or "").replace("-", "_")
    return not function.is_vf and (driver == _DRIVER or function.model in _MODELS)


def coherent_gpus(cards: Iterable[Card], host: HostFacts) -> list[Gpu]:
    """The GPUs whose memory the host's CPUs share, in the order of the cards."""
    return [
        Gpu(address, card)
        for card in cards
        for address in card.functions
        if (function := host.functions.get(address)) is not None and is_coherent_gpu(function)
    ]


def with_initiators(alignment: Alignment, gpus: Sequence[Gpu], domain: DomainFacts, host: HostFacts) -> Alignment:
    """Give each GPU eight empty cells of the guest and an expander of its own.

    Args:
        alignment: for all other cards.
        gpus: in the order of the plan.
        domain: the guest's cells, controllers and hostdevs.
        host: with NUMA nodes and the paths of functions.
    """
    declared = {each.source: each.nodeset for each in domain.hostdevs}
    cells = CellMap(domain.cells, host.numa)
    highest = max([cell.id for cell in domain.cells], default=-1)
    free = chain(_unused(domain), count(highest + 1))
    affinities, notes, errors = dict(alignment.affinities), [*alignment.notes], [*alignment.errors]
    nodesets: dict[PciAddress, frozenset[int]] = {}
    for gpu in gpus:
        own = declared.get(gpu.address)
        nodesets[gpu.address] = frozenset(islice(free, CELLS)) if own is None else own
        if own is not None and gpu.card.fixed:
            continue
        target = _not_here(domain) or find_cell(gpu.card.first, cells, domain, host)
        if not isinstance(target, str) and gpu.card.fixed:
            target = _not_there(gpu, target.cell, domain) or target
        if isinstance(target, str):
            errors.append(no_initiators(gpu.address, target))
            continue
        if not gpu.card.fixed:
            affinities[gpu.card.first] = Affinity(target.cell, root_complex_of(gpu.card.first, host), "", alone=True)
            notes += nearest_note(gpu.card.first, target)
    added = sorted(cell for nodeset in nodesets.values() for cell in nodeset if cell > highest)
    return Alignment(affinities, tuple(notes), tuple(errors), nodesets, tuple(added))


def _unused(domain: DomainFacts) -> Iterator[int]:
    """The document's empty cells that nothing uses yet; its author may have added them for this."""
    used = {each.cell for each in domain.controllers}
    used.update(cell for each in domain.hostdevs for cell in each.nodeset or ())
    return (cell.id for cell in domain.cells if cell.empty and cell.id not in used)


def _not_here(domain: DomainFacts) -> str | None:
    """Why no GPU of this domain can be a generic initiator; None if they can."""
    if domain.pci_root != "pcie" or not domain.machine.startswith("aarch64/virt"):
        return f"Grace's guests are of aarch64's virt, and this one is {domain.machine}"
    return None if domain.cells else "the domain has no NUMA cells, to which the GPU's could be added"


def _not_there(gpu: Gpu, cell: int, domain: DomainFacts) -> str | None:
    """What is wrong with a GPU's place in the document; None if nothing is."""
    tree, guest = domain.tree, gpu.card.guest
    expander = None if guest is None else tree.expander_above(guest)
    if guest is None or expander is None or expander.cell != cell:
        return f"it is at {guest or 'no PCI address'} in the guest, which is not behind an expander of cell {cell}"
    slot = guest.function_0
    others = [hostdev.guest for hostdev in domain.hostdevs if hostdev.guest and hostdev.guest.function_0 != slot]
    if any(tree.expander_above(other) == expander for other in others):
        return f"another hostdev is behind its expander {expander.number}"
    return None
