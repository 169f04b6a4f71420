"""The tables of docs/reference/compatibility.md and known-problems.md, made of the files that doctor reads.

python -m tests.support.compatibility
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from launcherkit.compatibility import compatibility, dotted
from launcherkit.known_problems.checks import CHECKS
from launcherkit.known_problems.table import KnownProblem, known_problems

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"
PROBLEMS = PAGE.with_name("known-problems.md")


def tables() -> dict[str, str]:
    """Every table of the page of compatibility, by the name of its place."""
    known = compatibility()
    tried = (
        (each.program, each.version, each.what, ", ".join(f"`{tier}`" for tier in each.tiers) or "by hand, once")
        for each in known.tried
    )
    needs = ((each.program, dotted(each.since), each.what, each.source) for each in known.needs)
    return {
        "tried": table(("program", "version", "what", "tiers"), tried),
        "needs": table(("program", "from", "for", "known by"), needs),
    }


def problem_tables() -> dict[str, str]:
    """The table of the page of known problems."""
    rows = (
        (
            f"`{each.id}`",
            _of_versions(each),
            ", ".join(filter(None, (CHECKS[each.check].text, ", ".join(f"`{one}`" for one in each.hardware_text)))),
            each.symptom,
            each.remedy,
            ", ".join(map(_link, each.sources)),
            str(each.reviewed),
        )
        for each in known_problems()
    )
    head = ("name", "product, versions", "for whom", "symptom", "what to do", "source", "reviewed")
    return {"problems": table(head, (tuple(cell.replace("|", "\\|") for cell in row) for row in rows))}


def _of_versions(problem: KnownProblem) -> str:
    if not problem.affected:
        return problem.product
    last = "" if problem.affected[-1].before else "; no fixed version is known"
    return f"{problem.product}, {'; '.join(map(str, problem.affected))}{last}"


def _link(source: str) -> str:
    if source.startswith("https://"):
        return f"[{source.split('/')[2]}]({source})"
    if source.startswith("RHEL-"):
        return f"[{source}](https://issues.redhat.com/browse/{source})"
    repository, sign, number = re.split("([#@])", source)
    kind = "commit" if sign == "@" else "issues"
    return f"[{repository.rpartition('/')[2]}{sign}{number[:12]}](https://github.com/{repository}/{kind}/{number})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def page_with_tables(page: str, made: Mapping[str, str] | None = None) -> str:
    """A page with its tables as they should be; that of compatibility, unless they are given."""
    for name, text in (tables() if made is None else made).items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        page, found = re.subn(f"{begin}.*?{end}", lambda _: f"{begin}{text}{end}", page, flags=re.DOTALL)  # noqa: B023
        assert found == 1, name
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
    PROBLEMS.write_text(page_with_tables(PROBLEMS.read_text(), problem_tables()))
