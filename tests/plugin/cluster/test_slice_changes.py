"""Which ResourceSlices are written: none where nothing changed, all where anything did."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit_plugin.cluster.api import Json
from launcherkit_plugin.cluster.publisher import SliceChanges, SlicePool, slice_changes

POOL = SlicePool("pci.launcherkit.io", "node-1")
TAINT = {"key": "launcherkit.io/busy", "effect": "NoSchedule"}


def spec(*names: str, **more: Any) -> Json:
    return {"devices": [{"name": name, **more} for name in names]}


class Server:
    """Applies changes as the API server does: names, versions, the beginnings of taints, amounts in its spelling."""

    def __init__(self) -> None:
        self.slices: dict[str, Json] = {}
        self.number = 0

    def write(self, specs: list[Json]) -> SliceChanges:
        """Bring the slices to what is wanted."""
        found = slice_changes(POOL, specs, self.slices.values())
        for kind, body in found.changes:
            self.number += 1
            stored = json.loads(json.dumps(body))
            metadata = stored["metadata"]
            if kind == "delete":
                del self.slices[metadata["name"]]
                continue
            if kind == "create":
                metadata["name"] = f"{metadata.pop('generateName')}{self.number:05x}"
            for device in stored["spec"].get("devices", []):
                for taint in device.get("taints", []):
                    taint.setdefault("timeAdded", f"2026-01-01T00:00:{self.number:02}Z")
                for amount in device.get("capacity", {}).values():
                    amount["value"] = {"1024Mi": "1Gi"}.get(amount["value"], amount["value"])
            self.slices[metadata["name"]] = stored
        return found

    @property
    def pools(self) -> list[Json]:
        return [item["spec"]["pool"] for _, item in sorted(self.slices.items())]


def test_new_slices_are_a_pool_of_the_nodes_name_in_their_order() -> None:
    server = Server()
    server.write([spec("a"), spec("b")])
    assert server.pools == 2 * [{"name": "node-1", "generation": 1, "resourceSliceCount": 2}]
    assert [name.rpartition("-")[0] for name in sorted(server.slices)] == [
        "0-pci.launcherkit.io-node-1",
        "1-pci.launcherkit.io-node-1",
    ]
    first = min(server.slices.items())[1]["spec"]
    assert first == {**spec("a"), "driver": "pci.launcherkit.io", "nodeName": "node-1", "pool": server.pools[0]}


def test_where_nothing_changed_nothing_is_written() -> None:
    server = Server()
    wanted = [spec("a", taints=[TAINT], capacity={"memory": {"value": "1024Mi"}}, attributes={}), spec("b")]
    server.write(wanted)
    assert server.write(wanted) == SliceChanges((), 1, False)


def test_what_changes_in_one_slice_raises_the_generation_of_all() -> None:
    server = Server()
    server.write([spec("a"), spec("b")])
    changed = server.write([spec("a"), spec("b", attributes={"x": {"int": 1}})])
    assert [kind for kind, _ in changed.changes] == ["replace", "replace"]
    assert {pool["generation"] for pool in server.pools} == {2}


def test_slices_come_and_go_with_what_is_wanted() -> None:
    server = Server()
    server.write([spec("a")])
    server.write([spec("a"), spec("b"), spec("c")])
    assert server.pools == 3 * [{"name": "node-1", "generation": 2, "resourceSliceCount": 3}]
    server.write([spec("c")])
    assert server.pools == [{"name": "node-1", "generation": 3, "resourceSliceCount": 1}]
    server.write([])
    assert server.slices == {}


def test_a_slice_that_has_vanished_is_made_again_and_the_others_stay() -> None:
    server = Server()
    wanted = [spec("a"), spec("b"), spec("c")]
    server.write(wanted)
    del server.slices[sorted(server.slices)[1]]
    again = server.write(wanted)
    assert ([kind for kind, _ in again.changes], again.foreign) == (["create"], False)
    assert server.pools == 3 * [{"name": "node-1", "generation": 1, "resourceSliceCount": 3}]


def test_a_slice_that_somebody_changed_is_put_right() -> None:
    server = Server()
    server.write([spec("a"), spec("b")])
    next(iter(server.slices.values()))["spec"]["devices"] = []
    assert server.write([spec("a"), spec("b")]).foreign
    assert [item["spec"]["devices"] for item in server.slices.values()] == [[{"name": "a"}], [{"name": "b"}]]
    assert {pool["generation"] for pool in server.pools} == {2}


def test_a_slice_too_many_goes() -> None:
    server = Server()
    server.write([spec("a")])
    ((name, item),) = server.slices.items()
    server.slices["0-pci.launcherkit.io-node-1-zzzzz"] = {**item, "metadata": {"name": f"{name}-z", "uid": "u"}}
    server.slices["odd"] = {**item, "metadata": {"name": "odd", "uid": "u"}}
    doubled = slice_changes(POOL, [spec("a")], server.slices.values())
    assert [(kind, body["metadata"]["name"]) for kind, body in doubled.changes] == [
        ("delete", f"{name}-z"),
        ("delete", "odd"),
    ]
    assert doubled.foreign


def test_a_taint_that_goes_on_keeps_its_beginning() -> None:
    server = Server()
    server.write([spec("a", taints=[TAINT])])
    server.write([spec("a", "b", taints=[TAINT])])
    ((_, item),) = server.slices.items()
    began = [device["taints"][0]["timeAdded"] for device in item["spec"]["devices"]]
    assert began == ["2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"]
    server.write([spec("a", "b")])
    ((_, item),) = server.slices.items()
    assert item["spec"]["devices"] == [{"name": "a"}, {"name": "b"}]


@pytest.mark.parametrize(
    ("wanted", "stored", "same"),
    [
        ("1024Mi", "1Gi", True),
        ("1000", "1k", True),
        ("1e3", "1k", True),
        ("0.5", "500m", True),
        ("1Gi", "1G", False),
        ("1", "2", False),
        ("x", "x", True),
        ("1.1.1", "1.1", False),
    ],
)
def test_amounts_are_compared_by_what_they_are(wanted: str, stored: str, same: bool) -> None:
    server = Server()
    server.write([spec("a", capacity={"memory": {"value": stored}})])
    changed = slice_changes(POOL, [spec("a", capacity={"memory": {"value": wanted}})], server.slices.values())
    assert (changed.changes == ()) is same


DEVICES = st.lists(st.sampled_from("abcdef"), max_size=4, unique=True).map(lambda names: spec(*names, taints=[TAINT]))


@given(st.lists(st.tuples(st.lists(DEVICES, max_size=20), st.sets(st.integers(0, 20)))))
def test_whatever_is_wanted_and_whatever_vanishes_one_round_makes_a_whole_pool(
    rounds: list[tuple[list[Json], set[int]]],
) -> None:
    server = Server()
    for wanted, vanishing in rounds:
        server.slices = {
            name: item for at, (name, item) in enumerate(sorted(server.slices.items())) if at not in vanishing
        }
        server.write(wanted)
        assert server.write(wanted).changes == ()
        assert len(server.slices) == len(wanted)
        assert {pool["resourceSliceCount"] for pool in server.pools} == ({len(wanted)} if wanted else set())
        generations = {pool["generation"] for pool in server.pools}
        assert len(generations) == bool(wanted)
        found = [
            [device["name"] for device in item["spec"]["devices"]]
            for _, item in sorted(server.slices.items(), key=lambda pair: int(pair[0].partition("-")[0], 16))
        ]
        assert found == [[device["name"] for device in each["devices"]] for each in wanted]
