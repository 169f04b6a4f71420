"""Do the large BARs fit into the guest's 64-bit PCI window, and what will firmware do (P5)?

What a guest has by default is in `launcherkit.model.window`. Firmware on x86 decides by itself. SeaBIOS puts large BARs
above all memory, whatever pcihole64 says. OVMF takes an eighth of the address space, of at most 46 bits
(`PlatformDynamicMmioWindow`), if it can trust the guest CPU's number of address bits, as it can if that is the host's.
If it can't, it takes 32 GiB; without 1 GiB pages, 128 GiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcherkit.doctor.facts import Facts
from launcherkit.doctor.finding import Finding
from launcherkit.model.address import PciAddress
from launcherkit.model.address_space import BELOW_WINDOW, OVMF_WITHOUT_HUGE_PAGES, VIRT_WINDOW
from launcherkit.model.host import Bar
from launcherkit.model.window import DEFAULT_WINDOWS, GIB, prefetchable
from launcherkit.show.layout import size

_UNTRUSTED, _MAX_BITS = 32 * GIB, 46
"""OVMF's window if it can't trust the CPU's address bits, and how many bits it uses at most."""


def bytes_of_bars(bars: Iterable[Bar]) -> int:
    """Bytes of the prefetchable 64-bit BARs of a function (P5)."""
    return sum(prefetchable(bars))


def check_window(facts: Facts) -> Iterator[Finding]:
    """One finding: for the VM's devices together, or for the largest device if there is no VM."""
    name, host = "guest-window", facts.host
    addresses = [source for source in facts.subject.attached if isinstance(source, PciAddress)]
    resources = {
        address: host.details[address].resources
        for address in addresses
        if address in host.details and host.details[address].resources
    }
    if not resources:
        reason = "the host's facts have no BARs of them" if addresses else "no PCI device is attached"
        yield Finding(name, "", "skipped", reason)
        return
    needs = {address: bytes_of_bars(bars) for address, bars in resources.items()}
    if not facts.subject.of_vm:
        slots: dict[PciAddress, int] = {}
        for address, need in needs.items():
            first = address._replace(function=0)
            slots[first] = slots.get(first, 0) + need
        device, need = max(slots.items(), key=lambda item: (item[1], item[0]))
        yield _judge(facts, need, f"the largest, {device.slot}, needs {size(need)}")
        return
    total = sum(needs.values())
    yield _judge(facts, total, f"the devices need {size(total)}")


def _judge(facts: Facts, need: int, text: str) -> Finding:
    name, guest = "guest-window", facts.guest
    amount, unit = size(max(1 << need.bit_length(), GIB)).split()
    remedy = (
        f"Put <pcihole64 unit='{unit}'>{amount}</pcihole64> into the controller pcie-root, and <maxphysaddr "
        "mode='passthrough'/> into <cpu>, which libvirt knows from 8.7 on."
    )
    if facts.space is not None and not facts.space.huge_pages:
        remedy += " The CPU needs 1 GiB pages (pdpe1gb) too, as that of mode host-model has."
    default, machine = _default(facts)
    hole = None if guest is None else guest.window
    if hole is not None:
        text += f"; <pcihole64> of the domain has {size(hole)}"
        if need > hole:
            return Finding(name, "", "fail", text, remedy)
    elif default is None:
        return Finding(name, "", "skipped", f"{text}; the default of {machine} is not known")
    else:
        text += f"; {machine} has {size(default)} by default"
        if need <= default:
            return Finding(name, "", "ok", text)
    room, does = _by_firmware(facts)
    if does:
        text += f"; {does}"
    fits = hole is not None and (room is None or need <= room)
    return Finding(name, "", "ok" if fits else "warn", text, "" if fits else remedy)


def _by_firmware(facts: Facts) -> tuple[int | None, str]:
    """The size of the window that firmware makes on x86, None if unknown, and words for it."""
    space, guest = facts.space, facts.guest
    if space is None or guest is None or guest.arch not in ("x86_64", "i686"):
        return None, ""
    host_bits = None if facts.gathered is None else facts.gathered.machine.address_bits
    bits = space.bits or host_bits
    if not space.uefi:
        seen = "SeaBIOS puts them above all memory, as far as the guest's CPU can address"
        if bits is None:
            return None, seen
        return (1 << bits) - BELOW_WINDOW - (space.memory or 0), f"{seen}: {bits} bits"
    if space.bits is not None:
        return _UNTRUSTED, f"OVMF makes it {size(_UNTRUSTED)}: the guest's CPU doesn't have the host's address bits"
    if not space.huge_pages:
        room = OVMF_WITHOUT_HUGE_PAGES
        return room, f"OVMF makes it {size(room)}: the guest's CPU has no 1 GiB pages"
    if bits is None:
        return None, "OVMF makes it an eighth of what the host's CPU can address"
    bits = min(bits, _MAX_BITS)
    return 1 << (bits - 3), f"OVMF makes it {size(1 << (bits - 3))}, an eighth of {bits} bits of addresses"


def _default(facts: Facts) -> tuple[int | None, str]:
    if facts.topology is None:
        return DEFAULT_WINDOWS["pcie"], "q35"
    if facts.topology != "other" and facts.guest is not None and facts.guest.arch == "aarch64":
        return VIRT_WINDOW, "virt"
    machine = {"pcie": "q35", "pci": "pc"}.get(facts.topology, "this machine")
    return DEFAULT_WINDOWS.get(facts.topology), machine
