"""What is read of a machine; nothing that it lacks or hides ends in a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcherkit.doctor.facts import Facts
from launcherkit.doctor.finding import subject_of_host
from launcherkit.doctor.gather import ask_version, gather, read_machine, read_process
from launcherkit.doctor.report import examine
from launcherkit.host.source import Host
from launcherkit.host.tree import DiskTree
from tests.support.facts import at
from tests.support.hosttree import HostTree

NO_VARIANT = "vfio-pci, of which this kernel has no variant for it"
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         {} {} bytes\n"
)


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def process_files(root: Path, entry: str, soft: object, hard: object, capabilities: int, comm: str = "python3") -> None:
    directory = root / "proc" / entry
    directory.mkdir(parents=True)
    (directory / "limits").write_text(LIMITS.format(soft, hard))
    (directory / "status").write_text(f"Name:\t{comm}\nCapEff:\t{capabilities:016x}\n")
    (directory / "comm").write_text(comm + "\n")


def test_an_empty_root_gives_nothing_and_no_error(tmp_path: Path) -> None:
    found = gather(str(tmp_path), Host.none().scan(), {})
    assert found.machine.command_line is None
    assert found.machine.modules is None
    assert found.machine.firmware_tables is None
    assert found.process is None
    assert (found.libvirt, found.qemu) == (None, None)


def test_the_machines_files_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__cmdline="quiet intel_iommu=on\n",
        proc__cpuinfo="address sizes\t: 46 bits physical, 48 bits virtual\n",
    )
    for path in ("sys/firmware/acpi/tables/DMAR", "sys/class/iommu/dmar0", "sys/module/vfio_pci", "sys/module/e1000e"):
        (tmp_path / path).mkdir(parents=True)
    with DiskTree(str(tmp_path)) as tree:
        machine = read_machine(tree, {})
    assert machine.command_line == ("quiet", "intel_iommu=on")
    assert machine.firmware_tables == frozenset({"DMAR"})
    assert machine.iommus == ("dmar0",)
    assert machine.modules == frozenset({"vfio_pci"})
    assert machine.address_bits == 46
    assert not machine.container


def test_vfio_pci_that_is_built_in_is_seen_by_its_driver(tmp_path: Path) -> None:
    for path in ("sys/bus/pci/drivers/vfio-pci", "sys/module/kernel"):
        (tmp_path / path).mkdir(parents=True)
    with DiskTree(str(tmp_path)) as tree:
        assert read_machine(tree, {}).modules == frozenset({"vfio", "vfio_pci"})


@pytest.mark.parametrize("env", [{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"container": "podman"}])
def test_a_container_is_told_by_its_environment(tmp_path: Path, env: dict[str, str]) -> None:
    with DiskTree(str(tmp_path)) as tree:
        assert read_machine(tree, env).container


@pytest.mark.parametrize("file", [".dockerenv", "run/.containerenv"])
def test_a_container_is_told_by_its_files(tmp_path: Path, file: str) -> None:
    write(tmp_path, **{file: ""})
    with DiskTree(str(tmp_path)) as tree:
        assert read_machine(tree, {}).container


def test_limits_and_capabilities_of_this_process_are_read(tmp_path: Path) -> None:
    process_files(tmp_path, "self", 8388608, "unlimited", 1 << 14)
    with DiskTree(str(tmp_path)) as tree:
        process = read_process(tree)
    assert process is not None
    assert (process.name, process.memlock_soft, process.memlock_hard) == ("this process", 8388608, None)
    assert (process.may_lock, process.may_raise) == (True, False)


def test_a_libvirt_daemon_that_runs_counts_before_this_process(tmp_path: Path) -> None:
    process_files(tmp_path, "self", 8388608, 8388608, 0)
    process_files(tmp_path, "77", 65536, 65536, 1 << 24, comm="virtqemud")
    with DiskTree(str(tmp_path)) as tree:
        process = read_process(tree)
    assert process is not None
    assert (process.name, process.may_raise) == ("virtqemud, process 77", True)


@pytest.mark.parametrize("limits", ["", "Max locked memory", "Max locked memory  many  more bytes\n", "\xff\0"])
def test_limits_that_make_no_sense_are_as_none(tmp_path: Path, limits: str) -> None:
    process_files(tmp_path, "self", 1, 1, 0)
    (tmp_path / "proc/self/limits").write_text(limits)
    with DiskTree(str(tmp_path)) as tree:
        assert read_process(tree) is None


def test_nodes_and_resizable_bars_of_a_host_are_read(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:e1:00", group=44)
    (tree.path("0000:e1:00.0") / "resource1_resize").write_text("000000000000ffc0\n")
    for unclear in ("0000:e1:00.0", "0000:e1:00.1"):
        (tree.path(unclear) / "resource0_resize").write_text("what\n")
    (tmp_path / "dev/vfio/44").chmod(0o640)
    found = gather(str(tmp_path), Host.from_sysfs(tmp_path).scan(), {})
    assert found.nodes["/dev/vfio/44"].mode == 0o640
    assert found.nodes["/dev/vfio/44"].owner == os.getuid()
    assert found.nodes["/dev/vfio/44"].usable
    ((bar,),) = found.resizable.values()
    assert list(found.resizable) == [at("0000:e1:00.0")]
    assert (bar.bar, bar.largest) == (1, 32 << 30)


def test_resizable_bars_are_those_of_what_a_guest_can_get(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    for address, driver in (("0000:01:00.0", "nvidia"), ("0000:02:00.0", None), ("0000:e1:00.0", "vfio-pci")):
        tree.function(address, driver=driver, group=1)
        (tree.path(address) / "resource1_resize").write_text("ffc0\n")
    found = gather(str(tmp_path), Host.from_sysfs(tmp_path).scan(), {})
    assert list(found.resizable) == [at("0000:e1:00.0")]


def test_a_device_that_sleeps_is_not_woken_for_its_bars(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:e1:00.0", driver="vfio-pci", group=1, power_state="D3cold")
    (tree.path("0000:e1:00.0") / "resource1_resize").write_text("ffc0\n")
    assert gather(str(tmp_path), Host.from_sysfs(tmp_path).scan(), {}).resizable == {}


def program(directory: Path, name: str, script: str) -> dict[str, str]:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": str(directory)}


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("virtd (libvirt) 12.2.0", (12, 2, 0)),
        ("QEMU emulator version 9.1.50 (v9.1.0-1-gabc)", (9, 1, 50)),
        ("nothing of the kind", None),
    ],
)
def test_a_program_is_asked_for_its_version(tmp_path: Path, says: str, version: tuple[int, ...] | None) -> None:
    env = program(tmp_path, "a-program-of-ours", f"echo '{says}'")
    assert ask_version(["a-program-of-ours"], env) == version


def test_a_program_that_fails_or_is_not_there_is_passed_over(tmp_path: Path) -> None:
    env = program(tmp_path, "broken", "exit 3")
    (tmp_path / "odd").write_text("no program at all")
    (tmp_path / "odd").chmod(0o755)
    assert ask_version(["absent-program", "broken", "odd"], env) is None


GARBAGE = (b"", b"\xff\xfe\0", b"9" * 5000, b"0x\n", b"Max locked memory  - -\n")


def test_no_file_of_a_host_can_hold_anything_that_ends_in_a_traceback(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:e1:00", group=44)
    tree.vf("0000:e1:00.0", "0000:e1:00.4", vgpu="558", driver="nvidia", group=45)
    tree.function("0000:3b:00.0", driver="vfio-pci", group=7, vfio_dev="vfio3")
    (tree.path("0000:e1:00.0") / "resource1_resize").write_text("ffc0\n")
    process_files(tmp_path, "self", 1, 1, 0)
    process_files(tmp_path, "77", 1, 1, 0, comm="libvirtd")
    write(tmp_path, proc__cmdline="quiet\n", proc__cpuinfo="address sizes : 46 bits physical\n")
    files = [path for path in sorted(tmp_path.rglob("*")) if path.is_file() and not path.is_symlink()]
    assert len(files) > 40
    for file in files:
        whole = file.read_bytes()
        for garbage in GARBAGE:
            file.write_bytes(garbage)
            host = Host.from_sysfs(tmp_path).scan()
            assert examine(Facts(host, subject_of_host(host), gather(str(tmp_path), host, {})))
        file.write_bytes(whole)


def test_no_directory_of_a_host_is_missed_with_a_traceback(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:e1:00", group=44)
    process_files(tmp_path, "self", 1, 1, 0)
    for place in ("proc", "dev", "sys/kernel", "sys/module", "sys/bus/pci/drivers", "sys/devices"):
        (tmp_path / place).rename(tmp_path / "aside")
        host = Host.from_sysfs(tmp_path).scan()
        assert examine(Facts(host, subject_of_host(host), gather(str(tmp_path), host, {}))), place
        (tmp_path / "aside").rename(tmp_path / place)


def test_which_driver_auto_chooses_is_said_with_the_alias_that_is_why(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.modules_alias(
        "alias pci:v000015B3d*sv*sd*bc*sc*i* mlx5_core\n"
        "alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci\n"
        "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
    )
    aliases = {
        "0000:01:00.2": "pci:v000015B3d0000101Esv0sd0bc02sc00i00",
        "0000:e1:00.0": "pci:v000010DEd00002204sv0sd0bc03",
    }
    for group, (address, modalias) in enumerate(aliases.items(), 1):
        tree.function(address, driver="vfio-pci", group=group, files={"modalias": f"{modalias}\n"})
    host = Host.from_sysfs(tree.root).scan()
    known = Facts(host, subject_of_host(host), gather(str(tree.root), host, {}))
    alias = "by its alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i*"
    assert [(each.subject, each.status, each.seen) for each in examine(known) if each.check == "vfio-driver"] == [
        ("0000:01:00.2", "ok", f"auto chooses mlx5_vfio_pci, {alias}; it is bound to vfio-pci"),
        ("0000:e1:00.0", "ok", f"auto chooses {NO_VARIANT}; it is bound to vfio-pci"),
    ]
    (tree.root / "lib/modules/6.12.0-test/modules.alias").unlink()
    without = Facts(host, subject_of_host(host), gather(str(tree.root), host, {}))
    (unknown,) = (each for each in examine(without) if each.check == "vfio-driver")
    assert (unknown.status, "modules.alias" in unknown.seen) == ("skipped", True)
