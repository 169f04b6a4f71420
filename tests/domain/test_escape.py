"""Whatever is written into XML is escaped where it is written (T3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from launcherkit import Policy, translate
from launcherkit.choose.display import MODELS
from launcherkit.domain.identity import owner_of, with_owner, with_uuid
from launcherkit.domain.writer import write_plan
from launcherkit.domain.xml import escaped, read_document
from launcherkit.errors import UNKNOWN_MDEV_MODEL
from launcherkit.model.address import GuestAddress, MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, Mdev, MdevParent, MdevType, VgpuVf
from launcherkit.model.plan import Attachment, GuestPlace, Plan, PlannedDevice, PlannedFunction, Shown
from tests.support.domains import domain, mdev_hostdev, pci_hostdev
from tests.support.errors import raises_code
from tests.support.facts import UUID, UUID2, at, detail, function

GPU, AUDIO = at("0000:e1:00.0"), at("0000:e1:00.1")
hostile = st.one_of(
    st.sampled_from(
        (
            "'/><injected/><x y='",
            '"/><injected/><x y="',
            "</hostdev><injected/>",
            "&lt;&injected;",
            "]]><!--",
            "\0\x01\x1b\ufffe\ud800",
            "a\tb\nc\rd  e",
            "\u00e9\u4e2d\U0001f600",
            "vfio-pci' managed='yes",
        )
    ),
    st.text(st.characters(exclude_categories=()), max_size=12),
)
quotes = st.sampled_from(("'", '"'))
encodings = st.sampled_from(("utf-8", "iso-8859-1", "us-ascii"))


def readable(text: str) -> str:
    """What XML can have of a text."""
    return "".join(c if _can_be(c) else "\ufffd" for c in text)


def _can_be(character: str) -> bool:
    try:
        etree.Element("x").set("a", character)
    except ValueError:
        return False
    return not "\ufffe" <= character <= "\uffff"


@given(hostile, quotes)
def test_an_escaped_text_is_read_back_as_it_was(text: str, quote: str) -> None:
    document = f"<x a={quote}{escaped(text)}{quote}>{escaped(text)}</x>".encode("ascii")
    element = etree.fromstring(document)
    assert (element.get("a"), element.text or "") == (readable(text), readable(text))


def structure(document: bytes) -> list[tuple[str, tuple[str, ...]]]:
    """Elements with the names of their attributes, in order: what no value may change."""
    elements = etree.fromstring(document).iter(etree.Element)
    return [(str(element.tag), tuple(sorted(map(str, element.keys())))) for element in elements]


@given(hostile, hostile, hostile, quotes, encodings)
def test_no_value_of_a_plan_changes_more_than_its_attribute(
    alias: str, model: str, uuid: str, quote: str, encoding: str
) -> None:
    there = domain(
        pci_hostdev("0000:01:00.0", alias="ua-old"), mdev_hostdev(UUID, attributes=" model=''"), "<graphics/>"
    ).replace("'", quote)
    document = f"<?xml version={quote}1.0{quote} encoding={quote}{encoding}{quote}?>{there}".encode(encoding)

    def written(alias: str, model: str, uuid: str) -> bytes:
        shown, place = Shown(model, model, model), GuestPlace(GuestAddress(0, 1, 0, 0), True)
        functions = (
            PlannedFunction(Attachment(at("0000:01:00.0"), "primary", "", None, 0), alias, place, None, False, True),
            PlannedFunction(Attachment(MdevAddress(UUID), "primary", "", None, 1), alias, None, shown, False),
            PlannedFunction(Attachment(MdevAddress(uuid), "primary", "", None, None), alias, None, shown, True),
        )
        plan = Plan((PlannedDevice("mdev", functions, ()),), (), (), (), (), True)
        return write_plan(read_document(document), plan)

    result = written(alias, model or "m", uuid)
    assert structure(result) == structure(written("a", "m", "u"))
    *_, added = etree.fromstring(result).findall("devices/hostdev")
    assert added.get("model") == added.get("ramfb") == readable(model or "m")
    assert added.xpath("string(alias/@name)") == readable(alias)
    assert added.xpath("string(source/address/@uuid)") == readable(uuid)


@given(hostile)
def test_owner_and_uuid_are_escaped_too(text: str) -> None:
    document = read_document("<domain type='kvm'><name>vm</name></domain>")
    marked = etree.fromstring(with_owner(document, text))
    mark = marked.find("metadata/*")
    assert mark is not None
    assert mark.get("owner") == readable(text) == owner_of(etree.tostring(mark).decode())
    assert etree.fromstring(with_uuid(document, text)).findtext("uuid") == readable(text)


def spoiled(value: Any, text: str) -> Any:
    """The value with the text in every string field, however deep; numbers, flags and what is None stay."""
    if isinstance(value, str):
        return text
    if isinstance(value, PciAddress):
        return value
    if hasattr(value, "_fields"):
        return type(value)._make(spoiled(field, text) for field in value)
    if isinstance(value, tuple):
        return tuple(spoiled(field, text) for field in value)
    return value


def host_of(text: str) -> HostFacts:
    """A GPU with audio, an SR-IOV vGPU VF and an mdev, with the text wherever facts have one."""
    vf = at("0000:e1:00.4")
    functions = [
        function(str(GPU), group=44),
        function(str(AUDIO), 0x040300, group=44),
        function(str(vf), group=50, physfn=str(GPU)),
    ]
    details = detail(
        driver_override="x", driver_module="x", parents=("x",), reset_methods=("x",), power_state="x", vfio_dev="x"
    )
    vgpu = VgpuVf(558, ((558, "x"),))
    mdev = Mdev("x", "x", "x", "x", "x", 90)
    parent = MdevParent("x", GPU, (MdevType("x", "x", "x", 1, "x"),))
    return HostFacts(
        known=True,
        functions={each.address: spoiled(each, text)._replace(driver="vfio-pci") for each in functions},
        details={
            each.address: spoiled(details._replace(vgpu=vgpu if each.physfn else None), text) for each in functions
        },
        groups={44: (GPU, AUDIO), 50: (vf,)},
        mdevs={UUID: spoiled(mdev, text)},
        mdev_parents={text: spoiled(parent, text)},
        nodes=frozenset({text}),
        container_dev=True,
    )


class FixedHost:
    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts

    def facts(self, *_: object, **__: object) -> HostFacts:
        return self._facts


VMI = {
    "spec": {
        "domain": {
            "devices": {"gpus": [{"name": name, "deviceName": f"x/{name}"} for name in ("g", "vf", "vgpu", "usb")]}
        }
    }
}
ENV = {
    "PCI_RESOURCE_X_G": str(GPU),
    "PCI_RESOURCE_X_VF": "0000:e1:00.4",
    "MDEV_PCI_RESOURCE_X_VGPU": UUID,
    "USB_RESOURCE_X_USB": "1:4",
}
DOCUMENT = domain(mdev_hostdev(UUID2), "<graphics/>")


def attached(facts: HostFacts) -> bytes:
    policy = Policy(node_check="never")
    return translate(DOCUMENT, env=ENV, host=FixedHost(facts), vmi=VMI, policy=policy).domain_xml


@given(hostile)
def test_no_string_of_any_fact_changes_the_structure_of_the_document(text: str) -> None:
    facts, plain = host_of(text), host_of("x")
    for each in facts, plain:
        each.mdevs[UUID] = each.mdevs[UUID]._replace(device_api="vfio-pci")  # type: ignore[index]
    assert attached(facts) == attached(plain)


@given(hostile.filter(lambda text: text not in ("", *MODELS)))
def test_a_model_that_libvirt_does_not_have_is_refused(text: str) -> None:
    """X3."""
    with raises_code(UNKNOWN_MDEV_MODEL):
        attached(host_of(text))


@pytest.mark.parametrize("api", ["vfio-ccw", "vfio-ap", "vfio-pci"])
def test_the_models_that_libvirt_has_are_written_as_they_are(api: str) -> None:
    """X3."""
    mdev = Mdev(UUID, "css", "t", None, api, 90)
    facts = HostFacts(True, {}, {}, {}, {UUID: mdev}, {}, None)
    result = translate(domain(), env={"MDEV_PCI_RESOURCE_X": UUID}, host=FixedHost(facts))
    assert f"model='{api}'" in result.domain_xml.decode()
