"""From a pod to its guest: a run in a machine that is a node, and what was seen in it.

It is what `./dev demo --full` does here. The node is one of Kubernetes, where `LAUNCHERKIT_TEST_CLUSTER` names a
program that starts it; else a double of the kubelet and runc do what Kubernetes would.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcherkit_lab.devices import AUDIO, DISPLAY
from launcherkit_lab.packages import CannotFetch
from tests.kernel.guests import slots_with
from tests.kernel.inside import cannot_be_made
from tests.kernel.pod.inside import DRIVERS, FIRST, SECOND
from tests.kernel.pod.manifests import RESOURCE, VARIABLE
from tests.kernel.pod.observed import Observed, PodSeen, read
from tests.kernel.pod.run import pod_to_guest
from tests.tiers import CLUSTER, IMAGES
from tools.release.images import CannotBuild

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(IMAGES.missing()), reason=f"images can't be built here: {IMAGES.how_to_get()}"),
]

# Numbers of capabilities(7), by the names that deploy/launcher-pod.yaml has.
CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
}
SYS_RESOURCE = 24
DAC_READ_SEARCH, SYS_PTRACE = 2, 19


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    results: Path = tmp_path_factory.mktemp("pod-to-guest")
    try:
        outcome = pod_to_guest(results, os.environ, lambda line: None, CLUSTER.program())
    except (CannotFetch, CannotBuild) as error:
        cannot_be_made(request.config, error)
    assert outcome.code == 0, f"{outcome.end(80)}\nall it left is in {results}"
    return read(results)


@pytest.fixture(params=["first", "second"])
def pod(request: pytest.FixtureRequest, seen: Observed) -> PodSeen:
    found: PodSeen = getattr(seen, request.param)
    return found


def test_the_card_was_bound_with_its_whole_group(seen: Observed) -> None:
    assert seen.plugin.offered == {seen.card: "vfio-pci", f"{seen.card[:-1]}1": "vfio-pci"}


def test_before_the_plugin_is_removed_the_card_has_the_drivers_that_it_had(seen: Observed) -> None:
    assert seen.plugin.before == dict(zip([seen.card, f"{seen.card[:-1]}1"], DRIVERS, strict=True))
    assert seen.plugin.given_back == seen.plugin.before


def test_the_plugins_helper_has_two_capabilities_the_daemon_none_and_no_root_that_it_can_write(seen: Observed) -> None:
    assert seen.plugin.capabilities == {"daemon": 0, "helper": 1 << DAC_READ_SEARCH | 1 << SYS_PTRACE}
    assert "Read-only file system" in seen.plugin.root


def test_the_plugin_is_refused_the_system_calls_that_reach_into_other_processes(seen: Observed) -> None:
    assert seen.plugin.filtered == [2, 2]
    assert set(seen.plugin.refused.values()) == {errno.EPERM}, seen.plugin.refused
    assert len(seen.plugin.refused) > 10


def test_the_container_has_the_card_in_its_variable_and_its_groups_node(seen: Observed, pod: PodSeen) -> None:
    assert pod.variables == {VARIABLE: seen.card}
    assert sorted(pod.nodes) == [f"/dev/vfio/{seen.iommu_group}", "/dev/vfio/vfio"]


def test_the_guest_has_the_card_in_one_slot_with_both_functions(pod: PodSeen) -> None:
    assert len(slots_with(pod.listing, DISPLAY, AUDIO)) == 1, pod.listing
    models = list(pod.listing.values())
    assert (models.count(DISPLAY), models.count(AUDIO)) == (1, 1)


def test_no_pod_is_privileged(seen: Observed) -> None:
    least = sum(1 << number for number in CAPABILITIES.values())
    assert seen.first.capabilities == least | 1 << SYS_RESOURCE
    assert seen.second.capabilities == least


def test_the_limit_of_locked_memory_is_raised_by_libvirt_or_by_the_runtime(seen: Observed) -> None:
    assert seen.first.locked_memory != "unlimited"
    assert seen.second.locked_memory == "unlimited"


def test_while_one_pod_has_the_card_the_next_is_not_scheduled(seen: Observed) -> None:
    assert f"Insufficient {RESOURCE}" in seen.waiting


def test_the_guest_was_shut_down_not_killed(pod: PodSeen) -> None:
    assert "guest: off" in pod.log
    assert "the guest has shut down" in pod.log


def test_the_kubelet_gives_the_card_to_one_pod_after_the_other(seen: Observed) -> None:
    assert list(seen.first.held.values()) == [f"default/{FIRST}"]
    assert list(seen.second.held.values()) == [f"default/{SECOND}"]
    assert seen.first.held.keys() == seen.second.held.keys()
    assert seen.held_afterwards == {}
