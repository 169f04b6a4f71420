"""Facts about a domain document."""

from __future__ import annotations

from typing import Any

import pytest

from launcherkit.domain.reader import hostdev_elements, read_facts
from launcherkit.domain.xml import read_document
from launcherkit.errors import BAD_HOSTDEV, SeveralErrors
from launcherkit.model.address import GuestAddress, MdevAddress, PciAddress, UsbAddress, UsbModel
from launcherkit.model.domain import DomainFacts
from tests.support.domains import domain, mdev_hostdev, pci_hostdev
from tests.support.errors import raises_code
from tests.support.facts import UUID


def read(text: str) -> DomainFacts:
    return read_facts(read_document(text).root, "vm.xml")


def facts(*devices: str, **where: Any) -> DomainFacts:
    return read(domain(*devices, **where))


@pytest.mark.parametrize(
    ("where", "topology"),
    [
        ({"machine": "q35"}, "pcie"),
        ({"machine": "pc-q35-rhel9.4.0"}, "pcie"),
        ({"machine": "virt", "arch": "aarch64"}, "pcie"),
        ({"machine": "virt-9.0", "arch": "riscv64"}, "pcie"),
        ({"machine": None, "arch": "aarch64"}, "pcie"),
        ({"machine": "pc"}, "pci"),
        ({"machine": "pc-i440fx-7.2"}, "pci"),
        ({"machine": None}, "pci"),
        ({"machine": "q35", "kind": "qemu"}, "pcie"),
        ({"machine": "q35", "kind": "xen"}, "other"),
        ({"machine": "q35", "kind": "lxc"}, "other"),
        ({"machine": "s390-ccw-virtio", "arch": "s390x"}, "other"),
        ({"machine": "pseries", "arch": "ppc64le"}, "other"),
        ({"machine": "isapc"}, "other"),
        ({"machine": "microvm"}, "other"),
        ({"machine": "q35x"}, "other"),
        ({"machine": ""}, "pci"),
    ],
)
def test_the_topology_follows_from_the_machine(where: dict[str, str], topology: str) -> None:
    """P2, P6."""
    assert facts(**where).pci_root == topology


def test_a_root_controller_that_is_written_says_it_before_the_machine() -> None:
    """P2."""
    pcie = "<controller type='pci' index='0' model='pcie-root'/>"
    pci = "<controller type='pci' index='0' model='pci-root'/>"
    assert facts(pcie, machine="mach-virt-of-tomorrow").pci_root == "pcie"
    assert facts(pci, machine="pc-i440fx-7.2").pci_root == "pci"
    assert facts(pci, machine="pseries", arch="ppc64").pci_root == "other"


def test_a_domain_with_no_os_and_no_devices_is_read_too() -> None:
    found = read("<domain type='kvm'/>")
    assert (found.pci_root, found.hostdevs, found.controllers) == ("pci", (), ())
    assert read("<domain/>").pci_root == "other"


def test_controllers_and_addresses_in_use_are_found() -> None:
    found = facts(
        "<controller type='pci' index='0x2' model='pcie-root-port'>"
        "<address type='pci' slot='2' function='1'/></controller>",
        "<controller type='usb' index='7'/>",
        "<controller type='pci' index='x' model='pcie-root-port'/>",
        "<disk><address type='pci' domain='0x0000' bus='0x10' slot='0x1f' function='0x7'/></disk>",
        "<disk><address type='drive' bus='3' unit='1'/></disk>",
        "<disk><address type='pci' domain='0' bus='0' slot='0' function='0'/></disk>",
        "<disk><address type='pci' bus='nonsense'/></disk>",
        "<hostdev mode='subsystem' type='scsi'><address type='pci' bus='4' slot='0'/></hostdev>",
    )
    assert [(each.number, each.model, each.guest) for each in found.controllers] == [
        (2, "pcie-root-port", GuestAddress(0, 0, 2, 1)),
        (None, "pcie-root-port", None),
    ]
    assert found.guest_addresses == {GuestAddress(0, 0, 2, 1), GuestAddress(0, 0x10, 0x1F, 7), GuestAddress(0, 4, 0, 0)}


def test_graphics_and_a_ramfb_video_are_seen() -> None:
    """X3."""
    both = facts("<graphics type='vnc'/>", "<video><model type='ramfb'/></video>")
    assert (both.has_graphics, both.video_ramfb) == (True, True)
    neither = facts("<video><model type='virtio'/></video>", "<video/>")
    assert (neither.has_graphics, neither.video_ramfb) == (False, False)


