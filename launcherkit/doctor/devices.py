"""Could QEMU have the devices, and would they work in a guest?"""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit.choose.migration import migration_of
from launcherkit.choose.viability import check_isolation, check_viability, vgpus_of
from launcherkit.doctor.facts import SNAPSHOT, Facts
from launcherkit.doctor.finding import Finding
from launcherkit.errors import DEVICE_ASLEEP, DEVICE_GONE, VGPU_PHYSICAL_FUNCTION, Code, LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction, bound_to_vfio, describe, is_bridge
from launcherkit.model.plan import GroupMember, TouchedGroup
from launcherkit.show.layout import size, visible


def check_groups(facts: Facts) -> Iterator[Finding]:
    """One finding for each touched group (V1), each function without a group, and each GPU that the host keeps."""
    host, subject, name = facts.host, facts.subject, "group-viability"
    touched = False
    for group in subject.groups:
        touched = True
        problems = [problem for problem in check_viability((group,), subject.managed, host) if problem.code not in _V3]
        for problem in problems:
            yield Finding(name, f"group {group.number}", "fail", problem.message, problem.remedy)
        undriven = [member for member in group.members if member.attached and _undriven(member, facts)]
        for member in undriven:
            function = host.functions[member.address]
            yield Finding(
                name,
                f"group {group.number}",
                "warn",
                f"{describe(function)} has no driver",
                f"libvirt requires it to be bound to vfio-pci, or managed='yes'. {_bind(function)}",
            )
        if not problems and not undriven:
            yield Finding(name, f"group {group.number}", "ok", ", ".join(_member(member) for member in group.members))
    for problem in check_isolation(subject.attached, host):
        touched = True
        yield Finding(name, str(problem.device), "fail", problem.message, problem.remedy)
    for address in subject.idle:
        touched = True
        function = host.functions[address]
        seen = f"{describe(function)} is the host's own, bound to {visible(function.driver or 'no driver')}"
        in_use = vgpus_of(function, host)
        advice = f"To give it to VMs: {_bind(function)}" if in_use is None else f"It {in_use}"
        yield Finding(name, str(address), "skipped", seen, advice)
    if not touched:
        yield Finding(name, "", "skipped", _nothing(facts))


def _nothing(facts: Facts) -> str:
    if not facts.host.known:
        return "nothing is known of the host"
    if facts.subject.of_vm:
        return "no PCI device is attached"
    return "nothing on this host is bound to VFIO"


_V3 = (VGPU_PHYSICAL_FUNCTION.code, DEVICE_ASLEEP.code, DEVICE_GONE.code)
"""Errors that `check_functions` reports."""


def _undriven(member: GroupMember, facts: Facts) -> bool:
    return member.driver is None and member.address not in facts.subject.managed


def _bind(function: PciFunction) -> str:
    """How to bind a function to vfio-pci; the commands are on lines of their own."""
    address, path = function.address, f"/sys/bus/pci/devices/{function.address}"
    unbind = "" if function.driver is None else f"\necho {address} > {path}/driver/unbind"
    return (
        f"`launcherkit-plugin bind {address}` binds its whole group to vfio-pci; by hand, as root:"
        f"\necho vfio-pci > {path}/driver_override{unbind}\necho {address} > /sys/bus/pci/drivers_probe"
    )


def _member(member: GroupMember) -> str:
    return f"{member.address} {'a bridge' if member.bridge else visible(member.driver or 'no driver')}"


def _attached(facts: Facts) -> list[PciFunction]:
    functions = facts.host.functions
    return [
        functions[address]
        for address in facts.subject.attached
        if isinstance(address, PciAddress) and address in functions
    ]


def check_functions(facts: Facts) -> Iterator[Finding]:
    """Whether each function answers, is awake, can be reset, and is one that a guest may have (V3)."""
    attached = _attached(facts)
    if not attached:
        for name in ("config-space", "power-state", "reset-method", "vgpu-physical-function"):
            yield Finding(name, "", "skipped", _nothing(facts))
        return
    for name, code in (("config-space", DEVICE_GONE), ("power-state", DEVICE_ASLEEP)):
        for function in attached:
            yield _state_finding(facts, function, name, code)
    yield from _resets(facts, attached)
    for function in attached:
        if not function.is_vf:
            yield _state_finding(facts, function, "vgpu-physical-function", VGPU_PHYSICAL_FUNCTION)


