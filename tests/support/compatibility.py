"""The tables of docs/reference/compatibility.md, made of the file that doctor reads.

python -m tests.support.compatibility
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from launcherkit.compatibility import compatibility, dotted

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"
_FOR = {
    "": "all",
    "pci": "VMs with a PCI hostdev",
    "sev-snp": "guests with SEV-SNP and a PCI hostdev",
    "no-cdev": "VMs with a PCI hostdev whose VFIO character device has no node",
}


def tables() -> dict[str, str]:
    """Every table by the name of its place in the page."""
    known = compatibility()
    tried = (
        (each.program, each.version, each.what, ", ".join(f"`{tier}`" for tier in each.tiers) or "by hand, once")
        for each in known.tried
    )
    needs = ((each.program, dotted(each.since), each.what, each.source) for each in known.needs)
    broken = (
        (
            each.program,
            f"{dotted(each.since)} and later"
            if each.before is None
            else f"{dotted(each.since)}; fixed in {dotted(each.before)}",
            _FOR[each.where],
            each.what,
            each.remedy,
            f"`{each.name}`, {each.source}",
        )
        for each in known.broken
    )
    return {
        "tried": table(("program", "version", "what", "tiers"), tried),
        "needs": table(("program", "from", "for", "known by"), needs),
        "broken": table(("program", "versions", "for whom", "what", "remedy", "name, source"), broken),
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def page_with_tables(page: str) -> str:
    """The page with its tables as they should be."""
    for name, text in tables().items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        page, found = re.subn(f"{begin}.*?{end}", lambda _: f"{begin}{text}{end}", page, flags=re.DOTALL)  # noqa: B023
        assert found == 1, name
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
