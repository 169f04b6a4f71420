"""The findings, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from launcherkit.colour import Colours
from launcherkit.doctor.devices import check_functions, check_groups, check_migration, check_resizable, check_variants
from launcherkit.doctor.facts import Facts
from launcherkit.doctor.finding import CHECKS, Finding, Status
from launcherkit.doctor.iommu import check_iommu, check_modules
from launcherkit.doctor.memlock import check_memlock
from launcherkit.doctor.nodes import check_dra_node, check_nodes
from launcherkit.doctor.versions import check_versions
from launcherkit.doctor.window import check_window
from launcherkit.errors import counted
from launcherkit.process.terminal import fitted
from launcherkit.show.layout import columns, visible

FORMAT = "launcherkit.io/doctor/v1"


def report_text(looked_at: str, findings: Sequence[Finding], colours: Colours, across: int | None = None) -> str:
    """One line for each finding, with its remedy below, and a count.

    Args:
        looked_at: what was checked, for the first line.
        findings: in the order in which they are reported.
        colours: ANSI colours or none.
        across: columns of the terminal, None for no terminal; commands are not wrapped, because they are copied.
    """
    merged = list(_together(findings))
    rows = [(_mark(each.status, colours), each.check, visible(each.subject), visible(each.seen)) for each in merged]
    lines = [fitted(colours.head(visible(looked_at)), across), ""]
    for line, finding in zip(columns(rows), merged, strict=True):
        lines.append(fitted(line, across))
        if finding.remedy:
            first, *commands = map(visible, finding.remedy.split("\n"))
            lines += [
                fitted(f"{' ' * 11}{colours.head('help')}: {first}", across),
                *(f"{' ' * 17}{command}" for command in commands),
            ]
    return "\n".join([*lines, "", fitted(_summary(findings, colours), across)]) + "\n"


def _together(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Merge equal good findings of a check into one line: readers look for the others."""
    for _, same in groupby(findings, key=lambda finding: (finding.check, finding.status, finding.seen, finding.remedy)):
        alike = list(same)
        if len(alike) > 1 and alike[0].status == "ok":
            yield replace(alike[0], subject=f"{len(alike)} of them")
        else:
            yield from alike


def _mark(status: Status, colours: Colours) -> str:
    paint = {"ok": colours.good, "warn": colours.odd, "fail": colours.bad, "skipped": colours.faint}[status]
    return paint(status)


def _summary(findings: Sequence[Finding], colours: Colours) -> str:
    count = Counter(finding.status for finding in findings)
    failed = f"{count['fail']} failed" if count["fail"] else "nothing failed"
    return (
        f"{colours.bad(failed) if count['fail'] else colours.good(failed)}, {counted(count['warn'], 'warning')}, "
        f"{count['ok']} ok, {count['skipped']} skipped"
    )


def report_document(looked_at: str, findings: Sequence[Finding], *, bad: bool) -> dict[str, Any]:
    """The same as a JSON object, with stable keys."""
    count = Counter(finding.status for finding in findings)
    return {
        "format": FORMAT,
        "lookedAt": looked_at,
        "passed": not bad,
        "counts": {status: count[status] for status in ("ok", "warn", "fail", "skipped")},
        "findings": [asdict(finding) for finding in findings],
    }


def list_checks() -> str:
    """The names of the checks, each with what it looks at."""
    return "\n".join(columns(list(CHECKS.items()), indent="")) + "\n"


# All checks, in the order of `CHECKS`.
_EXAMINERS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    check_iommu,
    check_modules,
    check_groups,
    check_functions,
    check_variants,
    check_migration,
    check_resizable,
    check_nodes,
    check_memlock,
    check_window,
    check_dra_node,
    check_versions,
)


def examine(facts: Facts) -> list[Finding]:
    """The findings of every check; the same facts give the same list."""
    findings = [finding for examiner in _EXAMINERS for finding in examiner(facts)]
    order = {name: place for place, name in enumerate(CHECKS)}
    return sorted(findings, key=lambda finding: order[finding.check])
