"""Names from pci.ids are for people: right where the table has them, silently absent where it hasn't."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.host.pci_ids import NO_NAMES, PciNames, find_names
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction

TABLE = """\
# A table in the format of pci.ids.

10de  NVIDIA Corporation
	1aef  GA102 High Definition Audio Controller
	2204  GA102 [GeForce RTX 3090]
		1458 403b  Gaming OC
		10de 147d  Founders Edition
# a remark between the devices of a vendor
	2206  GA102 [GeForce RTX 3080]
8086  Intel Corporation
	2204  A device of another vendor with the same number
	1533  I210 Gigabit Network Connection
C 02  Network controller
	00  Ethernet controller
C 03  Display controller
	00  VGA compatible controller
		00  VGA controller
	02  3D controller
"""


def function(
    vendor: int = 0x10DE,
    device: int = 0x2204,
    class_code: int = 0x030000,
    subsystem: tuple[int, int] = (0x1458, 0x403B),
) -> PciFunction:
    return PciFunction(PciAddress(0, 0xE1, 0, 0), vendor, device, *subsystem, class_code, None, None, None, None)


GPU = function()
NIC = function(0x8086, 0x1533, 0x020000, (0, 0))


def names_in(path: Path, text: str | bytes, *functions: PciFunction) -> PciNames:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return find_names(functions, [str(path)])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "pci.ids"


def test_vendor_device_board_and_class_have_their_names(table: Path) -> None:
    names = names_in(table, TABLE, GPU, NIC)
    assert names.device(GPU) == "NVIDIA Corporation GA102 [GeForce RTX 3090]"
    assert names.board(GPU) == "Gaming OC"
    assert names.class_(GPU) == "VGA compatible controller"
    assert names.device(NIC) == "Intel Corporation I210 Gigabit Network Connection"
    assert names.class_(NIC) == "Ethernet controller"
    assert names.board(NIC) is None


def test_a_device_line_counts_for_its_own_vendor_alone(table: Path) -> None:
    """Two vendors have a device 2204; the second vendor's part, or a part that nobody asked for, names nothing here."""
    assert names_in(table, TABLE, GPU).device(GPU) == "NVIDIA Corporation GA102 [GeForce RTX 3090]"
    without = TABLE.replace("\t2204  GA102 [GeForce RTX 3090]\n", "")
    assert names_in(table, without, GPU).device(GPU) == "NVIDIA Corporation"
    stranger = "10de  NVIDIA Corporation\n???\n\t2204  whose is this\n"
    assert names_in(table, stranger, GPU).device(GPU) == "NVIDIA Corporation"


def test_a_board_line_counts_for_its_own_device_alone(table: Path) -> None:
    other = function(device=0x2206)
    names = names_in(table, TABLE, other)
    assert names.device(other) == "NVIDIA Corporation GA102 [GeForce RTX 3080]"
    assert names.board(other) is None


def test_a_remark_does_not_end_a_vendors_part(table: Path) -> None:
    assert names_in(table, TABLE, function(device=0x2206)).devices == {(0x10DE, 0x2206): "GA102 [GeForce RTX 3080]"}


def test_nothing_is_kept_that_was_not_asked_for(table: Path) -> None:
    names = names_in(table, TABLE, NIC)
    assert names.vendors == {0x8086: "Intel Corporation"}
    assert names.devices == {(0x8086, 0x1533): "I210 Gigabit Network Connection"}
    assert names.boards == {}


def test_the_class_alone_is_named_where_the_subclass_is_not_known(table: Path) -> None:
    odd = function(class_code=0x03FF00)
    assert names_in(table, TABLE, odd).class_(odd) == "Display controller"


def test_an_unknown_vendor_has_no_name(table: Path) -> None:
    unknown = function(vendor=0x1234)
    assert names_in(table, TABLE, unknown).device(unknown) is None


def test_line_ends_and_upper_case_digits_do_not_matter(table: Path) -> None:
    text = "10DE  NVIDIA Corporation\r\n\t2204  GA102\r\n"
    assert names_in(table, text, GPU).device(GPU) == "NVIDIA Corporation GA102"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x00\xff" * 1000,
        b"\t2204  before any vendor\n\t\t1458 403b  before any device\n",
        b"10de\n10de  \n\t2204\n\t\t\n\t\t1458\nC \nC zz  x\n\t\n",
        b"10de  ",
        b"<html>not found</html>\n",
    ],
)
def test_a_malformed_table_gives_no_names_and_no_error(table: Path, text: bytes) -> None:
    names = names_in(table, text, GPU)
    assert names.device(GPU) is None
    assert names.class_(GPU) is None


def test_a_name_can_not_steer_the_terminal(table: Path) -> None:
    assert names_in(table, "10de  NVIDIA\x1b[2J\n", GPU).device(GPU) is None


def test_the_first_table_that_can_be_opened_is_read(tmp_path: Path, table: Path) -> None:
    table.write_text(TABLE)
    paths = [str(tmp_path / "absent"), str(tmp_path), str(table)]
    assert find_names([GPU], paths).board(GPU) == "Gaming OC"


def test_a_missing_table_gives_no_names(tmp_path: Path) -> None:
    assert find_names([GPU], [str(tmp_path / "absent")]) == NO_NAMES
    assert find_names([GPU], []) == NO_NAMES


def test_with_nothing_to_name_the_table_is_not_opened(tmp_path: Path) -> None:
    assert find_names([], [str(tmp_path)]) == NO_NAMES
