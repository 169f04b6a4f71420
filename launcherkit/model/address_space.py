"""What a domain document says about the guest's address space, in which the 64-bit PCI window is (P5)."""

from typing import NamedTuple

from launcherkit.model.window import GIB

VIRT_WINDOW = 512 * GIB
"""QEMU's default for Arm's virt (hw/arm/virt.c), in bytes."""
BELOW_WINDOW = 4 * GIB
"""The window is above all memory, the upper part of which is above this address."""
OVMF_WITHOUT_HUGE_PAGES = 128 * GIB
"""OVMF's window if the guest's CPU has no 1 GiB pages: an eighth of 40 bits."""


class AddressSpace(NamedTuple):
    """What a domain document says about the guest's address space. Sizes are in bytes."""

    hole: int | None
    """``<pcihole64>`` of the root."""
    bits: int | None
    """Physical address bits of the guest's CPU; None for those of the host's CPU."""
    can_pass_bits: bool
    """The document doesn't set the bits, and ``<maxphysaddr>`` can give the CPU the host's."""
    memory: int | None
    """All memory that the guest has or can get; None if the document doesn't say."""
    huge_pages: bool
    """The CPU may have 1 GiB pages. Without them OVMF uses at most 40 address bits."""
    uefi: bool
    """The firmware is UEFI, which on x86 is OVMF."""
