"""Each expectation of device plugins is met by a plugin that is right, and not by one with the fault it is about."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from launcherkit_lab.conformance.device_plugin import DEVICE_PLUGIN
from launcherkit_lab.conformance.expectation import Result, Status
from launcherkit_lab.conformance.node import CannotServe, Limits, Node
from launcherkit_lab.conformance.trial import UnknownNumber, conformant, selected, tried
from launcherkit_lab.proto import deviceplugin_v1beta1_pb2 as wire
from tests.lab.conformance.plugin import GPU, MODEL, SmallPlugin, Tree

FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"
Trying: TypeAlias = Callable[..., list[Result]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A kubelet's, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="k-") as name:
        yield Path(name)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "host")


@pytest.fixture
def trying(folder: Path, tree: Tree, tmp_path: Path) -> Trying:
    """Tries a kind of plugin; all expectations, or those that are named."""

    def trial(plugin: type[SmallPlugin], *only: str, patience: float = 60, health: float = 60) -> list[Result]:
        driver = plugin(folder, tree, tmp_path / "log")
        node = Node(folder, driver, [GPU], [MODEL], tree, Limits(6, 2, health, patience))
        with node.running():
            driver.start()
            return tried(selected(DEVICE_PLUGIN, only), node)

    return trial


def unmet(results: Sequence[Result]) -> dict[str, str]:
    return {one.number: one.seen for one in results if one.status is not Status.PASSED}


def test_a_plugin_that_is_right_meets_all(trying: Trying) -> None:
    results = trying(SmallPlugin)
    assert unmet(results) == {}
    assert [one.number for one in results] == [one.number for one in DEVICE_PLUGIN]
    assert conformant(results)
    seen = {one.number: one.seen for one in results}
    assert seen["DP4"] == f"{FIRST}, {SECOND}"
    assert seen["DP14"] == "2 pods at a time have nothing in common"
    assert seen["DP15"] == "6 pods, 2 kills, 2 pods at a time at most"


class OtherVersion(SmallPlugin):
    version = "v1alpha1"


class SameIds(SmallPlugin):
    def ids(self) -> list[str]:
        return [FIRST, FIRST]


class LongIds(SmallPlugin):
    def device(self, key: str) -> wire.Device:
        return wire.Device(ID=key.rjust(64, "x"), health="Healthy")

    def refused(self, key: str) -> bool:
        return False


class KeepsSickOnes(SmallPlugin):
    def health(self, key: str) -> str:
        return "Healthy"


class Forgets(SmallPlugin):
    def ids(self) -> list[str]:
        return [FIRST]


class ListsMore(SmallPlugin):
    def ids(self) -> list[str]:
        return [*super().ids(), "0000:03:00.0"]


class OtherNumaNode(SmallPlugin):
    def device(self, key: str) -> wire.Device:
        return wire.Device(ID=key, health=self.health(key), topology=wire.TopologyInfo(nodes=[wire.NUMANode(ID=1)]))


class NamesOne(SmallPlugin):
    def addresses(self, ids: Sequence[str]) -> list[str]:
        return list(ids)[:1]


class NamesNothing(SmallPlugin):
    def addresses(self, ids: Sequence[str]) -> list[str]:
        return ["0000:7f:00.0"]


class ForgetsNode(SmallPlugin):
    def nodes(self, ids: Sequence[str]) -> list[str]:
        return super().nodes(ids)[:-1]


class GivesAllNodes(SmallPlugin):
    def nodes(self, ids: Sequence[str]) -> list[str]:
        return super().nodes([FIRST, SECOND])


class GivesNoFile(SmallPlugin):
    def nodes(self, ids: Sequence[str]) -> list[str]:
        return [*super().nodes(ids), "/dev/vfio/none"]


class GivesMore(SmallPlugin):
    def nodes(self, ids: Sequence[str]) -> list[str]:
        return [*super().nodes(ids), "/dev/mem"]


class PrefersOthers(SmallPlugin):
    def preferred(self, asked: wire.ContainerPreferredAllocationRequest) -> list[str]:
        return ["0000:7f:00.0"]


class RefusesNothing(SmallPlugin):
    def refused(self, key: str) -> bool:
        return False

    def nodes(self, ids: Sequence[str]) -> list[str]:
        return ["/dev/vfio/vfio"] if ids == ["no-such-device"] else super().nodes(ids)


class ListsFunctionsOfOneGroup(SmallPlugin):
    def ids(self) -> list[str]:
        return [FIRST, "0000:01:00.1"]


class AlwaysTheFirst(SmallPlugin):
    def addresses(self, ids: Sequence[str]) -> list[str]:
        return [FIRST]


class RegistersOnce(SmallPlugin):
    registered = False

    def register(self, path: Path) -> None:
        if not self.registered:
            super().register(path)
        self.registered = True


class OtherIdsEachTime(SmallPlugin):
    starts = 0

    def start(self) -> None:
        self.starts += not self.running
        super().start()

    def device(self, key: str) -> wire.Device:
        return wire.Device(ID=f"{self.starts}-{key}", health="Healthy")

    def refused(self, key: str) -> bool:
        return False


class Stays(SmallPlugin):
    def end(self, seconds: float) -> int | None:
        self.kill()
        return None


class LeavesItsSocket(SmallPlugin):
    def leave(self) -> None:
        (self._folder / self.endpoint).touch()


@pytest.mark.parametrize(
    ("plugin", "number", "seen"),
    [
        (OtherVersion, "DP1", 'requested API version "v1alpha1" is not supported'),
        (SameIds, "DP2", "is listed 2 times"),
        (LongIds, "DP2", "an ID of 64 characters"),
        (Forgets, "DP4", f"{SECOND} could go to a guest, and is not listed"),
        (OtherNumaNode, "DP5", "NUMA node 1 is said, 0 is in sysfs"),
        (NamesOne, "DP6", f"PCI_RESOURCE_EXAMPLE_COM_GPU={FIRST} isn't what each has alone"),
        (NamesNothing, "DP6", "'0000:7f:00.0', and the machine has no such function"),
        (ForgetsNode, "DP7", "lacks /dev/vfio/11"),
        (GivesAllNodes, "DP7", "has /dev/vfio/12, which is none of its groups"),
        (GivesNoFile, "DP8", "/dev/vfio/none: No such file or directory"),
        (GivesMore, "DP9", "has /dev/mem, too"),
        (PrefersOthers, "DP10", "0000:7f:00.0"),
        (RefusesNothing, "DP11", "no-such-device of example.com/GPU was allocated: /dev/vfio/vfio"),
        (RefusesNothing, "DP13", f"{FIRST} of example.com/GPU was allocated"),
        (ListsFunctionsOfOneGroup, "DP14", "group 11 belongs to pod-"),
        (AlwaysTheFirst, "DP14", f"{FIRST} belongs to pod-"),
        (AlwaysTheFirst, "DP15", f"{FIRST} belongs to churn-"),
        (Stays, "DP18", "had to be killed 30 s after SIGTERM"),
        (LeavesItsSocket, "DP19", "small.sock is left"),
    ],
)
def test_a_fault_is_found(trying: Trying, plugin: type[SmallPlugin], number: str, seen: str) -> None:
    patience = 1 if plugin is OtherVersion else 60
    (result,) = trying(plugin, number, patience=patience)
    assert result.status is Status.FAILED
    assert seen in result.seen


@pytest.mark.parametrize(
    ("plugin", "number", "seen"),
    [
        (KeepsSickOnes, "DP12", f"{FIRST} of {GPU} is not Unhealthy 3 s after {FIRST} was unbound"),
        (RegistersOnce, "DP16", "has not"),
        (OtherIdsEachTime, "DP17", "has not"),
    ],
)
def test_what_never_comes_is_not_waited_for_for_ever(
    trying: Trying, plugin: type[SmallPlugin], number: str, seen: str
) -> None:
    (result,) = trying(plugin, number, patience=3)
    assert result.status is Status.FAILED
    assert seen in result.seen


def test_health_has_its_own_time(trying: Trying) -> None:
    (result,) = trying(SmallPlugin, "DP12", health=0)
    assert "s till 0000:01:00.0 was Unhealthy after 0000:01:00.0 was unbound" in result.seen


@pytest.mark.parametrize("number", ["DP3"])
def test_what_can_not_go_to_a_guest_is_found(trying: Trying, tree: Tree, number: str) -> None:
    """The audio function of the second card is the host's."""
    tree.host.driver("snd_hda_intel")
    tree.host.bind("0000:02:00.1", "snd_hda_intel")
    assert unmet(trying(SmallPlugin, number)) == {}
    (result,) = trying(KeepsSickOnes, number)
    assert "group 12 is not viable, as 0000:02:00.1 in it is bound to snd_hda_intel" in result.seen


