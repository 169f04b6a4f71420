"""The table of names that comes with launcherkit: how it is made, and who reads it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit.host.pci_ids import BUNDLED, PATHS, TABLES, find_names
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction
from tests.support.imports import ROOT
from tools.dev.pci_ids import NOTICE, smaller

WHOLE = """\
#
#	List of PCI ID's
#
#	Date:    2025-06-09 03:15:02

0001  SafeNet (wrong ID)
	0001  a device of a maker of nothing that guests have
10de  NVIDIA Corporation
	2204  GA102 [GeForce RTX 3090]
		1458 403b  Gaming OC
C 03  Display controller
	00  VGA compatible controller
		00  VGA controller
"""
KEPT = """\
10de  NVIDIA Corporation
	2204  GA102 [GeForce RTX 3090]
C 03  Display controller
	00  VGA compatible controller
"""


def test_of_a_whole_table_the_devices_of_some_vendors_and_all_classes_are_kept_with_date_and_notice() -> None:
    made = smaller(WHOLE)
    assert made.splitlines()[0].startswith("# From the PCI ID project's table of 2025-06-09, made smaller by ")
    assert made.split("\n", 1)[1] == NOTICE + KEPT


def test_a_table_without_a_date_is_refused() -> None:
    with pytest.raises(ValueError, match="no date"):
        smaller(WHOLE.replace("Date:", ""))


def test_what_is_bundled_is_what_the_tool_makes() -> None:
    """Of a table that it has made it makes the same one, and nothing else was added to it."""
    bundled = Path(BUNDLED).read_text(encoding="utf-8")
    assert smaller(bundled) == bundled
    assert re.search(r"table of 20\d\d-\d\d-\d\d,", bundled.splitlines()[0])
    assert "Redistributions in binary form" in bundled


def test_the_machines_own_table_comes_first(tmp_path: Path) -> None:
    gpu = PciFunction(PciAddress(0, 1, 0, 0), 0x10DE, 0x2204, 0, 0, 0x030000, None, None, None, None)
    assert (*PATHS, BUNDLED) == TABLES
    assert find_names([gpu], (str(tmp_path / "none"), BUNDLED)).device(gpu) == (
        "NVIDIA Corporation GA102 [GeForce RTX 3090]"
    )
    (tmp_path / "own").write_text("10de  NVIDIA\n\t2204  of this machine\n")
    assert find_names([gpu], (str(tmp_path / "own"), BUNDLED)).device(gpu) == "NVIDIA of this machine"


def test_the_exec_hook_has_nothing_to_do_with_it() -> None:
    code = "import sys, launcherkit.hooks.exec_hook; print('launcherkit.host.pci_ids' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
