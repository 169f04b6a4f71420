"""What libvirt makes of an SMMUv3 for each root complex (P9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.libvirt.capabilities import Guests
from tests.libvirt.daemon import Libvirt
from tests.libvirt.test_generic_initiators import qemus_options

pytestmark = pytest.mark.libvirt

CASE = Path(__file__).parents[1] / "golden" / "smmuv3"


def test_qemu_is_given_one_for_each_expander(libvirt: Libvirt, capabilities: dict[str, Guests]) -> None:
    options = qemus_options(CASE, libvirt, capabilities)
    devices = [json.loads(word) for option, word in options if option == "-device" and word.startswith("{")]
    expanders = [each["id"] for each in devices if each["driver"] == "pxb-pcie"]
    smmus = [each for each in devices if each["driver"] == "arm-smmuv3"]
    assert [each["primary-bus"] for each in smmus] == expanders
    assert [each["accel"] for each in smmus] == [True, True, True]
