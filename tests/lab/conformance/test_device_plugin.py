"""What an expectation of device plugins sees of plugins that get it wrong in other ways than the lab's faulty one does
(`tests.lab.test_faulty`), and of a machine that is not as they take it for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree import ElementTree

import grpc
import pytest

from launcherkit_lab.conformance.device_plugin import DEVICE_PLUGIN
from launcherkit_lab.conformance.expectation import Result, Status
from launcherkit_lab.conformance.machine import KUBEVIRT_PREFIX
from launcherkit_lab.conformance.node import CannotServe, Limits, Node
from launcherkit_lab.conformance.report import Tried, as_json, as_junit, as_text
from launcherkit_lab.conformance.trial import UnknownNumber, acceptable, conformant, numbered, selected, tried
from launcherkit_lab.faulty import FAULTS, Card, Plugin
from launcherkit_lab.proto import deviceplugin_v1beta1_pb2 as wire
from tests.lab.bench import BuiltMachine, PluginInThread
from tests.support.hosttree import HostTree
from tests.support.waiting import PATIENCE

GPU, MODEL = "example.com/GPU", "10de:2204"
FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"
Trying: TypeAlias = Callable[..., list[Result]]


class QuickPlugin(Plugin):
    """The lab's, which looks at the machine more often."""

    seconds = 0.02


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    """Two cards, each with display and audio in a group of its own."""
    tree = HostTree(tmp_path / "host")
    tree.card("0000:01:00", group=11, numa=0)
    tree.card("0000:02:00", group=12, numa=1)
    return tree


@pytest.fixture
def machine(host: HostTree) -> BuiltMachine:
    return BuiltMachine(host)


def driver_of(plugin: type[Plugin], host: HostTree, folder: Path) -> PluginInThread:
    return PluginInThread(plugin, GPU, host.root, folder, folder / "log")


@pytest.fixture
def trying(folder: Path, host: HostTree, machine: BuiltMachine) -> Trying:
    """Tries a kind of plugin; all expectations, or those that are named."""

    def trial(
        plugin: type[Plugin],
        *only: str,
        patience: float = PATIENCE,
        health: float = PATIENCE,
        prefix: str = KUBEVIRT_PREFIX,
        skip: Sequence[str] = (),
    ) -> list[Result]:
        limits = Limits(6, 2, health, patience, steady_seconds=0.3)
        driver = driver_of(plugin, host, folder)
        node = Node(folder, driver, [GPU], [MODEL], machine, limits, prefix, host.root / "cdi")
        with node.running():
            return tried(selected(DEVICE_PLUGIN, only), node, skip=numbered(DEVICE_PLUGIN, skip))

    return trial


def unmet(results: Sequence[Result]) -> dict[str, str]:
    return {one.number: one.seen for one in results if one.status is not Status.PASSED}


def test_what_an_earlier_plugin_has_in_the_kubelet_is_not_taken_for_the_one_that_was_started(
    folder: Path, host: HostTree, machine: BuiltMachine
) -> None:
    class Unaware(QuickPlugin):
        """Its socket can be replaced, and it serves on."""

        def is_forgotten(self) -> bool:
            return False

    earlier, limits = driver_of(Unaware, host, folder), Limits(patience=PATIENCE)
    node = Node(folder, driver_of(QuickPlugin, host, folder), [GPU], [MODEL], machine, limits)
    with node.running():
        earlier.start()
        node.kubelet.wait_for(GPU)
        node.prepare()
        assert node.kubelet.registrations == [GPU, GPU]
        earlier.kill()


def test_a_plugin_that_is_right_meets_all(trying: Trying) -> None:
    results = trying(QuickPlugin)
    assert unmet(results) == {}
    assert [one.number for one in results] == [one.number for one in DEVICE_PLUGIN]
    assert conformant(results)
    seen = {one.number: one.seen for one in results}
    assert seen["DP4"] == f"{FIRST}, {SECOND}"
    assert seen["DP14"] == "2 pods at a time have nothing in common"
    assert seen["DP20"] == f"guests have found {FIRST}; {SECOND}; {FIRST} and {SECOND}"
    assert seen["DP15"] == "6 pods, 2 kills, 2 pods at a time at most"


