"""Are libvirt and QEMU new enough for what the domain uses, and is any known problem here?"""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit.compatibility import Version, compatibility, dotted
from launcherkit.doctor.facts import SIDECAR, Facts, Subject, not_here
from launcherkit.doctor.finding import Finding
from launcherkit.known_problems.checks import Circumstances, recognise


def check_versions(facts: Facts) -> Iterator[Finding]:
    """One finding for libvirt, one for QEMU, then the known problems."""
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
        elif lacking := next(_lacking(program, version, facts.subject), None):
            needed, text, off = lacking
            text = f"{program} {dotted(version)}{text} {needed}"
            yield Finding(name, "", "fail", text, f"Use {program} {needed} or later, or set {off}.")
        else:
            yield _judge(name, program, version, oldest, facts.subject.wants_iommufd)
    yield from _known_problems(facts, seen)


def _lacking(program: str, version: Version, subject: Subject) -> Iterator[tuple[str, str, str]]:
    """What the domain has by the policy and this version doesn't know: the version needed, in words, and how not to."""
    cells, cliques = "the cells of Grace's GPUs need", " doesn't start with the cliques of these GPUs, which need"
    uses = (
        ("libvirt", "acpi-nodeset", subject.wants_initiators, f"; {cells}", "genericInitiators: no"),
        ("libvirt", "smmuv3-accel", subject.wants_smmus, "; an accelerated SMMUv3 needs", "smmuv3: no"),
        ("QEMU", "gpudirect-clique", subject.wants_cliques, cliques, "p2p: off"),
    )
    for of, feature, used, text, off in uses:
        since = compatibility().since(feature)
        if program == of and used and version < since:
            yield dotted(since), text, off


def _seen(facts: Facts) -> dict[str, Version]:
    """The versions that are known."""
    gathered = facts.gathered
    versions = {"KubeVirt": facts.kubevirt}
    if gathered is not None:
        versions |= {"libvirt": gathered.libvirt, "QEMU": gathered.qemu, "Linux": gathered.kernel}
        if gathered.node is not None:
            versions |= {"kubelet": gathered.node.kubelet, "containerd": gathered.node.containerd}
    return {program: version for program, version in versions.items() if version is not None}


def _circumstances(facts: Facts, seen: dict[str, Version]) -> Circumstances:
    gathered, subject = facts.gathered, facts.subject
    node = None if gathered is None or subject.of_vm else gathered.node
    return Circumstances(
        versions=seen,
        host=facts.host,
        devices=(*subject.attached, *subject.idle),
        of_vm=subject.of_vm,
        guest=facts.guest,
        iommufd=subject.wants_iommufd,
        managed=bool(subject.managed),
        claims=facts.claims,
        container=gathered is not None and gathered.machine.container,
        node=gathered is not None and gathered.node is not None,
        cdi_enabled=None if node is None else node.cdi_enabled,
        address_bits=None if gathered is None else gathered.machine.address_bits,
    )


def _known_problems(facts: Facts, seen: dict[str, Version]) -> Iterator[Finding]:
    name = "known-problems"
    recognised = list(recognise(_circumstances(facts, seen)))
    for match in recognised:
        if match.certain:
            yield Finding(name, match.problem.id, "warn", match.text, match.problem.remedy)
        else:
            yield Finding(name, match.problem.id, "skipped", f"{match.text}; whether it affects a VM is not known")
    if seen and not recognised:
        versions = ", ".join(f"{program} {dotted(version)}" for program, version in seen.items())
        yield Finding(name, "", "ok", f"no known problems of {versions}")
    elif not recognised:
        yield Finding(name, "", "skipped", "no version is known here")


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
