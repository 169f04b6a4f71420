"""A plan becomes edits of the document's bytes (X1-X4)."""

from __future__ import annotations

import pytest
from lxml import etree

from launcherkit.domain.writer import write_plan
from launcherkit.domain.xml import read_document
from launcherkit.model.address import GuestAddress, HostAddress, MdevAddress, UsbAddress
from launcherkit.model.domain import Controller
from launcherkit.model.plan import Attachment, GuestPlace, Plan, PlannedDevice, PlannedFunction, Shown
from tests.support.domains import Hostdev, domain, hostdevs, mdev_hostdev, pci_hostdev, root_ports
from tests.support.facts import UUID, at

SOURCE = "<source><address bus='0xe1'/></source>"
GPU, SOUND = at("0000:e1:00.0"), at("0000:e1:00.1")


def planned(
    source: HostAddress,
    alias: str = "ua-gpu-a",
    guest: GuestPlace | None = None,
    shown: Shown | None = None,
    hostdev: int | None = None,
    managed: bool = False,
) -> PlannedFunction:
    return PlannedFunction(Attachment(source, "primary", "", None, hostdev), alias, guest, shown, managed)


def place(bus: int, function: int, multifunction: bool | None = None) -> GuestPlace:
    return GuestPlace(GuestAddress(0, bus, 0, function), multifunction)


def plan(*functions: PlannedFunction, ports: tuple[int, ...] = (), iommufd: bool = False) -> Plan:
    controllers = tuple(Controller(port, "pcie-root-port", GuestAddress(0, 0, 0x10, 0)) for port in ports)
    return Plan((PlannedDevice("pci", functions, ()),), controllers, (), (), (), iommufd)


CARD = plan(planned(GPU, guest=place(1, 0, True)), planned(SOUND, "ua-gpu-a-fn1", place(1, 1, False)), ports=(1,))


def write(document: str | bytes, wanted: Plan = CARD) -> bytes:
    return write_plan(read_document(document), wanted)


def test_a_hostdev_leaves_with_mode_type_managed_source_alias_and_address() -> None:
    """X1."""
    assert hostdevs(write(domain())) == [
        Hostdev(
            "0000:e1:00.0", "ua-gpu-a", "0000:01:00.0", "on", {"mode": "subsystem", "type": "pci", "managed": "no"}
        ),
        Hostdev(
            "0000:e1:00.1", "ua-gpu-a-fn1", "0000:01:00.1", None, {"mode": "subsystem", "type": "pci", "managed": "no"}
        ),
    ]


def test_a_root_port_comes_with_its_index_and_its_place() -> None:
    """P2."""
    written = write(domain())
    assert root_ports(written) == [1]
    (port,) = etree.fromstring(written).iterfind("devices/controller")
    assert dict(port[0].attrib) == {
        "type": "pci",
        "domain": "0x0000",
        "bus": "0x00",
        "slot": "0x10",
        "function": "0x0",
    }


def test_a_bridge_comes_with_its_index_and_libvirt_places_it() -> None:
    """P2."""
    wanted = CARD._replace(controllers=(Controller(2, "pcie-to-pci-bridge", None),))
    assert b"<controller type='pci' index='2' model='pcie-to-pci-bridge'/>" in write(domain(), wanted)


def test_managed_is_written_as_planned_for_what_is_added() -> None:
    """X1."""
    wanted = plan(planned(GPU, managed=True), planned(SOUND, "ua-gpu-a-fn1"))
    assert [each.attributes["managed"] for each in hostdevs(write(domain(), wanted))] == ["yes", "no"]


def test_an_mdev_and_a_usb_device_have_sources_of_their_own() -> None:
    """X1, X3."""
    wanted = plan(
        planned(MdevAddress(UUID), "ua-m", shown=Shown("vfio-pci", "on", "on")),
        planned(UsbAddress(1, 12), "ua-usb-host-u"),
    )
    assert hostdevs(write(domain(), wanted)) == [
        Hostdev(
            UUID,
            "ua-m",
            None,
            None,
            {"mode": "subsystem", "type": "mdev", "managed": "no", "model": "vfio-pci", "display": "on", "ramfb": "on"},
        ),
        Hostdev("1:12", "ua-usb-host-u", None, None, {"mode": "subsystem", "type": "usb", "managed": "no"}),
    ]


