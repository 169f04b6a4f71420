"""Makes `launcherkit/host/pci.ids` of a whole table: ``python -m tools.dev.pci_ids [TABLE]``.

Kept are the devices of makers of what is passed through, and of what stands beside it in slots and groups: GPUs,
accelerators, network cards, storage, bridges, virtual devices; and all classes. Boards are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from launcherkit.host.pci_ids import BUNDLED, PATHS

VENDORS = (
    "1002 1022 10de 8086 102b 1a03 1d17 1ed5 9999 1e3e 1ee0 "
    "1d94 1da3 1e52 1e60 1ae0 17cb 19e5 cabc 1d22 1eff 1ed2 1d95 1de0 10ee 1172 1e36 "
    "15b3 14e4 1425 1077 10df 1924 177d 11ab 1b4b 1dd8 1d0f 10ec 8088 1414 1def 1fc9 1d6a 1137 "
    "1000 9005 144d 1344 1c5c 1e0f 1179 15b7 1b96 1bb1 1987 c0a9 2646 1cc1 126f 1d97 103c 1590 1028 "
    "10b5 11f8 111d 1b21 12d8 1912 104c 1106 1af4 1b36 1234 15ad"
)
"""Numbers of vendors."""

_HEAD = "# From the PCI ID project's table of {date}, made smaller by tools/dev/pci_ids.py: {kept}.\n"
_KEPT = "the devices of some vendors, without boards, and all classes"
NOTICE = """\
#
# That table can be distributed under either the GNU General Public License (version 2 or higher) or the 3-clause BSD
# License; here it is under the latter.
#
# Copyright 1997-2025 Martin Mares, 2015-2025 Albert Pool
#
# Redistribution and use in source and binary forms, with or without modification, are permitted provided that the
# following conditions are met:
# 1. Redistributions of source code must retain the above copyright notice, this list of conditions and the following
#    disclaimer.
# 2. Redistributions in binary form must reproduce the above copyright notice, this list of conditions and the following
#    disclaimer in the documentation and/or other materials provided with the distribution.
# 3. Neither the name of the copyright holder nor the names of its contributors may be used to endorse or promote
#    products derived from this software without specific prior written permission.
# THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR IMPLIED WARRANTIES,
# INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
# DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL,
# SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR
# SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY,
# WHETHER IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE
# OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
#
"""


def smaller(table: str) -> str:
    """The part of a table that is bundled, with its date and the notice.

    Args:
        table: a whole ``pci.ids``, or what this has made of one.

    Raises:
        ValueError: the table has no date.
    """
    lines = table.splitlines(keepends=True)
    return "".join((_HEAD.format(date=_date(lines), kept=_KEPT), NOTICE, *_kept(lines)))


def _date(lines: Iterable[str]) -> str:
    for line in lines:
        if line.startswith(("#\tDate:", "# From ")):
            return line.split()[2] if "Date:" in line else line.partition("table of ")[2].partition(",")[0]
    raise ValueError("the table has no date")


def _kept(lines: Iterable[str]) -> Iterator[str]:
    """Lines of the vendors and of all classes; programming interfaces of subclasses go the way of boards."""
    vendors, wanted = frozenset(VENDORS.split()), False
    for line in lines:
        if not line.strip() or line.startswith(("#", "\t\t")):
            continue
        if not line.startswith("\t"):
            wanted = line.startswith("C ") or line[:4].lower() in vendors
        if wanted:
            yield line


def main() -> int:
    """Write the table that is bundled; the whole one is the machine's if none is given."""
    path = sys.argv[1] if len(sys.argv) > 1 else PATHS[0]
    Path(BUNDLED).write_text(smaller(Path(path).read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
