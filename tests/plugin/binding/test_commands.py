"""`bind`, `unbind` and `status` as people type them, on a host whose kernel is a stand-in."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from launcherkit.atomic import Disk
from launcherkit.errors import NOT_ON_HOST, LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.allocation.keeper import records_in
from launcherkit_plugin.binding.lent import Lent, LentDevices
from launcherkit_plugin.binding.vf_records import VfRecord, VfRecords
from launcherkit_plugin.cli import binding
from launcherkit_plugin.codec import encode
from launcherkit_plugin.dra.claim_record import Checkpoint, ClaimRecord, PreparedDevice
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.kubelet import usage
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.model.errors import (
    BIND_REFUSED,
    DEVICE_HELD,
    HOLDERS_UNKNOWN,
    NO_VFIO_DRIVER,
    NOT_BOUND_BY_US,
    STEP_FAILED,
    STEP_HANGS,
)
from launcherkit_plugin.model.same_device import Kept, Owner
from tests.plugin.resources import rebind
from tests.support.errors import raises_code
from tests.support.faults import failing
from tests.support.hosttree import HostTree
from tests.support.kernel import VFIO, FakeKernel
from tests.support.pages import ROOT, blocks
from tests.support.pod_resources import write_checkpoint

GPU, AUDIO, DISK = "0000:01:00.0", "0000:01:00.1", "0000:02:00.0"


Function = tuple[str, str, int, int, int, int]
"""Address, driver, vendor, device, class and group."""
CARD_AND_DISK = (
    (GPU, "nvidia", 0x10DE, 0x2204, 0x030000, 44),
    (AUDIO, "snd_hda_intel", 0x10DE, 0x1AEF, 0x040300, 44),
    (DISK, "nvme", 0x144D, 0xA808, 0x010802, 12),
)


class Node:
    """A machine with a kubelet: a card in one group, a disk in another, or others."""

    def __init__(
        self,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        functions: Sequence[Function] = CARD_AND_DISK,
    ) -> None:
        self.root, self._capsys = root, capsys
        self.tree = HostTree(root)
        self.kernel = FakeKernel(self.tree, {driver: {(vendor, it)} for _, driver, vendor, it, *_ in functions})
        for path, driver, vendor, device, code, group in functions:
            self.tree.function(path, vendor=vendor, device=device, class_code=code, driver=driver, group=group)
        (root / "proc/1/fd").mkdir(parents=True)
        (root / "proc/1/mountinfo").touch()
        (root / "proc/1/net").mkdir()
        (root / "proc/1/net/route").touch()
        (root / "proc/2").mkdir()
        (root / "proc/2/comm").write_text("kthreadd\n")
        self.hold({})
        monkeypatch.setattr(binding, "Sysfs", partial(Sysfs, make_worker=self.kernel.hand))

    def hold(self, devices: dict[str, list[str]]) -> None:
        """Let a pod have devices, by resource."""
        write_checkpoint(self.root / "kubelet/device-plugins/kubelet_internal_checkpoint", {"u-1": devices})

    def open(self, node: str, pid: int = 812) -> None:
        """Let a process have a device node open."""
        (self.root / f"proc/{pid}/fd").mkdir(parents=True)
        (self.root / f"proc/{pid}/comm").write_text("qemu-system-x86\n")
        (self.root / f"proc/{pid}/fd/7").symlink_to(node)

    def run(self, command: str, *arguments: str) -> str:
        """Standard output of a command."""
        places = ["--host", self.root, "--ledger", self.root / "ledger", "--kubelet-dir", self.root / "kubelet"]
        self._capsys.readouterr()
        try:
            run([command, *map(str, places), *arguments], {})
        finally:
            out, self.err = self._capsys.readouterr()
        return out

    def drivers(self, *addresses: str) -> list[str | None]:
        return [self.kernel.driver(address) for address in addresses]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Node:
    return Node(tmp_path, monkeypatch, capfd)


def test_a_card_is_bound_whole_and_given_back(node: Node) -> None:
    assert node.run("bind", GPU).splitlines() == [
        "IOMMU group 44",
        "  0000:01:00.0 display controller 10de:2204  nvidia -> vfio-pci",
        "  0000:01:00.1 audio device 10de:1aef        snd_hda_intel -> vfio-pci",
    ]
    assert node.drivers(GPU, AUDIO) == [VFIO, VFIO]
    assert "vfio-pci -> snd_hda_intel" in node.run("unbind", AUDIO)
    assert node.drivers(GPU, AUDIO) == ["nvidia", "snd_hda_intel"]


def test_what_is_done_can_be_read_by_programs(node: Node) -> None:
    assert json.loads(node.run("bind", "--output", "json", GPU)) == [
        {
            "group": 44,
            "functions": [
                {"address": GPU, "before": "nvidia", "after": VFIO},
                {"address": AUDIO, "before": "snd_hda_intel", "after": VFIO},
            ],
        }
    ]


def test_a_dry_run_says_the_same_and_does_nothing(node: Node) -> None:
    said = node.run("bind", "--dry-run", GPU)
    assert node.drivers(GPU, AUDIO) == ["nvidia", "snd_hda_intel"]
    assert not (node.root / "ledger").exists()
    assert said == node.run("bind", GPU)
    said = node.run("unbind", "--dry-run", GPU)
    assert node.drivers(GPU, AUDIO) == [VFIO, VFIO]
    assert said == node.run("unbind", GPU)


def test_binding_twice_is_binding_once(node: Node) -> None:
    node.run("bind", GPU)
    assert node.run("bind", GPU).count("stays with vfio-pci") == 2
    node.run("unbind", GPU)
    assert node.drivers(GPU, AUDIO) == ["nvidia", "snd_hda_intel"]
    assert node.run("unbind", GPU) == "", "nothing is on record, and nothing has a VFIO driver"
    assert node.err == (
        f"note: {GPU} display controller 10de:2204 is bound to nvidia, and is not on record: there is nothing to give "
        "back\n"
    )


def test_a_bridge_in_the_group_stays_with_its_driver(node: Node) -> None:
    node.tree.function("0000:00:01.0", class_code=0x060400, header_type=1, driver="pcieport", group=44)
    node.run("bind", GPU)
    assert node.drivers(GPU, AUDIO, "0000:00:01.0") == [VFIO, VFIO, "pcieport"]
    with raises_code(BIND_REFUSED, match=r"0000:00:01.0 PCI bridge 10de:2204 is a bridge"):
        node.run("bind", "0000:00:01.0")


def test_an_nvswitch_is_bound_like_any_endpoint(node: Node) -> None:
    node.tree.function("0000:07:00.0", device=0x22A3, class_code=0x068000, header_type=0, group=30)
    node.run("bind", "0000:07:00.0")
    assert node.drivers("0000:07:00.0") == [VFIO]


def test_an_isa_bridge_keeps_its_driver_unless_force_is_said_and_without_one_it_is_left_alone(node: Node) -> None:
    node.tree.function("0000:00:1f.0", class_code=0x060100, header_type=0, driver="lpc_ich", group=44)
    with raises_code(
        BIND_REFUSED, match=r"0000:00:1f.0 ISA bridge .* is part of this host's chipset, bound to lpc_ich"
    ):
        node.run("bind", GPU)
    assert node.drivers(GPU, AUDIO, "0000:00:1f.0") == ["nvidia", "snd_hda_intel", "lpc_ich"]
    rebind(node.tree, "0000:00:1f.0", None)
    node.run("bind", GPU)
    assert node.drivers(GPU, AUDIO, "0000:00:1f.0") == [VFIO, VFIO, None]


@pytest.mark.parametrize("driver", ["nvgrace_gpu_vfio_pci", "vfio-pci"])
def test_a_member_with_a_vfio_driver_of_any_kind_stays_as_it_is(node: Node, driver: str) -> None:
    node.tree.function("0000:03:00.0", driver=driver, group=7)
    assert f"stays with {driver}" in node.run("bind", "0000:03:00.0")
    with raises_code(NOT_BOUND_BY_US, match=f"was bound to {driver} by something else"):
        node.run("unbind", "0000:03:00.0")


def test_two_cards_are_two_changes_and_one_that_fails_does_not_keep_the_other(node: Node) -> None:
    node.tree.function("0000:03:00.0", driver="nvidia", group=7)
    node.kernel.probe_fails.add((VFIO, AUDIO))
    with raises_code(STEP_FAILED, match=AUDIO):
        node.run("bind", GPU, "0000:03:00.0")
    assert node.drivers(GPU, AUDIO, "0000:03:00.0") == ["nvidia", "snd_hda_intel", VFIO]


def test_what_is_not_there_is_reported_before_anything_is_done(node: Node) -> None:
    for command in ("bind", "unbind", "status"):
        with raises_code(NOT_ON_HOST, match=r"0000:09:00.0 is not on this host"):
            node.run(command, GPU, "0000:09:00.0")
        with pytest.raises(LauncherkitError, match="'gpu0' is no PCI address"):
            node.run(command, "gpu0")
    assert node.drivers(GPU) == ["nvidia"]


def test_without_an_iommu_nothing_is_bound(node: Node) -> None:
    node.tree.function("0000:03:00.0", driver="nvidia")
    with raises_code(BIND_REFUSED, match=r"0000:03:00.0 display controller 10de:2204 is in no IOMMU group"):
        node.run("bind", "0000:03:00.0")


def test_a_physical_function_with_vfs_is_never_taken(node: Node) -> None:
    node.tree.function("0000:03:00.0", driver="nvidia", group=7)
    node.tree.vf("0000:03:00.0", "0000:03:00.4", group=8)
    with raises_code(BIND_REFUSED, match=r"0000:03:00.0 .* has VFs \(1\)"):
        node.run("bind", "--force", "0000:03:00.0")
    node.run("bind", "0000:03:00.4")
    assert node.drivers("0000:03:00.4") == [VFIO]


def test_a_card_with_mediated_devices_is_never_taken(node: Node) -> None:
    node.tree.mdev_type(GPU, "nvidia-222", name="GRID T4-1Q")
    (node.tree.path(GPU) / "mdev_supported_types/nvidia-222/devices/83b8f4f2-509f-382f-3c1e-e6bfe0fa1001").mkdir()
    with raises_code(BIND_REFUSED, match=r"it has mediated devices \(1\)"):
        node.run("bind", "--force", GPU)


def _block(node: Node, name: str, number: str, parent: Path) -> Path:
    directory = parent / name
    directory.mkdir(parents=True)
    (directory / "dev").write_text(number + "\n")
    (node.root / "sys/class/block").mkdir(parents=True, exist_ok=True)
    node.tree.link(f"sys/class/block/{name}", directory)
    return directory


def _mounted(node: Node) -> None:
    part = _block(node, "nvme0n1", "259:0", node.tree.path(DISK) / "nvme/nvme0")
    _block(node, "nvme0n1p2", "259:2", part)
    line = "29 1 259:2 / /srv rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
    (node.root / "proc/1/mountinfo").write_text("22 1 0:5 / /proc rw - proc proc rw\n" * 5000 + line)


def _mounted_by_btrfs(node: Node) -> None:
    _block(node, "nvme0n1", "259:0", node.tree.path(DISK) / "nvme/nvme0")
    (node.root / "proc/1/mountinfo").write_text("29 1 0:44 / /srv rw - btrfs /dev/nvme0n1 rw\n")


def _mounted_over_multipath(node: Node) -> None:
    (node.tree.path(DISK) / "nvme/nvme3").mkdir(parents=True)
    subsystem = node.root / "sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    _block(node, "nvme0n1", "259:0", subsystem)
    (subsystem / "nvme3").mkdir()
    (node.root / "sys/class/nvme-subsystem").mkdir(parents=True)
    node.tree.link("sys/class/nvme-subsystem/nvme-subsys0", subsystem)
    (node.root / "proc/1/mountinfo").write_text("29 1 259:0 / /srv rw - xfs /dev/nvme0n1 rw\n")


def _swapped_to(node: Node) -> None:
    _block(node, "nvme0n1", "259:0", node.tree.path(DISK) / "nvme/nvme0")
    (node.root / "proc/swaps").write_text("Filename Type Size Used Priority\n/dev/nvme0n1 partition 1 0 -2\n")


def _part_of_a_volume(node: Node) -> None:
    disk = _block(node, "nvme0n1", "259:0", node.tree.path(DISK) / "nvme/nvme0")
    (disk / "holders/dm-0").mkdir(parents=True)


def _network_up(node: Node) -> None:
    _interface(node, DISK, "eth0", flags="0x1003")


def _interface(node: Node, device: str, name: str, *, flags: str) -> None:
    port = node.tree.path(device) / "net" / name
    port.mkdir(parents=True)
    (port / "flags").write_text(f"{flags}\n")
    (node.root / "sys/class/net").mkdir(parents=True)
    node.tree.link(f"sys/class/net/{name}", port)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (_mounted, "nvme0n1p2 is mounted at /srv"),
        (_mounted_by_btrfs, "nvme0n1 is mounted at /srv"),
        (_mounted_over_multipath, "nvme0n1 is mounted at /srv"),
        (_swapped_to, "nvme0n1 is swapped to"),
        (_part_of_a_volume, "nvme0n1 is part of dm-0"),
        (_network_up, "network interface eth0 is up"),
    ],
)
def test_what_the_host_uses_itself_is_taken_by_force_alone(node: Node, use: object, words: str) -> None:
    assert callable(use)
    use(node)
    with raises_code(BIND_REFUSED, match=f"0000:02:00.0 .* is in use by this host: {words}"):
        node.run("bind", DISK)
    assert node.drivers(DISK) == ["nvme"]
    node.run("bind", "--force", DISK)
    assert node.drivers(DISK) == [VFIO]


def test_a_group_is_refused_for_a_member_that_the_host_uses(node: Node) -> None:
    node.tree.function("0000:03:00.0", driver="nvidia", group=12)
    _mounted(node)
    with raises_code(BIND_REFUSED, match=r"0000:02:00.0 .*, in IOMMU group 12, is in use"):
        node.run("bind", "0000:03:00.0")
    assert node.drivers("0000:03:00.0", DISK) == ["nvidia", "nvme"]


NIC = "0000:04:00.0"
UNREADABLE = [
    (NIC, "sys/class/net", r".*sys/class/net: "),
    (NIC, "sys/class/net/eth0", r".*sys/class/net/eth0"),
    (NIC, f"sys/bus/pci/devices/{NIC}/net", r".*/net: "),
    (DISK, "sys/class/block", r".*sys/class/block: "),
    (DISK, "sys/class/block/nvme0n1/holders", r".*/holders: "),
]


@pytest.mark.parametrize(("device", "path", "words"), UNREADABLE)
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
def test_what_is_unknown_counts_as_in_use(node: Node, device: str, path: str, words: str, number: int) -> None:
    """T2."""
    node.tree.function(NIC, device=0x10FB, class_code=0x020000, group=5)
    _block(node, "nvme0n1", "259:0", node.tree.path(DISK) / "nvme/nvme0")
    _interface(node, NIC, "eth0", flags="0x1002")
    bound = node.drivers(device)
    with (
        failing(node.root / path, number),
        raises_code(BIND_REFUSED, match=f"is in use by this host: its use is unknown: {words}"),
    ):
        node.run("bind", device)
    assert node.drivers(device) == bound
    node.run("bind", device)
    assert node.drivers(device) == [VFIO]


def test_an_interface_whose_flags_tell_nothing_may_be_up(node: Node) -> None:
    node.tree.function(NIC, device=0x10FB, class_code=0x020000, group=5)
    _interface(node, NIC, "eth0", flags="")
    with raises_code(BIND_REFUSED, match="network interface eth0 may be up"):
        node.run("bind", NIC)


def test_without_the_class_of_networks_the_devices_own_interfaces_count(node: Node) -> None:
    node.tree.function(NIC, device=0x10FB, class_code=0x020000, group=5)
    directory = node.tree.path(NIC) / "net/eth0"
    directory.mkdir(parents=True)
    (directory / "flags").write_text("0x1003\n")
    with raises_code(BIND_REFUSED, match="network interface eth0 is up"):
        node.run("bind", NIC)


@pytest.mark.parametrize("file", ["1/mountinfo", "swaps"])
def test_a_disk_is_not_taken_where_nobody_can_tell_what_is_mounted(node: Node, file: str) -> None:
    _block(node, "nvme0n1", "259:0", node.tree.path(DISK) / "nvme/nvme0")
    (node.root / "proc" / file).unlink(missing_ok=True)
    (node.root / "proc" / file).mkdir()
    with raises_code(BIND_REFUSED, match=f"its use is unknown: .*proc/{file}: Is a directory"):
        node.run("bind", DISK)
    assert node.drivers(DISK) == ["nvme"]


def test_a_network_card_is_not_taken_where_nobody_can_tell_the_routes(node: Node) -> None:
    node.tree.function(NIC, device=0x10FB, class_code=0x020000, group=5)
    _interface(node, NIC, "eth0", flags="0x1002")
    (node.root / "proc/1/net/route").unlink()
    with raises_code(BIND_REFUSED, match=r"its use is unknown: .*proc/1/net/route is not there"):
        node.run("bind", NIC)


def test_what_is_mounted_is_found_through_what_is_made_of_a_disk(node: Node) -> None:
    part = _block(node, "nvme0n1", "259:0", node.tree.path(DISK) / "nvme/nvme0")
    (part / "holders/dm-0").mkdir(parents=True)
    _block(node, "dm-0", "252:0", node.root / "sys/devices/virtual/block")
    (node.root / "proc/1/mountinfo").write_text("29 1 252:0 / /srv rw - xfs /dev/mapper/srv rw\n")
    with raises_code(BIND_REFUSED, match=r"nvme0n1, in dm-0, is mounted at /srv$"):
        node.run("bind", DISK)


def test_a_function_that_can_not_be_read_is_not_bound_nor_is_its_group(node: Node) -> None:
    with (
        failing(node.root / "sys/bus/pci/devices" / AUDIO, errno.EIO),
        raises_code(BIND_REFUSED, match=f"{AUDIO} can't be read: .*Input/output error"),
    ):
        node.run("bind", GPU)
    assert node.drivers(GPU, AUDIO) == ["nvidia", "snd_hda_intel"]


@pytest.mark.parametrize("device", [GPU, AUDIO])
def test_what_a_pod_holds_is_never_given_back(node: Node, device: str) -> None:
    node.run("bind", GPU)
    node.hold({"nvidia.com/GA102": [device]})
    for arguments in (["--dry-run"], ["--force"], []):
        with raises_code(DEVICE_HELD, match=f"{device} is held by pod uid:u-1"):
            node.run("unbind", *arguments, GPU)
    assert node.drivers(GPU, AUDIO) == [VFIO, VFIO]


def test_what_a_resource_claim_has_is_never_given_back(node: Node) -> None:
    node.run("bind", GPU)
    folder = node.root / "kubelet/plugins/pci.launcherkit.io/claims"
    checkpoint = Checkpoint(str(folder), "boot-1", Disk(), lambda _: None)
    device = PreparedDevice("gpu", "node-1", "pci-0000-01-00-0", "nvidia.com/GPU", GPU, ("x/y=z",))
    checkpoint.put(ClaimRecord(ClaimRef("vms", "gpu", "u-1"), (device,), "boot-1"))
    with raises_code(DEVICE_HELD, match="ResourceClaim vms/gpu"):
        node.run("unbind", AUDIO)
    (folder / "u-1.json").write_bytes(b"")
    with raises_code(HOLDERS_UNKNOWN):
        node.run("unbind", AUDIO)
    checkpoint.remove("u-1")
    node.run("unbind", AUDIO)
    assert node.drivers(GPU) == ["nvidia"]


def test_what_a_pod_holds_in_another_way_is_not_bound(node: Node) -> None:
    node.hold({"intel.com/sriov": [DISK]})
    with raises_code(DEVICE_HELD, match=r"0000:02:00.0 is held"):
        node.run("bind", DISK)


UUID = "GPU-5a0c2b7e-0000-4000-8000-00000000beef"


def test_a_card_that_a_container_has_by_its_uuid_is_not_bound(node: Node) -> None:
    information = node.root / f"proc/driver/nvidia/gpus/{GPU}/information"
    information.parent.mkdir(parents=True)
    information.write_text(f"GPU UUID: \t {UUID}\n")
    node.hold({"nvidia.com/gpu.shared": [f"{UUID}::1"]})
    with raises_code(DEVICE_HELD, match=f"{GPU} is held by pod uid:u-1"):
        node.run("bind", "--force", GPU)
    assert node.run("status", GPU).splitlines()[1].endswith(f"{GPU} is held by pod uid:u-1")


def test_what_a_process_uses_by_the_drivers_node_is_never_bound(node: Node) -> None:
    card = node.tree.path(GPU) / "drm/card1"  # whose node is one that any machine has
    card.mkdir(parents=True)
    (card / "dev").write_text("1:3\n")
    (card / "uevent").write_text("DEVNAME=null\n")
    node.open("/dev/null")
    for arguments in (["--dry-run"], ["--force"], []):
        with raises_code(DEVICE_HELD, match=r"/dev/null is open in qemu-system-x86 \(PID 812\)"):
            node.run("bind", *arguments, AUDIO)
    assert node.drivers(GPU, AUDIO) == ["nvidia", "snd_hda_intel"]
    gpu, audio = node.run("status", GPU).splitlines()[1:]
    assert gpu.endswith("  /dev/null is open in qemu-system-x86 (PID 812)")
    assert audio.endswith("no")


def test_what_a_process_has_open_is_never_given_back(node: Node) -> None:
    node.run("bind", GPU)
    node.open("/dev/vfio/44")
    with raises_code(DEVICE_HELD, match=r"/dev/vfio/44 is open in qemu-system-x86 \(PID 812\)"):
        node.run("unbind", "--force", GPU)
    assert node.drivers(GPU) == [VFIO]


def test_where_nobody_can_tell_who_has_it_it_is_given_back_by_force_alone(node: Node) -> None:
    node.run("bind", GPU)
    (node.root / "kubelet/device-plugins/kubelet_internal_checkpoint").write_text('{"Data"')
    with raises_code(HOLDERS_UNKNOWN, match=r"it is unknown whether a pod has 0000:01:00.0, 0000:01:00.1"):
        node.run("unbind", GPU)
    assert "is not a checkpoint of devices" in node.err
    node.hold({})
    (node.root / "proc/2/comm").unlink()
    with raises_code(HOLDERS_UNKNOWN, match="whether a process has"):
        node.run("unbind", GPU)
    node.run("unbind", "--force", GPU)
    assert node.drivers(GPU) == ["nvidia"]


def test_a_checkpoint_that_does_not_come_from_the_disk_holds_up_no_command(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K9: it can't be read, so nobody can tell who has the card."""
    monkeypatch.setattr(usage, "CHECKPOINT_SECONDS", 0.05)
    checkpoint = node.root / "kubelet/device-plugins/kubelet_internal_checkpoint"
    checkpoint.unlink()
    os.mkfifo(checkpoint)
    assert node.run("status", GPU).splitlines()[1].endswith("?")
    with open(checkpoint, "wb"):
        pass  # the thread ends


