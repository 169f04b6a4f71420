"""The guest's NUMA cells, and its address space (P4, P5)."""

from __future__ import annotations

import pytest

from launcherkit.domain.cells import read_cells
from launcherkit.domain.window import read_address_space
from launcherkit.domain.writer import write_plan
from launcherkit.domain.xml import read_document
from launcherkit.model.address import PciAddress
from launcherkit.model.address_space import AddressSpace
from launcherkit.model.domain import GuestCell
from launcherkit.model.plan import Attachment, PlannedDevice, PlannedFunction, Window
from launcherkit.model.window import GIB
from launcherkit.pipeline import EMPTY_PLAN


def cells(inside: str) -> tuple[GuestCell, ...]:
    return read_cells(read_document(f"<domain type='kvm'>{inside}</domain>").root)


def space(inside: str, kind: str = "kvm", libvirt: tuple[int, ...] | None = None) -> AddressSpace:
    return read_address_space(read_document(f"<domain type='{kind}'>{inside}</domain>").root, libvirt)


NUMA = "<cpu><numa><cell id='1' cpus='2-3'/><cell id='0' cpus='0-1'/><cell id='2' memory='0'/></numa></cpu>"


def test_cells_have_the_nodes_of_their_memory_and_the_cpus_of_their_vcpus() -> None:
    memory = "<numatune><memory nodeset='0-1'/><memnode cellid='0' nodeset='1'/><memnode cellid='2' nodeset='4-5,^4'/>"
    pins = "<cputune><vcpupin vcpu='0' cpuset='8'/><vcpupin vcpu='1' cpuset='9-10'/><vcpupin vcpu='3' cpuset='0'/>"
    assert cells(f"{NUMA}{memory}</numatune>{pins}</cputune>") == (
        GuestCell(0, frozenset({1}), frozenset({8, 9, 10})),
        GuestCell(1, frozenset(), frozenset({0})),
        GuestCell(2, frozenset({5}), frozenset()),
    )


def test_cells_without_numbers_are_counted_and_odd_sets_are_none() -> None:
    inside = "<cpu><numa><cell cpus='x'/><cell cpus='0'/></numa></cpu><numatune><memnode cellid='1' nodeset='9-'/>"
    nothing = frozenset[int]()
    assert cells(inside + "</numatune>") == (GuestCell(0, nothing, nothing), GuestCell(1, nothing, nothing))
    assert cells("<cpu mode='host-passthrough'/>") == ()


@pytest.mark.parametrize(
    ("cpu", "bits", "can_pass"),
    [
        ("", None, True),
        ("<cpu><topology sockets='1' cores='2' threads='1'/></cpu>", None, True),
        ("<cpu mode='host-model'/>", None, True),
        ("<cpu mode='host-model'><model fallback='forbid'/></cpu>", None, True),
        ("<cpu mode='host-passthrough'/>", None, True),
        ("<cpu mode='maximum'/>", None, True),
        ("<cpu mode='custom'><model>EPYC</model></cpu>", 40, False),
        ("<cpu match='exact'><model>EPYC</model></cpu>", 40, False),
        ("<cpu mode='host-model'><maxphysaddr mode='passthrough'/></cpu>", None, False),
        ("<cpu mode='host-passthrough'><maxphysaddr mode='passthrough'/></cpu>", None, False),
        ("<cpu mode='custom'><model>EPYC</model><maxphysaddr mode='emulate' bits='46'/></cpu>", 46, False),
        ("<cpu mode='custom'><maxphysaddr mode='emulate' bits='99999999999'/></cpu>", 40, False),
    ],
)
def test_address_bits_are_the_hosts_only_where_they_are_passed_through(
    cpu: str, bits: int | None, can_pass: bool
) -> None:
    found = space(cpu)
    assert (found.bits, found.can_pass_bits) == (bits, can_pass)


@pytest.mark.parametrize("cpu", ["<cpu mode='host-passthrough'/>", "<cpu mode='host-model'/>", ""])
def test_tcg_has_no_bits_to_pass_through(cpu: str) -> None:
    found = space(cpu, kind="qemu")
    assert (found.bits, found.can_pass_bits) == (40, False)


@pytest.mark.parametrize("cpu", ["<cpu mode='host-model'/>", "", "<cpu><maxphysaddr mode='passthrough'/></cpu>"])
def test_a_libvirt_before_8_7_passes_no_bits_through(cpu: str) -> None:
    assert (space(cpu, libvirt=(8, 6, 0)).bits, space(cpu, libvirt=(8, 6, 0)).can_pass_bits) == (40, False)
    assert space(cpu, libvirt=(8, 7, 0)) == space(cpu)
    assert space(cpu).bits is None


