"""Do the large BARs fit into the guest's 64-bit PCI window (P5)?

What a guest has by default: 32 GiB on q35 (QEMU's hw/pci-host/q35.c), 2 GiB on pc (hw/pci-host/i440fx.c), 512 GiB on
virt (hw/arm/virt.c). UEFI firmware on x86 goes beyond where it can trust the guest CPU's number of physical address
bits: OVMF takes an eighth of the address space, a quarter since August 2026, of at most 46 bits
(`PlatformDynamicMmioWindow`). It can trust it with a CPU of mode host-passthrough, and old versions of OVMF don't do so
at all; so what lies between the default and that is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcherkit.doctor.facts import Patient
from launcherkit.doctor.finding import Finding
from launcherkit.model.address import PciAddress
from launcherkit.model.function import Bar
from launcherkit.model.window import prefetchable
from launcherkit.render.size import size

GIB = 1 << 30
_DEFAULTS = {"pcie": 32 * GIB, "pci": 2 * GIB}
_VIRT = 512 * GIB


def window_need(bars: Iterable[Bar]) -> int:
    """Bytes of the prefetchable 64-bit BARs of a function (P5)."""
    return sum(prefetchable(bars))


def check_window(patient: Patient) -> Iterator[Finding]:
    """One finding: for the VM's devices together, or for the largest device where there is no VM."""
    name, host = "guest-window", patient.host
    addresses = [source for source in patient.subject.attached if isinstance(source, PciAddress)]
    resources = {
        address: host.details[address].resources
        for address in addresses
        if address in host.details and host.details[address].resources
    }
    if not resources:
        why = "the host's facts have no BARs of them" if addresses else "no PCI device is attached"
        yield Finding(name, "", "skipped", why)
        return
    needs = {address: window_need(bars) for address, bars in resources.items()}
    if not patient.subject.of_vm:
        slots: dict[PciAddress, int] = {}
        for address, need in needs.items():
            first = address._replace(function=0)
            slots[first] = slots.get(first, 0) + need
        device, need = max(slots.items(), key=lambda item: (item[1], item[0]))
        yield _judge(patient, need, f"the largest, {device.slot}, needs {size(need)}")
        return
    total = sum(needs.values())
    yield _judge(patient, total, f"the devices need {size(total)}")


def _judge(patient: Patient, need: int, words: str) -> Finding:
    name, guest = "guest-window", patient.guest
    amount, unit = size(max(1 << need.bit_length(), GIB)).split()
    hole = f"<pcihole64 unit='{unit}'>{amount}</pcihole64>"
    remedy = f"Put {hole} into the controller pcie-root, and give the guest a CPU of mode host-passthrough."
    if guest is not None and guest.window is not None:
        seen = f"{words}; <pcihole64> of the domain has {size(guest.window)}"
        return Finding(name, "", "ok" if need <= guest.window else "fail", seen, "" if need <= guest.window else remedy)
    default, machine = _default(patient)
    if default is None:
        return Finding(name, "", "skipped", f"{words}; the default of {machine} is not known")
    seen = f"{words}; {machine} has {size(default)} by default"
    if need <= default:
        return Finding(name, "", "ok", seen)
    bits = None if patient.gathered is None else patient.gathered.machine.address_bits
    if bits is not None and (guest is None or guest.uefi):
        eighth = size(1 << (min(bits, 46) - 3))
        seen += f"; newer UEFI firmware takes {eighth} of its own accord, if the guest's CPU has the host's {bits} bits"
    return Finding(name, "", "warn", seen, remedy)


def _default(patient: Patient) -> tuple[int | None, str]:
    if patient.topology is None:
        return _DEFAULTS["pcie"], "q35"
    if patient.topology != "other" and patient.guest is not None and patient.guest.arch == "aarch64":
        return _VIRT, "virt"
    machine = {"pcie": "q35", "pci": "pc"}.get(patient.topology, "this machine")
    return _DEFAULTS.get(patient.topology), machine