def test_a_machine_without_a_kubelet_has_no_pods(node: Node) -> None:
    node.run("bind", GPU)
    (node.root / "kubelet").rename(node.root / "elsewhere")
    node.run("unbind", GPU)
    assert node.drivers(GPU) == ["nvidia"]


def test_a_module_of_another_machine_is_not_loaded(node: Node) -> None:
    for entry in sorted((node.root / "sys/bus/pci/drivers/vfio-pci").iterdir()):
        entry.unlink()
    (node.root / "sys/bus/pci/drivers/vfio-pci").rmdir()
    with raises_code(NO_VFIO_DRIVER, match="the driver vfio-pci is not loaded"):
        node.run("bind", GPU)
    assert node.drivers(GPU) == ["nvidia"]


def test_without_write_access_to_sysfs_it_fails_at_once(node: Node) -> None:
    (node.root / "sys/bus/pci/drivers_probe").unlink()
    for command in ("bind", "unbind"):
        with raises_code(STEP_FAILED, match="drivers_probe can't be written to"):
            node.run(command, GPU)
    node.run("bind", "--dry-run", GPU)


def test_what_was_left_half_done_is_brought_to_an_end_by_the_next_command(node: Node) -> None:
    node.kernel.busy.add(AUDIO)
    with pytest.raises(LauncherkitError, match="has not returned"):
        node.run("bind", GPU)
    assert "restoring, had snd_hda_intel, by command" in node.run("status", GPU)
    node.kernel.let_go(AUDIO)
    node.run("unbind", GPU)
    assert "half done by another process; now all is as it was" in node.err
    assert node.drivers(GPU, AUDIO) == ["nvidia", "snd_hda_intel"]