@pytest.mark.parametrize(
    ("cpu", "pages"),
    [
        ("", False),
        ("<cpu><topology sockets='1'/></cpu>", False),
        ("<cpu mode='custom'/>", False),
        ("<cpu mode='host-model'/>", True),
        ("<cpu mode='custom'><model>EPYC</model></cpu>", True),
        ("<cpu mode='host-model'><feature policy='disable' name='pdpe1gb'/></cpu>", False),
    ],
)
def test_the_default_model_has_no_1_gib_pages(cpu: str, pages: bool) -> None:
    """libvirt's is qemu64; QEMU 7.2 says that it has no pdpe1gb, and that EPYC has it."""
    assert space(cpu).huge_pages is pages


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<domain>\n  <devices/>\n</domain>", "</devices>\n  <cpu>\n    <maxphysaddr mode='passthrough'/>\n  </cpu>\n"),
        ("<domain><os/></domain>", "<os/><cpu><maxphysaddr mode='passthrough'/></cpu><devices><controller"),
        ("<domain/>", "<domain><cpu><maxphysaddr mode='passthrough'/></cpu><devices><controller"),
    ],
)
def test_a_domain_without_a_cpu_gets_one_for_its_address_bits(before: str, after: str) -> None:
    plan = EMPTY_PLAN._replace(window=Window(200 * GIB, 256 * GIB, True, "pcie-root"))
    assert after in write_plan(read_document(before), plan).decode()


def test_the_rest_of_the_address_space() -> None:
    controller = "<controller type='pci' model='pcie-root'><pcihole64 unit='GiB'>64</pcihole64></controller>"
    feature = "<cpu><feature policy='disable' name='pdpe1gb'/></cpu>"
    found = space(
        f"<memory unit='GiB'>4</memory><maxMemory unit='GiB' slots='2'>16</maxMemory><os firmware='efi'/>{feature}"
        f"<devices>{controller}</devices>"
    )
    assert found == AddressSpace(64 * GIB, None, True, 16 * GIB, False, True)
    assert space("") == AddressSpace(None, None, True, None, False, False)


def test_a_cell_is_empty_without_vcpus_memory_and_memnode() -> None:
    inside = (
        "<cell id='0' cpus='0' memory='0'/><cell id='1' memory='1'/><cell id='2' memory='0'/><cell id='3' memory='0'/>"
    )
    tune = "<numatune><memnode cellid='3' mode='strict' nodeset='1'/></numatune>"
    found = cells(f"<cpu><numa>{inside}</numa></cpu>{tune}")
    assert [cell.empty for cell in found] == [False, False, True, False]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<cell memory='1'/><!-- all -->", "<cell memory='1'/><!-- all --><cell id='1' memory='0' unit='KiB'/>"),
        (
            '\n\t<cell memory="1"/>\n\t<interconnects/>\n',
            '\n\t<cell memory="1"/>\n\t<interconnects/>\n\t<cell id="1" memory="0" unit="KiB"/>\n',
        ),
    ],
)
def test_cells_are_added_as_the_others_are_written(before: str, after: str) -> None:
    frame = "<domain><cpu><numa>{}</numa></cpu><devices/></domain>"
    plan = EMPTY_PLAN._replace(cells=(1,))
    assert write_plan(read_document(frame.format(before)), plan).decode() == frame.format(after)


def test_a_hostdev_that_has_an_acpi_index_gets_its_cells_there() -> None:
    source = "<source><address domain='9' bus='1' slot='0' function='0'/></source><alias name='ua-a'/>"
    frame = (
        f"<domain><devices><hostdev mode='subsystem' type='pci' managed='no'>{source}{{}}</hostdev></devices></domain>"
    )
    attachment = Attachment(PciAddress(9, 1, 0, 0), "primary", "", None, 0)
    function = PlannedFunction(attachment, "ua-a", None, None, managed=False, nodeset=frozenset(range(1, 9)))
    plan = EMPTY_PLAN._replace(devices=(PlannedDevice("pci", (function,), ()),))
    for before, after in (
        ("<acpi index='5'/>", "<acpi index='5' nodeset='1-8'/>"),
        ("<acpi nodeset='2'/>", "<acpi nodeset='2'/>"),
        ("", "<acpi nodeset='1-8'/>"),
    ):
        assert write_plan(read_document(frame.format(before)), plan).decode() == frame.format(after)