def _state_finding(facts: Facts, function: PciFunction, name: str, code: Code[LauncherkitError]) -> Finding:
    host, address = facts.host, function.address
    member = GroupMember(address, function.driver, attached=True, bridge=is_bridge(function, host.details.get(address)))
    for problem in check_viability((TouchedGroup(-1, (member,)),), facts.subject.managed, host):
        if problem.code == code.code:
            return Finding(name, str(address), "fail", problem.message, problem.remedy)
    detail = host.details.get(address)
    if detail is None:
        return Finding(name, str(address), "skipped", "the host's facts have no details of it")
    if name == "config-space" and detail.header_type is None:
        return Finding(
            name, str(address), "skipped", "it can't be read, or isn't read because that would wake the device"
        )
    if name == "power-state" and detail.power_state is None:
        return Finding(name, str(address), "skipped", "sysfs has no power_state of it")
    seen = {"config-space": "it answers", "vgpu-physical-function": "it has no vGPU VFs"}.get(name, detail.power_state)
    return Finding(name, str(address), "ok", visible(seen or ""))


def _resets(facts: Facts, attached: list[PciFunction]) -> Iterator[Finding]:
    host, name = facts.host, "reset-method"
    if not any(detail.reset_methods for detail in host.details.values()):
        seen = "no function of this host lists its reset methods; kernels before 5.15 don't"
        yield Finding(name, "", "skipped", seen)
        return
    for function in attached:
        address, detail = str(function.address), host.details.get(function.address)
        methods = () if detail is None else detail.reset_methods
        in_slot = [] if function.is_vf else [each for each in host.slot_functions(function.address) if not each.is_vf]
        others = [each for each in in_slot if not bound_to_vfio(each, host.details.get(each.address))]
        if not methods:
            seen = f"{describe(function)} has no reset method: the next guest finds it as the last one left it"
            remedy = "Expect to boot the node between two VMs, or look for a vendor reset module for this device."
            yield Finding(name, address, "warn", seen, remedy)
        elif set(methods) == {"bus"} and others and others != [function]:
            those = ", ".join(str(each.address) for each in others if each != function)
            seen = f"only a bus reset, which also resets what is not bound to a VFIO driver: {those}"
            yield Finding(name, address, "warn", seen, "Bind all functions of the card to vfio-pci.")
        else:
            yield Finding(name, address, "ok", visible(", ".join(methods)))


def check_variants(facts: Facts) -> Iterator[Finding]:
    """Which driver ``driver: auto`` chooses for each function, and by which alias of the kernel."""
    variants = None if facts.gathered is None else facts.gathered.variants
    if variants is None:
        absent = "the modules.alias of the running kernel is not here: mount /lib/modules"
        yield Finding("vfio-driver", "", "skipped", SNAPSHOT if facts.gathered is None else absent)
        return
    functions = [*_attached(facts), *(facts.host.functions[address] for address in facts.subject.idle)]
    for function in functions:
        alias = variants.get(function.address)
        choice = "vfio-pci, of which this kernel has no variant for it"
        if alias is not None:
            choice = f"{visible(alias.module)}, by its alias {visible(alias.pattern)}"
        now = visible(function.driver or "no driver")
        yield Finding("vfio-driver", str(function.address), "ok", f"auto chooses {choice}; it is bound to {now}")
    if not functions:
        yield Finding("vfio-driver", "", "skipped", _nothing(facts))


def check_migration(facts: Facts) -> Iterator[Finding]:
    """Whether each device can migrate: as it says itself if it was asked, or else by its driver and the kernel."""
    kernel = None if facts.gathered is None else facts.gathered.kernel
    for source in facts.subject.attached:
        answer, said = migration_of(source, facts.host, kernel), facts.asked.get(source)
        if said is not None:
            answer = answer._replace(why=f"{answer.why}; not asked: {said.why}") if said.can is None else said
        yield Finding("migration", str(source), "skipped" if answer.can is None else "ok", visible(str(answer)))
    if not facts.subject.attached:
        yield Finding("migration", "", "skipped", _nothing(facts))


def check_resizable(facts: Facts) -> Iterator[Finding]:
    """How large the resizable BARs are, as far as sysfs shows them."""
    if facts.gathered is None:
        yield Finding("resizable-bar", "", "skipped", SNAPSHOT)
        return
    reported = False
    for function in _attached(facts):
        detail = facts.host.details.get(function.address)
        now = {} if detail is None else {bar.line: bar.size for bar in detail.resources}
        for bar in facts.gathered.resizable.get(function.address, ()):
            reported = True
            seen = f"BAR {bar.bar} has {size(now.get(bar.bar, 0))} of {size(bar.largest)} at most"
            yield Finding("resizable-bar", str(function.address), "ok", seen)
    if not reported:
        yield Finding("resizable-bar", "", "skipped", "no attached device has one that sysfs shows")