@pytest.mark.parametrize("driver", ["nvidia", "../vfio-pci", "vfio_pci/"])
def test_only_a_vfio_driver_is_bound_to(node: Node, driver: str) -> None:
    with pytest.raises(SystemExit):
        node.run("bind", "--driver", driver, GPU)


def test_status_shows_what_is_bound_by_whom_and_who_has_it(node: Node) -> None:
    assert node.run("status") == ""
    assert "no function has a VFIO driver or is on record; there are: 0000:01:00.0 display controller " in node.err
    node.run("bind", GPU)
    node.hold({"nvidia.com/GA102": [GPU]})
    node.open("/dev/vfio/44")
    head, gpu, audio = node.run("status").splitlines()
    assert head.split() == ["FUNCTION", "GROUP", "DRIVER", "ON", "RECORD", "HELD"]
    assert "44     vfio-pci  bound, had nvidia, by command" in gpu
    assert gpu.endswith("0000:01:00.0 is held by pod uid:u-1; /dev/vfio/44 is open in qemu-system-x86 (PID 812)")
    assert audio.startswith("0000:01:00.1 audio device")
    disk = node.run("status", DISK).splitlines()[1]
    assert " ".join(disk.split()) == "0000:02:00.0 storage controller 144d:a808 12 nvme - no"


