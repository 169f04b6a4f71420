"""`launcherkit verify` and a guest that runs Linux and QEMU's guest agent, at a real libvirt."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit.cli.main import run
from launcherkit.doctor.guest_view import check_guest
from launcherkit.domain.reader import read_facts
from launcherkit.domain.xml import read_document
from launcherkit.errors import GUEST_AGENT, NO_RUNNING_DOMAIN
from launcherkit.host.source import Host
from launcherkit.run.agent import Agent, AgentTree
from launcherkit.run.connection import Connection, LibvirtFailure, connect
from launcherkit_lab.initramfs import Entry, archive, in_order, unpacked
from launcherkit_lab.packages import cache_folder, fetch
from tests.libvirt.pod import Pod
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.provoked import provoked
from tests.support.waiting import until
from tests.tiers import find_program

pytestmark = pytest.mark.kernel

_MODULES = ("virtio_pci", "virtio_console")
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "$module"; done </modules
until port=$(ls /dev/vport*); do sleep 0.1; done
exec qemu-ga --method=virtio-serial --path="$port" --statedir=/run
"""
_CHANNEL = (
    "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"
    "<controller type='virtio-serial' index='0'/>"
)
_RNG = "<rng model='virtio'><backend model='random'>/dev/urandom</backend><address type='pci' {}/></rng>"


@pytest.fixture(scope="module")
def initrd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Linux's first file system: busybox, and the guest agent with its libraries."""
    agent, kernel = find_program("qemu-ga"), fetch(cache_folder(os.environ))
    assert agent is not None
    listed = subprocess.run(["ldd", agent], capture_output=True, text=True, check=True).stdout
    programs = {"bin/busybox": Path(find_program("busybox") or ""), "bin/qemu-ga": Path(agent)}
    programs |= {path.lstrip("/"): Path(path) for path in re.findall(r"(/\S+) \(0x", listed)}
    modules = {f"{number}.ko": path for number, path in enumerate(in_order(kernel.modules, _MODULES))}
    folders = {"dev", "proc", "sys", "run", "etc"} | {
        str(each) for name in programs for each in Path(name).parents[:-1]
    }
    entries = [
        *(Entry(name, stat.S_IFDIR | 0o755) for name in sorted(folders)),
        *(Entry(name, stat.S_IFREG | 0o755, path.read_bytes()) for name, path in programs.items()),
        *(Entry(name, stat.S_IFREG | 0o644, unpacked(path)) for name, path in modules.items()),
        Entry("modules", stat.S_IFREG | 0o644, "".join(f"/{name}\n" for name in modules).encode()),
        Entry("init", stat.S_IFREG | 0o755, _INIT.encode()),
    ]
    path = tmp_path_factory.mktemp("guest") / "initrd"
    path.write_bytes(archive(entries))
    return path


@pytest.fixture
def connection(place: Pod) -> Iterator[Connection]:
    """To libvirt; afterwards it has no domain."""
    connection = connect(place.uri)
    yield connection
    connection.close()
    for name in place.libvirt("list", "--name").split():
        place.libvirt("destroy", name)


def start(place: Pod, folder: Path, *, initrd: Path | None = None, devices: str = "") -> None:
    """Start a guest ``vm`` of two cells, that stops at once without an initrd."""
    kernel = fetch(cache_folder(os.environ)).image
    boot = f"<kernel>{kernel}</kernel>" + (f"<initrd>{initrd}</initrd>" if initrd else "")
    cells = "<cell id='0' cpus='0' memory='192' unit='MiB'/><cell id='1' cpus='1' memory='64' unit='MiB'/>"
    document = folder / "vm.xml"
    document.write_text(
        "<domain type='qemu'><name>vm</name><memory unit='MiB'>256</memory><vcpu>2</vcpu><cpu><numa>"
        f"{cells}</numa></cpu><os><type arch='x86_64' machine='q35'>hvm</type>{boot}<cmdline>console=ttyS0 "
        "quiet panic=0</cmdline></os><features><acpi/></features><devices><memballoon model='none'/>"
        f"<serial type='file'><source path='{folder}/serial'/></serial>{devices}</devices></domain>"
    )
    place.libvirt("create", str(document))


