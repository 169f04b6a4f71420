"""Cards of which several claims have a share, on the API of today: what it stores of them, and which claims fit.

No scheduler is there: its part is played here, by what the API server has stored, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from launcherkit.rpc.client import unix_channel
from launcherkit.rpc.methods import call
from launcherkit_plugin.dra.claim_files import ClaimPlaces
from launcherkit_plugin.dra.claim_store import ClaimStore
from launcherkit_plugin.dra.node_driver import NodeDriver
from launcherkit_plugin.dra.node_service import ClaimServiceV1
from launcherkit_plugin.model.config import DraConfig, Sharing
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.api.applying import applied
from tests.api.dra import DRIVER, NODE, server
from tests.api.test_dra import beside, path, published_device, slices
from tests.plugin.binding.test_uses import RULE
from tests.plugin.binding.test_uses import Node as Uses
from tests.plugin.cluster.test_cluster import Daemon
from tests.plugin.dra.test_shared_cards import fits
from tests.support.cluster import Cluster
from tests.support.waiting import until

__all__ = ["path", "server"]

pytestmark = pytest.mark.api

SHARES, CARDS = 3, 2
CAPACITY = "launcherkit.io/shares"
CONTAINERS, VMS = "container", "card"
"""The values of the attribute ``type``."""


def claim_of(name: str, shares: int) -> dict[str, Any]:
    """A claim for so many shares of a card; for 1, without a word of it."""
    exactly: dict[str, Any] = {"deviceClassName": "any"}
    if shares != 1:
        exactly["capacity"] = {"requests": {CAPACITY: str(shares)}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


class Scheduler:
    """First fit on what the API server has of slices and claims (KEP-5075 and KEP-4815): of each device the first claim
    consumes its counters, and every claim its capacity."""

    def __init__(self, server: Cluster) -> None:
        self._server = server

    def place(self, name: str, kind: str = CONTAINERS) -> dict[str, Any]:
        """Allocate a device of a type to a claim and return it; unchanged if none fits."""
        claim = self._server.get("resourceclaim", name)
        specs = [item["spec"] for item in slices(self._server)]
        devices = [device for spec in specs for device in spec.get("devices", ())]
        taken = [
            result
            for each in self._server.get("resourceclaims", "--namespace=default")["items"]
            for result in each.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        ]
        (request,) = claim["spec"]["devices"]["requests"]
        asked = request["exactly"].get("capacity", {}).get("requests", {})
        for device in devices:
            if device["attributes"]["type"]["string"] != kind or device.get("taints"):
                continue
            given = self._given(device, asked, taken, specs)
            if given is not None:
                result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device["name"], **given}
                change = json.dumps({"status": {"allocation": {"devices": {"results": [result]}}}})
                self._server.kubectl(
                    "patch", "resourceclaim", name, "--subresource=status", "--type=merge", "-p", change
                )
                return self._server.get("resourceclaim", name)
        return claim

    def _given(
        self,
        device: dict[str, Any],
        asked: dict[str, str],
        taken: Sequence[dict[str, Any]],
        specs: list[dict[str, Any]],
    ) -> dict[str, Any] | None:
        """What a result says beside the device's name; None: it doesn't fit."""
        of_it = [result for result in taken if result["device"] == device["name"]]
        if not of_it and not self._has_counters(device, {result["device"] for result in taken}, specs):
            return None
        if not device.get("allowMultipleAllocations"):
            return None if of_it else {}
        consumed = {}
        for name, capacity in device["capacity"].items():
            policy = capacity["requestPolicy"]
            amount = int(asked.get(name, policy["default"]))
            limits = policy["validRange"]
            used = sum(int(result["consumedCapacity"][name]) for result in of_it)
            if not int(limits["min"]) <= amount <= int(limits["max"]) or used + amount > int(capacity["value"]):
                return None
            consumed[name] = str(amount)
        return {"shareID": str(uuid4()), "consumedCapacity": consumed}

    def _has_counters(self, device: dict[str, Any], allocated: set[str], specs: list[dict[str, Any]]) -> bool:
        left: Counter[tuple[str, str]] = Counter()
        for spec in specs:
            for counters in spec.get("sharedCounters", ()):
                left.update({(counters["name"], key): int(at["value"]) for key, at in counters["counters"].items()})
            for each in spec.get("devices", ()):
                if each["name"] in allocated:
                    left.subtract(_needs(each))
        return all(left[counter] >= amount for counter, amount in _needs(device).items())


def _needs(device: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {
        (use["counterSet"], key): int(amount["value"])
        for use in device.get("consumesCounters", ())
        for key, amount in use["counters"].items()
    }


def device_of(claim: dict[str, Any]) -> dict[str, Any]:
    """Its result; empty if it isn't allocated."""
    results: list[dict[str, Any]] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return results[0] if results else {}


