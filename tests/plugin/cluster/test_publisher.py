"""ResourceSlices as the daemon wants them: written once, again when they vanish, never for a daemon that has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit_plugin.cluster.api import Api, ApiProblem, Json
from launcherkit_plugin.cluster.outbox import Outbox
from launcherkit_plugin.cluster.protocol import LINE_BYTES, POOL_BYTES, line_of, parse
from launcherkit_plugin.cluster.publisher import LONGEST_PAUSE, SlicePublisher, wanted_slices
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.plugin.cluster.test_cluster import Daemon, beside, daemon, kubeconfig, path, server
from tests.support.apiserver import NODES, SLICES, ApiServer
from tests.support.clusterprocess import ClusterProcess

__all__ = ["kubeconfig", "path", "server"]

DRIVER = "pci.launcherkit.io"


def specs(*names: str) -> list[Json]:
    return [{"devices": [{"name": name}]} for name in names]


def devices(server: ApiServer) -> list[str]:
    """The names of the devices in slices of this node, in their order."""
    with server.lock:
        found = sorted(server.objects[SLICES].values(), key=lambda item: str(item["metadata"]["name"]))
        return [device["name"] for item in found for device in item["spec"]["devices"]]


async def until(server: ApiServer, names: list[str]) -> None:
    await asyncio.to_thread(server.wait_for, f"{names}", lambda: devices(server) == names)


def test_slices_are_written_once_and_changed_when_something_changes(
    server: ApiServer, kubeconfig: Path, path: Path
) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.publish_slices(DRIVER, specs("a", "b"))
        await until(server, ["a", "b"])
        it.socket.publish_slices(DRIVER, specs("a", "b"))
        it.socket.publish_slices(DRIVER, specs("a", "c"))
        await until(server, ["a", "c"])
        it.socket.publish_slices(DRIVER, [])
        await until(server, [])

    beside(path, kubeconfig, scenario)
    assert server.writes == ["POST", "POST", "PUT", "PUT", "DELETE", "DELETE"]


def test_slices_go_with_their_node(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.publish_slices(DRIVER, specs("a"))
        await until(server, ["a"])

    beside(path, kubeconfig, scenario)
    (item,) = server.objects[SLICES].values()
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid--node-1", "controller": True}
    assert item["metadata"]["ownerReferences"] == [owner]
    assert item["spec"]["nodeName"] == "node-1"


def test_slices_that_the_kubelet_wipes_are_there_again(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.publish_slices(DRIVER, specs("a", "b"))
        await until(server, ["a", "b"])
        await asyncio.to_thread(server.wait_for, "a watch", lambda: server.watches)
        wipe(server)
        await until(server, ["a", "b"])

    beside(path, kubeconfig, scenario)
    assert server.writes == 4 * ["POST"]


def wipe(server: ApiServer) -> None:
    with server.lock:
        for item in list(server.objects[SLICES].values()):
            server.remove(SLICES, item["metadata"]["name"])


def test_while_no_daemon_is_connected_nothing_is_written(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def first(it: Daemon) -> None:
        it.socket.publish_slices(DRIVER, specs("a"))
        await until(server, ["a"])

    async def second(it: Daemon) -> None:
        await it.until(lambda: it.lines)
        assert devices(server) == []
        it.socket.publish_slices(DRIVER, specs("a"))
        await until(server, ["a"])

    with ClusterProcess(path, "node-1", kubeconfig):
        daemon(path, first)
        wipe(server)
        daemon(path, second)
    assert server.writes == ["POST", "POST"]


def test_a_process_that_is_killed_has_a_successor_that_finds_all_as_it_should_be(
    server: ApiServer, kubeconfig: Path, path: Path
) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.publish_slices(DRIVER, specs("a"))
        with ClusterProcess(path, "node-1", kubeconfig) as process:
            await until(server, ["a"])
            process.process.kill()
            await it.until(lambda: any("disconnected" in line for line in it.lines))
        watches = server.watches
        with ClusterProcess(path, "node-1", kubeconfig):
            await asyncio.to_thread(server.wait_for, "a watch", lambda: server.watches > watches)
            it.socket.publish_slices(DRIVER, specs("b"))
            await until(server, ["b"])

    daemon(path, scenario)
    assert server.writes == ["POST", "PUT"]


def test_while_the_server_is_away_it_is_tried_again(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        server.away = True
        it.socket.publish_slices(DRIVER, specs("a"))
        await asyncio.to_thread(server.wait_for, "a try", lambda: SLICES in server.refused)
        assert server.writes == []
        server.away = False
        await until(server, ["a"])

    beside(path, kubeconfig, scenario)
    assert server.writes == ["POST"]


@pytest.mark.slow
def test_a_pool_of_4096_functions_is_one_line_that_the_other_side_takes(
    server: ApiServer, kubeconfig: Path, path: Path
) -> None:
    attributes = {f"attribute-{number}": {"string": "x" * 40} for number in range(16)}
    wanted = [
        {"devices": [{"name": f"pci-{at}-{number}", "attributes": attributes} for number in range(64)]}
        for at in range(64)
    ]
    line = line_of("slices", {"driver": DRIVER, "slices": wanted})
    assert LINE_BYTES < len(line) < POOL_BYTES
    assert wanted_slices(parse(line, POOL_BYTES).value) == (DRIVER, wanted)

    async def scenario(it: Daemon) -> None:
        it.socket.publish_slices(DRIVER, wanted)
        await asyncio.to_thread(server.wait_for, "slices", lambda: len(server.objects[SLICES]) == 64)

    beside(path, kubeconfig, scenario)
    assert server.writes == 64 * ["POST"]


# One round


class Store(Api):
    """Slices in memory. ``refusing`` is raised by each request; ``meanwhile`` is called before each one that writes.

    Args:
        drops: fields of slices and devices that are not kept.
    """

    def __init__(self, *drops: str) -> None:
        self.drops = drops
        self.slices: dict[str, Json] = {}
        self.writes = 0
        self.dry_runs = 0
        self.refusing: ApiProblem | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def list(self, path: str, keep: Callable[[Json], Json], **query: str) -> Json:
        if self.refusing is not None:
            raise self.refusing
        if path == NODES:
            return {"items": [{"metadata": {"name": "node-1", "uid": "uid-1"}}]}
        return {"items": [json.loads(json.dumps(item)) for item in self.slices.values()]}

    def post(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        if dry_run:
            self.dry_runs += 1
            return self._kept(body)
        self.meanwhile()
        self.writes += 1
        name = f"{body['metadata']['generateName']}{self.writes:05x}"
        return self._keep(body, {"name": name, "uid": name})

    def put(self, path: str, body: Json) -> Json:
        self.meanwhile()
        name = body["metadata"]["name"]
        if self.slices[name]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiProblem(409, "the object has been modified")
        self.writes += 1
        return self._keep(body, body["metadata"])

    def _keep(self, body: Json, metadata: Json) -> Json:
        stored = {**self._kept(body), "metadata": {**metadata, "resourceVersion": str(self.writes)}}
        self.slices[metadata["name"]] = stored
        return stored

    def _kept(self, body: Json) -> Json:
        def kept(fields: Json) -> Json:
            return {key: value for key, value in fields.items() if key not in self.drops}

        spec = kept(body["spec"])
        if "devices" in spec:
            spec["devices"] = list(map(kept, spec["devices"]))
        return {**body, "spec": spec}

    def delete(self, path: str, uid: str) -> None:
        self.meanwhile()
        if path.rpartition("/")[2] not in self.slices:
            raise ApiProblem(404, "not found")
        self.writes += 1
        del self.slices[path.rpartition("/")[2]]


def publisher(store: Store, reported: Daemon) -> SlicePublisher:
    return SlicePublisher(store, "node-1", DRIVER, Reporter(reported.log))


def test_a_server_that_is_away_is_asked_after_pauses_that_double_and_that_is_reported_once() -> None:
    store, reported = Store(), Daemon()
    it = publisher(store, reported)
    it.want(specs("a"))
    store.refusing = ApiProblem(403, "resourceslices is forbidden")
    assert [it.turn(0.0) for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE, LONGEST_PAUSE]
    assert reported.lines == ["ResourceSlices can't be written: resourceslices is forbidden; trying again"]
    store.refusing = None
    assert it.turn(0.0) == 0.25
    assert reported.lines[1:] == [f"{DRIVER}: 1 ResourceSlice, generation 1"]
    assert (it.turn(0.0), store.writes) == (0.25, 1)


def test_slices_that_vanish_directly_after_a_round_wait_for_a_quarter_of_a_second() -> None:
    """The longest that they can be missing, but for what the server takes to answer."""
    store, slept = Store(), list[float]()
    it = publisher(store, Daemon())
    it.want(specs("a", "b"))

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(store.slices) == 2
        if len(slept) == 3:
            raise EOFError
        store.slices.clear()
        it.look()

    with pytest.raises(EOFError):
        it.write(sleep)
    assert slept == [0.25, 0.25, 0.25]


def test_a_slice_that_changes_while_it_is_written_is_looked_at_again_at_once() -> None:
    store, reported = Store(), Daemon()
    it = publisher(store, reported)
    it.want(specs("a"))
    it.turn(0.0)
    it.want(specs("b"))

    def change() -> None:
        store.meanwhile = lambda: None
        for item in store.slices.values():
            item["metadata"]["resourceVersion"] = "changed"

    store.meanwhile = change
    assert (it.turn(0.0), it.turn(0.0)) == (0.25, 0.25)
    assert [item["spec"]["devices"] for item in store.slices.values()] == [[{"name": "b"}]]
    assert not any("can't" in line for line in reported.lines)


def test_two_that_want_different_slices_take_turns_more_and_more_slowly() -> None:
    store, reported = Store(), Daemon()
    old, new = publisher(store, reported), publisher(store, Daemon())
    old.want(specs("a"))
    new.want(specs("b"))
    old.turn(0.0)
    pauses, now = [], 0.0
    for _ in range(8):
        new.turn(now)
        pauses.append(old.turn(now))
        now += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert reported.lines[-1].endswith("another process had changed them")
    new.turn(now)
    assert old.turn(now + 10 * LONGEST_PAUSE) == 1.0, "long after the last time it is a first time again"


def test_two_that_want_the_same_slices_write_them_once() -> None:
    store = Store()
    both = [publisher(store, Daemon()) for _ in range(2)]
    for it in (*both, *both):
        it.want(specs("a", "b"))
        it.turn(0.0)
    assert store.writes == 2


def test_slices_that_two_made_at_the_same_moment_become_one_pool() -> None:
    store = Store()
    one, other = (publisher(store, Daemon()) for _ in range(2))
    one.want(specs("a"))
    other.want(specs("a"))

    def overtaken() -> None:
        store.meanwhile = lambda: None
        other.turn(0.0)

    store.meanwhile = overtaken
    one.turn(0.0)
    assert len(store.slices) == 2
    for it in (one, other):
        it.turn(0.0)
    assert len(store.slices) == 1


def test_what_a_server_without_the_feature_gates_drops_is_not_written_again() -> None:
    taint = {"key": "launcherkit.io/busy", "effect": "NoSchedule"}
    device = {"name": "a", "taints": [taint], "consumesCounters": [{"counterSet": "group", "counters": {}}]}
    counters = {"sharedCounters": [{"name": "group", "counters": {"group": {"value": "1"}}}]}
    store, reported = Store("taints", "consumesCounters", "sharedCounters"), Daemon()
    it = publisher(store, reported)
    it.want([counters, {"devices": [device]}])
    assert [it.turn(now) for now in (0.0, 1.0, 2.0)] == [0.25, 0.25, 0.25]
    assert store.writes == 2
    fields = "consumesCounters, sharedCounters, taints"
    assert reported.lines == [
        f"the API server drops {fields} of ResourceSlices: the feature gates for them are off",
        f"{DRIVER}: 2 ResourceSlices, generation 1",
    ]
    it.want([counters, {"devices": [device, {"name": "b"}]}])
    it.turn(3.0)
    assert [device["name"] for item in store.slices.values() for device in item["spec"].get("devices", [])] == [*"ab"]


def test_another_server_is_asked_again_whether_it_keeps_everything() -> None:
    store = Store("taints")
    it = publisher(store, Daemon())
    it.want([{"devices": [{"name": "a", "taints": [{"key": "launcherkit.io/busy", "effect": "NoSchedule"}]}]}])
    it.turn(0.0)
    store.drops = ()
    store.refusing = ApiProblem(0, "away")
    with pytest.raises(ApiProblem):
        it.watch()
    store.refusing = None
    assert it.turn(1.0) == 0.25
    ((device,),) = (item["spec"]["devices"] for item in store.slices.values())
    assert device["taints"]


SHARED = {"name": "shared", "allowMultipleAllocations": True, "capacity": {"launcherkit.io/shares": {"value": "4"}}}
REFUSED = (
    f"{DRIVER}: cards with `sharing` are not published: the API server drops allowMultipleAllocations of "
    "ResourceSlices, so each would be one claim's; its feature gate DRAConsumableCapacity is off"
)


def published(store: Store) -> list[str]:
    """The devices in the slices, in their order; those that several claims can have with an asterisk."""
    return [
        device["name"] + ("*" if device.get("allowMultipleAllocations") else "")
        for item in sorted(store.slices.values(), key=lambda item: str(item["metadata"]["name"]))
        for device in item["spec"].get("devices", ())
    ]


def test_a_server_that_keeps_shared_devices_is_asked_once_and_has_them_as_they_are() -> None:
    store, reported = Store(), Daemon()
    it = publisher(store, reported)
    it.want([{"devices": [{"name": "a"}, SHARED]}])
    assert [it.turn(now) for now in (0.0, 1.0)] == [0.25, 0.25]
    assert (published(store), store.dry_runs, store.writes) == (["a", "shared*"], 1, 1)
    assert reported.lines == [f"{DRIVER}: 1 ResourceSlice, generation 1"]


def test_devices_that_no_server_has_to_keep_shared_are_not_asked_about() -> None:
    store = Store("allowMultipleAllocations")
    it = publisher(store, reported := Daemon())
    it.want(specs("a"))
    it.turn(0.0)
    assert (published(store), store.dry_runs, len(reported.lines)) == (["a"], 0, 1)


def test_a_shared_device_is_never_published_as_one_claims_and_that_is_said_once() -> None:
    store, reported = Store("allowMultipleAllocations"), Daemon()
    it = publisher(store, reported)
    seen = list[list[str]]()
    store.meanwhile = lambda: seen.append(published(store))
    it.want([{"devices": [SHARED]}, {"devices": [{"name": "a"}, SHARED | {"name": "other"}]}])
    assert [it.turn(now) for now in (0.0, 1.0, 2.0)] == [0.25, 0.25, 0.25]
    it.want([{"devices": [SHARED]}, {"devices": [{"name": "b"}]}])
    it.turn(3.0)
    assert (seen, published(store)) == ([[], ["a"]], ["b"])
    assert store.dry_runs == 1
    assert reported.lines == [
        REFUSED,
        f"{DRIVER}: 1 ResourceSlice, generation 1",
        f"{DRIVER}: 1 ResourceSlice, generation 2",
    ]


def test_a_shared_device_comes_when_the_server_is_another_or_has_its_gate_on_and_goes_with_it() -> None:
    store, reported = Store("allowMultipleAllocations"), Daemon()
    it = publisher(store, reported)
    it.want([{"devices": [{"name": "a"}, SHARED]}])
    it.turn(0.0)
    for drops, there in (((), ["a", "shared*"]), (("allowMultipleAllocations",), ["a"])):
        store.drops = drops
        store.refusing = ApiProblem(0, "away")
        with pytest.raises(ApiProblem):
            it.watch()
        store.refusing = None
        assert it.turn(1.0) == 0.25
        assert published(store) == there
    assert [line for line in reported.lines if "another process" in line] == []
    assert reported.lines.count(REFUSED) == 2, "said again, for it was not so in between"


def test_of_two_servers_behind_one_address_the_one_without_the_field_decides() -> None:
    """The one that was asked keeps it, the one that writes doesn't, as during an upgrade."""
    store, reported = Store(), Daemon()
    it = publisher(store, reported)
    it.want([{"devices": [{"name": "a"}, SHARED]}])
    store.meanwhile = lambda: setattr(store, "drops", ("allowMultipleAllocations",))
    assert it.turn(0.0) == 0.25
    assert published(store) == ["a"]
    assert reported.lines == [REFUSED, f"{DRIVER}: 1 ResourceSlice, generation 2"]