def test_hostdevs_of_our_kinds_are_read_whole() -> None:
    found = facts(
        pci_hostdev("10000:e1:1f.7", guest="0000:05:00.0", alias="ua-a", attributes=" display='on' ramfb='off'"),
        mdev_hostdev(UUID.upper(), attributes=" managed='yes'"),
        "<hostdev mode='subsystem' type='usb'><source><address bus='1' device='12'/></source></hostdev>",
        "<hostdev mode='subsystem' type='usb'><source><vendor id='0x46d'/><product id='0xc52b'/></source></hostdev>",
    ).hostdevs
    assert [each.source for each in found] == [
        PciAddress(0x10000, 0xE1, 0x1F, 7),
        MdevAddress(UUID),
        UsbAddress(1, 12),
        UsbModel("0x46d:0xc52b"),
    ]
    first = found[0]
    assert (first.alias, first.guest, first.placed, first.display, first.ramfb) == (
        "ua-a",
        GuestAddress(0, 5, 0, 0),
        True,
        "on",
        "off",
    )
    assert [each.managed for each in found] == ["no", "yes", None, None]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("<address bus='1' slot='2'/>", "pci"),
        (f"<address uuid='{UUID}'/>", "mdev"),
        ("<address bus='1' device='2'/>", "usb"),
    ],
)
def test_a_hostdev_without_a_type_is_known_by_its_source(source: str, kind: str) -> None:
    (hostdev,) = facts(f"<hostdev><source>{source}</source></hostdev>").hostdevs
    assert hostdev.kind == kind


@pytest.mark.parametrize(
    "hostdev",
    [
        "<hostdev mode='subsystem' type='scsi'><source><adapter name='scsi_host0'/></source></hostdev>",
        "<hostdev mode='subsystem' type='scsi_host'><source protocol='vhost' wwpn='x'/></hostdev>",
        "<hostdev mode='capabilities' type='misc'><source><char>/dev/input</char></source></hostdev>",
        "<hostdev><source/></hostdev>",
        "<hostdev/>",
        "<q:hostdev xmlns:q='u' type='pci'/>",
    ],
)
def test_other_hostdevs_are_not_ours(hostdev: str) -> None:
    assert facts(hostdev).hostdevs == ()


@pytest.mark.parametrize(
    "hidden",
    [
        "<!-- <hostdev type='pci'/> -->",
        "<![CDATA[<hostdev type='pci'/>]]>",
        "<?x <hostdev type='pci'/> ?>",
        "<x:commandline xmlns:x='u'><hostdev type='pci'/></x:commandline>",
        "<interface><hostdev type='pci'/></interface>",
    ],
)
def test_only_children_of_devices_are_devices(hidden: str) -> None:
    assert facts(hidden).hostdevs == ()
    metadata = f"<metadata><devices>{pci_hostdev('0000:01:00.0')}</devices></metadata>"
    assert read(f"<domain type='kvm'>{metadata}{hidden}<devices/></domain>").hostdevs == ()


def test_the_devices_of_every_devices_element_count() -> None:
    one, two = pci_hostdev("0000:01:00.0"), pci_hostdev("0000:02:00.0")
    found = read(f"<domain><devices>{one}</devices><devices>{two}</devices></domain>")
    assert [str(each.source) for each in found.hostdevs] == ["0000:01:00.0", "0000:02:00.0"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1f", 0x1F),
        ("0X1F", 0x1F),
        ("31", 31),
        ("037", 31),
        ("0", 0),
        ("00", 0),
        ("+31", 31),
        (" 31", 31),
        ("0x0000000000000000000000001f", 31),
        ("000000000000000000000000037", 31),
    ],
)
def test_numbers_are_read_as_libvirt_does(text: str, value: int) -> None:
    """strtoul with base 0: hexadecimal after 0x, octal after 0."""
    (hostdev,) = facts(f"<hostdev type='pci'><source><address bus='{text}'/></source></hostdev>").hostdevs
    assert hostdev.source == PciAddress(0, value, 0, 0)


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ("bus", "0x100"),
        ("bus", "256"),
        ("slot", "0x20"),
        ("function", "8"),
        ("domain", "0x100000000"),
        ("bus", ""),
        ("bus", "0x"),
        ("bus", "08"),
        ("bus", "1f"),
        ("bus", "-1"),
        ("bus", "-0"),
        ("bus", "1_0"),
        ("bus", "0b1"),
        ("bus", "1 "),
        ("bus", "1 2"),
        ("bus", "++1"),
        ("bus", "\u0661"),
        ("bus", "\u00b2"),
        ("bus", "9" * 10_000),
        ("bus", "0x" + "f" * 10_000),
    ],
)
def test_what_is_no_such_number_is_an_error_that_shows_it(attribute: str, text: str) -> None:
    with raises_code(BAD_HOSTDEV, match=f"vm.xml, hostdev 1: .*{attribute} is not a number") as raised:
        facts(f"<hostdev type='pci'><source><address {attribute}='{text}'/></source></hostdev>")
    assert len(raised.value.message) < 250


