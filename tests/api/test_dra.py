"""The component `dra` on the API of today: what its container writes, and what it can't without each of its rights."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.dra.claim_files import ClaimPlaces
from launcherkit_plugin.dra.claim_store import ClaimStore
from launcherkit_plugin.dra.node_driver import NodeDriver
from launcherkit_plugin.dra.resource_claim import AllocatedClaim
from launcherkit_plugin.dra.resource_claim import allocated as parsed
from launcherkit_plugin.dra.slices import slices as slices_of
from launcherkit_plugin.model.config import Config, DraConfig, PciRule, Selector, VgpuConfig, VgpuRule
from launcherkit_plugin.model.device import ClaimRef, Problem
from launcherkit_plugin.model.errors import CLAIM_UNREADABLE, NoCluster
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.api.applying import applied, apply
from tests.api.dra import AS_PLUGIN, CLAIM, DRIVER, NODE, allocated, claim, server
from tests.plugin.cluster.test_cluster import Daemon, daemon
from tests.plugin.dra.test_inventory import offer
from tests.plugin.dra.test_inventory import published as inventory_of
from tests.plugin.resources import RULE, Node
from tests.support.apiserver import kubeconfig_of
from tests.support.cluster import Cluster
from tests.support.clusterprocess import ClusterProcess
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.waiting import until
from tests.test_deploy_plugin import COMPONENTS, rights
from tests.tiers import IDLE

__all__ = ["claim", "server"]

pytestmark = pytest.mark.api

IDLE_SECONDS = float(os.environ.get(IDLE, "5"))


@pytest.fixture
def path() -> Iterator[Path]:
    """Of the daemon's socket."""
    with tempfile.TemporaryDirectory(prefix="lk-") as folder:
        yield Path(folder) / "daemon.sock"


@contextmanager
def container(server: Cluster, path: Path) -> Iterator[ClusterProcess]:
    """The process that speaks to the cluster, with the rights of the plugin's account on the node."""
    with server.served_to(*AS_PLUGIN) as url:
        kubeconfig = kubeconfig_of(url)
        kubeconfig["users"] = [{"name": "u", "user": {}}]
        file = path.with_name("kubeconfig")
        file.write_text(yaml.safe_dump(kubeconfig))
        with ClusterProcess(path, NODE, file) as process:
            yield process


Scenario = Callable[[Daemon], Awaitable[None]]


def beside(server: Cluster, path: Path, scenario: Scenario) -> str:
    """Run a scenario with a daemon beside the process; what that process said."""
    with container(server, path) as process:
        daemon(path, scenario)
        return process.reported()


def specs(*names: str) -> list[dict[str, Any]]:
    return [{"devices": [{"name": name}]} for name in names]


def slices(server: Cluster) -> list[dict[str, Any]]:
    """Those of the node, in their order."""
    found: list[dict[str, Any]] = server.get("resourceslices", f"--field-selector=spec.nodeName={NODE}")["items"]
    return sorted(found, key=lambda item: int(item["metadata"]["name"].partition("-")[0], 16))


def names(server: Cluster) -> list[str]:
    return [device["name"] for item in slices(server) for device in item["spec"].get("devices", [])]


async def shown(server: Cluster, wanted: list[str]) -> None:
    await asyncio.to_thread(until, lambda: names(server) == wanted, f"{wanted}", lambda: names(server))


# What it publishes


def largest() -> list[dict[str, Any]]:
    """A pool at the limits of the API: 32 attributes, 16 taints, 2 counter sets of 32 counters, 64 devices a slice."""
    counters = {f"counter-{number}": {"value": "1"} for number in range(32)}
    sets = [{"name": f"card-{number}", "counters": counters} for number in range(8)]
    use = [{"counterSet": f"card-{number}", "counters": counters} for number in range(2)]
    device = {
        "attributes": {f"attribute_{number:02}_{'x' * 19}": {"string": "v" * 64} for number in range(31)},
        "capacity": {"window64": {"value": "131072Mi"}},
        "consumesCounters": use,
        "taints": [{"key": f"launcherkit.io/t{number}", "effect": "NoSchedule"} for number in range(16)],
    }
    devices = [{"name": f"pci-0000-e1-{number:02x}-0", **device} for number in range(64)]
    return [{"sharedCounters": sets}, {"devices": devices}]