def test_status_for_programs_says_what_is_not_known(node: Node) -> None:
    node.run("bind", GPU)
    (node.root / "proc/2/comm").unlink()
    document = json.loads(node.run("status", "--output", "json"))
    assert document[0] == {
        "address": GPU,
        "present": True,
        "group": 44,
        "driver": VFIO,
        "vfio": True,
        "record": {"state": "bound", "driver": "nvidia", "override": None, "by": "command"},
        "lent": None,
        "holders": [],
        "holdersKnown": False,
        "kept": None,
        "virtualFunctions": None,
        "partition": None,
        "gpuInstances": [],
    }
    assert node.run("status").splitlines()[1].endswith("?")


def test_status_shows_what_is_not_clean_since_a_pod_had_it_and_since_when(node: Node) -> None:
    state = str(node.root / "state")
    functions = tuple(map(PciAddress.parse, (GPU, AUDIO)))
    lent = LentDevices(f"{state}/lent")
    lent.write(Lent(functions, "a/GPU", (GPU,), "cleaning", 1_764_113_400, "it failed"))
    head, gpu, audio = node.run("status", "--state", state).splitlines()
    assert head.split()[-1] == "CLEANED"
    assert gpu.endswith(" cleaning since 2025-11-25 23:30 UTC: it failed")
    assert audio.split()[-8:] == gpu.split()[-8:]
    (document, *_) = json.loads(node.run("status", "--state", state, "--output", "json", GPU))
    assert document["lent"] == {"state": "cleaning", "since": 1_764_113_400, "text": "it failed"}
    assert "CLEANED" not in node.run("status", GPU)