@pytest.mark.parametrize(
    "source",
    [
        "",
        "<source/>",
        "<source><vendor id='1'/></source>",
        "<source><address/></source><source><address bus='1'/></source>",
    ],
)
def test_an_mdev_needs_a_uuid(source: str) -> None:
    with raises_code(BAD_HOSTDEV):
        facts(f"<hostdev type='mdev'>{source}</hostdev>")


def test_all_bad_hostdevs_are_reported_at_once() -> None:
    with pytest.raises(SeveralErrors) as raised:
        facts(
            "<hostdev type='pci'/>",
            pci_hostdev("0000:01:00.0"),
            "<hostdev type='mdev'><source><address uuid='x'/></source></hostdev>",
        )
    assert [leaf.message.partition(":")[0] for leaf in raised.value.leaves()] == [
        "vm.xml, hostdev 1",
        "vm.xml, hostdev 3",
    ]


def test_one_source_twice_is_an_error_that_names_both() -> None:
    """X2: the source is the identity; libvirt refuses to start such a domain."""
    with raises_code(BAD_HOSTDEV, match=r"0000:01:00\.0"):
        facts(pci_hostdev("0000:01:00.0"), "<hostdev type='pci'><source><address bus='1'/></source></hostdev>")


@pytest.mark.parametrize(
    "hostdev",
    [
        "<hostdev><source/><source><address bus='1'/></source></hostdev>",
        "<hostdev><source><address bus='1'/></source><source/></hostdev>",
        "<hostdev type='pci'><source><address bus='1'/><address bus='2'/></source><source/></hostdev>",
    ],
)
def test_facts_and_elements_agree_where_a_child_is_there_twice(hostdev: str) -> None:
    root = read_document(domain(hostdev, pci_hostdev("0000:09:00.0"))).root
    assert len(read_facts(root).hostdevs) == len(hostdev_elements(root))


def test_functions_that_other_devices_use_are_taken() -> None:
    """C5."""
    address = "<address type='pci' domain='0' bus='{}' slot='0' function='0'/>"
    found = facts(
        f"<interface type='hostdev'><source>{address.format(1)}</source></interface>",
        f"<disk type='nvme'><source type='pci' namespace='1'>{address.format(2)}</source></disk>",
        f"<disk type='file'><source file='x'>{address.format(3)}</source></disk>",
        "<disk type='file'><source file='x'/><backingStore type='nvme'><source type='pci' namespace='1'>"
        f"{address.format(4)}</source></backingStore></disk>",
        "<interface type='hostdev'><source><address bus='x'/></source></interface>",
        "<interface type='hostdev'><source/></interface>",
    )
    assert found.taken == {PciAddress(0, bus, 0, 0) for bus in (1, 2, 4)}


def test_aliases_of_other_devices_are_known() -> None:
    """X1."""
    assert "ua-disk" in facts("<disk><alias name='ua-disk'/></disk>", "<disk><alias/></disk>").aliases


def test_a_hostdev_through_iommufd_is_seen() -> None:
    """V2."""
    with_driver = "<hostdev type='pci'><driver{}/><source><address bus='1'/></source></hostdev>"
    for attribute, says in (
        (" iommufd='yes'", True),
        (" iommufd='no'", False),
        (" name='vfio'", None),
        (" iommufd='on'", None),
    ):
        found = facts(with_driver.format(attribute))
        assert [hostdev.iommufd for hostdev in found.hostdevs] == [says]
        assert (found.iommufd, found.asks_for_iommufd) == (None, says is True)
    assert not facts("<disk><driver iommufd='yes'/></disk>").asks_for_iommufd


@pytest.mark.parametrize(
    ("element", "says"),
    [
        ("<iommufd enabled='yes' fdgroup='iommu'/>", True),
        ("<iommufd enabled='no'/>", False),
        ("<iommufd/>", None),
        ("", None),
        ("<metadata><iommufd enabled='yes'/></metadata>", None),
    ],
)
def test_what_the_domain_says_of_iommufd_is_read(element: str, says: bool | None) -> None:
    """V2."""
    document = domain().replace("<devices>", f"{element}<devices>")
    found = read_facts(read_document(document).root)
    assert (found.iommufd, found.asks_for_iommufd) == (says, bool(says))


def test_an_address_that_is_no_pci_address_places_a_hostdev_too() -> None:
    (nowhere,) = facts(
        "<hostdev type='pci'><source><address bus='1'/></source><address type='unassigned'/></hostdev>"
    ).hostdevs
    assert (nowhere.placed, nowhere.guest) == (True, None)
    (nothing,) = facts(
        "<hostdev type='pci'><source><address bus='1'/></source><address type='pci'/></hostdev>"
    ).hostdevs
    assert (nothing.placed, nothing.guest) == (False, None)