class LongIds(QuickPlugin):
    def cards(self) -> dict[str, Card]:
        return {key.rjust(64, "x"): card for key, card in super().cards().items()}


class OtherNumaNode(QuickPlugin):
    def device(self, name: str, is_there: bool, numa: int) -> wire.Device:
        return super().device(name, is_there, 1)


class NamesOne(QuickPlugin):
    def addresses(self, cards: Iterable[Card]) -> list[str]:
        return super().addresses(cards)[:1]


class NamesNothing(QuickPlugin):
    def addresses(self, cards: Iterable[Card]) -> list[str]:
        return ["0000:7f:00.0"]


class AlwaysTheFirst(QuickPlugin):
    def addresses(self, cards: Iterable[Card]) -> list[str]:
        return [FIRST]


class GivesNoFile(QuickPlugin):
    def nodes(self, cards: Iterable[Card]) -> list[str]:
        return [*super().nodes(cards), "/dev/vfio/none"]


class GivesMore(QuickPlugin):
    def nodes(self, cards: Iterable[Card]) -> list[str]:
        return [*super().nodes(cards), "/dev/mem"]


@pytest.mark.parametrize(
    ("plugin", "number", "seen"),
    [
        (LongIds, "DP2", "an ID of 64 characters"),
        (OtherNumaNode, "DP5", "NUMA node 1 is said, 0 is in sysfs"),
        (NamesOne, "DP6", f"PCI_RESOURCE_EXAMPLE_COM_GPU={FIRST} isn't what each has alone"),
        (NamesNothing, "DP6", "'0000:7f:00.0', and the machine has no such function"),
        (GivesNoFile, "DP8", "/dev/vfio/none: No such file or directory"),
        (GivesMore, "DP9", "has /dev/mem, too"),
        (AlwaysTheFirst, "DP14", f"{FIRST} belongs to pod-"),
        (AlwaysTheFirst, "DP15", f"{FIRST} belongs to churn-"),
    ],
)
def test_a_fault_is_found(trying: Trying, plugin: type[Plugin], number: str, seen: str) -> None:
    (result,) = trying(plugin, number)
    assert result.status is Status.FAILED
    assert seen in result.seen


def test_health_has_its_own_time(trying: Trying) -> None:
    (result,) = trying(QuickPlugin, "DP12", health=0)
    assert "s till 0000:01:00.0 was Unhealthy after 0000:01:00.0 was unbound" in result.seen


def test_the_kernels_word_on_a_group_counts(trying: Trying, machine: BuiltMachine) -> None:
    machine.viable = False
    (result,) = trying(QuickPlugin, "DP8")
    assert "/dev/vfio/11: the kernel says that it is not viable" in result.seen


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("forgets-nodes", f"{FIRST} of {GPU}: no guest: vfio {FIRST}: failed to open /dev/vfio/11"),
        ("forgets-container", "failed to open /dev/vfio/vfio"),
        ("wrong-address", f"{FIRST} of {GPU}: no guest: vfio {SECOND}: failed to open /dev/vfio/12"),
    ],
)
def test_what_a_guest_lacks_is_found_by_a_guest(trying: Trying, fault: str, seen: str) -> None:
    """Though it is another expectation's, too."""
    (result,) = trying(type("Faulty", (QuickPlugin,), dict(FAULTS[fault].replaced)), "DP20")
    assert result.status is Status.FAILED
    assert seen in result.seen