def test_the_kernels_word_on_a_group_counts(trying: Trying, tree: Tree) -> None:
    tree.viable = False
    (result,) = trying(SmallPlugin, "DP8")
    assert "/dev/vfio/11: the kernel says that it is not viable" in result.seen


def test_functions_that_are_not_selected_are_not_offered(trying: Trying, tree: Tree) -> None:
    tree.host.function("0000:03:00.0", device=0x1234, driver="vfio-pci", group=13)
    assert unmet(trying(SmallPlugin, "DP4")) == {}
    (result,) = trying(ListsMore, "DP4")
    assert result.seen == f"0000:03:00.0 is offered, and is none of {MODEL}"


def test_after_a_plugin_that_never_comes_the_rest_is_not_tried(trying: Trying) -> None:
    """Only the first is a failure, and nothing is waited for twice."""
    results = trying(OtherVersion, patience=1)
    assert [one.status for one in results[:3]] == [Status.FAILED, Status.NOT_TRIED, Status.NOT_TRIED]
    assert not conformant(results)


class Nothing(SmallPlugin):
    def health(self, key: str) -> str:
        return "Unhealthy"


def test_without_a_healthy_device_nothing_is_passed_that_needs_one(trying: Trying) -> None:
    (complete, variables) = trying(Nothing, "DP4", "DP6")
    assert (complete.status, variables.status) == (Status.NOT_TRIED, Status.NOT_TRIED)
    assert not conformant([variables])


def test_an_unknown_number_is_named() -> None:
    with pytest.raises(UnknownNumber, match="there is no expectation DP99, only DP1, DP2"):
        selected(DEVICE_PLUGIN, ["dp1", "DP99"])


def test_a_folder_with_a_kubelet_is_left_alone(folder: Path, tree: Tree, tmp_path: Path) -> None:
    plugin = SmallPlugin(folder, tree, tmp_path / "log")
    with Node(folder, plugin, [GPU], [MODEL], tree).running():
        other = Node(folder, plugin, [GPU], [MODEL], tree)
        with pytest.raises(CannotServe, match="names another folder"), other.running():
            pass
    long = tmp_path / ("long" * 30)
    with pytest.raises(CannotServe, match=r"kubelet\.sock"), Node(long, plugin, [GPU], [MODEL], tree).running():
        pass


def test_numbers_are_those_of_their_places() -> None:
    assert [one.number for one in DEVICE_PLUGIN] == [f"DP{number + 1}" for number in range(len(DEVICE_PLUGIN))]
