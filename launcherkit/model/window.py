"""The guest's 64-bit PCI window, and how much of it BARs need (P5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import Bar, HostFacts
from launcherkit.model.plan import GuestDevice, is_seen

MIB, GIB = 1 << 20, 1 << 30
_MEMORY, _64_BIT, _PREFETCHABLE = 0x200, 0x4, 0x8
_WANTED = _MEMORY | _64_BIT | _PREFETCHABLE
_ROM, _VF_BARS = 6, range(7, 13)

_X86 = ("x86_64/", "i686/")
_OTHERS = GIB
"""Bytes for the guest's other devices, such as virtio ones."""

DEFAULT_WINDOWS = {"pcie": 32 * GIB, "pci": 2 * GIB}
"""QEMU's defaults for q35 (hw/pci-host/q35.c) and pc (hw/pci-host/i440fx.c), in bytes, by topology."""


def prefetchable(bars: Iterable[Bar]) -> list[int]:
    """The sizes of a function's prefetchable 64-bit BARs, in bytes, including those of its VFs.

    Sizes of BARs are powers of two; the line of a VF BAR is for all VFs together.
    """
    return [
        size if bar.line in _VF_BARS else 1 << (size - 1).bit_length()
        for bar in bars
        if bar.flags & _WANTED == _WANTED and bar.line != _ROM and bar.line <= _VF_BARS[-1] and (size := bar.size) > 0
    ]


def card_bars(addresses: Iterable[PciAddress], host: HostFacts) -> list[list[int]]:
    """The sizes of the prefetchable 64-bit BARs of each slot with any of the functions, HD audio left out."""
    cards: dict[PciSlot, list[int]] = {}
    for address in addresses:
        detail = host.details.get(address)
        if detail is None or not detail.resources:
            continue
        function = host.functions.get(address)
        if function is not None and not function.is_hd_audio:
            cards.setdefault(address.slot, []).extend(prefetchable(detail.resources))
    return list(cards.values())


def window_need(cards: Iterable[Iterable[int]]) -> int:
    """Bytes from the first BAR to the last, as firmware lays them out.

    The BARs of a card are behind one bridge, whose window is aligned to the largest of them; large ones come first.

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


def window_beyond_default(
    devices: Sequence[GuestDevice], domain: DomainFacts, host: HostFacts, *, expanders: bool
) -> tuple[int, int] | None:
    """The bytes that firmware takes for the BARs, and the size of a window with room for them, in bytes.

    None if the machine's default has room or isn't known.

    Args:
        devices: everything that is attached.
        domain: has the machine.
        host: has the BARs.
        expanders: whether the guest has root buses besides its own: each gets a part of the window.
    """
    need = window_need(_cards(devices, domain, host))
    size = (1 << (need + _OTHERS - 1).bit_length()) * (2 if expanders else 1)
    default = DEFAULT_WINDOWS.get(domain.pci_root, size) if domain.machine.startswith(_X86) else size
    # The document may give virt a smaller window than its default.
    return (need, size) if need and (size > default or is_virt(domain)) else None


def is_virt(domain: DomainFacts) -> bool:
    """Whether it is Arm's virt."""
    return domain.machine.startswith("aarch64/virt") and domain.pci_root == "pcie"


def _cards(devices: Sequence[GuestDevice], domain: DomainFacts, host: HostFacts) -> list[list[int]]:
    """The sizes of the BARs of each card, as far as the guest sees it."""
    seen = ([each.source for each in device.attachments if is_seen(each, domain)] for device in devices)
    return [
        card
        for sources in seen
        for card in card_bars([source for source in sources if isinstance(source, PciAddress)], host)
    ]
