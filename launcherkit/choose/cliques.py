"""Which GPUs of a guest may access each other's memory directly: the cliques of NVIDIA's GPUDirect (P8). Pure.

The guest's driver trusts a clique. It is told by a capability in config space, which QEMU adds if ``vfio-pci`` has
``x-nv-gpudirect-clique``: hw/vfio/pci-quirks.c, with the specification that it names.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.host import HostFacts, switches_above
from launcherkit.model.plan import GuestDevice, Note

CLIQUES = 16
"""QEMU takes the numbers 0 to 15."""
_NVIDIA = 0x10DE
_DISPLAY = 0x03
"""QEMU refuses the property for any other base class."""
_TURING = 0x1E00
"""The lowest device ID of a GPU with Turing. Later architectures have higher ones, earlier ones lower ones: so it is in
the table of the PCI ID project, whose names begin with the chip (TU102), and a test compares them. NVIDIA's
specification for Turing and later has the capability at D4h, where QEMU puts it from 8.1 on."""


class Cliques(NamedTuple):
    """The clique of each GPU that could have one, by its address; None if it has none. With notes."""

    numbers: Mapping[HostAddress, int | None] = {}
    notes: tuple[Note, ...] = ()


def cliques_of(
    devices: Iterable[GuestDevice],
    host: HostFacts,
    by_iommufd: Set[HostAddress],
    *,
    is_old: bool = False,
) -> Cliques:
    """The cliques of a guest's GPUs: one for those below one PCIe switch, or, without one, below one root complex.

    A GPU that shares neither with another one gets no clique.

    Args:
        devices: of the plan, in its order; those that nobody asked about are left alone.
        host: with the paths of functions.
        by_iommufd: what goes to VFIO through iommufd.
        is_old: whether the libvirt that will define the domain has no place for them.
    """
    attached = [each.source for device in devices if not device.kept for each in device.attachments]
    gpus = [source for source in attached if isinstance(source, PciAddress) and _can_have_clique(source, host)]
    if is_old:
        return Cliques(notes=(_TOO_OLD,) if len(gpus) > 1 else ())
    numbers: dict[HostAddress, int | None] = dict.fromkeys(gpus)
    notes: list[Note] = []
    free = 0
    for place, beside in _by_place(gpus, host):
        if not by_iommufd.isdisjoint(beside):
            notes.append(_note(beside, _BY_IOMMUFD))
        elif free == CLIQUES:
            notes.append(_note(beside, _TOO_MANY))
        else:
            numbers |= dict.fromkeys(beside, free)
            where = "below" if place.startswith("pci") else "below the switch"
            notes.append(_note(beside, f"are told that they reach each other: they are {where} {place}"))
            free += 1
    return Cliques(numbers, tuple(notes))


def _by_place(gpus: Iterable[PciAddress], host: HostFacts) -> Iterator[tuple[str, list[PciAddress]]]:
    """The GPUs that share a switch or a root complex, with its name."""
    together: dict[str, list[PciAddress]] = {}
    for gpu in gpus:
        if place := _place(gpu, host):
            together.setdefault(place, []).append(gpu)
    return ((place, beside) for place, beside in together.items() if len(beside) > 1)


_TOO_OLD = Note("p2p", "no clique for peer-to-peer DMA is written: that needs libvirt 8.2 or later")
_TOO_MANY = f"get no clique for peer-to-peer DMA: QEMU has {CLIQUES} of them"
_BY_IOMMUFD = (
    "get no clique for peer-to-peer DMA: they go through iommufd, which maps the memory of a device only with Linux "
    "6.19 or later and a QEMU that exports it as DMA buffers, and neither is known here; `iommufd: no` opens their "
    "groups"
)


def _note(gpus: Iterable[PciAddress], text: str) -> Note:
    return Note("p2p", f"{', '.join(map(str, gpus))} {text}")


def _can_have_clique(source: PciAddress, host: HostFacts) -> bool:
    """Whether it is a whole GPU of NVIDIA's with Turing or a later architecture."""
    function = host.functions.get(source)
    if function is None or function.is_vf:
        return False
    is_nvidia = function.vendor == _NVIDIA and function.class_code >> 16 == _DISPLAY
    return is_nvidia and function.device >= _TURING


def _place(source: PciAddress, host: HostFacts) -> str:
    """The switch next to the root complex above a GPU, below which all others are; without one, the root complex.

    Host bridges of a device tree have directories above them: ``platform/40000000.pcie/pci0000:00``.
    """
    detail = host.details.get(source)
    path = () if detail is None else detail.parents
    roots = [part for part in path if part.startswith("pci")]
    return next(iter(switches_above(path) or roots[-1:]), "")
