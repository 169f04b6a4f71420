"""What holds for every host, environment and domain, not just for the goldens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from launcherkit import LauncherkitError, Policy, Translation, translate
from launcherkit.model.address import MdevAddress, PciAddress, UsbAddress
from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction
from launcherkit.model.policy import PAIRING, SIBLINGS

VFIO = "vfio-pci"
RESOURCE = "nvidia.com/GA102"
VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA102"


class FixedHost:
    """A host of which the facts are given."""

    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts

    def facts(self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = (), **_: bool) -> HostFacts:
        return self._facts


addresses = st.builds(
    PciAddress,
    domain=st.integers(0, 0xFFFFFFFF),
    bus=st.integers(0, 0xFF),
    device=st.integers(0, 0x1F),
    function=st.integers(0, 7),
)
hex_digits = "0123456789abcdef"
uuids = st.uuids().map(str)


@given(addresses)
def test_pci_addresses_parse_to_what_was_formatted(address: PciAddress) -> None:
    assert PciAddress.parse(str(address)) == address
    assert PciAddress.parse(str(address).upper()) == address


@given(st.text(alphabet=hex_digits + "ABCDEF:.-xg \u0661", max_size=20))
def test_what_parses_as_a_pci_address_is_one(text: str) -> None:
    pattern = r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])"
    expected = re.fullmatch(pattern, text)
    try:
        parsed = PciAddress.parse(text)
    except ValueError:
        assert expected is None
    else:
        assert expected is not None
        domain, *rest = expected.groups()
        assert tuple(parsed) == tuple(int(part, 16) for part in (domain or "0", *rest))


@given(uuids, st.integers(0, 999), st.integers(0, 999))
def test_mdev_and_usb_addresses_parse_to_what_was_formatted(uuid: str, bus: int, device: int) -> None:
    assert str(MdevAddress.parse(uuid.upper())) == uuid
    assert UsbAddress.parse(str(UsbAddress(bus, device))) == UsbAddress(bus, device)


# Cards as they are found: a primary class, companions, each on some driver; the audio perhaps in a group of its own.

COMPANIONS = (0x040300, 0x0C0330, 0x0C8000)


@st.composite
def hosts(draw: st.DrawFn) -> HostFacts:
    """One to four two- to four-function GPUs, all bound to vfio-pci, with their nodes."""
    functions: dict[PciAddress, PciFunction] = {}
    groups: dict[int, tuple[PciAddress, ...]] = {}
    buses = draw(st.lists(st.integers(1, 0xFF), min_size=1, max_size=4, unique=True))
    for number, bus in enumerate(buses):
        companions = draw(st.integers(0, 3))
        shift = draw(st.sampled_from((0, 0, 0, 1)))
        split = draw(st.booleans())
        for function, class_code in enumerate((0x030000, *COMPANIONS[:companions])):
            address = PciAddress(0, bus, 0, function + shift)
            group = 2 * number + (1 if split and function else 0)
            functions[address] = PciFunction(
                address, 0x10DE, 0x2204 + function, 0, 0, class_code, VFIO, group, None, None
            )
            groups[group] = (*groups.get(group, ()), address)
    nodes = {f"/dev/vfio/{group}" for group in groups if group % 2 == 0 or draw(st.booleans())}
    container_dev = draw(st.booleans())
    return HostFacts(True, functions, {}, groups, {}, {}, frozenset({*nodes, "/dev/vfio/vfio"}), container_dev)


MACHINES = ("q35", "pc-q35-7.2", "pc", "pc-i440fx-7.2", "virt", "s390-ccw-virtio")
FILLERS = (
    "<emulator>/usr/bin/qemu-system-x86_64</emulator>",
    "<!-- <devices> <hostdev> -->",
    "<disk type='file' device='disk'><source file='/x&amp;y.img'/><target dev=\"vda\" bus='virtio'/></disk>",
    "<graphics type='vnc' port='-1'/>",
    "<controller type='pci' index='3' model='pcie-root-port'/>",
    (
        "<interface type='network'>\n      <source network='default'/>\n      "
        "<address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0'/>\n    </interface>"
    ),
    "<x:thing xmlns:x='urn:x' a='>' b='\"'><![CDATA[</devices>]]></x:thing>",
    (
        "<hostdev mode='subsystem' type='scsi'><source><adapter name='scsi_host0'/>"
        "<address bus='0' target='0' unit='0'/></source></hostdev>"
    ),
    (
        "<hostdev type='pci' managed='no'><source>"
        "<address domain='0x0000' bus='0xe1' slot='0x00' function='0x0'/></source></hostdev>"
    ),
    "<?pi data?>",
)


@st.composite
def domains(draw: st.DrawFn) -> bytes:
    """Domains with anything around and among the devices, indented or not."""
    fillers = draw(st.lists(st.sampled_from(FILLERS), max_size=6, unique=True))
    machine = draw(st.sampled_from(MACHINES))
    arch = {"virt": "aarch64", "s390-ccw-virtio": "s390x"}.get(machine, "x86_64")
    glue = draw(st.sampled_from(("\n    ", "", "\n\t\t", " ")))
    body = "".join(glue + filler for filler in fillers)
    head = draw(st.sampled_from(("", "<?xml version='1.0' encoding='UTF-8'?>\n", "<!-- first -->\n")))
    devices = draw(st.sampled_from((f"<devices>{body}{glue[:-2]}</devices>", f"<devices >{body}</devices\n>")))
    return (
        f"{head}<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n  <name>ü</name>\n  "
        f"<os><type arch='{arch}' machine='{machine}'>hvm</type></os>\n  {devices}\n  "
        "<qemu:commandline><qemu:arg value='&lt;devices>'/></qemu:commandline>\n</domain>\n<!-- last -->\n"
    ).encode()


def vmi_for(count: int) -> dict[str, Any]:
    gpus = [{"name": f"gpu{number}", "deviceName": RESOURCE} for number in range(count)]
    return {"spec": {"domain": {"devices": {"gpus": gpus}}}}


def gpus_of(facts: HostFacts) -> list[PciAddress]:
    return [address for address, function in facts.functions.items() if function.class_code == 0x030000]


policies = st.tuples(st.sampled_from(SIBLINGS), st.sampled_from(PAIRING), st.booleans()).map(
    lambda chosen: Policy(siblings=chosen[0], pairing=chosen[1], managed=chosen[2])
)


def attempt(document: bytes, env: dict[str, str], facts: HostFacts, count: int, policy: Policy) -> Translation | None:
    """A translation, or None where it is refused in an orderly way."""
    try:
        return translate(document, env=env, host=FixedHost(facts), vmi=vmi_for(count), policy=policy)
    except LauncherkitError:
        return None


@given(domains(), hosts(), policies)
def test_a_second_run_changes_nothing_with_variables_or_without(
    document: bytes, facts: HostFacts, policy: Policy
) -> None:
    gpus = gpus_of(facts)
    env = {VARIABLE: ",".join(map(str, gpus))}
    first = attempt(document, env, facts, len(gpus), policy)
    if first is None:
        return
    again = translate(first.domain_xml, env=env, host=FixedHost(facts), vmi=vmi_for(len(gpus)), policy=policy)
    assert again.domain_xml == first.domain_xml
    sidecar = translate(first.domain_xml, env={}, host=FixedHost(facts), vmi=vmi_for(len(gpus)), policy=policy)
    assert sidecar.domain_xml == first.domain_xml


@given(domains(), hosts())
def test_what_kubevirt_strips_is_put_in_again(document: bytes, facts: HostFacts) -> None:
    gpus = gpus_of(facts)
    env = {VARIABLE: ",".join(map(str, gpus))}
    first = attempt(document, env, facts, len(gpus), Policy())
    if first is None:
        return
    root = etree.fromstring(first.domain_xml)
    for address in root.iter("address"):
        address.attrib.pop("multifunction", None)
    stripped = etree.tostring(root)
    again = translate(stripped, env={}, host=FixedHost(facts), vmi=vmi_for(len(gpus)))
    assert canonical(again.domain_xml) == canonical(first.domain_xml)


def canonical(document: bytes) -> str:
    return etree.canonicalize(document.decode())


@given(hosts(), st.data())
def test_companions_may_be_listed_anywhere_or_not_at_all(facts: HostFacts, data: st.DataObject) -> None:
    document = b"<domain type='kvm'><os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"
    gpus = gpus_of(facts)
    # One in a group of its own is another matter: to be listed is to be allocated (S2).
    groups = {facts.functions[gpu].iommu_group for gpu in gpus}
    others = [at for at, function in facts.functions.items() if at not in gpus and function.iommu_group in groups]
    plain = translate(document, env={VARIABLE: ",".join(map(str, gpus))}, host=FixedHost(facts), vmi=vmi_for(len(gpus)))
    entries = list(gpus)
    for other in others:
        if data.draw(st.booleans()):
            entries.insert(data.draw(st.integers(0, len(entries))), other)
    mixed = translate(
        document, env={VARIABLE: ",".join(map(str, entries))}, host=FixedHost(facts), vmi=vmi_for(len(gpus))
    )
    assert mixed.plan == plain.plan
    assert mixed.domain_xml == plain.domain_xml


@given(domains(), hosts(), policies)
def test_every_byte_that_is_not_ours_stays(document: bytes, facts: HostFacts, policy: Policy) -> None:
    gpus = gpus_of(facts)
    result = attempt(document, {VARIABLE: ",".join(map(str, gpus))}, facts, len(gpus), policy)
    if result is None:
        return
    old, new = _without_ours(document, 0), _without_ours(result.domain_xml, len(result.plan.controllers))
    assert new == old


def _without_ours(document: bytes, ports: int) -> bytes:
    """The document without PCI hostdevs, without the last ``ports`` root ports, and without blanks inside devices."""
    text = re.sub(rb"<hostdev(?: mode='subsystem')? type='pci'.*?</hostdev>", b"", document, flags=re.DOTALL)
    end = rb"(?:/>|>\s*<address [^>]*/>\s*</controller>)"
    port = rb"<controller type=.pci. index=.\d+. model=.pcie-(?:root-port|to-pci-bridge)." + end
    added = list(re.finditer(port, text))
    for found in reversed(added[len(added) - ports :]):
        text = text[: found.start()] + text[found.end() :]
    before, devices, after = re.split(rb"(<devices ?>.*</devices\n?>)", text, maxsplit=1, flags=re.DOTALL)
    return before + re.sub(rb">\s+<", b"><", re.sub(rb">\s+<", b"><", devices)) + after


@given(domains(), hosts(), policies)
def test_functions_of_a_card_share_one_guest_slot(document: bytes, facts: HostFacts, policy: Policy) -> None:
    gpus = gpus_of(facts)
    result = attempt(document, {VARIABLE: ",".join(map(str, gpus))}, facts, len(gpus), policy)
    if result is None:
        return
    slots: list[tuple[int, ...]] = []
    for device in result.plan.devices:
        places = [function.guest for function in device.functions if function.guest is not None]
        assert len({place.address.function_0 for place in places}) <= 1
        assert len({place.address for place in places}) == len(places)
        if len(places) > 1:
            slots.append(places[0].address.function_0)
            assert [place.address.function for place in places if place.multifunction] == [0]
    assert len(set(slots)) == len(slots)
    attached = [function.source for device in result.plan.devices for function in device.functions]
    assert len(set(attached)) == len(attached)
    root = etree.fromstring(result.domain_xml)
    for hostdev in root.iterfind("devices/hostdev[@type='pci']"):
        if hostdev.find("alias") is None:
            assert FILLERS[-2].encode() in result.domain_xml  # nobody asked about it (X1)
            continue
        assert hostdev.get("mode") == "subsystem"
        assert hostdev.get("managed") in ("yes", "no")
    names = [alias.get("name") for alias in root.iterfind("devices/*/alias")]
    assert len(set(names)) == len(names)


junk_env = st.dictionaries(
    st.sampled_from(
        (VARIABLE, "MDEV_" + VARIABLE, "USB_RESOURCE_X", "PCIDEVICE_X", "PCIDEVICE_X_INFO", "PCI_RESOURCE_", "PATH")
    ),
    st.one_of(
        st.text(max_size=40),
        st.lists(st.one_of(addresses.map(str), uuids, st.just(" "), st.just("1:4")), max_size=5).map(",".join),
    ),
    max_size=4,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)
junk_vmi = st.one_of(
    st.none(),
    st.text(max_size=60),
    json_values.map(lambda value: {"spec": {"domain": {"devices": {"gpus": value}}}}),
    st.lists(
        st.fixed_dictionaries({"name": json_values, "deviceName": json_values, "virtualGPUOptions": json_values}),
        max_size=3,
    ).map(lambda gpus: {"spec": {"domain": {"devices": {"gpus": gpus, "hostDevices": gpus}}}}),
)
junk_xml = st.one_of(
    domains(),
    st.binary(max_size=80),
    st.text(alphabet="<>/!-[]?= \"'adomeinvscDOCTYPE&;\n", max_size=80).map(str.encode),
    st.tuples(domains(), st.integers(0, 900), st.binary(max_size=4)).map(lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]),
)


@given(junk_xml, junk_env, junk_vmi, hosts() | st.just(NO_FACTS), policies)
def test_junk_is_refused_in_an_orderly_way(
    document: bytes, env: dict[str, str], vmi: Any, facts: HostFacts, policy: Policy
) -> None:
    policy = policy._replace(extra_prefixes=("PCIDEVICE",))
    try:
        result = translate(document, env=env, host=FixedHost(facts), vmi=vmi, policy=policy)
    except LauncherkitError as error:
        for leaf in error.leaves():
            assert all((leaf.code, leaf.message, leaf.remedy))
    else:
        etree.fromstring(result.domain_xml)


@pytest.mark.parametrize("document", [b"<domain type='kvm'/>", b"<domain type='kvm'><devices/></domain>"])
def test_a_vmi_that_asks_for_nothing_gets_its_document_back(document: bytes) -> None:
    result = translate(document, env={VARIABLE: "junk"}, host=FixedHost(NO_FACTS), vmi=vmi_for(0))
    assert result.domain_xml is document