def test_a_pci_domain_of_32_bits_is_written_whole() -> None:
    """E3."""
    (hostdev,) = hostdevs(write(domain(), plan(planned(at("ffffffff:ff:1f.7")))))
    assert hostdev.source == "ffffffff:ff:1f.7"


def test_percent_signs_are_written_as_they_are() -> None:
    """T3."""
    chosen = planned(GPU, "ua-%s")._replace(rom="/roms/100%s.rom", driver="a%d", guest=place(1, 0))
    written = write(domain(), plan(chosen))
    for said in (b"<alias name='ua-%s'/>", b"<rom file='/roms/100%s.rom'/>", b"<driver model='a%d'/>"):
        assert said in written.replace(b'"', b"'")


def test_what_must_say_how_it_goes_to_vfio_says_so_and_nothing_else_does() -> None:
    """V2."""
    says = [
        planned(at(f"0000:e{n}:00.0"), f"ua-{n}")._replace(iommufd=way) for n, way in enumerate((True, False, None))
    ]
    written = write(domain(), plan(*says, planned(UsbAddress(1, 2), "ua-u"), iommufd=True))
    drivers = etree.fromstring(written).findall("devices/hostdev/driver")
    assert [dict(driver.attrib) for driver in drivers] == [{"iommufd": "yes"}, {"iommufd": "no"}]


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (f"{SOURCE}<alias name='ua-gpu-a'/>", f"<driver iommufd='no'/>{SOURCE}<alias name='ua-gpu-a'/>"),
        (
            f"\n  <alias name='ua-gpu-a'/>\n  {SOURCE}\n  <boot order='1'/>",
            f"\n  <alias name='ua-gpu-a'/>\n  <driver iommufd='no'/>\n  {SOURCE}\n  <boot order='1'/>",
        ),
        (
            f"<driver name='vfio'/>{SOURCE}<alias name='ua-gpu-a'/>",
            f"<driver name='vfio' iommufd='no'/>{SOURCE}<alias name='ua-gpu-a'/>",
        ),
        (
            f"{SOURCE}<driver iommufd=\"yes\"/><alias name='ua-gpu-a'/>",
            f"{SOURCE}<driver iommufd=\"no\"/><alias name='ua-gpu-a'/>",
        ),
    ],
)
def test_the_driver_of_a_hostdev_that_is_there_stands_directly_before_its_source(inside: str, expected: str) -> None:
    """V2: libvirt's schema refuses it elsewhere."""
    head = "<hostdev mode='subsystem' type='pci' managed='no'>"
    document = domain(f"{head}{inside}</hostdev>")
    wanted = plan(planned(GPU, hostdev=0)._replace(iommufd=False))
    assert write(document, wanted).decode() == document.replace(inside, expected)


