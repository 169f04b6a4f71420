"""``launcherkit doctor`` on the command line: inputs, output, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcherkit.cli import main
from launcherkit.doctor.finding import CHECKS
from launcherkit.host.snapshot import dump
from launcherkit.host.source import Host
from tests.support.called import call
from tests.support.hosttree import HostTree

ROOT = Path(__file__).parents[2]
VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA102"
DOMAIN = """<domain type='kvm'>
  <memory unit='GiB'>16</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
    <controller type='pci' index='0' model='pcie-root'/>
  </devices>
</domain>
"""

Result = subprocess.CompletedProcess[bytes]


def doctor(*arguments: str | Path, env: Mapping[str, str] = {}) -> Result:
    return call(main.run, ["doctor", *map(str, arguments)], env)


def document(*arguments: str | Path, env: Mapping[str, str] = {}) -> dict[str, object]:
    result = doctor("--json", *arguments, env=env)
    assert result.stderr == b""
    reported: dict[str, object] = json.loads(result.stdout)
    assert result.returncode == (0 if reported["passed"] else 1)
    return reported


def statuses(reported: dict[str, object], check: str) -> list[str]:
    found = reported["findings"]
    assert isinstance(found, list)
    return [each["status"] for each in found if each["check"] == check]


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """A machine with a card that is ready for a VM, and enough of /proc to say so."""
    tree = HostTree(tmp_path / "host")
    tree.card("0000:e1:00", group=44)
    for address in ("0000:e1:00.0", "0000:e1:00.1"):
        (tree.path(address) / "reset_method").write_text("bus\n")
    for path in ("sys/module/vfio_pci", "sys/module/vfio_iommu_type1", "sys/firmware/acpi/tables/DMAR", "proc/self"):
        (tree.root / path).mkdir(parents=True, exist_ok=True)
    (tree.root / "proc/cmdline").write_text("intel_iommu=on\n")
    (tree.root / "proc/self/limits").write_text(
        "Max locked memory         8388608              8388608              bytes\n"
    )
    (tree.root / "proc/self/status").write_text(f"CapEff:\t{1 << 24:016x}\n")
    return tree


@pytest.fixture
def domain(tmp_path: Path) -> Path:
    path = tmp_path / "vm.xml"
    path.write_text(DOMAIN)
    return path


def test_a_host_that_is_ready_passes(tree: HostTree) -> None:
    result = doctor("--host", tree.root)
    assert result.returncode == 0, result.stdout.decode()
    words = result.stdout.decode()
    assert "group 44" in words
    assert "nothing failed, 0 warnings" in words


def test_every_finding_is_of_a_check_that_is_listed_in_its_order(tree: HostTree, domain: Path) -> None:
    reported = document("--host", tree.root, "--domain", domain, env={VARIABLE: "0000:e1:00.0"})
    found = reported["findings"]
    assert isinstance(found, list)
    names = [each["check"] for each in found]
    assert names == sorted(names, key=list(CHECKS).index)
    assert set(CHECKS) - set(names) == {"host-facts", "dra-kubelet", "dra-cdi", "dra-driver"}
    assert reported["format"] == "launcherkit.io/doctor/v1"


def test_a_vm_is_checked_with_what_it_gets(tree: HostTree, domain: Path) -> None:
    tree.card("0000:01:00", group=12, driver="nouveau")
    reported = document("--host", tree.root, "--domain", domain, env={VARIABLE: "0000:e1:00.0"})
    assert reported["passed"] is True
    assert "1 device, 2 hostdevs" in str(reported["lookedAt"])
    assert "libvirt asks for 17 GiB" in json.dumps(reported)
    assert "0000:01:00" not in json.dumps(reported)


def test_in_a_container_with_devices_no_domain_is_needed(tree: HostTree) -> None:
    reported = document("--host", tree.root, env={VARIABLE: "0000:e1:00.0"})
    assert statuses(reported, "translation") == ["ok"]
    assert statuses(reported, "group-viability") == ["ok"]


def test_only_this_machines_devices_can_be_asked_whether_they_can_migrate(tree: HostTree) -> None:
    result = doctor("--ask-devices", "--host", tree.root)
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(
        b"error: launcherkit doctor: only this machine's devices can be asked\nhelp: Leave out"
    )
    here = doctor("--ask-devices", "--json")
    assert json.loads(here.stdout)["lookedAt"].startswith("this machine")


def test_a_group_that_is_not_viable_fails_under_its_own_name(tree: HostTree, domain: Path) -> None:
    tree.function("0000:e1:00.2", device=0x1AD6, class_code=0x0C0330, driver="xhci_hcd", group=44)
    result = doctor("--host", tree.root, "--domain", domain, env={VARIABLE: "0000:e1:00.0"})
    assert result.returncode == 1
    lines = result.stdout.decode().splitlines()
    failed = next(place for place, line in enumerate(lines) if "fail" in line and "group-viability" in line)
    assert "xhci_hcd" in lines[failed]
    assert lines[failed + 1].strip().startswith("help: ")
    assert sum("xhci_hcd" in line for line in lines) == 1, "told once"
    assert any("translation" in line and "stops at a failure reported below" in line for line in lines)


def test_a_missing_node_fails_once_under_its_own_name(tree: HostTree, domain: Path) -> None:
    (tree.root / "dev/vfio/44").unlink()
    reported = document("--host", tree.root, "--domain", domain, env={VARIABLE: "0000:e1:00.0"})
    assert statuses(reported, "vfio-nodes") == ["fail"]
    assert statuses(reported, "translation") == ["ok"]
    ignored = document("--host", tree.root, "--domain", domain, "--no-node-check", env={VARIABLE: "0000:e1:00.0"})
    assert statuses(ignored, "vfio-nodes") == ["skipped"]


def test_what_was_allocated_and_is_not_there_is_a_finding(tree: HostTree, domain: Path) -> None:
    reported = document("--host", tree.root, "--domain", domain, env={VARIABLE: "0000:e2:00.0"})
    assert reported["passed"] is False
    assert statuses(reported, "translation") == ["fail"]
    assert "LK203" in json.dumps(reported)


def test_a_snapshot_is_checked_as_far_as_it_goes(tree: HostTree, tmp_path: Path, domain: Path) -> None:
    snapshot = tmp_path / "host.json"
    snapshot.write_text(dump(Host.from_sysfs(tree.root).scan(), None))
    reported = document("--host", snapshot, "--domain", domain, env={VARIABLE: "0000:e1:00.0"})
    assert reported["passed"] is True
    for check in ("kernel-command-line", "node-permissions", "memlock", "qemu-version"):
        assert statuses(reported, check) == ["skipped"]
    assert "libvirt will ask for 17 GiB" in json.dumps(reported)


def test_strict_makes_warnings_fail(tree: HostTree) -> None:
    (tree.path("0000:e1:00.1") / "reset_method").unlink()
    assert doctor("--host", tree.root).returncode == 0
    assert doctor("--host", tree.root, "--strict").returncode == 1
    assert doctor("--host", tree.root, env={"LAUNCHERKIT_STRICT": "yes"}).returncode == 1


def test_list_names_every_check_and_reads_nothing() -> None:
    result = doctor("--list", "--host", "/absent")
    assert result.returncode == 0
    assert [line.split()[0] for line in result.stdout.decode().splitlines()] == list(CHECKS)


def test_a_host_without_sysfs_is_a_finding(tmp_path: Path) -> None:
    reported = document("--host", tmp_path)
    assert statuses(reported, "host-facts") == ["fail"]
    assert statuses(reported, "iommu-groups") == ["skipped"]


def test_no_host_at_all_skips_what_it_must(domain: Path) -> None:
    reported = document("--host", "none", "--domain", domain)
    assert reported["passed"] is True
    assert statuses(reported, "memlock") == ["skipped"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--domain", "absent.xml"), 65, b"error[LK131]: absent.xml"),
        (("--host", "absent"), 65, b"error[LK131]: absent"),
        (("--policy", "absent.yaml"), 65, b"error[LK131]: absent.yaml"),
        (("--loud",), 2, b"there is no option --loud"),
    ],
)
def test_an_input_that_can_not_be_read_is_an_error_as_ever(
    arguments: tuple[str, ...], code: int, message: bytes
) -> None:
    result = doctor(*arguments)
    assert result.returncode == code
    assert result.stdout == b""
    assert message in result.stderr


def test_a_document_that_is_no_domain_is_an_error_as_ever(tree: HostTree, domain: Path) -> None:
    domain.write_text("<domain")
    result = doctor("--host", tree.root, "--domain", domain)
    assert (result.returncode, result.stdout) == (65, b"")
    assert b"error[LK121]" in result.stderr


def test_names_from_the_host_can_not_steer_the_terminal(tree: HostTree) -> None:
    (tree.root / "proc/cmdline").write_text("iommu=\x1b[2J\n")
    (tree.path("0000:e1:00.0") / "reset_method").write_text("\x1b[31mbus\n")
    result = doctor("--host", tree.root)
    assert b"\x1b" not in result.stdout


def test_the_same_look_gives_the_same_words(tree: HostTree, domain: Path) -> None:
    runs = [doctor("--host", tree.root, "--domain", domain, env={VARIABLE: "0000:e1:00.0"}).stdout for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.skipif(not os.path.isdir("/sys/bus/pci/devices"), reason="this machine has no PCI in its sysfs")
def test_this_machine_whatever_it_is_gets_findings_and_no_traceback() -> None:
    result = doctor(env={"LAUNCHERKIT_DEBUG": "1", "PATH": os.environ.get("PATH", "")})
    assert result.returncode in (0, 1)
    assert result.stderr == b""
    assert b"iommu-groups" in result.stdout


def test_what_a_dra_claim_gave_is_checked_too(tmp_path: Path) -> None:
    case = ROOT / "tests/golden/dra-claim"
    arguments = ("--domain", case / "domain.xml", "--vmi", case / "vmi.json", "--host", case / "host.json")
    reported = document(*arguments, "--dra-dir", case / "dra")
    assert statuses(reported, "translation") == ["ok"]
    assert "fail" not in statuses(reported, "group-viability")
    failed = document(*arguments, "--dra-dir", tmp_path)
    assert statuses(failed, "translation") == ["fail"]
    assert failed["passed"] is False


@pytest.mark.parametrize(
    ("image", "status"),
    [
        ("registry.example/kubevirt/virt-launcher:v1.9.1", "warn"),
        ("registry.example:5000/kubevirt/virt-launcher:v1.9.1-rc.0@sha256:" + 64 * "0", "warn"),
        ("registry.example/kubevirt/virt-launcher:v1.8.4", "ok"),
        ("registry.example:5000/kubevirt/virt-launcher@sha256:" + 64 * "0", "skipped"),
    ],
)
def test_the_version_of_kubevirt_is_that_of_the_launchers_image(
    tree: HostTree, domain: Path, tmp_path: Path, image: str, status: str
) -> None:
    spec = {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": "nvidia.com/GA102"}]}}}
    vmi = tmp_path / "vmi.json"
    vmi.write_text(json.dumps({"spec": spec, "status": {"launcherContainerImageVersion": image}}))
    reported = document("--host", tree.root, "--domain", domain, "--vmi", vmi, env={VARIABLE: "0000:e1:00.0"})
    assert statuses(reported, "known-problems") == [status]


def test_the_version_of_the_kernel_is_read(tree: HostTree) -> None:
    (tree.root / "proc/sys/kernel").mkdir(parents=True)
    (tree.root / "proc/sys/kernel/osrelease").write_text("6.1.0-37-amd64\n")
    assert "Linux 6.1.0: " in json.dumps(document("--host", tree.root))
