"""What the host needs is not taken from it with managed='yes' (V1), on trees as the kernel lays them out."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

import pytest

from launcherkit import Host, translate
from launcherkit.cli.main import run
from launcherkit.errors import HOST_NEEDS_DEVICE, LauncherkitError, SeveralErrors
from launcherkit.model.policy import Policy
from launcherkit.run.define import refuse_needed_by_host
from tests.support.errors import raises_code
from tests.support.faults import failing
from tests.support.hosttree import HostTree
from tests.support.provoked import provoked

DISK, NIC, GPU = "0000:02:00.0", "0000:04:00.0", "0000:01:00.0"
DOMAIN = b"<domain type='kvm'><name>vm</name><os><type machine='q35'>hvm</type></os><devices/></domain>"
ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
NOWHERE = "0" * 32


class Machine:
    """A host with a disk, a network card and a GPU, each in a group and on its driver."""

    def __init__(self, root: Path) -> None:
        self.root, self.tree = root, HostTree(root)
        self.tree.function(DISK, device=0xA808, class_code=0x010802, driver="nvme", group=12)
        self.tree.function(NIC, device=0x10FB, class_code=0x020000, driver="ixgbe", group=14)
        self.tree.function(GPU, driver="nouveau", group=11)
        self.write("proc/2/comm", "kthreadd\n")
        self.write("proc/sys/net/core/dev_weight", "64\n")
        self.process("1")

    def process(self, name: str) -> None:
        """Let there be a process that has nothing mounted and no route."""
        self.write(f"proc/{name}/mountinfo", "22 27 0:21 / /proc rw,relatime - proc proc rw\n")
        self.write(f"proc/{name}/net/route", ROUTES)

    def be_container(self) -> None:
        """Show what a container without ``hostPID`` and ``hostNetwork`` shows."""
        (self.root / "proc/2/comm").unlink()
        (self.root / "proc/sys/net/core/dev_weight").unlink()
        self.process("self")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def device(self, kind: str, directory: Path, **files: str) -> Path:
        """A block device or a network interface."""
        directory.mkdir(parents=True)
        for name, content in files.items():
            (directory / name).write_text(content)
        (self.root / f"sys/class/{kind}").mkdir(parents=True, exist_ok=True)
        self.tree.link(f"sys/class/{kind}/{directory.name}", directory)
        return directory

    def disk(self) -> Path:
        """An NVMe disk with two partitions; the second is returned."""
        disk = self.device("block", self.tree.path(DISK) / "nvme/nvme0/nvme0n1", dev="259:0\n")
        self.device("block", disk / "nvme0n1p1", dev="259:1\n", partition="1\n")
        return self.device("block", disk / "nvme0n1p2", dev="259:2\n", partition="2\n")

    def made_of(self, part: Path, name: str, number: str) -> Path:
        """A device of the device mapper or of RAID, on a disk or another one."""
        made = self.device("block", self.root / "sys/devices/virtual/block" / name, dev=f"{number}\n")
        (part / "holders").mkdir()
        self.tree.link(str((part / "holders" / name).relative_to(self.root)), made)
        return made

    def mount(self, number: str, source: str, where: str = "/", process: str = "1") -> None:
        self.write(f"proc/{process}/mountinfo", f"27 1 {number} / {where} rw,relatime shared:1 - ext4 {source} rw\n")

    def interface(self, flags: str = "0x1003") -> Path:
        return self.device("net", self.tree.path(NIC) / "net/eth0", flags=f"{flags}\n")

    def above(self, part: Path, name: str) -> Path:
        """A bond, VLAN or bridge that has an interface."""
        made = self.device("net", self.root / "sys/devices/virtual/net" / name)
        self.tree.link(str((part / f"upper_{name}").relative_to(self.root)), made)
        return made

    def route(self, interface: str, process: str = "1") -> None:
        line = f"{interface}\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        self.write(f"proc/{process}/net/route", ROUTES + line)

    def check(self, devices: Iterable[str], *, managed: bool = True) -> None:
        env = {"PCI_RESOURCE_EXAMPLE_COM_ANY": ",".join(devices)}
        host, policy = Host.from_sysfs(self.root), Policy(managed=managed, node_check="never")
        refuse_needed_by_host(translate(DOMAIN, env=env, host=host, policy=policy).plan, str(self.root))

    def refused(self, device: str) -> str:
        with raises_code(HOST_NEEDS_DEVICE) as raised:
            self.check([device])
        assert raised.value.device == device
        return raised.value.message


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_idle_device_is_taken(machine: Machine) -> None:
    machine.disk()
    machine.interface()  # that is up: the host can do without it
    machine.check([DISK, NIC, GPU])


def test_the_root_disk_stays_on_virtio(machine: Machine) -> None:
    machine.tree.function("0000:00:02.0", vendor=0x1AF4, class_code=0x010000, driver="virtio-pci", group=2)
    machine.device("block", machine.tree.path("0000:00:02.0") / "virtio1/block/vda", dev="254:0\n")
    machine.mount("254:0", "/dev/root")
    assert machine.refused("0000:00:02.0") == (
        "0000:00:02.0, which libvirt would take from its driver virtio-pci (managed='yes'), is needed by this host: "
        "vda is mounted at /"
    )


def test_the_root_disk_stays_behind_an_nvme_multipath_head(machine: Machine) -> None:
    (machine.tree.path(DISK) / "nvme/nvme3").mkdir(parents=True)
    subsystem = machine.root / "sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    machine.device("block", subsystem / "nvme0n1", dev="259:0\n")
    (subsystem / "nvme3").mkdir()
    (machine.root / "sys/class/nvme-subsystem").mkdir()
    machine.tree.link("sys/class/nvme-subsystem/nvme-subsys0", subsystem)
    machine.mount("259:0", "/dev/nvme0n1")
    assert "nvme0n1 is mounted at /" in machine.refused(DISK)


def test_the_root_disk_stays_below_encryption_on_lvm_on_raid(machine: Machine) -> None:
    volume = machine.made_of(machine.made_of(machine.disk(), "md0", "9:0"), "dm-0", "252:0")
    machine.made_of(volume, "dm-1", "252:1")
    machine.mount("252:1", "/dev/mapper/root")
    assert machine.refused(DISK).endswith(": nvme0n1p2, in dm-1, is mounted at /")


def test_a_partition_of_a_raid_counts(machine: Machine) -> None:
    raid = machine.made_of(machine.disk(), "md0", "9:0")
    machine.device("block", raid / "md0p1", dev="259:9\n", partition="1\n")
    machine.mount("259:9", "/dev/md0p1", "/var")
    assert machine.refused(DISK).endswith(": nvme0n1p2, in md0p1, is mounted at /var")


def test_btrfs_is_known_by_the_name_in_the_device_mapper(machine: Machine) -> None:
    made = machine.made_of(machine.disk(), "dm-0", "252:0")
    (made / "dm").mkdir()
    (made / "dm/name").write_text("luks-root\n")
    machine.mount("0:44", "/dev/mapper/luks-root")
    assert machine.refused(DISK).endswith(": nvme0n1p2, in dm-0, is mounted at /")


def test_swap_space_stays(machine: Machine) -> None:
    machine.made_of(machine.disk(), "dm-0", "252:0")
    machine.write("proc/swaps", "Filename Type Size Used Priority\n/dev/dm-0 partition 1 0 -2\n")
    assert machine.refused(DISK).endswith(": nvme0n1p2, in dm-0, is swapped to")


def test_a_volume_that_nobody_uses_is_taken(machine: Machine) -> None:
    machine.made_of(machine.disk(), "dm-0", "252:0")
    machine.check([DISK])


def test_the_default_route_keeps_its_network_card(machine: Machine) -> None:
    machine.interface()
    machine.route("eth0")
    assert machine.refused(NIC).endswith(": network interface eth0 has the default route")


@pytest.mark.parametrize("version", [4, 6])
def test_the_default_route_is_seen_through_bond_vlan_and_bridge(machine: Machine, version: int) -> None:
    bond = machine.above(machine.interface(), "bond0")
    machine.above(machine.above(bond, "bond0.7"), "br0")
    if version == 4:
        machine.route("br0")
    else:
        line = f"{NOWHERE} 00 {NOWHERE} 00 {NOWHERE} 00000400 00000001 00000000 00000001      br0\n"
        machine.write("proc/1/net/ipv6_route", line)
    assert machine.refused(NIC).endswith(": network interface eth0, in br0, has the default route")


def test_another_route_is_none_that_the_host_needs(machine: Machine) -> None:
    machine.interface()
    network = "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    lower_half = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000080\t0\t0\t0\n"
    machine.write("proc/1/net/route", ROUTES + network + lower_half)
    link_local = f"fe80{NOWHERE[4:]} 40 {NOWHERE} 00 {NOWHERE} 00000100 00000001 00000000 00000001     eth0\n"
    half = f"{NOWHERE} 01 {NOWHERE} 00 {NOWHERE} 00000100 00000001 00000000 00000001     eth0\n"
    machine.write("proc/1/net/ipv6_route", link_local + half)
    machine.check([NIC])


@pytest.mark.parametrize("driver", ["vfio-pci", "pci-stub", None])
def test_what_libvirt_takes_from_no_driver_of_the_host_is_not_looked_at(machine: Machine, driver: str | None) -> None:
    machine.tree.function("0000:03:00.0", class_code=0x010802, driver=driver, group=13)
    machine.device("block", machine.tree.path("0000:03:00.0") / "nvme/nvme1/nvme1n1", dev="259:5\n")
    machine.mount("259:5", "/dev/nvme1n1")
    machine.check(["0000:03:00.0"])


def test_a_function_that_stays_on_the_host_is_not_looked_at(machine: Machine) -> None:
    """Here a bridge in the group of the GPU, with the host's disk below it."""
    port, disk = "0000:00:05.0", "0000:05:00.0"
    machine.tree.function(port, class_code=0x060400, driver="pcieport", group=11, parents=["pci0000:00"])
    machine.tree.function(disk, class_code=0x010802, driver="nvme", group=15, parents=["pci0000:00", port])
    machine.device("block", machine.tree.path(disk) / "nvme/nvme1/nvme1n1", dev="259:5\n")
    machine.mount("259:5", "/dev/nvme1n1")
    machine.check([GPU])