def test_a_guest_has_nothing_else(trying: Trying, machine: BuiltMachine) -> None:
    machine.strange = {"0000:00:02.0": (0x8086, 0x10CA)}
    alone, also, both = trying(QuickPlugin, "DP20")[0].seen.splitlines()
    assert alone == f"{FIRST} of {GPU}: the guest also finds 8086:10ca at 0000:00:02.0"
    assert also == f"{SECOND} of {GPU}: the guest also finds 8086:10ca at 0000:00:02.0"
    assert both == f"{FIRST}, {SECOND} of {GPU}: {SECOND} is {MODEL}, and the guest finds 8086:10ca in its place"


class ForNetworks(QuickPlugin):
    prefix = "PCIDEVICE"


def test_a_variable_with_another_prefix_is_read_where_it_is_asked_for(trying: Trying) -> None:
    variable, guests = trying(ForNetworks, "DP6", "DP20", prefix="PCIDEVICE")
    assert (variable.status, variable.seen) == (Status.PASSED, "PCIDEVICE_EXAMPLE_COM_GPU")
    assert guests.status is Status.PASSED
    (result,) = trying(QuickPlugin, "DP6", prefix="PCIDEVICE")
    assert "no variable PCIDEVICE_EXAMPLE_COM_GPU; there are: PCI_RESOURCE_EXAMPLE_COM_GPU" in result.seen


def test_what_is_skipped_is_not_tried_and_not_met_but_no_failure(trying: Trying) -> None:
    results = trying(NamesNothing, "DP6", "DP11", skip=["dp6"])
    assert [one.status for one in results] == [Status.SKIPPED, Status.PASSED]
    assert (acceptable(results), conformant(results)) == (True, False)
    outcome = Tried("device-plugin", ["plugin"], ["lab", "check"], Path("log"), results)
    text = as_text(outcome)
    assert "DP6   must    SKIPPED    The variable" in text
    assert "must: 1 passed, 1 skipped\n" in text
    assert "\nconformant but for what was skipped: DP6; all" in text
    report = json.loads(as_json(outcome))
    assert (report["conformant"], report["expectations"][0]["status"]) == (False, "skipped")
    suite = ElementTree.fromstring(as_junit(outcome))
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    assert suite[0][0].get("message") == "must, skipped: it was to be skipped"


def test_a_skip_excuses_nothing_else(trying: Trying) -> None:
    results = trying(NamesNothing, "DP3", "DP6", skip=["DP3"])
    assert [one.status for one in results] == [Status.SKIPPED, Status.FAILED]
    assert not acceptable(results)


def test_without_a_guest_or_without_a_variable_it_is_not_tried(trying: Trying, machine: BuiltMachine) -> None:
    (result,) = trying(ForNetworks, "DP20")
    assert result.status is Status.NOT_TRIED
    assert result.seen.endswith(": no PCI_RESOURCE_EXAMPLE_COM_GPU says what a guest is to have")
    machine.no_guest = "no qemu-system-x86_64 here"
    (result,) = trying(QuickPlugin, "DP20")
    assert (result.status, result.seen) == (Status.NOT_TRIED, "no qemu-system-x86_64 here")


class ByCdi(QuickPlugin):
    """What a container gets is in a file for each card, the variable too; the answer has names alone."""

    writes = True

    def allocate(self, request: wire.AllocateRequest, context: Any) -> wire.AllocateResponse:
        answer = super().allocate(request, context)
        folder = self.groups.parents[2] / "cdi"
        folder.mkdir(exist_ok=True)
        for asked, one in zip(request.container_requests, answer.container_responses, strict=True):
            name = "-".join(asked.devices_ids).replace(":", "_")
            container, *groups = [{"path": spec.container_path, "hostPath": spec.host_path} for spec in one.devices]
            edits = {"deviceNodes": groups, "env": [f"{key}={text}" for key, text in one.envs.items()]}
            spec = {
                "cdiVersion": "0.5.0",
                "kind": "example.com/gpu",
                "devices": [{"name": name, "containerEdits": edits}],
                "containerEdits": {"deviceNodes": [container]},
            }
            if self.writes:
                (folder / f"{name}.json").write_text(json.dumps(spec))
            one.Clear()
            one.cdi_devices.add(name=f"example.com/gpu={name}")
        return answer


