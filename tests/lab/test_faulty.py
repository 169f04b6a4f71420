"""The suite of device plugins can fail: each fault of the faulty plugin is found, and the plugin without one passes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcherkit_lab.conformance.device_plugin import DEVICE_PLUGIN
from launcherkit_lab.conformance.expectation import Result, Status
from launcherkit_lab.conformance.node import Limits, Node
from launcherkit_lab.conformance.trial import selected, tried
from launcherkit_lab.faulty import FAULTS, Plugin
from tests.lab.bench import BuiltMachine, PluginInThread
from tests.support.hosttree import HostTree
from tests.support.waiting import PATIENCE

CARD, GPUS = "example.com/CARD", "10de:2204"
SEEN = {
    "wrong-version": 'requested API version "v1alpha" is not supported',
    "wrong-endpoint": "is not the name of a socket",
    "no-return": "has not",
    "list-ends": "ListAndWatch has ended",
    "duplicate-ids": "0000:01:00.0 is listed 2 times",
    "forgets-card": "0000:02:00.0 could go to a guest",
    "wrong-health": 'health: "healthy"',
    "lists-unbound": "0000:04:00.0 is bound to no driver",
    "lists-host-group": "group 3 is not viable, as 0000:03:00.1 in it is bound to snd_hda_intel",
    "splits-groups": "group 1 belongs to",
    "keeps-dead": "is not Unhealthy",
    "sick-for-ever": "is not Healthy",
    "other-ids": "card-0 of example.com/CARD was",
    "unknown-id": "no-such-device of example.com/CARD was allocated",
    "unhealthy-id": "0000:01:00.0 of example.com/CARD was allocated",
    "hangs": "DEADLINE_EXCEEDED",
    "prefers-outside": "0000:01:00.0",
    "wrong-variable": "there are: PCIDEVICE_EXAMPLE_COM_CARD",
    "wrong-address": "0000:01:00.0 of example.com/CARD: lacks /dev/vfio/2",
    "forgets-nodes": "lacks /dev/vfio/1",
    "forgets-container": "lacks /dev/vfio/vfio",
    "extra-nodes": "has /dev/vfio/2, which is none of its groups",
    "crosses-nodes": "0000:01:00.0: error getting device from group 1",
    "leaves-socket": "example.com-CARD.sock is left",
    "ignores-sigterm": "it had to be killed",
}
"""What is said of each fault, as far as it tells that one from others."""


def trial(folder: Path, replaced: Mapping[str, Any], patience: float, *only: str) -> list[Result]:
    """Two cards for guests, one that shares its group with the host, one without a driver."""
    tree = HostTree(folder / "host")
    tree.card("0000:01:00", group=1)
    tree.card("0000:02:00", group=2, numa=1)
    tree.function("0000:03:00.0", driver="vfio-pci", group=3)
    tree.function("0000:03:00.1", class_code=0x040300, device=0x1AEF, driver="snd_hda_intel", group=3)
    tree.function("0000:04:00.0", group=4)
    kind = type("Faulty", (Plugin,), {**replaced, "seconds": 0.02})
    driver = PluginInThread(kind, CARD, tree.root, folder / "kubelet", folder / "log")
    limits = Limits(pods=8, kills=2, health_seconds=patience, patience=patience, steady_seconds=0.3)
    node = Node(folder / "kubelet", driver, [CARD], [GPUS], BuiltMachine(tree), limits)
    with node.running():
        return tried(selected(DEVICE_PLUGIN, only), node)


def test_without_a_fault_every_expectation_is_met(folder: Path) -> None:
    results = trial(folder, {}, PATIENCE)
    assert {one.number: one.seen for one in results if one.status is not Status.PASSED} == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_the_expectation_that_it_names(folder: Path, name: str) -> None:
    def result(patience: float) -> Result:
        (one,) = trial(folder / str(patience), FAULTS[name].replaced, patience, FAULTS[name].failed)
        return one

    # A busy machine may need more: else all that is seen is that it was slow, or it is killed before it is looked at.
    results = map(result, (1, 10, PATIENCE))
    found = next((one for one in results if SEEN[name] in one.seen), None)
    assert found is not None, "it was not found"
    assert found.status is Status.FAILED


def test_the_command_names_all_faults() -> None:
    done = subprocess.run([sys.executable, "-m", "launcherkit_lab.faulty", "--help"], capture_output=True, text=True)
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert all([name, fault.failed, fault.about] in lines for name, fault in FAULTS.items())