def test_a_server_that_does_not_say_whether_it_keeps_them_is_asked_again() -> None:
    store = Store()
    it = publisher(store, Daemon())
    it.want([{"devices": [SHARED]}])
    answer = store.post

    def away(path: str, body: Json, *, dry_run: bool = False) -> Json:
        raise ApiProblem(0, f"away: {dry_run}")

    store.post = away  # type: ignore[method-assign]
    assert (it.turn(0.0), published(store)) == (1.0, [])
    store.post = answer  # type: ignore[method-assign]
    assert (it.turn(1.0), published(store)) == (0.25, ["shared*"])


def test_a_node_that_the_cluster_does_not_have_is_reported() -> None:
    store, reported = Store(), Daemon()
    it = SlicePublisher(store, "node-1", DRIVER, Reporter(reported.log))
    it.want(specs("a"))
    store.list = lambda path, keep, **query: {"items": []}  # type: ignore[method-assign]
    assert it.turn(0.0) == 1.0
    assert reported.lines == ["ResourceSlices can't be written: there is no Node node-1; trying again"]


def test_nobody_knows_what_is_wanted_and_nothing_is_written() -> None:
    store = Store()
    it = publisher(store, Daemon())
    it.want(specs("a"))
    it.want(None)
    it.turn(0.0)
    assert store.writes == 0


@pytest.mark.parametrize(
    "value", [None, {}, {"driver": "", "slices": []}, {"driver": "d", "slices": {}}, {"driver": "d", "slices": [1]}]
)
def test_a_message_that_wants_no_slices_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="slices: "):
        wanted_slices(value)


# What waits for the process


def lines(outbox: Outbox) -> list[Json]:
    return [json.loads(line) for line in iter(outbox.next, None)]


def test_of_a_drivers_slices_the_last_wait_and_the_same_again_are_not_sent() -> None:
    outbox = Outbox()
    outbox.slices("d", specs("a"))
    outbox.slices("d", specs("b"))
    outbox.slices("e", [])
    assert [line["slices"]["driver"] for line in lines(outbox)] == ["d", "e"]
    outbox.slices("d", specs("b"))
    assert lines(outbox) == []
    outbox.again()
    assert [line["slices"]["slices"] for line in lines(outbox)] == [specs("b"), []]


def test_statuses_for_a_process_that_never_comes_do_not_pile_up() -> None:
    outbox = Outbox()
    for number in range(5000):
        outbox.status(f"uid-{number}", {"number": number})
    assert [line["claim-status"]["number"] for line in lines(outbox)] == list(range(3976, 5000))
