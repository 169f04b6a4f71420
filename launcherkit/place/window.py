"""Room for the BARs of what is attached, in the guest's 64-bit PCI window (P5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import HostFacts
from launcherkit.model.note import Note
from launcherkit.model.plan import Unit
from launcherkit.model.window import GIB, MIB, Window, prefetchable, window_need

_DEFAULTS = {"pcie": 32 * GIB, "pci": 2 * GIB}
"""What QEMU's q35 and pc have where nothing is said; libvirt can't say it for other machines of x86."""
_VIRT = 512 * GIB
_BELOW = 4 * GIB
"""The window is above memory, and memory above this."""
_OTHERS = GIB
"""For what the guest has besides: virtio devices and the like."""


def plan_window(
    units: Sequence[Unit], domain: DomainFacts, host: HostFacts, *, expanders: bool
) -> tuple[Window | None, tuple[Note, ...]]:
    """What is to be written so that the BARs fit, and what can't be.

    Args:
        units: all that is attached.
        domain: its machine and address space.
        host: the BARs.
        expanders: whether the guest has root buses besides its own, each of which gets a part of the window.

    Returns:
        None where the machine's default has room.
    """
    need = window_need(_cards(units, host))
    wanted = max(1 << (need + _OTHERS - 1).bit_length(), GIB) * (2 if expanders else 1)
    space, default = domain.space, _default(domain)
    if not need or space is None or default is None or wanted <= default:
        return None, ()
    if not domain.machine.startswith(_X86):
        return None, () if space.hole is not None else (_on_virt(need, wanted),)
    if space.hole is not None and space.hole < need:
        why = f"the attached devices need {_size(need)}, and <pcihole64> of the domain has {_size(space.hole)}"
        return Window(need, None, space.can_pass_bits), (Note("window", f"{why}; it stays as it is"),)
    fits = space.bits is None or _BELOW + (space.memory or 1 << space.bits) + wanted <= 1 << space.bits
    hole = wanted if space.hole is None and fits else None
    notes = [] if fits and space.huge_pages else [_beyond(need, wanted, domain)]
    return Window(need, hole, space.can_pass_bits), tuple(notes)
