"""Are libvirt and QEMU new enough for what the domain uses, and does any version have known bugs?"""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit.choose.nodes import node_set
from launcherkit.compatibility import Broken, Version, compatibility, dotted
from launcherkit.doctor.facts import SIDECAR, Facts, not_here
from launcherkit.doctor.finding import Finding
from launcherkit.model.address import PciAddress


def check_versions(facts: Facts) -> Iterator[Finding]:
    """One finding for libvirt, one for QEMU, then the known bugs."""
    reason = not_here(facts)
    table, seen = compatibility(), _seen(facts)
    libvirt = table.since("iommufd-domain" if facts.subject.domain_iommufd else "iommufd-hostdev")
    for name, program, oldest in (
        ("libvirt-version", "libvirt", libvirt),
        ("qemu-version", "QEMU", table.since("iommufd")),
    ):
        version = seen.get(program)
        if reason is not None and (version is None or reason != SIDECAR):
            yield Finding(name, "", "skipped", reason)
        elif version is None:
            yield Finding(name, "", "skipped", f"no {program} that prints its version is installed here")
        elif program == "libvirt" and facts.subject.wants_initiators and version < table.since("acpi-nodeset"):
            needed = dotted(table.since("acpi-nodeset"))
            text = f"{program} {dotted(version)}; the cells of Grace's GPUs need {needed}"
            yield Finding(name, "", "fail", text, f"Use {program} {needed} or later, or set genericInitiators: no.")
        else:
            yield _judge(name, program, version, oldest, facts.subject.wants_iommufd)
    yield from _known_problems(facts, seen)


def _seen(facts: Facts) -> dict[str, Version]:
    """The versions that are known."""
    gathered = facts.gathered
    versions = {"KubeVirt": facts.kubevirt}
    if gathered is not None:
        versions |= {"libvirt": gathered.libvirt, "QEMU": gathered.qemu, "Linux": gathered.kernel}
    return {program: version for program, version in versions.items() if version is not None}


def _known_problems(facts: Facts, seen: dict[str, Version]) -> Iterator[Finding]:
    name = "known-problems"
    here = [each for each in compatibility().broken if _may_be_here(each, facts, seen)]
    reported = False
    for broken in here:
        concerned = _concerns(broken, facts)
        if concerned is False:
            continue
        reported = True
        version = dotted(seen[broken.program]) if broken.program in seen else f"from {dotted(broken.since)} on"
        text = f"{broken.program} {version}: {broken.what} ({broken.source})"
        if concerned:
            yield Finding(name, broken.name, "warn", text, broken.remedy)
        else:
            yield Finding(name, broken.name, "skipped", f"{text}; whether it affects a VM is not known")
    if seen and not reported:
        versions = ", ".join(f"{program} {dotted(version)}" for program, version in seen.items())
        yield Finding(name, "", "ok", f"no known problems of {versions}")
    elif not seen:
        yield Finding(name, "", "skipped", "no version is known here")


def _may_be_here(broken: Broken, facts: Facts, seen: dict[str, Version]) -> bool:
    """Whether the version has the bug; on a node of a cluster, missing nodes tell of one whatever the version."""
    if broken.program in seen:
        return broken.has(seen[broken.program])
    return broken.where == "no-cdev" and facts.gathered is not None and facts.gathered.node is not None


def _lacks_cdev(facts: Facts) -> bool | None:
    """Whether sysfs names a function's VFIO character device that has no node; a container that runs had its nodes."""
    if facts.gathered is not None and facts.gathered.machine.container:
        return False
    if facts.host.nodes is None:
        return None
    functions = [source for source in facts.subject.attached if isinstance(source, PciAddress)]
    through = node_set(functions, facts.host, iommufd=True)
    return any(node is not None and node not in facts.host.nodes for node in through.own.values())


def _concerns(broken: Broken, facts: Facts) -> bool | None:
    """Whether a bug affects this VM; None if that is unknown."""
    if not broken.where:
        return True
    if broken.where == "no-cdev":
        return _lacks_cdev(facts)
    if not facts.subject.of_vm:
        return None
    if not any(isinstance(source, PciAddress) for source in facts.subject.attached):
        return False
    if broken.where == "pci":
        return True
    return None if facts.guest is None else facts.guest.sev_snp


def _judge(name: str, program: str, version: Version, oldest: Version, wants_iommufd: bool) -> Finding:
    seen, needed = f"{program} {dotted(version)}", dotted(oldest)
    if version >= oldest:
        return Finding(name, "", "ok", seen)
    if not wants_iommufd:
        return Finding(name, "", "ok", f"{seen}; hostdevs through iommufd would need {needed}, nothing here does")
    return Finding(
        name,
        "",
        "fail",
        f"{seen}; hostdevs through iommufd need {needed}",
        f"Use {program} {needed} or later, or the groups' nodes: take iommufd out of the hostdevs.",
    )
