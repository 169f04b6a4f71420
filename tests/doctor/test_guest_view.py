"""What a running guest has got, held against its domain and the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.doctor.finding import Finding
from launcherkit.doctor.guest_view import GUEST_CHECKS, check_guest
from launcherkit.domain.reader import read_facts
from launcherkit.domain.xml import read_document
from launcherkit.host.source import Host
from launcherkit.host.tree import DiskTree
from launcherkit.model.domain import DomainFacts
from tests.support.hosttree import BAR, HostTree

CELLS = (
    "<cpu><numa><cell id='0' cpus='0' memory='1' unit='GiB'/><cell id='1' cpus='1' memory='1' unit='GiB'/></numa></cpu>"
)
RESOURCE = BAR(0xF0000000, 0xF0FFFFFF, 0x40200) + BAR(0, 0, 0) * 12


def controller(index: int, model: str, place: str = "", more: str = "") -> str:
    return (
        f"<controller type='pci' index='{index}' model='{model}'>{more}{address(place) if place else ''}</controller>"
    )


def address(place: str, kind: str = " type='pci'") -> str:
    bus, slot, function = (int(part) for part in place.split())
    return f"<address{kind} domain='0x0000' bus='0x{bus:02x}' slot='0x{slot:02x}' function='0x{function}'/>"


def hostdev(source: str, place: str) -> str:
    return f"<hostdev mode='subsystem' type='pci'><source>{address(source, '')}</source>{address(place)}</hostdev>"


def domain(*devices: str) -> DomainFacts:
    """A domain of two cells whose root ports are at 00:02.0 and 00:03.0, and an expander of cell 1 with one."""
    tree = [
        controller(0, "pcie-root"),
        controller(1, "pcie-root-port", "0 2 0"),
        controller(2, "pcie-root-port", "0 3 0"),
        controller(3, "pcie-switch-upstream-port", "2 0 0"),
        controller(4, "pcie-switch-downstream-port", "3 1 0"),
        controller(8, "pcie-expander-bus", "0 5 0", "<target busNr='128'><node>1</node></target>"),
        controller(9, "pcie-root-port", "8 0 0"),
    ]
    document = (
        "<domain type='kvm'><name>vm</name><memory unit='GiB'>2</memory><vcpu>2</vcpu><os><type arch='x86_64' "
        f"machine='q35'>hvm</type></os>{CELLS}<devices>{''.join([*tree, *devices])}</devices></domain>"
    )
    return read_facts(read_document(document.encode()).root, "vm")


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path / "host")
    tree.card("0000:e1:00", group=44)
    return tree


@pytest.fixture
def guest(tmp_path: Path) -> HostTree:
    """Its firmware has numbered the buses otherwise than the domain: 1 is 3, 2 is 5, and so on."""
    tree = HostTree(tmp_path / "guest")
    bridges = {"00:02.0": 3, "00:03.0": 5, "05:00.0": 6, "06:01.0": 7, "80:00.0": 0x81}
    for place, bus in bridges.items():
        config = bytes(0x19) + bytes([bus]) + bytes(0x26)
        tree.function(f"0000:{place}", vendor=0x1B36, device=0x000C, class_code=0x060400, files={"config": config})
    return tree


def findings(devices: DomainFacts, host: HostTree | Host, guest: HostTree) -> list[Finding]:
    facts = (host if isinstance(host, Host) else Host.from_sysfs(host.root)).scan()
    return check_guest(devices, facts, DiskTree(str(guest.root)))


def told(found: list[Finding]) -> list[tuple[str, str, str, str]]:
    return [(each.check, each.subject, each.status, each.seen) for each in found]


def test_a_guest_that_has_what_was_promised(host: HostTree, guest: HostTree) -> None:
    guest.card("0000:03:00", group=1, driver="nvidia")
    assert told(findings(domain(hostdev("225 0 0", "1 0 0"), hostdev("225 0 1", "1 0 1")), host, guest)) == [
        ("guest-device", "0000:e1:00.0", "ok", "10de:2204 at 0000:03:00.0 in the guest"),
        ("guest-device", "0000:e1:00.1", "ok", "10de:1aef at 0000:03:00.1 in the guest"),
        ("guest-memory", "0000:e1:00.0", "ok", "BARs 0: 16 MiB"),
        ("guest-memory", "0000:e1:00.1", "ok", "BARs 0: 16 MiB"),
        ("guest-driver", "0000:e1:00.0", "ok", "nvidia"),
        ("guest-driver", "0000:e1:00.1", "ok", "nvidia"),
    ]


@pytest.mark.parametrize(
    ("place", "there"), [("1 0 0", "0000:03:00.0"), ("4 0 0", "0000:07:00.0"), ("9 0 0", "0000:81:00.0")]
)
def test_it_is_looked_for_behind_ports_switches_and_expanders(
    place: str, there: str, host: HostTree, guest: HostTree
) -> None:
    guest.function(there, driver="nvidia", numa=1)
    found = findings(domain(hostdev("225 0 0", place)), host, guest)
    assert found[0].seen == f"10de:2204 at {there} in the guest"
    assert {each.status for each in found} == {"ok"}


def test_a_device_that_is_not_there(host: HostTree, guest: HostTree) -> None:
    (only,) = findings(domain(hostdev("225 0 0", "1 0 0")), host, guest)
    assert (only.status, only.seen) == ("fail", "there is no function at 0000:03:00.0 in the guest")
    assert only.remedy


def test_a_bridge_that_is_not_there(host: HostTree, tmp_path: Path) -> None:
    (only,) = findings(domain(hostdev("225 0 0", "4 0 0")), host, HostTree(tmp_path / "bare"))
    assert (only.status, only.seen) == ("fail", "there is no function behind bus 4 of the domain")


def test_another_model_than_the_hosts(host: HostTree, guest: HostTree) -> None:
    guest.function("0000:03:00.0", device=0x2684, driver="nvidia")
    found = findings(domain(hostdev("225 0 0", "1 0 0")), host, guest)
    assert (found[0].status, found[0].seen) == (
        "fail",
        "at 0000:03:00.0 the guest has 10de:2684, on the host it is 10de:2204",
    )


@pytest.mark.parametrize(("node", "seen"), [(0, "node 0 in place of 1"), (-1, "no node in place of 1")])
def test_a_device_below_an_expander_that_the_guest_counts_to_another_cell(
    node: int, seen: str, host: HostTree, guest: HostTree
) -> None:
    guest.function("0000:81:00.0", driver="nvidia", numa=node)
    found = findings(domain(hostdev("225 0 0", "9 0 0")), host, guest)
    assert [(each.status, each.seen) for each in found if each.check == "guest-numa-node"] == [("fail", seen)]


@pytest.mark.parametrize(
    ("resource", "seen"),
    [
        (BAR(0x0, 0xFFFFFF, 0x20040200) + BAR(0, 0, 0) * 12, "no place for BAR 0 (16 MiB)"),
        (BAR(0xF0000000, 0xF00FFFFF, 0x40200) + BAR(0, 0, 0) * 12, "BARs 0: 1 MiB, on the host 0: 16 MiB"),
        (BAR(0, 0, 0) * 13, "BARs none, on the host 0: 16 MiB"),
        # Line 6 is the ROM, which a policy can switch off.
        (RESOURCE.replace(BAR(0, 0, 0) * 12, BAR(0, 0, 0) * 5 + BAR(0xC0000, 0xDFFFF, 0x212) + BAR(0, 0, 0) * 6), ""),
    ],
)
def test_bars(resource: str, seen: str, host: HostTree, guest: HostTree) -> None:
    guest.function("0000:03:00.0", driver="nvidia", files={"resource": resource})
    found = findings(domain(hostdev("225 0 0", "1 0 0")), host, guest)
    (memory,) = [each for each in found if each.check == "guest-memory"]
    assert (memory.status, memory.seen) == (("fail", seen) if seen else ("ok", "BARs 0: 16 MiB"))


def link(speed: str, width: int) -> dict[str, str | bytes | None]:
    return {
        "current_link_speed": speed,
        "current_link_width": str(width),
        "max_link_speed": speed,
        "max_link_width": str(width),
    }


@pytest.mark.parametrize(
    ("guests", "status", "seen"),
    [
        (("16.0 GT/s PCIe", 16), "ok", "16 GT/s, x16"),
        (("2.5 GT/s PCIe", 16), "ok", "2.5 GT/s, x16"),  # a card that has nothing to do slows down
        (("2.5 GT/s PCIe", 1), "warn", "2.5 GT/s, x1, on the host 16 GT/s, x16"),
    ],
)
def test_links(guests: tuple[str, int], status: str, seen: str, tmp_path: Path, guest: HostTree) -> None:
    host = HostTree(tmp_path / "other")
    host.function("0000:e1:00.0", driver="vfio-pci", group=1, files=link("16.0 GT/s PCIe", 16))
    guest.function("0000:03:00.0", driver="nvidia", files=link(*guests))
    found = findings(domain(hostdev("225 0 0", "1 0 0")), host, guest)
    assert [(each.status, each.seen) for each in found if each.check == "guest-link"] == [(status, seen)]


def test_no_driver_is_a_warning(host: HostTree, guest: HostTree) -> None:
    guest.function("0000:03:00.0")
    found = findings(domain(hostdev("225 0 0", "1 0 0")), host, guest)
    assert [(each.check, each.seen) for each in found if each.status != "ok"] == [("guest-driver", "none")]


def test_without_the_host_only_places_are_checked(guest: HostTree) -> None:
    guest.function("0000:03:00.0", driver="nvidia")
    found = findings(domain(hostdev("225 0 0", "1 0 0")), Host.none(), guest)
    assert [(each.check, each.status) for each in found] == [
        ("guest-device", "ok"),
        ("guest-memory", "ok"),
        ("guest-driver", "ok"),
    ]


def test_a_usb_device_is_skipped(host: HostTree, guest: HostTree) -> None:
    usb = "<hostdev mode='subsystem' type='usb'><source><address bus='1' device='2'/></source></hostdev>"
    assert told(findings(domain(usb), host, guest)) == [
        ("guest-device", "1:2", "skipped", "a USB device has no PCI address in the guest")
    ]


def test_a_domain_without_hostdevs_has_nothing_to_check(host: HostTree, guest: HostTree) -> None:
    assert told(findings(domain(), host, guest)) == [("guest-device", "", "skipped", "the domain has no hostdevs")]


def test_the_checks_are_in_the_order_of_the_list(host: HostTree, guest: HostTree) -> None:
    guest.card("0000:03:00", group=1, driver="nvidia")
    found = findings(domain(hostdev("225 0 0", "1 0 0"), hostdev("225 0 1", "1 0 1")), host, guest)
    places = [list(GUEST_CHECKS).index(each.check) for each in found]
    assert places == sorted(places)