def test_everything_that_is_needed_is_reported_together(machine: Machine) -> None:
    machine.disk()
    machine.mount("259:2", "/dev/nvme0n1p2")
    machine.interface()
    machine.route("eth0")
    with pytest.raises(SeveralErrors) as raised:
        machine.check([DISK, NIC, GPU])
    assert [error.device for error in raised.value.leaves()] == [DISK, NIC]


@pytest.mark.parametrize(
    ("device", "path"),
    [(DISK, "sys/class/block"), (DISK, "sys/class/block/nvme0n1p2/holders"), (NIC, "sys/class/net/eth0")],
)
def test_what_can_not_be_read_counts_as_needed(machine: Machine, device: str, path: str) -> None:
    """T2."""
    machine.disk()
    machine.interface()
    with failing(machine.root / path, errno.EIO):
        assert "is needed by this host: its use is unknown: " in machine.refused(device)


@pytest.mark.parametrize(("device", "file"), [(DISK, "1/mountinfo"), (DISK, "swaps"), (NIC, "1/net/route")])
def test_proc_that_can_not_be_read_counts_as_need(machine: Machine, device: str, file: str) -> None:
    machine.disk()
    machine.interface()
    (machine.root / "proc" / file).unlink(missing_ok=True)
    (machine.root / "proc" / file).mkdir()
    assert f"its use is unknown: {machine.root}/proc/{file}: Is a directory" in machine.refused(device)


