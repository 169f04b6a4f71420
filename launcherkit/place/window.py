"""Makes room for the BARs of attached functions in the guest's 64-bit PCI window (P5)."""

from __future__ import annotations

from launcherkit.model.address_space import BELOW_WINDOW, OVMF_WITHOUT_HUGE_PAGES, VIRT_WINDOW, AddressSpace
from launcherkit.model.domain import DomainFacts
from launcherkit.model.plan import Note, Window
from launcherkit.model.window import GIB, MIB, is_virt

_HOST_BITS = "<maxphysaddr mode='passthrough'/>, which libvirt takes from 8.7 on, on KVM"


def plan_window(
    needed: tuple[int, int], domain: DomainFacts, space: AddressSpace, *, grows: bool = False
) -> tuple[Window | None, tuple[Note, ...]]:
    """The window to write so that the BARs fit, with notes on what can't be written.

    Args:
        needed: from `window_beyond_default`.
        domain: has the machine.
        space: the domain's.
        grows: whether a window of the document that is too small becomes larger.
    """
    need, size = needed
    if is_virt(domain):
        return None, _notes_for_virt(need, size, space)
    root = f"{domain.pci_root}-root"
    small = space.hole is not None and space.hole < need
    if space.hole is not None and small and not grows:
        seen = f"<pcihole64> of the domain has {size_in_words(space.hole)}, which stays"
        return Window(need, None, space.can_pass_bits, root), (Note("window", f"{_needed(need)}; {seen}"),)
    fits = space.bits is None or BELOW_WINDOW + (space.memory or 0) + size <= 1 << space.bits
    hole = size if fits and (space.hole is None or small) else None
    return Window(need, hole, space.can_pass_bits, root), _notes_for_firmware(need, size, space, fits=fits)


def _needed(need: int) -> str:
    return f"the attached devices need {size_in_words(need)} of the guest's 64-bit PCI window"


def _notes_for_virt(need: int, size: int, space: AddressSpace) -> tuple[Note, ...]:
    if size <= (VIRT_WINDOW if space.hole is None else space.hole):
        return ()
    argument = f"<qemu:arg value='-machine'/><qemu:arg value='virt,highmem-mmio-size={size // GIB}G'/>"
    how = f"<pcihole64> where libvirt takes it for virt, as 12.8 does, else <qemu:commandline>{argument}"
    has = "has 512 GiB by default" if space.hole is None else f"has {size_in_words(space.hole)} by its <pcihole64>"
    return (Note("window", f"{_needed(need)}, and virt {has}; for {size_in_words(size)} write {how}"),)


def _notes_for_firmware(need: int, size: int, space: AddressSpace, *, fits: bool) -> tuple[Note, ...]:
    """Notes if the elements don't suffice. QEMU doesn't start with a window beyond what the CPU can address."""
    if not fits:
        cpu = f"the guest's CPU has {space.bits} bits of addresses, too few for its memory and {size_in_words(size)}"
        return (Note("window", f"{_needed(need)}; {cpu}, so nothing is written: give it {_HOST_BITS}"),)
    if not space.uefi:
        return ()
    if space.bits is not None:
        cpu = "OVMF has 32 GiB where the guest's CPU doesn't have the host's address bits"
        return (Note("window", f"{_needed(need)}; {cpu}: give it {_HOST_BITS}, or {_by_firmware(size)}"),)
    if not space.huge_pages and size > OVMF_WITHOUT_HUGE_PAGES:
        cpu = "without 1 GiB pages (pdpe1gb) in the guest's CPU OVMF has 128 GiB"
        other = "give it a model that has them, such as mode='host-model'"
        return (Note("window", f"{_needed(need)}; {cpu}: {other}, or {_by_firmware(size)}"),)
    return ()


def _by_firmware(size: int) -> str:
    fwcfg = f"<qemu:arg value='-fw_cfg'/><qemu:arg value='name=opt/ovmf/X-PciMmio64Mb,string={size // MIB}'/>"
    return f"tell OVMF by <qemu:commandline>{fwcfg}"


def size_in_words(amount: int) -> str:
    """In GiB, or in MiB if it isn't a whole number of GiB."""
    return f"{amount // GIB} GiB" if amount % GIB == 0 else f"{-(-amount // MIB)} MiB"