def test_status_shows_what_is_on_record_and_gone(node: Node) -> None:
    node.run("bind", GPU)
    node.kernel.unplug(AUDIO)
    assert "0000:01:00.1 is gone" in node.run("status")


def test_status_shows_for_which_vm_a_device_is_kept(node: Node, tmp_path: Path) -> None:
    node.run("bind", GPU)
    kept = Kept(GPU, "nvidia.com/GPU", Owner("vms", "one"), "required", "vms/launcher-1", 0.0, 0.0, 86400.0)
    records_in(str(tmp_path)).write(GPU, encode(kept))
    head, gpu, audio = node.run("status", "--state", str(tmp_path)).splitlines()
    assert head.endswith("KEPT")
    assert gpu.endswith("required, for VM vms/one since 1970-01-01 00:00 UTC until 1970-01-02 00:00 UTC")
    assert audio.endswith("-")
    document = json.loads(node.run("status", "--state", str(tmp_path), "--output", "json"))
    assert document[0]["kept"] == encode(kept)


def test_status_shows_which_virtual_functions_the_daemon_has_made(node: Node) -> None:
    vf = "0000:02:00.1"
    node.tree.vf(DISK, vf, vendor=0x144D, device=0xA808, class_code=0x010802, group=13, driver=VFIO)
    records = VfRecords(f"{node.root}/ledger/vfs", "")
    records.write(VfRecord(PciAddress.parse(DISK), 1, True, "{}", "made"))
    head, disk, of_disk = node.run("status").splitlines()
    assert head.split()[-1] == "VFS"
    assert (disk.split()[-2:], of_disk.split()[-2:]) == (["1", "made"], ["of", DISK])
    found = [each["virtualFunctions"] for each in json.loads(node.run("status", vf, DISK, "--output", "json"))]
    assert found == [{"of": DISK, "count": 1, "state": "made"}] * 2
    (node.root / f"ledger/vfs/{DISK}.json").write_text("")
    node.run("status", DISK)
    assert "is not a valid record of virtual functions that were made: it is empty" in node.err


