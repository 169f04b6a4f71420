"""What libvirt makes of the cliques of GPUs (P8)."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from lxml import etree

from tests.libvirt.capabilities import Guests, made_definable
from tests.libvirt.daemon import Libvirt
from tests.libvirt.test_golden_domains import skip_unless_supported

pytestmark = pytest.mark.libvirt

CASE = Path(__file__).parents[1] / "golden" / "p2p"


def test_qemu_is_given_the_clique_of_the_device_with_the_alias(
    libvirt: Libvirt, capabilities: dict[str, Guests]
) -> None:
    """Another device stands in for the GPU: libvirt makes no command line for one on a machine without VFIO."""
    skip_unless_supported(CASE, libvirt)
    root = etree.fromstring(made_definable((CASE / "expected.xml").read_bytes(), capabilities)[0])
    first, second = (each.get("name", "") for each in root.findall("devices/hostdev/alias")[:2])
    etree.strip_elements(root, "hostdev", "interface", "cpu", with_tail=False)
    (devices,) = root.findall("devices")
    for alias in (first, second):
        sound = etree.SubElement(devices, "sound", model="ich9")
        etree.SubElement(sound, "alias", name=alias)
    path = libvirt.folder / "p2p.xml"
    path.write_bytes(etree.tostring(root))
    words = shlex.split(libvirt("domxml-to-native", "qemu-argv", "--xml", str(path)).replace("\\\n", " "))
    given = [json.loads(word) for option, word in pairwise(words) if option == "-device" and word.startswith("{")]
    cliques = {each["id"]: each["x-nv-gpudirect-clique"] for each in given if "x-nv-gpudirect-clique" in each}
    assert cliques == {first: 0, second: 1}


def test_what_was_defined_is_read_back(libvirt: Libvirt, capabilities: dict[str, Guests]) -> None:
    skip_unless_supported(CASE, libvirt)
    document = made_definable((CASE / "expected.xml").read_bytes(), capabilities)[0]
    path = libvirt.folder / "p2p-defined.xml"
    path.write_bytes(document)
    libvirt("define", "--validate", str(path))
    try:
        name = etree.fromstring(document).findtext("name") or ""
        assert cliques_of(libvirt("dumpxml", name).encode()) == cliques_of(document)
    finally:
        libvirt("undefine", name)


def cliques_of(document: bytes) -> dict[str, str]:
    namespaces = {"q": "http://libvirt.org/schemas/domain/qemu/1.0"}
    devices = etree.fromstring(document).xpath("q:override/q:device", namespaces=namespaces)
    return {
        device.get("alias", ""): device.xpath("string(q:frontend/q:property/@value)", namespaces=namespaces)
        for device in devices
    }