def common_start(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


EDGES = [
    "<domain/>",
    "<domain />",
    "<domain></domain>",
    "<domain>\n</domain>",
    "<domain type='kvm'>\n  <name>x</name>\n</domain>\n",
    "<domain><devices/></domain>",
    "<domain><devices /></domain>",
    "<domain><devices></devices></domain>",
    "<domain><devices> </devices></domain>",
    "<domain>\n\t<devices>\n\t</devices>\n</domain>",
    "<domain>\n\t<devices>\n\t\t<a/>\n\t</devices>\n</domain>",
    "<domain>\r\n  <devices>\r\n    <a/>\r\n  </devices>\r\n</domain>\r\n",
    "<domain><devices><a/></devices></domain>",
    "<domain><devices a='>' b=\"'>'\"\n><!-- </devices> --></devices></domain>",
    "<domain>\n <devices><a/>\n <!-- the end --></devices>\n</domain>",
    "<domain><devices><![CDATA[</devices>]]> </devices><devices/></domain>",
    "<?xml version='1.0' encoding='ISO-8859-1'?>\n<domain><!--\u00e9--><devices>\n<a n='\u00e9'/>\n</devices></domain>",
    "<!--<devices/>--><?p <devices/> ?><domain><x><devices/></x><devices><a>\n</a></devices></domain><!-- -->\n",
    "<domain><devices>text</devices></domain>",
    "\ufeff<domain>\n<devices>\n<a/>\n</devices>\n</domain>",
    "<domain><!--\n--><devices><a/></devices></domain>",
]


@pytest.mark.parametrize("text", EDGES)
def test_whatever_the_document_looks_like_only_what_is_ours_is_new(text: str) -> None:
    """X4: one piece is put in, and no byte but blanks in an empty element goes."""
    data = text.encode("latin-1" if "8859" in text else "utf-8")
    written = write(data)
    assert [each.source for each in hostdevs(written)] == ["0000:e1:00.0", "0000:e1:00.1"]
    start = common_start(data, written)
    lost = data[start : len(data) - common_start(data[start:][::-1], written[start:][::-1])]
    assert lost.strip() in (b"", b"/", b"/>"), "what comes first and last stays; an empty element may open"
    assert (b"<?xml" in written) == (b"<?xml" in data), "no declaration appears that was not there"


def test_what_is_added_looks_like_the_rest() -> None:
    """X4."""
    text = '<domain type="kvm">\n\t<devices>\n\t\t<a/>\n\t</devices>\n</domain>\n'
    added = write(text, plan(planned(UsbAddress(1, 2), "ua-u")))
    assert added.decode() == text.replace(
        "<a/>\n",
        '<a/>\n\t\t<hostdev mode="subsystem" type="usb" managed="no">\n\t\t\t<source>\n'
        '\t\t\t\t<address bus="1" device="2"/>\n\t\t\t</source>\n\t\t\t<alias name="ua-u"/>\n\t\t</hostdev>\n',
    )


def test_line_ends_stay_what_they_were() -> None:
    """X4."""
    for end in ("\n", "\r\n"):
        written = write(domain("<a/>").replace("\n", end))
        assert written.replace(b"\r\n", b"\n").count(b"\r") == 0
        assert (b"\r" in written) == (end == "\r\n")
        assert written.count(b"\n") == written.count(end.encode())


def test_a_document_without_line_breaks_gets_none() -> None:
    """X4."""
    assert b"\n" not in write("<domain type='kvm'><devices><a/></devices></domain>")


def test_with_nothing_to_do_the_document_comes_back_byte_for_byte_but_for_its_devices() -> None:
    """X5, Q3."""
    nothing = Plan((), (), (), (), (), False)
    for text in EDGES:
        data = text.encode("latin-1" if "8859" in text else "utf-8")
        if b"<devices" in data:
            assert write(data, nothing) == data
    assert write("<domain/>", nothing) == b"<domain><devices/></domain>"
    assert write("<domain>\n</domain>", nothing) == b"<domain>\n  <devices/>\n</domain>"


def test_a_hostdev_of_kubevirt_is_completed_in_place() -> None:
    """X1, X2."""
    there = pci_hostdev("0000:e1:00.0", alias="hostdev0")
    written = write(domain("<a/>", there, "<b/>"), plan(planned(GPU, guest=place(1, 0, True), hostdev=0)))
    assert hostdevs(written) == [
        Hostdev("0000:e1:00.0", "ua-gpu-a", "0000:01:00.0", "on", {"mode": "subsystem", "type": "pci", "managed": "no"})
    ]
    assert [element.tag for element in etree.fromstring(written).iterfind("devices/*")] == ["a", "hostdev", "b"]


def test_what_a_hostdev_says_of_mode_type_and_managed_stays() -> None:
    """X2: it is completed, not changed."""
    there = "<hostdev managed='yes' type='pci' mode='subsystem'><source><address bus='0xe1'/></source></hostdev>"
    written = write(domain(there), plan(planned(GPU, hostdev=0)))
    assert b"<hostdev managed='yes' type='pci' mode='subsystem'>" in written


def test_multifunction_is_put_in_taken_back_and_otherwise_left() -> None:
    """P1, X2."""
    with_it = "<hostdev type='pci'><source><address bus='0xe1'/></source><address type='pci' bus='1'{}/></hostdev>"

    def result(said: str, wanted: bool | None) -> str | None:
        (hostdev,) = hostdevs(
            write(domain(with_it.format(said)), plan(planned(GPU, guest=place(1, 0, wanted), hostdev=0)))
        )
        return hostdev.multifunction

    assert result("", True) == "on"
    assert result(" multifunction='off'", True) == "on"
    assert result(" multifunction='on'", False) == "off"
    assert result(" multifunction='on'", None) == "on"
    assert result("", False) is None
    assert result("", None) is None


def test_an_address_without_numbers_is_filled_in() -> None:
    there = "<hostdev type='pci'><source><address bus='0xe1'/></source><address type='pci'/></hostdev>"
    (hostdev,) = hostdevs(write(domain(there), plan(planned(GPU, guest=place(7, 0, True), hostdev=0))))
    assert (hostdev.guest, hostdev.multifunction) == ("0000:07:00.0", "on")


@pytest.mark.parametrize(
    "there",
    [
        "<hostdev type='pci'><source><address bus='0xe1'/></source></hostdev>",
        "<hostdev\n  type = 'pci'\n  ><source\n><address bus='0xe1' /></source><!-- last --></hostdev >",
        '<hostdev type="pci" rom=\'>\'><source><address bus="0xe1"/></source><alias name="x"></alias></hostdev>',
        "<hostdev type='pci' x='managed=\"no\"'><alias\nname\n=\n'a' />" + SOURCE + "<rom bar='on'/></hostdev>",
        "<hostdev type='pci'>\n      " + SOURCE + "\n      <boot order='1'/>\n    </hostdev>",
        "<hostdev type='pci' xmlns:q='u' q:mode='x'><q:alias name='q'/>" + SOURCE + "</hostdev>",
    ],
)
def test_odd_spelling_of_a_hostdev_survives_and_a_second_pass_changes_nothing(there: str) -> None:
    """X2, X4."""
    wanted = plan(planned(GPU, guest=place(1, 0, True), shown=Shown(None, "on", "off"), hostdev=0))
    once = write(domain(there), wanted)
    assert write(once, wanted) == once
    (hostdev,) = hostdevs(once)
    assert (hostdev.alias, hostdev.guest, hostdev.multifunction) == ("ua-gpu-a", "0000:01:00.0", "on")
    for key, value in {"mode": "subsystem", "managed": "no", "display": "on", "ramfb": "off"}.items():
        assert hostdev.attributes[key] == value
    for part in (
        "<!-- last -->",
        "rom='>'",
        "<rom bar='on'/>",
        "<boot order='1'/>",
        "<q:alias name='q'/>",
        "x='managed=\"no\"'",
    ):
        assert (part in there) == (part.encode() in once)


def test_display_and_ramfb_of_a_hostdev_are_changed_where_the_plan_says_otherwise() -> None:
    """X3."""
    there = mdev_hostdev(UUID, attributes=" model='vfio-pci' display='on' ramfb='on'")
    (hostdev,) = hostdevs(
        write(domain(there), plan(planned(MdevAddress(UUID), shown=Shown("vfio-pci", "on", "off"), hostdev=0)))
    )
    assert (hostdev.attributes["display"], hostdev.attributes["ramfb"]) == ("on", "off")


def test_hostdevs_that_are_not_ours_are_not_counted_and_not_touched() -> None:
    """X4."""
    scsi = "<hostdev mode='subsystem' type='scsi'><source><adapter name='scsi_host0'/></source></hostdev>"
    hidden = "<!-- <hostdev type='pci'/> -->"
    written = write(domain(scsi, hidden, pci_hostdev("0000:e1:00.0")), plan(planned(GPU, hostdev=0)))
    assert scsi.encode() in written
    assert hidden.encode() in written
    assert b"<alias name='ua-gpu-a'/>" in written


def test_hostdevs_in_a_second_devices_element_are_completed_there() -> None:
    text = f"<domain><devices/><devices>{pci_hostdev('0000:e1:00.0')}</devices></domain>"
    written = write(text, plan(planned(GPU, hostdev=0), planned(SOUND, "ua-b")))
    first, second = etree.fromstring(written).findall("devices")
    assert [len(first), len(second)] == [1, 1]
    assert [each.alias for each in hostdevs(written)] == ["ua-b", "ua-gpu-a"]


@pytest.mark.slow
def test_ten_thousand_devices_are_written_in_one_go() -> None:
    many = domain(
        *("<disk><address type='drive'/></disk>" for _ in range(10_000)),
        *(pci_hostdev(f"{bus:04x}:01:00.0") for bus in range(5_000)),
    )
    wanted = plan(*(planned(at(f"{bus:04x}:01:00.0"), f"ua-{bus}", hostdev=bus) for bus in range(5_000)))
    assert [each.alias for each in hostdevs(write(many, wanted))] == [f"ua-{bus}" for bus in range(5_000)]
