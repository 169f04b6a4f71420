"""The guest's 64-bit PCI window: what BARs need of it, and what a domain says of it (P5)."""

from collections.abc import Iterable

from launcherkit.model.address import PciAddress
from launcherkit.model.function import Bar
from launcherkit.model.host import HostFacts
from launcherkit.model.value import NamedTuple

MIB, GIB = 1 << 20, 1 << 30
_MEMORY, _64_BIT, _PREFETCHABLE = 0x200, 0x4, 0x8
_WANTED = _MEMORY | _64_BIT | _PREFETCHABLE
_ROM, _VF_BARS = 6, range(7, 13)

DEFAULT_WINDOWS = {"pcie": 32 * GIB, "pci": 2 * GIB}
"""What QEMU gives q35 (hw/pci-host/q35.c) and pc (hw/pci-host/i440fx.c) where nothing is said, by topology."""
VIRT_WINDOW = 512 * GIB
"""What it gives Arm's virt (hw/arm/virt.c)."""
BELOW_WINDOW = 4 * GIB
"""The window is above all memory, some of which is above this."""
OVMF_WITHOUT_HUGE_PAGES = 128 * GIB
"""OVMF's window where the guest's CPU has no 1 GiB pages: an eighth of 40 bits."""


class AddressSpace(NamedTuple):
    """What a domain document says of the guest's address space. Sizes are bytes."""

    hole: int | None
    """``<pcihole64>`` of the root."""
    bits: int | None
    """Of the guest CPU's physical addresses; None for those of the host's CPU."""
    can_pass_bits: bool
    """The document doesn't say yet how many, and the CPU can have the host's by ``<maxphysaddr>``."""
    memory: int | None
    """All that the guest has or can get; None where the document doesn't say."""
    huge_pages: bool
    """The CPU is not denied 1 GiB pages. Without them OVMF uses 40 bits of addresses at most."""
    uefi: bool
    """The firmware is UEFI, which on x86 is OVMF."""


def prefetchable(bars: Iterable[Bar]) -> list[int]:
    """The sizes of a function's prefetchable 64-bit BARs, those of its VFs too; powers of two, as BARs are.

    The line of a VF BAR is one for all VFs together.
    """
    return [
        bar.size if bar.line in _VF_BARS else 1 << (bar.size - 1).bit_length()
        for bar in bars
        if bar.flags & _WANTED == _WANTED and bar.line != _ROM and bar.line <= _VF_BARS[-1] and bar.size > 0
    ]


def card_bars(addresses: Iterable[PciAddress], host: HostFacts) -> list[list[int]]:
    """The sizes of the prefetchable 64-bit BARs of each slot that functions are in, but of HD audio, which has none."""
    cards: dict[tuple[int, ...], list[int]] = {}
    for address in addresses:
        function = host.functions.get(address)
        if function is None or function.is_hd_audio:
            continue
        detail = host.details.get(address)
        if detail is not None and detail.resources:
            cards.setdefault(address[:3], []).extend(prefetchable(detail.resources))
    return list(cards.values())


def window_need(cards: Iterable[Iterable[int]]) -> int:
    """Bytes from the first BAR to the last, as firmware lays them out.

    The BARs of a card are behind one bridge, which begins at a multiple of the largest of them; large ones come first.

    Args:
        cards: the sizes of the BARs of each card.
    """
    apertures = []
    for sizes in cards:
        listed = [*sizes]
        if listed:
            apertures.append((1 << (max(listed) - 1).bit_length(), -(-sum(listed) // MIB) * MIB))
    end = 0
    for alignment, size in sorted(apertures, reverse=True):
        end = -(-end // alignment) * alignment + size
    return end
