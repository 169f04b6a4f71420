"""A guest's own sysfs says the same as the plan: root complex, NUMA node, switch, slot, function and BARs (P1, P4, P5).

Of every golden case with a tree of its own. The hostdevs are stand-ins here; test_root_complexes.py passes devices
through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
from lxml import etree

from launcherkit import Host
from launcherkit.domain.reader import read_tree
from launcherkit.golden.case import read_case
from launcherkit.model.address import GuestAddress, PciAddress
from launcherkit.model.policy import Policy
from launcherkit.request.policy import layer_of, policy_of
from tests.kernel.rehearsed import rehearsed
from tests.kernel.tree.seen import Found, Planned, Spot, differences, node_of, read_distances, read_seen, spot_of
from tests.kernel.tree.stand_ins import STAND_IN, boot, large_bar, placed, qemu_command
from tests.libvirt.capabilities import Guests
from tests.libvirt.daemon import Libvirt

pytestmark = pytest.mark.kernel

GOLDEN = Path(__file__).parents[2] / "golden"
TREE = Path(__file__).parent / "two-root-complexes.xml"
BARS = {PciAddress(0, 0x65, 0, 0): 64 << 30, PciAddress(0, 0x17, 0, 0): 16 << 20, PciAddress(0, 0x18, 0, 0): 32 << 30}

Boot: TypeAlias = Callable[[bytes, Mapping[PciAddress, int]], dict[Spot, Found]]


def has_tree(case: Path) -> bool:
    """Whether a case is about the guest's tree, on a machine that this one can emulate with its own kernel."""
    text = (case / "expected.xml").read_bytes()
    return (b"expander-bus" in text or b"pcihole64" in text) and b"aarch64" not in text and bool(placed(text))


CASES = sorted(path.parent for path in GOLDEN.glob("*/expected.xml") if has_tree(path.parent))


@pytest.fixture
def booted(libvirt: Libvirt, capabilities: dict[str, Guests], linux: Path, initrd: Path, tmp_path: Path) -> Boot:
    """Starts a document's guest and gives what that says."""

    def start(domain_xml: bytes, bars: Mapping[PciAddress, int]) -> dict[Spot, Found]:
        sizes = {source: bars.get(source, 1 << 20) for source in placed(domain_xml)}
        return read_seen(boot(qemu_command(domain_xml, sizes, libvirt, capabilities), linux, initrd))

    return start


def planned(domain_xml: bytes, bars: Mapping[PciAddress, int]) -> dict[str, Planned]:
    """What a document says of each hostdev."""
    tree = read_tree(etree.fromstring(domain_xml))

    def plan(source: PciAddress, guest: GuestAddress) -> Planned:
        return Planned(spot_of(guest, tree), node_of(guest, tree), STAND_IN, (bars.get(source, 1 << 20),))

    return {str(source): plan(source, guest) for source, guest in placed(domain_xml).items()}


def test_root_complexes_switches_and_large_bars_are_where_the_document_puts_them(booted: Boot) -> None:
    document = TREE.read_bytes()
    plan = planned(document, BARS)
    assert plan["0000:65:00.1"] == Planned(Spot(0xFE, ("00.0", "00.1")), 1, STAND_IN, (1 << 20,))
    assert plan["0000:18:00.0"] == Planned(Spot(0xF0, ("00.0", "00.0", "01.0", "00.0")), 0, STAND_IN, (32 << 30,))
    assert differences(plan, booted(document, BARS)) == []


def test_a_guest_whose_cells_are_swapped_says_so(booted: Boot) -> None:
    document = TREE.read_bytes()
    swapped = document.replace(b"<node>1<", b"<node>x<").replace(b"<node>0<", b"<node>1<")
    swapped = swapped.replace(b"<node>x<", b"<node>0<")
    assert differences(planned(document, BARS), booted(swapped, BARS)) == [
        "0000:65:00.0: on node 0, not 1",
        "0000:65:00.1: on node 0, not 1",
        "0000:17:00.0: on node 1, not 0",
        "0000:18:00.0: on node 1, not 0",
    ]


def test_the_guests_kernel_takes_the_distances_of_its_cells(
    libvirt: Libvirt, capabilities: dict[str, Guests], linux: Path, initrd: Path
) -> None:
    """Linux ignores a table that has anything against the specification, and then says 10 and 20."""
    document = (GOLDEN / "numa-distances" / "expected.xml").read_bytes()
    seen = boot(qemu_command(document, {}, libvirt, capabilities), linux, initrd)
    assert read_distances(seen) == {0: [10, 12, 32, 32], 1: [12, 10, 32, 32], 2: [32, 32, 10, 11], 3: [32, 32, 11, 10]}


def promised(case: Path, folder: Path) -> bytes | None:
    """The document of a rehearsal on the host of a golden case; None where it has hostdevs that nobody is asked for."""
    written = read_case(str(case)).yaml
    domain = (case / "domain.xml").read_bytes()
    if b"<hostdev" in domain or not written.env:
        return None
    policy = Policy() if written.policy is None else policy_of(layer_of(written.policy))
    rehearsal = rehearsed(written.env, domain, Host.from_snapshot(case / "host.json"), folder, policy)
    assert rehearsal.translation is not None, rehearsal.errors
    return rehearsal.translation.domain_xml


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
def test_the_guest_of_a_golden_case_says_the_same_as_its_plan_and_its_rehearsal(
    case: Path, booted: Boot, tmp_path: Path
) -> None:
    document = (case / "expected.xml").read_bytes()
    sources = list(placed(document))
    details = Host.from_snapshot(case / "host.json").facts(sources).details if (case / "host.json").exists() else {}
    bars = {source: large_bar(detail.resources) for source, detail in details.items()}
    rehearsal, seen = promised(case, tmp_path), booted(document, bars)
    for said in (document,) if rehearsal is None else (document, rehearsal):
        assert differences(planned(said, bars), seen) == []