class Stage:
    """A node with cards for VMs and for containers, its driver, and a kubelet that asks it."""

    def __init__(self, folder: Path, it: Daemon, node: Uses) -> None:
        kubelet = folder / "kubelet"
        (kubelet / "plugins_registry").mkdir(parents=True)
        self._socket = kubelet / "plugins" / DRIVER / "dra.sock"
        self.cdi = folder / "cdi"
        store = ClaimStore(ClaimPlaces(DRIVER, str(kubelet), str(self.cdi)))
        config, env = DraConfig(cdi_folder=str(self.cdi)), {"NODE_NAME": NODE}
        self._node, self._reporter = node, Reporter(it.log)
        self.driver = NodeDriver(config, store, node.allocator, it.socket, self._reporter, env, lambda: None)
        self.driver.start()

    def turn(self) -> None:
        """What the daemon's loop does."""
        self.driver.listed(self._node.look(), self._node.resources)

    async def ask(self, method: str, claim: dict[str, Any]) -> Any:
        async with asyncio.timeout(60):
            while not self._socket.exists():
                await asyncio.sleep(0.01)
        channel = unix_channel(str(self._socket))
        try:
            metadata, wire = claim["metadata"], ClaimServiceV1.wire
            one = wire.Claim(namespace="default", name=metadata["name"], uid=metadata["uid"])
            request = getattr(wire, f"{method}Request")(claims=[one])
            answer = await call(channel, ClaimServiceV1.service.methods_by_name[method], request)
            return answer.claims[metadata["uid"]]
        finally:
            channel.close()


@pytest.fixture
def node(tmp_path: Path) -> Uses:
    node = Uses(tmp_path / "node", RULE._replace(dra=True, with_kata=False, sharing=Sharing(SHARES)), cards=CARDS)
    node.turn()
    return node


def test_claims_have_shares_of_cards_as_long_as_they_fit_and_no_vm_has_such_a_card(
    server: Cluster, path: Path, node: Uses
) -> None:
    asked = {"a": 2, "b": 1, "c": 2, "d": 1}
    assert fits(list(asked.values()), CARDS, SHARES)
    assert not fits([*asked.values(), 1], CARDS, SHARES)
    claims = [claim_of(name, number) for name, number in (asked | {"e": 1, "vm": 1}).items()]
    scheduler = Scheduler(server)

    async def scenario(it: Daemon) -> None:
        stage = Stage(path.parent, it, node)
        stage.turn()
        await asyncio.to_thread(until, lambda: len(devices(server)) == 2 * CARDS, "devices", lambda: devices(server))
        placed = {name: await asyncio.to_thread(scheduler.place, name) for name in asked}
        assert all(map(device_of, placed.values()))
        assert len({device_of(claim)["shareID"] for claim in placed.values()}) == len(asked)
        assert [device_of(await asyncio.to_thread(scheduler.place, name)) for name in "e"] == [{}]
        assert device_of(await asyncio.to_thread(scheduler.place, "vm", VMS)) == {}
        for claim in placed.values():
            answer = await stage.ask("NodePrepareResources", claim)
            (device,) = answer.devices
            assert (answer.error, device.share_id) == ("", device_of(claim)["shareID"])
            uid = claim["metadata"]["uid"]
            assert list(device.cdi_device_ids) == [f"{DRIVER}/claim={uid}_{device.device_name}_{device.share_id}"]
        held = node.allocator.usage().held[f"{RULE.name}-container"]
        assert len(held) == len(asked)
        stage.turn()
        for name, claim in placed.items():
            given = [(device_of(claim)["shareID"], {"DriverReady": "True"})]
            await asyncio.to_thread(
                until, lambda name=name, given=given: status(server, name) == given, f"status {name}"
            )
        answer = await stage.ask("NodeUnprepareResources", placed["d"])
        assert answer.error == ""
        await asyncio.to_thread(server.kubectl, "delete", "resourceclaim", "d")
        placed["e"] = await asyncio.to_thread(scheduler.place, "e")
        assert (await stage.ask("NodePrepareResources", placed["e"])).error == ""
        files = sorted(file.stem.rpartition("_")[2] for file in stage.cdi.iterdir())
        assert files == sorted(placed[name]["metadata"]["uid"] for name in "abce")
        await stage.driver.close()
        it.socket.publish_slices(DRIVER, [])
        await asyncio.to_thread(until, lambda: devices(server) == {}, "no devices")

    with applied(server, *map(json.dumps, claims)):
        beside(server, path, scenario)