def held(shown: str) -> set[str]:
    """What status says of who has the functions."""
    return {line.split()[-1] for line in shown.splitlines()[1:]}


def test_processes_are_looked_for_where_proc_is_said_to_be(node: Node) -> None:
    node.run("bind", GPU)
    (node.root / "proc").rename(node.root / "processes")
    given = ["--proc", f"{node.root}/processes"]
    assert (held(node.run("status", GPU)), held(node.run("status", *given, GPU))) == ({"?"}, {"no"})
    with raises_code(HOLDERS_UNKNOWN, match="whether a process has"):
        node.run("unbind", GPU)
    node.run("unbind", *given, GPU)


def test_a_machine_has_a_kubelet_if_its_socket_is_given(node: Node) -> None:
    shutil.rmtree(node.root / "kubelet")
    given = ["--pod-resources", f"{node.root}/none.sock"]
    node.run("bind", *given, GPU)
    assert f"{node.root}/none.sock" in node.err
    assert (held(node.run("status", GPU)), held(node.run("status", *given, GPU))) == ({"no"}, {"?"})
    assert f"{node.root}/none.sock" in node.err
    with raises_code(HOLDERS_UNKNOWN, match="whether a pod has"):
        node.run("unbind", *given, GPU)
    node.run("unbind", GPU)