def test_a_guest_that_runs_is_held_against_its_domain(
    place: Pod, initrd: Path, connection: Connection, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its devices are emulated, since this machine needs no IOMMU; the test takes them for hostdevs."""
    buses = {"port": "bus='1' slot='0'", "switch": "bus='4' slot='0'", "cell": "bus='6' slot='0'"}
    controllers = [
        "<controller type='pci' index='0' model='pcie-root'/>",
        "<controller type='pci' index='1' model='pcie-root-port'/>",
        "<controller type='pci' index='2' model='pcie-root-port'/>",
        "<controller type='pci' index='3' model='pcie-switch-upstream-port'/>",
        "<controller type='pci' index='4' model='pcie-switch-downstream-port'/>",
        "<controller type='pci' index='5' model='pcie-expander-bus'><target><node>1</node></target></controller>",
        "<controller type='pci' index='6' model='pcie-root-port'><address type='pci' bus='5' slot='1'/></controller>",
    ]
    devices = "".join([*controllers, _CHANNEL, *(_RNG.format(bus) for bus in buses.values())])
    start(place, tmp_path, initrd=initrd, devices=devices)
    guest = connection.find("vm")
    assert guest is not None
    running = guest.running_xml().decode()

    def answers() -> bool:
        try:
            guest.ask_agent('{"execute": "guest-ping"}')
        except LibvirtFailure:
            return False
        return True

    until(answers, "the agent", (tmp_path / "serial").read_text)
    hostdevs = iter(range(3))

    def taken_for_hostdev(rng: re.Match[str]) -> str:
        place_in_guest = re.findall(r"<address type='pci'[^>]*/>", rng[0])[0]
        source = f"<source><address bus='{next(hostdevs) + 1}' slot='0' function='0'/></source>"
        return f"<hostdev mode='subsystem' type='pci'>{source}{place_in_guest}</hostdev>"

    document = re.sub(r"<rng .*?</rng>", taken_for_hostdev, running, flags=re.DOTALL)
    host = HostTree(tmp_path / "host")
    for bus in (1, 2, 3):
        host.function(f"0000:{bus:02x}:00.0", vendor=0x1AF4, device=0x1044, class_code=0x00FF00, driver="vfio-pci")
    facts = Host.from_sysfs(host.root).scan()
    domain = read_facts(read_document(document.encode()).root, "vm")
    found = check_guest(domain, facts, AgentTree(Agent(guest.ask_agent, "vm")))
    of = {(each.check, each.subject): (each.status, each.seen) for each in found}
    for bus in (1, 2, 3):
        status, seen = of["guest-device", f"0000:{bus:02x}:00.0"]
        assert (status, seen.split()[0]) == ("ok", "1af4:1044")
        assert of["guest-driver", f"0000:{bus:02x}:00.0"] == ("ok", "virtio-pci")
    assert of["guest-numa-node", "0000:03:00.0"] == ("ok", "node 1")
    assert len({seen for (check, _), (_, seen) in of.items() if check == "guest-device"}) == 3
    assert of["guest-memory", "0000:01:00.0"] == ("fail", "BARs 1: 4 KiB, 4: 16 KiB, on the host 0: 16 MiB")

    assert run(["verify", "vm", "--connect", place.uri], {}) == 0
    assert "the domain has no hostdevs" in capfd.readouterr().out
    assert run(["verify", "vm", "--connect", place.uri, "--host", "none", "--strict", "--json"], {}) == 0
    assert json.loads(capfd.readouterr().out)["passed"] is True
    series, vmi = tmp_path / "vm.prom", tmp_path / "vmi.json"
    vmi.write_text('{"status": {}}')
    assert run(["verify", "vm", "--connect", place.uri, "--prometheus", str(series), "--condition", str(vmi)], {}) == 0
    assert json.loads(capfd.readouterr().out)[0]["value"][0]["status"] == "True"
    assert series.read_text().startswith("# HELP launcherkit_guest_check ")


@pytest.mark.parametrize(("devices", "why"), [("", "not configured"), (_CHANNEL, "not connected|not responding")])
def test_a_guest_without_an_agent(devices: str, why: str, place: Pod, connection: Connection, tmp_path: Path) -> None:
    start(place, tmp_path, devices=devices)
    guest = connection.find("vm")
    assert guest is not None
    with raises_code(GUEST_AGENT, why):
        AgentTree(Agent(guest.ask_agent, "vm"))


def test_a_domain_that_does_not_run(place: Pod, connection: Connection) -> None:
    with raises_code(NO_RUNNING_DOMAIN) as raised:
        run(["verify", "vm", "--connect", place.uri], {})
    assert [f"{raised.value.code}: {raised.value.message}"] == provoked("libvirt", "LK629")
