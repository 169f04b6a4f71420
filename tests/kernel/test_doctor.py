"""The doctor on a machine that has all it looks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from launcherkit.cli.main import run
from launcherkit_lab import sysfs

pytestmark = pytest.mark.kernel


@pytest.fixture
def examine(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, set[str]]]]:
    """Runs the doctor; gives the exit code, and of each check what it came to."""

    def run_doctor(env: dict[str, str]) -> tuple[int, dict[str, set[str]]]:
        capfd.readouterr()
        code = run(["doctor", "--json"], env)
        report: dict[str, Any] = json.loads(capfd.readouterr().out)
        found: dict[str, set[str]] = {}
        for finding in report["findings"]:
            found.setdefault(finding["check"], set()).add(finding["status"])
        return code, found

    return run_doctor


def test_a_bound_card_is_well(
    examine: Callable[..., tuple[int, dict[str, set[str]]]], bound: Callable[..., None]
) -> None:
    card = sysfs.cards()[0]
    bound(*card)
    code, found = examine({"PCI_RESOURCE_X": card.display})
    assert code == 0, found
    for check in ("iommu-groups", "iommu-firmware", "vfio-modules", "group-viability", "vfio-nodes", "config-space"):
        assert found[check] == {"ok"}, check


def test_a_card_that_shares_its_group_with_a_host_driver_is_not(
    examine: Callable[..., tuple[int, dict[str, set[str]]]], sound: None, bound: Callable[..., None]
) -> None:
    card = sysfs.cards()[0]
    bound(card.display)
    code, found = examine({"PCI_RESOURCE_X": card.display})
    assert code == 1
    assert found["group-viability"] == {"fail"}
    assert found["iommu-groups"] == {"ok"}


def test_a_card_that_is_not_there_fails_the_examination(
    examine: Callable[..., tuple[int, dict[str, set[str]]]],
) -> None:
    code, _ = examine({"PCI_RESOURCE_X": "0000:7f:00.0"})
    assert code == 1