@pytest.mark.parametrize("command", ["bind", "unbind"])
def test_a_step_may_take_as_long_as_is_said(node: Node, command: str) -> None:
    if command == "unbind":
        node.run("bind", GPU)
    node.kernel.busy.add(GPU)
    with raises_code(STEP_HANGS, match="within 7 s"):
        node.run(command, "--step-timeout", "7", GPU)


def test_the_page_of_binding_shows_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    card, audio = (
        (DISK, "bochs-drm", 0x1234, 0x1111, 0x030000, 12),
        ("0000:02:00.1", "snd_hda_intel", 0x8086, 0x293E, 0x040300, 12),
    )
    node = Node(tmp_path, monkeypatch, capfd, (card, audio))
    shown = [
        block.text.splitlines() for block in blocks(ROOT / "docs/how-to/bind-devices.md") if block.language == "text"
    ]
    assert [prompt.split()[2] for prompt, *_ in shown] == ["bind", "status", "unbind"]
    for prompt, *lines in shown:
        assert node.run(*prompt.removeprefix("# launcherkit-plugin ").split()).splitlines() == lines
        if "--dry-run" in prompt:
            node.run("bind", DISK)


VARIANT = "nvgrace_gpu_vfio_pci"
ALIASES = f"""\
alias vfio_pci:v000010DEd00002204sv*sd*bc*sc*i* {VARIANT}
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
"""


