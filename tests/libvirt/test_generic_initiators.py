"""What libvirt makes of the empty cells of Grace's GPUs (P7)."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from lxml import etree

from tests.libvirt.capabilities import Guests, made_definable
from tests.libvirt.daemon import Libvirt
from tests.libvirt.test_golden_domains import skip_unless_supported

pytestmark = pytest.mark.libvirt

CASE = Path(__file__).parents[1] / "golden" / "generic-initiators"
FIRMWARE = b"<os><loader readonly='yes' type='pflash'>/firmware.fd</loader>"
"""libvirt wants one for ACPI on Arm; it looks at none to say how QEMU is started."""


def qemus_options(case: Path, libvirt: Libvirt, capabilities: dict[str, Guests]) -> list[tuple[str, str]]:
    """How QEMU is started for a case's domain, each word with the one after it.

    Left out is what the host would have to have: VFIO, a second NUMA node, a tap device.
    """
    skip_unless_supported(case, libvirt)
    document = (
        (case / "expected.xml")
        .read_bytes()
        .replace(b"<os firmware='efi'>", FIRMWARE)
        .replace(b" mode='host-passthrough'", b"")
    )
    root = etree.fromstring(made_definable(document, capabilities)[0])
    etree.strip_elements(root, "hostdev", "interface", "numatune", with_tail=False)
    path = libvirt.folder / f"{case.name}.xml"
    path.write_bytes(etree.tostring(root))
    words = shlex.split(libvirt("domxml-to-native", "qemu-argv", "--xml", str(path)).replace("\\\n", " "))
    return list(pairwise(words))


def test_qemu_is_given_a_node_for_each_empty_cell(libvirt: Libvirt, capabilities: dict[str, Guests]) -> None:
    nodes = [word for option, word in qemus_options(CASE, libvirt, capabilities) if option == "-numa"]
    assert [node for node in nodes if "mem" not in node] == [f"node,nodeid={number}" for number in range(2, 26)]


def test_qemu_is_given_the_distances_of_all_cells(libvirt: Libvirt, capabilities: dict[str, Guests]) -> None:
    case = CASE.parent / "numa-distances-of-initiators"
    rows = [word for option, word in qemus_options(case, libvirt, capabilities) if option == "-numa"]
    written = [dict(part.split("=") for part in row.split(",")[1:]) for row in rows if row.startswith("dist,")]
    cells = etree.parse(case / "expected.xml").findall("cpu/numa/cell")
    assert [(one["src"], one["dst"], one["val"]) for one in written] == [
        (cell.get("id"), sibling.get("id"), sibling.get("value")) for cell in cells for sibling in cell.iter("sibling")
    ]