@pytest.mark.parametrize(("device", "file"), [(DISK, "mountinfo"), (NIC, "net/route")])
def test_without_the_hosts_proc_its_use_is_unknown(machine: Machine, device: str, file: str) -> None:
    machine.disk()
    machine.interface()
    (machine.root / "proc/1" / file).unlink()
    assert f"{file} is not there" in machine.refused(device)


def test_a_container_refuses_disks_whose_mounts_it_does_not_see(machine: Machine) -> None:
    machine.disk()
    machine.mount("259:2", "/dev/nvme0n1p2")
    machine.be_container()
    assert f"LK627: {machine.refused(DISK)}" == provoked("libvirt", "LK627")[1]


def test_a_container_knows_what_it_has_mounted_itself(machine: Machine) -> None:
    machine.disk()
    machine.be_container()
    machine.mount("259:2", "/dev/nvme0n1p2", "/data", "self")
    assert machine.refused(DISK).endswith("is needed by this host: nvme0n1p2 is mounted at /data")


def test_a_container_refuses_a_network_card_whose_interface_is_elsewhere(machine: Machine) -> None:
    machine.be_container()
    assert machine.refused(NIC).endswith("it can't be seen here whether the default route goes through it")
    machine.write("proc/2/comm", "kthreadd\n")  # with hostPID
    assert machine.refused(NIC).endswith("it can't be seen here whether the default route goes through it")
    machine.write("proc/sys/net/core/dev_weight", "64\n")  # with hostNetwork
    machine.check([NIC])


def test_a_container_gives_away_an_interface_of_its_own_unless_its_route_needs_it(machine: Machine) -> None:
    machine.interface()
    machine.be_container()
    machine.check([NIC])
    machine.route("eth0", "self")
    assert machine.refused(NIC).endswith(": network interface eth0 has the default route")


def test_a_container_takes_vfs_gpus_and_disks_without_block_devices(machine: Machine) -> None:
    machine.tree.vf(NIC, "0000:04:10.0", device=0x10ED, class_code=0x020000, driver="ixgbevf", group=15)
    machine.be_container()
    machine.check(["0000:04:10.0", GPU, DISK])


@pytest.mark.parametrize("command", ["define", "run"])
def test_the_commands_refuse_it_before_libvirt_is_asked(machine: Machine, tmp_path: Path, command: str) -> None:
    machine.made_of(machine.disk(), "dm-1", "252:1")
    machine.mount("252:1", "/dev/mapper/root")
    domain = tmp_path / "vm.xml"
    domain.write_bytes(DOMAIN)
    arguments = [command, "--domain", str(domain), "--managed", "yes", "--connect", "nothing:///there"]
    env = {"PCI_RESOURCE_EXAMPLE_COM_DISK": DISK, "LAUNCHERKIT_HOST": str(machine.root)}
    with pytest.raises(LauncherkitError) as raised:
        run(arguments, env)
    assert f"{raised.value.code}: {raised.value.message}" == provoked("libvirt", "LK627")[0]


def test_without_a_directory_of_the_host_nothing_is_known(machine: Machine, tmp_path: Path) -> None:
    machine.disk()
    machine.mount("259:2", "/dev/nvme0n1p2")
    env = {"PCI_RESOURCE_EXAMPLE_COM_DISK": DISK}
    policy = Policy(managed=True, node_check="never")
    plan = translate(DOMAIN, env=env, host=Host.from_sysfs(machine.root), policy=policy).plan
    (tmp_path / "host.json").touch()
    refuse_needed_by_host(plan, str(tmp_path / "host.json"))
