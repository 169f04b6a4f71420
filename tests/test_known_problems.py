"""Each known problem is recognised where its source says that it is, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from launcherkit.compatibility import version
from launcherkit.known_problems.checks import CHECKS, Circumstances, devices_for_vms, recognise
from launcherkit.known_problems.table import Hardware, KnownProblem, known_problems, overdue
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.guest import GuestFacts
from launcherkit.model.host import Bar, HostFacts, PciFunction, VgpuVf
from tests.support.compatibility import PROBLEMS, page_with_tables, problem_tables
from tests.support.facts import at, detail, facts, function

GIB = 1 << 30
BY_ID = {problem.id: problem for problem in known_problems()}
GPU = "0000:e1:00.0"
UUIDS = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(3)]
GUEST = GuestFacts(
    8 * GIB, None, False, 1, 0, False, False, None, "x86_64", True, machine="pc-q35-7.2", most_memory=8 * GIB
)


def gpu(
    address: str = GPU,
    ids: str = "10de:2204",
    driver: str | None = "vfio-pci",
    *,
    group: int = 44,
    numa: int | None = None,
    physfn: str | None = None,
) -> PciFunction:
    vendor, device = (int(part, 16) for part in ids.split(":"))
    made = function(address, 0x030000, driver=driver, group=group, vendor=vendor, device=device, physfn=physfn)
    return made._replace(numa_node=numa)


def audio(address: str, driver: str | None = "vfio-pci", vendor: int = 0x10DE) -> PciFunction:
    return function(address, 0x040300, driver=driver, group=44, vendor=vendor)


def host_of(*functions: Any, nodes: tuple[str, ...] = ("/dev/vfio/vfio", "/dev/vfio/44"), **details: Any) -> HostFacts:
    """A host of these functions; ``details`` are those of the first."""
    them = functions or (gpu(),)
    return facts(*them, details={str(them[0].address): detail(**details)}, nodes=nodes)


def vm(host: HostFacts | None = None, *devices: str, **others: Any) -> Circumstances:
    """A VM that has the first function of a host, or some devices."""
    host = host or host_of()
    known: dict[str, Any] = {"guest": GUEST, "of_vm": True, "address_bits": 48} | others
    given = tuple(MdevAddress(each) if len(each) == 36 else at(each) for each in devices)
    return Circumstances({}, host, given or tuple(sorted(host.functions))[:1], **known)


def node(host: HostFacts | None = None, **others: Any) -> Circumstances:
    """A node of a cluster, without a VM."""
    host = host or host_of()
    return Circumstances({}, host, devices_for_vms(host), node=True, address_bits=48, **others)


def guest(**changes: Any) -> Circumstances:
    return vm(guest=replace(GUEST, **changes))


LARGE = (Bar(1, 1 << 40, (1 << 40) + 256 * GIB - 1, 0x14220C),)
SMALL = (Bar(1, 1 << 40, (1 << 40) + 32 * GIB - 1, 0x14220C),)
TWO = host_of(gpu(), gpu("0000:c1:00.0", group=45))
AMD_BRIDGE = function("0000:00:00.0", vendor=0x1022, device=0x1480, class_code=0x060000, driver=None)
INTEL_BRIDGE = function("0000:00:00.0", vendor=0x8086, device=0x1480, class_code=0x060000, driver=None)


def root_complexes(second: str) -> HostFacts:
    first, other = gpu(numa=0), gpu("0000:c1:00.0", group=45, numa=0)
    details = {GPU: detail(parents=("pci0000:e0",)), "0000:c1:00.0": detail(parents=(second,))}
    return facts(first, other, details=details)


def hidden_kvm(ids: str, *, ioapic: bool) -> Circumstances:
    return vm(host_of(gpu(ids=ids)), guest=replace(GUEST, kvm_hidden=True, kvm_ioapic=ioapic))


def terabyte(bridge: Any, machine: str = "pc-q35-7.2", gib: int = 1020) -> Circumstances:
    host = facts(gpu(), bridge)
    return vm(host, GPU, guest=replace(GUEST, machine=machine, most_memory=gib * GIB))


# For each entry: a version with it and one without, as its sources say it, or None if they name none; where it is; and
# where it is not, with that same version.
Fixture = tuple[str | None, str | None, Circumstances, list[Circumstances]]
FIXTURES: Mapping[str, Fixture] = {
    "kubevirt-plugins": ("1.9.0", "1.8.4", vm(), [vm(None, UUIDS[0])]),
    "kubevirt-hostdev-mode": ("1.9.0", "1.3.1", guest(modeless_hostdevs=1), [guest()]),
    "kubevirt-cdev-nodes": (
        "1.9.0",
        "1.8.4",
        vm(host_of(vfio_dev="vfio0")),
        [
            vm(host_of(nodes=("/dev/vfio/devices/vfio0",), vfio_dev="vfio0")),
            vm(host_of(vfio_dev="vfio0"), container=True),
        ],
    ),
    "kubevirt-restart-after-hotplug": ("1.8.2", "1.8.3", vm(), [vm(None, UUIDS[0])]),
    "kubevirt-hotplug-transient": ("1.9.0", "1.8.4", vm(), [vm(None, UUIDS[0])]),
    "kubevirt-memlock-several": (
        "1.8.2",
        "1.8.3",
        guest(viommu=True, vfio_devices=2),
        [guest(viommu=True), guest(vfio_devices=2)],
    ),
    "kubevirt-memlock-prlimit": ("1.8.2", "1.7.4", vm(), [vm(None, UUIDS[0])]),
    "kubevirt-memlock-hidden-viommu": (
        "1.9.0",
        "1.8.3",
        guest(hidden_viommu=True, vfio_devices=2),
        [guest(hidden_viommu=True)],
    ),
    "kubevirt-memory-hotplug": ("1.7.4", "1.8.0", guest(most_memory=16 * GIB), [guest()]),
    "kubevirt-vf-vgpu": ("1.8.4", "1.9.0", vm(host_of(vgpu=VgpuVf(0, ()))), [vm()]),
    "kubevirt-vgpu-displays": ("1.2.2", "1.3.0", vm(None, *UUIDS[:2]), [vm(None, UUIDS[0])]),
    "kubevirt-foreign-mdevs": ("0.59.2", "1.0.0", vm(None, UUIDS[0]), [vm()]),
    "kubevirt-mdev-migration": ("1.9.0", "1.8.4", vm(None, *UUIDS[:2]), [vm(None, UUIDS[0])]),
    "kubevirt-shared-claims": ("1.8.4", "1.9.0", vm(claims=2), [vm(claims=1)]),
    "kubevirt-expander-by-numa-node": (
        "1.9.0",
        "1.8.4",
        vm(root_complexes("pci0000:c0"), GPU, "0000:c1:00.0"),
        [vm(root_complexes("pci0000:e0"), GPU, "0000:c1:00.0")],
    ),
    "kubevirt-grace": ("1.8.4", "1.9.0", vm(host_of(gpu(ids="10de:2941"))), [vm()]),
    "kubevirt-iommufd-libvirt": ("1.9.0", "1.8.4", vm(iommufd=True), [vm()]),
    "kubevirt-code-43": (
        "0.40.0",
        "0.30.0",
        hidden_kvm("10de:2204", ioapic=False),
        [hidden_kvm("10de:2204", ioapic=True), hidden_kvm("1002:73bf", ioapic=False), vm()],
    ),
    "libvirt-hostdev-network": ("12.1.0", "12.2.0", guest(hostdev_interfaces=1), [guest()]),
    "libvirt-variant-driver": (
        "9.6.0",
        "9.7.0",
        vm(host_of(gpu(driver="mlx5_vfio_pci"))),
        [vm(), vm(host_of(gpu(driver="nvidia")))],
    ),
    "libvirt-managed-variant": ("9.10.0", "10.0.0", vm(managed=True), [vm()]),
    "qemu-sev-snp": ("9.1.2", "9.2.0", guest(sev_snp=True), [guest()]),
    "qemu-large-bar": ("10.0.2", "10.1.0", vm(host_of(resources=LARGE)), [vm(host_of(resources=SMALL))]),
    "qemu-viommu-width": (
        "9.2.0",
        "9.1.0",
        vm(guest=replace(GUEST, viommu=True), address_bits=39),
        [
            vm(guest=replace(GUEST, viommu=True)),
            vm(guest=replace(GUEST, viommu=True, viommu_bits=39), address_bits=39),
            vm(address_bits=39),
        ],
    ),
    "qemu-amd-1tib": (
        "7.2.0",
        "7.0.0",
        terabyte(AMD_BRIDGE),
        [
            terabyte(INTEL_BRIDGE),
            terabyte(AMD_BRIDGE, "pc-q35-7.0"),
            terabyte(AMD_BRIDGE, "pc-q35-rhel9.0.0"),
            terabyte(AMD_BRIDGE, "pc-i440fx-7.2"),
            terabyte(AMD_BRIDGE, gib=1000),
        ],
    ),
    "linux-iommufd-p2p": (
        "6.18.0",
        "6.19.0",
        vm(TWO, GPU, "0000:c1:00.0", iommufd=True),
        [vm(TWO, iommufd=True), vm(TWO, GPU, "0000:c1:00.0")],
    ),
    "linux-iommufd-memlock": (None, None, vm(host_of(resources=LARGE), iommufd=True), [vm(host_of(resources=LARGE))]),
    "linux-without-iommufd": (None, None, vm(iommufd=True), [vm(), vm(host_of(nodes=("/dev/iommu",)), iommufd=True)]),
    "linux-memlock-64k": ("5.15.0", "5.16.0", vm(container=True), [vm()]),
    "linux-reset-6.14.2": ("6.14.2", "6.14.1", vm(), [vm(host_of(gpu(ids="1002:73bf")))]),
    "linux-nvidia-t4-bus-reset": (
        None,
        None,
        vm(host_of(gpu(ids="10de:1eb8"), reset_methods=("flr", "bus"))),
        [vm(host_of(gpu(ids="10de:1eb8"), reset_methods=("flr",))), vm(host_of(reset_methods=("bus",)))],
    ),
    "linux-nvidia-bus-reset": (
        None,
        None,
        vm(host_of(gpu(ids="10de:2342"), reset_methods=("bus",))),
        [
            vm(host_of(gpu(ids="10de:2380"), reset_methods=("bus",))),
            vm(host_of(gpu(ids="10de:233f"), reset_methods=("bus",))),
        ],
    ),
    "linux-nvidia-blackwell-flr": (
        None,
        None,
        vm(host_of(gpu(ids="10de:2b85"), reset_methods=("flr", "bus"))),
        [vm(host_of(gpu(ids="10de:2b85"), reset_methods=("bus",))), vm(host_of(reset_methods=("flr",)))],
    ),
    "linux-d3cold": (None, None, vm(host_of(power_state="D3cold")), [vm(host_of(power_state="D3hot"))]),
    "amd-instinct-reset": (
        None,
        None,
        vm(host_of(gpu(ids="1002:75a3"))),
        [vm(host_of(gpu(ids="1002:75a3", physfn="0000:e1:00.7"))), vm(host_of(gpu(ids="1002:75b3")))],
    ),
    "amd-vendor-reset": (
        None,
        None,
        vm(host_of(gpu(ids="1002:731f"), reset_methods=("bus",))),
        [
            vm(host_of(gpu(ids="1002:731f"), reset_methods=("device_specific", "bus"))),
            vm(host_of(gpu(ids="1002:73bf"), reset_methods=("bus",))),
        ],
    ),
    "amd-navi-48-d3": (None, None, vm(host_of(gpu(ids="1002:7550"))), [vm(host_of(gpu(ids="1002:73bf")))]),
    "nvidia-5070-ti-reset": (None, None, vm(host_of(gpu(ids="10de:2c05"))), [vm()]),
    "nvidia-audio-apart": (
        None,
        None,
        node(host_of(gpu(driver="nvidia"), audio("0000:e1:00.1"))),
        [
            node(host_of(gpu(), audio("0000:e1:00.1"))),
            node(host_of(gpu(driver="nvidia"), audio("0000:e1:00.1", "snd_hda_intel"))),
            node(host_of(gpu(ids="1002:73bf", driver="amdgpu"), audio("0000:e1:00.1", vendor=0x1002))),
        ],
    ),
    "nvidia-grace-driver": (
        None,
        None,
        vm(host_of(gpu(ids="10de:2941"))),
        [vm(host_of(gpu(ids="10de:2941", driver="nvgrace_gpu_vfio_pci"))), vm()],
    ),
    "gpu-operator-functions": (
        None,
        None,
        node(host_of(gpu(), audio("0000:e1:00.1"), function("0000:e1:00.2", class_code=0x0C0330, driver="xhci_hcd"))),
        [
            node(host_of(gpu(), audio("0000:e1:00.1"), function("0000:e1:00.2", class_code=0x0C0330, driver=None))),
            node(host_of(gpu(), audio("0000:e1:00.1", "snd_hda_intel"))),
        ],
    ),
    "harvester-old-group": (
        "1.4.0",
        "1.5.0",
        vm(host_of(nodes=("/dev/vfio/vfio", "/dev/vfio/43")), container=True),
        [vm(container=True), vm(host_of(nodes=("/dev/vfio/43",))), vm(host_of(nodes=()), container=True)],
    ),
    "kubelet-cdi": ("1.28.0", "1.29.0", node(), [vm()]),
    "kubelet-restart": ("1.26.5", "1.26.4", node(), [vm()]),
    "kubelet-boot": ("1.30.1", "1.25.9", node(), [vm()]),
    "containerd-cdi": ("1.6.33", "1.7.0", node(), [vm()]),
    "containerd-cdi-off": ("1.7.24", "2.0.0", node(), [node(cdi_enabled=True), vm()]),
}


def named(here: Circumstances, problem: KnownProblem) -> list[bool]:
    """Whether a problem is recognised, and if so whether that is certain."""
    return [each.certain for each in recognise(here, [problem])]


def with_version(here: Circumstances, problem: KnownProblem, text: str | None) -> Circumstances:
    return here if text is None else replace(here, versions={problem.product: version(text)})


def test_every_entry_has_a_fixture_and_there_are_forty() -> None:
    assert list(FIXTURES) == list(BY_ID)
    assert len(FIXTURES) >= 40


@pytest.mark.parametrize("name", FIXTURES)
def test_an_entry_is_recognised_where_it_is(name: str) -> None:
    affected, _, here, _ = FIXTURES[name]
    assert named(with_version(here, BY_ID[name], affected), BY_ID[name]) == [True]


@pytest.mark.parametrize("name", [name for name, fixture in FIXTURES.items() if fixture[1]])
def test_an_entry_is_not_recognised_of_a_version_without_it(name: str) -> None:
    _, unaffected, here, _ = FIXTURES[name]
    assert named(with_version(here, BY_ID[name], unaffected), BY_ID[name]) == []


@pytest.mark.parametrize("name", FIXTURES)
def test_an_entry_is_not_recognised_where_others_are(name: str) -> None:
    affected, _, _, elsewhere = FIXTURES[name]
    for number, here in enumerate(elsewhere):
        assert named(with_version(here, BY_ID[name], affected), BY_ID[name]) == [], number


@pytest.mark.parametrize("name", FIXTURES)
def test_where_no_version_is_named_none_is_asked_for(name: str) -> None:
    affected, unaffected, *_ = FIXTURES[name]
    assert (affected is None) == (unaffected is None) == (not BY_ID[name].affected)


@pytest.mark.parametrize("text", ["1.6.6", "1.7.4", "1.8.3", "1.9.0", "1.6.2"])
def test_a_problem_that_was_fixed_in_several_branches_is_in_none_of_the_fixed_versions(text: str) -> None:
    problem = BY_ID["kubevirt-restart-after-hotplug"]
    assert named(with_version(vm(), problem, text), problem) == []


@pytest.mark.parametrize("text", ["1.6.5", "1.7.0", "1.7.3", "1.8.0"])
def test_it_is_in_those_before(text: str) -> None:
    problem = BY_ID["kubevirt-restart-after-hotplug"]
    assert named(with_version(vm(), problem, text), problem) == [True]


@pytest.mark.parametrize(("current", "there"), [(0, []), (558, [True])])
def test_the_driver_of_a_vgpus_vf_is_none_that_an_old_libvirt_takes(current: int, there: list[bool]) -> None:
    problem = BY_ID["libvirt-variant-driver"]
    here = vm(host_of(gpu(driver="nvidia"), vgpu=VgpuVf(current, ())))
    assert named(with_version(here, problem, "9.6.0"), problem) == there


def test_without_a_vm_it_is_uncertain_whether_one_has_it() -> None:
    problem = BY_ID["qemu-sev-snp"]
    assert named(with_version(node(), problem, "9.1.0"), problem) == [False]
    assert named(node(), problem) == []


def test_what_can_be_seen_is_recognised_without_a_version_on_a_node() -> None:
    problem = BY_ID["kubevirt-cdev-nodes"]
    assert named(node(host_of(vfio_dev="vfio0")), problem) == [True]
    assert named(vm(host_of(vfio_dev="vfio0")), problem) == []


@pytest.mark.parametrize("problem", known_problems(), ids=lambda problem: problem.id)
def test_an_entry_is_complete(problem: KnownProblem) -> None:
    assert re.fullmatch(r"[a-z0-9]+([-.][a-z0-9]+)*", problem.id)
    assert problem.check in CHECKS
    assert problem.symptom[-1:] not in ("", ".")
    assert problem.remedy.endswith(".")
    for source in problem.sources:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]{10,40})|RHEL-\d+|https://\S+", source)
    for versions in problem.affected:
        assert versions.since or versions.before
        assert not (versions.since and versions.before) or versions.since < versions.before


def test_every_check_recognises_an_entry() -> None:
    assert {problem.check for problem in known_problems()} == set(CHECKS)


def test_the_ids_are_different() -> None:
    assert len(BY_ID) == len(known_problems())


def test_the_page_has_the_table() -> None:
    text = PROBLEMS.read_text()
    assert page_with_tables(text, problem_tables()) == text, "run python -m tests.support.compatibility"


def test_after_a_year_without_a_review_an_entry_is_overdue() -> None:
    entry = replace(BY_ID["qemu-sev-snp"], reviewed=date(2024, 5, 1))
    assert overdue([entry], date(2025, 5, 2)) == []
    assert overdue([entry], date(2025, 5, 3)) == [entry]


@pytest.mark.parametrize("text", ["10de", "10de:", "10de:xyz", "nvidia:*"])
def test_hardware_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"10de|invalid literal"):
        Hardware.parse(text)


def test_devices_for_vms_are_those_on_vfio_and_gpus() -> None:
    disk = function("0000:01:00.0", class_code=0x010802, driver="nvme")
    passed = function("0000:02:00.0", class_code=0x010802, driver="vfio-pci")
    assert devices_for_vms(facts(gpu(driver="nvidia"), disk, passed)) == (PciAddress.parse("0000:02:00.0"), at(GPU))