class ByNoFile(ByCdi):
    writes = False


def test_what_comes_by_cdi_is_read_as_a_runtime_reads_it(trying: Trying) -> None:
    results = trying(ByCdi)
    assert unmet(results) == {}
    seen = {one.number: one.seen for one in results}
    assert seen["DP20"] == f"guests have found {FIRST}; {SECOND}; {FIRST} and {SECOND}"


def test_a_cdi_device_that_no_file_has_is_found(trying: Trying) -> None:
    (result,) = trying(ByNoFile, "DP7")
    assert result.status is Status.FAILED
    assert result.seen.endswith("have the CDI device example.com/gpu=0000_01_00.0")
    assert result.seen.startswith("0 files of ")


class WithAnotherVariable(ByCdi):
    """In its answer; what the CDI device sets is the right one, and comes last."""

    def allocate(self, request: wire.AllocateRequest, context: Any) -> wire.AllocateResponse:
        answer = super().allocate(request, context)
        for one in answer.container_responses:
            one.envs[self.variable()] = "0000:ff:00.0"
        return answer


def test_a_runtime_sets_the_variables_of_a_cdi_device_last(trying: Trying) -> None:
    assert unmet(trying(WithAnotherVariable, "DP6")) == {}


class EndsWhenAsked(QuickPlugin):
    """For what it doesn't have."""

    def allocate(self, request: wire.AllocateRequest, context: Any) -> wire.AllocateResponse:
        if any(name not in self.cards() for one in request.container_requests for name in one.devices_ids):
            assert self.server is not None
            self.server.stop(0)
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return super().allocate(request, context)

    def is_forgotten(self) -> bool:
        """Else it would serve again, and answer what comes after the refusal."""
        return False


def test_to_be_gone_is_no_refusal(trying: Trying) -> None:
    (result,) = trying(EndsWhenAsked, "DP11")
    assert result.status is Status.FAILED
    assert result.seen.startswith(f"asked for no-such-device of {GPU} the plugin is gone: UNAVAILABLE: ")


class RegistersFirst(QuickPlugin):
    """And serves only once the kubelet has answered, which dials before it does."""

    has_asked = False

    def serve(self) -> None:
        if self.has_asked:
            super().serve()
            self.registered = True  # it asks once

    def register(self) -> None:
        super().register()
        self.has_asked = True


