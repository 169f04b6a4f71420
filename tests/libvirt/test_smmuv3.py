"""What libvirt makes of an SMMUv3 for each root complex (P9)."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from lxml import etree

from tests.libvirt.capabilities import Guests, made_definable
from tests.libvirt.daemon import Libvirt
from tests.libvirt.test_generic_initiators import FIRMWARE
from tests.libvirt.test_golden_domains import skip_unless_supported

pytestmark = pytest.mark.libvirt

CASE = Path(__file__).parents[1] / "golden" / "smmuv3"


def test_qemu_is_given_one_for_each_expander(libvirt: Libvirt, capabilities: dict[str, Guests]) -> None:
    """Without what the host would have to have: VFIO, a second NUMA node, a tap device."""
    skip_unless_supported(CASE, libvirt)
    document = (
        (CASE / "expected.xml")
        .read_bytes()
        .replace(b"<os firmware='efi'>", FIRMWARE)
        .replace(b" mode='host-passthrough'", b"")
    )
    root = etree.fromstring(made_definable(document, capabilities)[0])
    etree.strip_elements(root, "hostdev", "interface", "numatune", with_tail=False)
    path = libvirt.folder / "smmuv3.xml"
    path.write_bytes(etree.tostring(root))
    words = shlex.split(libvirt("domxml-to-native", "qemu-argv", "--xml", str(path)).replace("\\\n", " "))
    devices = [json.loads(word) for option, word in pairwise(words) if option == "-device" and word.startswith("{")]
    expanders = [each["id"] for each in devices if each["driver"] == "pxb-pcie"]
    smmus = [each for each in devices if each["driver"] == "arm-smmuv3"]
    assert [each["primary-bus"] for each in smmus] == expanders
    assert [each["accel"] for each in smmus] == [True, True, True]