def _with_a_variant(node: Node, *, loaded: bool = True) -> None:
    """The kernel has a variant for the GPU, and none for its audio function."""
    node.tree.modules_alias(ALIASES)
    for address, ids in ((GPU, "v000010DEd00002204"), (AUDIO, "v000010DEd00001AEF")):
        modalias = node.root / "sys/bus/pci/devices" / address / "modalias"
        modalias.write_text(f"pci:{ids}sv00001458sd0000403Bbc03sc00i00\n")
    if loaded:
        node.kernel.load(VARIANT)


def test_with_auto_each_function_gets_the_variant_that_the_kernel_has_for_it(node: Node) -> None:
    _with_a_variant(node)
    planned = node.run("bind", "--dry-run", "--driver", "auto", GPU)
    assert f"nvidia -> {VARIANT}" in planned
    assert "snd_hda_intel -> vfio-pci" in planned
    assert node.run("bind", "--driver", "auto", GPU) == planned
    assert node.drivers(GPU, AUDIO) == [VARIANT, VFIO]
    assert VARIANT in node.run("status")
    dry = node.run("unbind", "--dry-run", GPU)
    assert f"{VARIANT} -> nvidia" in dry
    assert node.run("unbind", GPU) == dry
    assert node.drivers(GPU, AUDIO) == ["nvidia", "snd_hda_intel"]


def test_without_auto_a_variant_is_not_looked_for(node: Node) -> None:
    _with_a_variant(node)
    node.run("bind", GPU)
    assert node.drivers(GPU, AUDIO) == [VFIO, VFIO]


def test_a_card_with_a_variant_that_is_bound_again_keeps_it(node: Node) -> None:
    _with_a_variant(node)
    node.run("bind", "--driver", "auto", GPU)
    node.kernel.set_driver(GPU, None)
    node.run("bind", GPU)
    assert node.drivers(GPU, AUDIO) == [VARIANT, VFIO]


def test_where_the_aliases_or_the_module_are_missing_nothing_is_bound(node: Node) -> None:
    with raises_code(NO_VFIO_DRIVER, match="which VFIO driver a function wants is not known"):
        node.run("bind", "--driver", "auto", GPU)
    _with_a_variant(node, loaded=False)
    with raises_code(NO_VFIO_DRIVER, match=f"the module {VARIANT}"):
        node.run("bind", "--driver", "auto", GPU)
    assert node.drivers(GPU, AUDIO) == ["nvidia", "snd_hda_intel"]