def test_a_pool_at_the_limits_of_the_api_is_taken_and_never_written_again(server: Cluster, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.publish_slices(DRIVER, largest())
        await shown(server, [device["name"] for device in largest()[1]["devices"]])
        await asyncio.sleep(2)  # the changes come back by the watch
        it.socket.publish_slices(DRIVER, [*largest()])
        await asyncio.sleep(2)
        assert [item["metadata"]["generation"] for item in slices(server)] == [1, 1]
        it.socket.publish_slices(DRIVER, [])
        await shown(server, [])

    reported = [line for line in beside(server, path, scenario).splitlines() if "ResourceSlices" in line]
    # The last one may not have been said yet.
    both = [f"info: {DRIVER}: {count} ResourceSlices, generation 1" for count in (2, 0)]
    assert reported in (both[:1], both)


def test_what_the_driver_publishes_of_a_large_node_is_taken_as_it_is(
    server: Cluster, path: Path, tmp_path: Path
) -> None:
    tree = HostTree(tmp_path)
    for number in range(140):  # two cards of two functions in each group, of which every fifth is not viable
        audio = "snd_hda_intel" if number % 10 == 0 else "vfio-pci"
        tree.function(f"0000:{number:02x}:00.0", driver="vfio-pci", group=number // 2, numa=number % 2)
        tree.function(f"0000:{number:02x}:00.1", device=0x1AEF, class_code=0x40300, driver=audio, group=number // 2)
    offer(tree, "0001:01:00.0", {"T4-1Q": 16, "T4-2Q": 8, "T4-5Q": 3})
    tree.function("0002:01:00.0", vendor=0x1002, driver="amdgpu", group=500)  # for VMs and for containers
    rule = VgpuRule(("*",), mode="dynamic", dra=True)
    gpus = PciRule(select=(Selector(vendors=frozenset({0x10DE}), classes=("03",)),), name="a/GPU", dra=True)
    both = PciRule(select=(Selector(vendors=frozenset({0x1002})),), name="a/BOTH", dra=True, use="any")
    published = [*inventory_of(tree, Config(pci=(gpus, both), vgpu=VgpuConfig(mdevs=(rule,)))).values()]
    assert len(published) == 140 + 1 + 27 + 2
    wanted = slices_of(published, DRIVER)
    assert {key for spec in wanted for key in spec} == {"driver", "sharedCounters", "devices"}

    async def scenario(it: Daemon) -> None:
        it.socket.publish_slices(DRIVER, wanted)
        await shown(server, [device.name for device in published])
        assert any(device.get("taints") for item in slices(server) for device in item["spec"].get("devices", []))
        await asyncio.sleep(2)  # the changes come back by the watch
        it.socket.publish_slices(DRIVER, [*wanted, {"devices": [{"name": "one-more"}]}])
        await shown(server, [*(device.name for device in published), "one-more"])
        assert {item["metadata"]["generation"] for item in slices(server)[:-1]} == {2}, "nothing else was written"
        it.socket.publish_slices(DRIVER, [])
        await shown(server, [])

    beside(server, path, scenario)


def test_slices_that_are_wiped_are_there_again_and_changes_reach_all(server: Cluster, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.publish_slices(DRIVER, specs("a", "b"))
        await shown(server, ["a", "b"])
        server.kubectl("delete", "resourceslices", f"--field-selector=spec.nodeName={NODE}")
        await shown(server, ["a", "b"])
        it.socket.publish_slices(DRIVER, specs("a", "c"))
        await shown(server, ["a", "c"])

    beside(server, path, scenario)
    pool = {"name": NODE, "generation": 2, "resourceSliceCount": 2}
    assert [item["spec"]["pool"] for item in slices(server)] == [pool, pool]
    (owner,) = slices(server)[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", server.get("node", NODE)["metadata"]["uid"])


def requests(server: Cluster) -> dict[str, float]:
    """How many requests for slices that write the server has counted, by verb."""
    counted: dict[str, float] = {}
    for line in server.kubectl("get", "--raw=/metrics").splitlines():
        if line.startswith("apiserver_request_total{") and 'resource="resourceslices"' in line:
            verb = line.partition('verb="')[2].partition('"')[0]
            if verb not in ("GET", "LIST", "WATCH"):
                counted[verb] = counted.get(verb, 0.0) + float(line.split()[-1])
    return counted


def test_while_nothing_changes_nothing_is_written(server: Cluster, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.publish_slices(DRIVER, largest())
        await shown(server, [device["name"] for device in largest()[1]["devices"]])
        await asyncio.sleep(2)
        before = requests(server)
        assert before["POST"] > 0
        await asyncio.sleep(IDLE_SECONDS)
        assert requests(server) == before

    beside(server, path, scenario)


def test_a_claim_is_read_and_its_status_written_beside_what_others_say(
    server: Cluster, path: Path, claim: dict[str, Any]
) -> None:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Bound",
        "message": "bound to vfio-pci",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    device = {"driver": DRIVER, "pool": NODE, "device": "pci-0000-e1-00-0", "conditions": [condition]}

    async def scenario(it: Daemon) -> None:
        uid = claim["metadata"]["uid"]
        found = await it.socket.get_claim("default", "gpu", uid, 60)
        assert found["status"]["allocation"] == claim["status"]["allocation"]
        with raises_code(CLAIM_UNREADABLE, match="another one has its name"):
            await it.socket.get_claim("default", "gpu", "another", 60)
        it.socket.claim_status("default", "gpu", uid, [device])
        await asyncio.to_thread(until, lambda: server.get("resourceclaim", "gpu")["status"].get("devices"), "a status")

    beside(server, path, scenario)
    assert server.get("resourceclaim", "gpu")["status"] == {**claim["status"], "devices": [device]}


def test_a_claim_with_admin_access_is_read_as_one(server: Cluster, path: Path) -> None:
    """This server takes it in every namespace; that of Kubernetes where the label is."""
    exactly = {"deviceClassName": "gpu.launcherkit.io", "allocationMode": "All", "adminAccess": True}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "all", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    found: list[AllocatedClaim] = []
    with applied(server, json.dumps(body)):
        uid = allocated(server, "all", NODE, adminAccess=True)["metadata"]["uid"]
        ref = ClaimRef("default", "all", uid)

        async def scenario(it: Daemon) -> None:
            found.append(parsed(await it.socket.get_claim(*ref, 60), ref, DRIVER))

        beside(server, path, scenario)
    assert [one.admin for one in found[0].devices] == [True]


def test_a_pod_waits_for_a_card_as_the_scheduler_would_have_it(server: Cluster, path: Path, tmp_path: Path) -> None:
    """A scheduler's part is played here: it copies the conditions into the allocation, and reads the status."""
    tree = HostTree(tmp_path)
    tree.card("0000:e1:00", group=1)
    node = Node(tree, {0x03: RULE._replace(dra=True)})
    facts, resource = node.facts(), node.look()[RULE.name or ""]
    cleaning = resource._replace(
        devices={key: one._replace(problem=Problem("cleaning", "a")) for key, one in resource.devices.items()}
    )

    async def scenario(it: Daemon) -> None:
        store = ClaimStore(ClaimPlaces(DRIVER, str(tmp_path / "kubelet"), str(tmp_path / "cdi")))
        config = DraConfig(binding_conditions=True, cdi_folder=str(tmp_path / "cdi"))
        allocator = Allocator(Reservations(), lambda: 0.0, lambda _: None)
        env = {"NODE_NAME": NODE}
        driver = NodeDriver(config, store, allocator, it.socket, Reporter(it.log), env, lambda: None)
        driver.start()
        driver.listed(facts, [cleaning])
        await it.until(lambda: it.socket.awaiting is not None)
        driver.listed(facts, [cleaning])
        await shown(server, ["pci-0000-e1-00-0"])
        await asyncio.to_thread(until, lambda: "bindingConditions" in published_device(server), "conditions")
        (device,) = slices(server)[-1]["spec"]["devices"]
        copied = {key: device[key] for key in ("bindingConditions", "bindingFailureConditions")}
        await asyncio.to_thread(allocated, server, "gpu", NODE, **copied)
        await it.until(lambda: it.socket.awaiting)
        for resources, status in (([cleaning], "False"), ([resource], "True")):
            driver.listed(facts, resources)
            await asyncio.to_thread(until, lambda status=status: ready(server) == status, f"Ready: {status}")
        assert "taints" not in device
        await driver.close()
        it.socket.publish_slices(DRIVER, [])
        await shown(server, [])

    rights_to_watch = (COMPONENTS["binding-conditions"] / "rbac.yaml").read_text()
    with applied(server, rights_to_watch, json.dumps(CLAIM)):
        beside(server, path, scenario)


def published_device(server: Cluster) -> dict[str, Any]:
    return next((one for item in slices(server) for one in item["spec"].get("devices", ())), {})


def ready(server: Cluster) -> str:
    devices = server.get("resourceclaim", "gpu")["status"].get("devices") or [{}]
    return str({one["type"]: one["status"] for one in devices[0].get("conditions", ())}.get("launcherkit.io/Ready"))


# Right by right


def needed() -> list[tuple[str, str]]:
    """Resource and verb of each right that DRA takes."""
    found = {(resource, verb) for _, _, resource, verb in rights("dra")} | {("nodes", "list")}
    return sorted(found - {("resourceclaims/driver", "associated-node:patch")})  # not asked for by every server


@pytest.mark.parametrize(("resource", "verb"), needed())
def test_what_is_missing_without_a_right_is_reported(
    server: Cluster, path: Path, claim: dict[str, Any], resource: str, verb: str
) -> None:
    with without(server, resource, verb), container(server, path) as process:
        reported = daemon(path, lambda it: use_all(it, claim, lambda: refused(process, it.lines)))
        (line,) = set(refused(process, reported.lines))
        assert f'cannot {verb} resource "{resource}"' in line


def test_with_all_rights_nothing_is_refused(server: Cluster, path: Path, claim: dict[str, Any]) -> None:
    with container(server, path) as process:
        rounds = count()
        reported = daemon(path, lambda it: use_all(it, claim, lambda: next(rounds) == 12))
        assert refused(process, reported.lines) == []


def refused(process: ClusterProcess, lines: list[str]) -> list[str]:
    """What the server has refused: the rest of each line from ``cannot`` on."""
    found = [line for line in [*process.reported().splitlines(), *lines] if " cannot " in line]
    return sorted({f"cannot {line.partition(' cannot ')[2].partition(' in ')[0]}" for line in found})


async def use_all(it: Daemon, claim: dict[str, Any], enough: Callable[[], Any]) -> None:
    """Make, change and take away slices, read a claim and write its status, until it is enough."""
    metadata = claim["metadata"]
    for number in range(120):
        it.socket.publish_slices(DRIVER, specs(f"device-{number}") if number % 6 > 1 else [])
        it.socket.claim_status("default", metadata["name"], metadata["uid"], [])
        try:
            await it.socket.get_claim("default", metadata["name"], metadata["uid"], 60)
        except NoCluster as unreadable:
            it.lines.append(unreadable.message)
        if enough():
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"nothing was refused: {it.lines}")


@contextmanager
def without(server: Cluster, resource: str, verb: str) -> Iterator[None]:
    """The plugin's roles without one right."""
    roles = [
        document
        for name in ("cluster", "dra")
        for document in yaml.safe_load_all((COMPONENTS[name] / "rbac.yaml").read_text())
        if document["kind"] == "ClusterRole"
    ]
    less = json.loads(json.dumps(roles))
    for rule in (rule for role in less for rule in role["rules"] if resource in rule["resources"]):
        rule["verbs"] = [each for each in rule["verbs"] if each != verb] or ["none"]
    try:
        apply(server, less)
        yield
    finally:
        apply(server, roles)