def test_a_plugin_that_registers_before_it_serves_is_refused_as_by_the_kubelet(
    trying: Trying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcherkit_lab.endpoint.DIAL_SECONDS", 0.1)
    (result,) = trying(RegistersFirst, "DP1", patience=3.0)
    assert result.status is Status.FAILED
    assert "; refused: failed to dial device plugin: " in result.seen


class BeginsAnew(EndsWhenAsked):
    """As one that something else starts again at once."""

    def allocate(self, request: wire.AllocateRequest, context: Any) -> wire.AllocateResponse:
        if any(name not in self.cards() for one in request.container_requests for name in one.devices_ids):
            self.register()
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return super().allocate(request, context)


def test_to_begin_anew_is_no_refusal(trying: Trying) -> None:
    (result,) = trying(BeginsAnew, "DP11")
    assert result.seen == f"asked for no-such-device of {GPU} the plugin began anew: UNAVAILABLE: Socket closed"


class GivesNobodyAnything(QuickPlugin):
    def may_have(self, name: str, now: Mapping[str, Card]) -> bool:
        return False


def test_where_no_pod_gets_a_device_none_are_kept_apart(trying: Trying) -> None:
    (result,) = trying(GivesNobodyAnything, "DP14")
    assert result.status is Status.FAILED
    assert result.seen.startswith("0 of 2 devices can be had: ")


class HasNoPreference(QuickPlugin):
    """Though it says so."""

    def prefer(self, *_: object) -> wire.PreferredAllocationResponse:
        return wire.PreferredAllocationResponse()


def test_an_empty_preference_is_found_and_is_nothing_to_the_kubelet(trying: Trying) -> None:
    results = trying(HasNoPreference, "DP4", "DP10")
    assert {one.number: one.status for one in results} == {"DP4": Status.PASSED, "DP10": Status.FAILED}
    assert "0 answers" in results[1].seen


def test_a_plugin_that_registers_again_keeps_its_devices_until_its_new_list(
    folder: Path, host: HostTree, machine: BuiltMachine
) -> None:
    class SendsOneList(QuickPlugin):
        """On its first stream, and nothing on those after it."""

        streams = 0

        def watch(self, _: wire.Empty, context: Any) -> Iterator[wire.ListAndWatchResponse]:
            SendsOneList.streams += 1
            if SendsOneList.streams == 1:
                yield wire.ListAndWatchResponse(devices=self.devices())
            self.ending.wait(PATIENCE)

    driver = driver_of(SendsOneList, host, folder)
    node = Node(folder, driver, [GPU], [MODEL], machine, Limits(patience=PATIENCE))
    with node.running():
        node.prepare()
        before = node.kubelet.devices(GPU)
        SendsOneList(GPU, host.root, folder / "device-plugins").register()
        node.kubelet.wait(lambda: node.kubelet.registrations == [GPU, GPU], "it has not registered again", PATIENCE)
        node.kubelet.wait(lambda: SendsOneList.streams == 2, "nobody asks for the list", PATIENCE)
        assert node.kubelet.devices(GPU) == before != {}


class ListsBoth(QuickPlugin):
    def cards(self) -> dict[str, Card]:
        return {key: card for key, card in super().cards().items() if key in (FIRST, SECOND)}


def test_functions_that_are_not_selected_are_not_offered(trying: Trying, host: HostTree) -> None:
    host.function("0000:03:00.0", device=0x1234, driver="vfio-pci", group=13)
    assert unmet(trying(ListsBoth, "DP4")) == {}
    (result,) = trying(QuickPlugin, "DP4")
    assert result.seen == f"0000:03:00.0 is offered, and is none of {MODEL}"


class OtherVersion(QuickPlugin):
    version = "v1alpha1"


def test_after_a_plugin_that_never_comes_the_rest_is_not_tried(trying: Trying) -> None:
    """Only the first is a failure, and nothing is waited for twice."""
    results = trying(OtherVersion, patience=1)
    assert [one.status for one in results[:3]] == [Status.FAILED, Status.NOT_TRIED, Status.NOT_TRIED]
    assert not conformant(results)


class AllSick(QuickPlugin):
    healthy = "Unhealthy"


def test_without_a_healthy_device_nothing_is_passed_that_needs_one(trying: Trying) -> None:
    (complete, variables) = trying(AllSick, "DP4", "DP6")
    assert (complete.status, variables.status) == (Status.NOT_TRIED, Status.NOT_TRIED)
    assert not conformant([variables])


def test_an_unknown_number_is_named() -> None:
    with pytest.raises(UnknownNumber, match="there is no expectation DP99, only DP1, DP2"):
        numbered(DEVICE_PLUGIN, ["dp1", "DP99"])


def test_a_folder_with_a_kubelet_is_left_alone(
    folder: Path, host: HostTree, machine: BuiltMachine, tmp_path: Path
) -> None:
    plugin = driver_of(QuickPlugin, host, folder)
    with Node(folder, plugin, [GPU], [MODEL], machine).running():
        other = Node(folder, plugin, [GPU], [MODEL], machine)
        with pytest.raises(CannotServe, match="names another folder"), other.running():
            pass
    long = tmp_path / ("long" * 30)
    with pytest.raises(CannotServe, match=r"kubelet\.sock"), Node(long, plugin, [GPU], [MODEL], machine).running():
        pass


def test_numbers_are_those_of_their_places() -> None:
    assert [one.number for one in DEVICE_PLUGIN] == [f"DP{number + 1}" for number in range(len(DEVICE_PLUGIN))]
