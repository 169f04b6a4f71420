"""The lab's device plugin on a real kernel: without a fault the suite passes, and it finds those that VFIO is about."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from launcherkit_lab import sysfs
from launcherkit_lab.conformance.device_plugin import DEVICE_PLUGIN
from launcherkit_lab.conformance.expectation import Result, Status
from launcherkit_lab.conformance.machine import Machine
from launcherkit_lab.conformance.node import Limits, Node
from launcherkit_lab.conformance.trial import selected, tried
from launcherkit_lab.devices import DISPLAY
from launcherkit_lab.faulty import FAULTS, Plugin
from tests.lab.bench import PluginInThread

pytestmark = pytest.mark.kernel

CARD, DISPLAYS = "example.com/CARD", "{:04x}:{:04x}".format(*DISPLAY)


def trial(folder: Path, replaced: Mapping[str, Any], limits: Limits, *only: str) -> list[Result]:
    kind = type("Faulty", (Plugin,), dict(replaced))
    with tempfile.TemporaryDirectory(prefix="k-") as kubelet:
        driver = PluginInThread(kind, CARD, Path("/"), Path(kubelet), folder / "log")
        node = Node(Path(kubelet), driver, [CARD], [DISPLAYS], Machine(), limits)
        with node.running():
            return tried(selected(DEVICE_PLUGIN, only), node)


@pytest.fixture
def cards(sound: None, bound: Callable[..., None]) -> list[sysfs.Card]:
    """All cards, whole, on vfio-pci."""
    found = sysfs.cards()
    bound(*(address for card in found for address in card))
    return found


def test_without_a_fault_every_expectation_is_met(cards: list[sysfs.Card], tmp_path: Path) -> None:
    results = trial(tmp_path, {}, Limits(pods=6, kills=1, health_seconds=60))
    assert {one.number: one.seen for one in results if one.status is not Status.PASSED} == {}


WHOLE = (
    "splits-groups",
    "keeps-dead",
    "sick-for-ever",
    "unhealthy-id",
    "forgets-nodes",
    "extra-nodes",
)
GUESTS = {
    "forgets-container": "failed to open /dev/vfio/vfio",
    "wrong-address": "failed to open /dev/vfio/",
    "crosses-nodes": "error getting device from group",
}
"""What QEMU says of these, which `tests.lab.bench` repeats."""


def test_faults_are_found(cards: list[sysfs.Card], tmp_path: Path) -> None:
    """With all cards whole; then with one whose audio the host has; then with one that has no driver."""
    limits = Limits(health_seconds=5, patience=5)

    def found(name: str) -> Result:
        (result,) = trial(tmp_path, FAULTS[name].replaced, limits, FAULTS[name].failed)
        return result

    results = {name: found(name) for name in WHOLE}
    guests = {name: trial(tmp_path, FAULTS[name].replaced, Limits(), "DP20")[0] for name in GUESTS}
    assert {name: one.seen for name, one in guests.items() if GUESTS[name] not in one.seen} == {}
    results |= guests
    sysfs.bind(cards[-1].audio, "snd_hda_intel")
    results["lists-host-group"] = found("lists-host-group")
    for address in cards[-1]:
        sysfs.unbind(address)
    results["lists-unbound"] = found("lists-unbound")
    assert {name: one.seen for name, one in results.items() if one.status is not Status.FAILED} == {}
    assert f"{cards[-1].display} is bound to no driver" in results["lists-unbound"].seen
    assert f"{cards[-1].audio} in it is bound to snd_hda_intel" in results["lists-host-group"].seen
