"""All checks, in the order of `CHECKS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from launcherkit.doctor.devices import check_functions, check_groups, check_resizable
from launcherkit.doctor.dra_node import check_dra_node
from launcherkit.doctor.facts import Facts
from launcherkit.doctor.finding import CHECKS, Finding
from launcherkit.doctor.iommu import check_iommu, check_modules
from launcherkit.doctor.memlock import check_memlock
from launcherkit.doctor.nodes import check_nodes
from launcherkit.doctor.versions import check_versions
from launcherkit.doctor.window import check_window

_EXAMINERS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    check_iommu,
    check_modules,
    check_groups,
    check_functions,
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
