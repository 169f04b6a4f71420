"""Properties of QEMU's devices in ``<qemu:override>`` (P8): what is added, completed and taken away."""

from __future__ import annotations

import pytest
from lxml import etree

from launcherkit.domain.overrides import override_edits
from launcherkit.domain.xml import append_children, apply_edits, read_document, style_of
from launcherkit.model.address import PciAddress
from launcherkit.model.plan import Attachment, PlannedDevice, PlannedFunction
from launcherkit.pipeline import EMPTY_PLAN

QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
NAME = "x-nv-gpudirect-clique"


def written(text: str, cliques: dict[str, int | None]) -> str:
    """The document with the overrides, as the writer puts them into it."""
    document = read_document(text, "domain")
    style = style_of(document)
    sources = {alias: PciAddress(0, number, 0, 0) for number, alias in enumerate(cliques)}
    devices = [
        PlannedDevice(
            "pci", (PlannedFunction(Attachment(source, "primary", "", None, None), alias, None, None, False),), ()
        )
        for alias, source in sources.items()
    ]
    plan = EMPTY_PLAN._replace(devices=tuple(devices), cliques={sources[alias]: cliques[alias] for alias in cliques})
    edits, new = override_edits(document, style, plan)
    if new:
        edits.append(append_children(document.data, document.span(document.root), new, style, depth=-1))
    return apply_edits(document.data, edits).decode()


def properties(text: str) -> dict[str, list[tuple[str, str, str]]]:
    """Name, type and value of each property, by the alias of its device, as libvirt finds them."""
    q = {"q": QEMU}
    root = etree.fromstring(text)
    return {
        device.get("alias", ""): [
            (each.get("name", ""), each.get("type", ""), each.get("value", ""))
            for each in device.xpath("q:frontend/q:property", namespaces=q)
        ]
        for device in root.xpath("/domain/q:override/q:device", namespaces=q)
    }


def clique(number: int) -> tuple[str, str, str]:
    return NAME, "unsigned", str(number)


PLAIN = "<domain type='kvm'>\n  <devices>\n    <memballoon model='virtio'/>\n  </devices>\n</domain>\n"
OTHER = ("x-speed", "string", "8")
IN_USE = f"""<domain type="kvm" xmlns:q="{QEMU}">
  <devices>
    <memballoon model="virtio"/>
  </devices>
  <q:override>
    <q:device alias="ua-other">
      <q:frontend>
        <q:property name="x-speed" type="string" value="8"/>
      </q:frontend>
    </q:device>
    <q:device alias="ua-old">
      <q:frontend>
        <q:property name="{NAME}" type="unsigned" value="9"/>
      </q:frontend>
    </q:device>
    <q:device alias="ua-bare"/>
  </q:override>
</domain>
"""


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.replace("\n", "").replace("  ", ""),
        PLAIN.replace("'", '"'),
        PLAIN.replace("<domain ", f"<domain xmlns:qemu='{QEMU}' "),
        PLAIN.replace("<domain ", "<domain xmlns:qemu='urn:another' "),
        PLAIN.replace("<domain ", f"<domain xmlns:x='{QEMU}' "),
    ],
)
def test_a_document_without_overrides_gets_them_at_its_end_and_stays_otherwise(text: str) -> None:
    result = written(text, {"ua-a": 0, "ua-b": None, "ua-c": 15})
    assert properties(result) == {"ua-a": [clique(0)], "ua-c": [clique(15)]}
    start, end = result.index("<qemu:override"), result.index("</qemu:override>") + len("</qemu:override>")
    assert (result[:start].rstrip() + result[end:]).split() == text.split()
    assert written(result, {"ua-a": 0, "ua-b": None, "ua-c": 15}) == result


def test_what_nobody_needs_is_not_added() -> None:
    assert written(PLAIN, {"ua-a": None}) == PLAIN
    assert written(PLAIN, {}) == PLAIN


def test_overrides_that_are_there_are_completed_whatever_their_prefix() -> None:
    result = written(IN_USE, {"ua-other": 1, "ua-old": 2, "ua-bare": 3, "ua-new": 4})
    assert properties(result) == {
        "ua-other": [OTHER, clique(1)],
        "ua-old": [clique(2)],
        "ua-bare": [clique(3)],
        "ua-new": [clique(4)],
    }
    assert "'" not in result
    assert written(result, {"ua-other": 1, "ua-old": 2, "ua-bare": 3, "ua-new": 4}) == result


def test_a_clique_that_is_of_no_use_any_more_goes_and_other_properties_stay() -> None:
    full = written(IN_USE, {"ua-other": 1})
    result = written(full, {"ua-other": None, "ua-old": None, "ua-bare": None})
    assert properties(result) == {"ua-other": [OTHER], "ua-bare": []}
    assert written(result, {"ua-other": None, "ua-old": None}) == result


def test_devices_that_are_not_named_keep_what_they_have() -> None:
    assert properties(written(IN_USE, {"ua-new": 0}))["ua-old"] == [clique(9)]


def test_an_alias_is_escaped() -> None:
    assert properties(written(PLAIN, {"ua-a'\"<&": 0})) == {"ua-a'\"<&": [clique(0)]}