def devices(server: Cluster) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for item in slices(server) for device in item["spec"].get("devices", ())}


def status(server: Cluster, name: str) -> list[tuple[str, dict[str, str]]]:
    """The share and the conditions of each device in a claim's status."""
    return [
        (device["shareID"], {condition["type"]: condition["status"] for condition in device["conditions"]})
        for device in server.get("resourceclaim", name)["status"].get("devices", ())
    ]


GATE_OFF = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: no-shared-devices}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [resource.k8s.io], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [resourceslices]}
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConditions:
    - name: shared
      expression: has(object.spec.devices) && object.spec.devices.exists(d, has(d.allowMultipleAllocations))
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          [JSONPatch{op: "remove", path: "/spec/devices/0/allowMultipleAllocations"},
          JSONPatch{op: "remove", path: "/spec/devices/0/capacity"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: no-shared-devices}
spec: {policyName: no-shared-devices}
"""
"""Of the first device what a server drops whose gate is off. This server has no gates; it keeps every field."""


@contextmanager
def gate_off(server: Cluster) -> Iterator[None]:
    """A server that drops the field, once it does."""
    device = {"name": "a", "allowMultipleAllocations": True, "capacity": {CAPACITY: {"value": "4"}}}
    pool = {"name": "elsewhere", "generation": 1, "resourceSliceCount": 1}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "of-nobody"},
        "spec": {"driver": DRIVER, "nodeName": "elsewhere", "pool": pool, "devices": [device]},
    }
    with applied(server, GATE_OFF):
        until(lambda: server.taken(body)["spec"]["devices"] == [{"name": "a"}], "the policy act")
        yield


def test_a_server_that_drops_the_field_is_asked_first_and_never_has_such_a_card(
    server: Cluster, path: Path, node: Uses
) -> None:
    seen: list[str] = []

    async def scenario(it: Daemon) -> None:
        stage = Stage(path.parent, it, node)
        stage.turn()
        await asyncio.to_thread(until, lambda: len(devices(server)) == CARDS, "devices", lambda: devices(server))
        seen.extend(device["attributes"]["type"]["string"] for device in devices(server).values())
        assert published_device(server)["capacity"].keys() == {"window64"}
        assert [item["metadata"]["generation"] for item in slices(server)] == [1] * len(slices(server)), "written once"
        await stage.driver.close()
        it.socket.publish_slices(DRIVER, [])
        await asyncio.to_thread(until, lambda: devices(server) == {}, "no devices")

    with gate_off(server):
        reported = beside(server, path, scenario)
    assert seen == [VMS] * CARDS
    assert "cards with `sharing` are not published: the API server drops allowMultipleAllocations" in reported
