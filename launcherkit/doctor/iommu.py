"""Is there an IOMMU, and is VFIO ready to use it?"""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit.choose.viability import TURN_ON
from launcherkit.doctor.facts import SNAPSHOT, Facts, Machine
from launcherkit.doctor.finding import Finding
from launcherkit.errors import counted
from launcherkit.model.host import bound_to_vfio

_TABLES = ("DMAR", "IVRS", "IORT", "VIOT", "RIMT")
"""The ACPI tables in which Intel, AMD, Arm, virtio and RISC-V describe an IOMMU."""

_OFF = frozenset({"iommu=off", "intel_iommu=off", "amd_iommu=off"})
_BACKENDS = frozenset({"vfio_iommu_type1", "vfio_iommu_spapr_tce", "iommufd"})


def check_iommu(facts: Facts) -> Iterator[Finding]:
    """Groups, firmware, command line."""
    yield _groups(facts)
    machine = None if facts.gathered is None else facts.gathered.machine
    yield _firmware(machine, bool(facts.host.groups.keys() - facts.host.noiommu))
    yield _command_line(machine)


def _groups(facts: Facts) -> Finding:
    name, host = "iommu-groups", facts.host
    if not host.known:
        return Finding(name, "", "skipped", "nothing is known of the host")
    machine = None if facts.gathered is None else facts.gathered.machine
    groups = host.groups.keys() - host.noiommu
    if groups:
        seen = counted(len(groups), "group")
        if machine is not None and machine.unsafe_noiommu:
            return Finding(
                name,
                "",
                "warn",
                f"{seen}, and VFIO may do without an IOMMU: enable_unsafe_noiommu_mode is on",
                "Load the module vfio without enable_unsafe_noiommu_mode; QEMU can't use such groups.",
            )
        return Finding(name, "", "ok", seen)
    functions = counted(len(host.functions), "PCI function")
    return Finding(name, "", "fail", f"{functions}, none of them in an IOMMU group", _how_to_get_groups(machine))


def _how_to_get_groups(machine: Machine | None) -> str:
    tables = None if machine is None else machine.firmware_tables
    if tables is not None and not tables.intersection(_TABLES):
        return TURN_ON
    if tables is not None and "DMAR" in tables:
        return "The firmware has one: put intel_iommu=on iommu=pt on the kernel's command line."
    if tables is not None and "IVRS" in tables:
        return "The firmware has one: take amd_iommu=off and iommu=off from the kernel's command line."
    return f"{TURN_ON} On Intel put intel_iommu=on on the kernel's command line too."


def _firmware(machine: Machine | None, works: bool) -> Finding:
    name = "iommu-firmware"
    if machine is None:
        return Finding(name, "", "skipped", SNAPSHOT)
    if machine.firmware_tables is None:
        seen = "/sys/firmware/acpi/tables is empty or not here; container runtimes hide it"
        return Finding(name, "", "skipped", seen)
    tables = [table for table in _TABLES if table in machine.firmware_tables]
    iommus = f", IOMMUs {', '.join(machine.iommus[:8])}" if machine.iommus else ""
    if tables:
        return Finding(name, "", "ok", f"ACPI table {', '.join(tables)}{iommus}")
    if works:
        return Finding(name, "", "ok", f"no ACPI table of an IOMMU, but there are groups{iommus}")
    return Finding(name, "", "fail", "none of the ACPI tables describes an IOMMU", TURN_ON)


def _command_line(machine: Machine | None) -> Finding:
    name = "kernel-command-line"
    if machine is None:
        return Finding(name, "", "skipped", SNAPSHOT)
    if machine.command_line is None:
        return Finding(name, "", "skipped", "/proc/cmdline can't be read here")
    off = [word for word in machine.command_line if word in _OFF]
    if off:
        remedy = "Take it from the kernel's command line and boot again."
        return Finding(name, "", "fail", f"{' '.join(off)} switches the IOMMU off", remedy)
    about = [word for word in machine.command_line if "iommu" in word.partition("=")[0]]
    return Finding(name, "", "ok", " ".join(about) or "nothing about the IOMMU")


def check_modules(facts: Facts) -> Iterator[Finding]:
    """vfio-pci, and type1 or iommufd behind it."""
    name, host = "vfio-modules", facts.host
    bound = {
        function.driver
        for function in host.functions.values()
        if function.driver and bound_to_vfio(function, host.details.get(function.address))
    }
    drivers = f"bound: {', '.join(sorted(bound))}" if bound else "nothing is bound to a VFIO driver"
    if facts.gathered is None or facts.gathered.machine.modules is None:
        if bound:
            yield Finding(name, "", "ok", drivers)
        else:
            reason = SNAPSHOT if facts.gathered is None else "there is no /sys/module here"
            yield Finding(name, "", "skipped", f"{drivers}; {reason}")
        return
    modules = facts.gathered.machine.modules
    remedy = "On the node: modprobe -a vfio-pci vfio_iommu_type1; to keep it: a file in /etc/modules-load.d/."
    loaded = ", ".join(sorted(modules)) or "no VFIO module"
    if not bound and "vfio_pci" not in modules:
        yield Finding(name, "", "fail", f"vfio-pci is neither loaded nor built in (seen: {loaded})", remedy)
    elif not modules & _BACKENDS:
        seen = f"{loaded}; neither vfio_iommu_type1 nor iommufd, so QEMU finds no IOMMU model"
        yield Finding(name, "", "warn", seen, remedy)
    else:
        yield Finding(name, "", "ok", f"{loaded}; {drivers}")
