"""What a node has, in a ConfigMap of its own: written when it changes, and found by `rehearse --cluster`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from launcherkit.errors import NO_NODES, LauncherkitError
from launcherkit_plugin.cli.cluster_nodes import published
from launcherkit_plugin.cluster.requests import wanted_record
from launcherkit_plugin.model.errors import NO_CLUSTER
from launcherkit_plugin.rehearsal.node_record import pack, record_of
from tests.plugin.cluster.test_cluster import Daemon, beside, kubeconfig, path, server
from tests.plugin.rehearsal.test_node_record import HELD, offer
from tests.plugin.resources import GPU
from tests.support.apiserver import CONFIGMAPS, ApiServer
from tests.support.errors import raises_code
from tests.support.provoked import provoked

__all__ = ["kubeconfig", "path", "server"]

NAMESPACE = "launcherkit"


def written(server: ApiServer) -> dict[str, str]:
    with server.lock:
        return {key: text for item in server.objects[CONFIGMAPS].values() for key, text in item["data"].items()}


async def until(server: ApiServer, expected: dict[str, str]) -> None:
    await asyncio.to_thread(server.wait_for, f"{expected}", lambda: written(server) == expected)


def test_a_record_is_written_when_it_changes_and_goes_with_its_node(
    server: ApiServer, kubeconfig: Path, path: Path
) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.publish_record({"record": "a"})
        await until(server, {"node": "node-1", "record": "a"})
        it.socket.publish_record({"record": "a"})
        it.socket.publish_record({"problem": "too large"})
        await until(server, {"node": "node-1", "problem": "too large"})

    beside(path, kubeconfig, scenario)
    assert server.writes == ["PATCH", "PATCH"]
    (item,) = server.objects[CONFIGMAPS].values()
    assert item["metadata"]["name"] == "launcherkit-node-node-1"
    assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == ["uid--node-1"]


def test_a_vm_is_rehearsed_on_what_nodes_have_published(
    server: ApiServer, kubeconfig: Path, path: Path, tmp_path: Path
) -> None:
    packed = pack(record_of(offer(tmp_path / "host", HELD)))

    async def scenario(it: Daemon) -> None:
        it.socket.publish_record({"record": packed})
        await until(server, {"node": "node-1", "record": packed})

    beside(path, kubeconfig, scenario)
    for node in (None, "node-1"):
        (found,) = published(NAMESPACE, node, {"KUBECONFIG": str(kubeconfig)})
        assert found.name == "node-1"
        assert [device.id for device in found.allocate({GPU: 1}).devices] == ["0000:03:00.0"]
    with raises_code(NO_NODES):
        published(NAMESPACE, "node-2", {"KUBECONFIG": str(kubeconfig)})


def test_a_node_whose_record_is_none_is_no_candidate_and_the_others_are(server: ApiServer, kubeconfig: Path) -> None:
    labels = {"launcherkit.io/record": "node"}
    for name, data in (
        ("node-1", {"problem": "the record has 900123 bytes, more than 900000"}),
        ("node-2", {"record": "AAAA"}),
    ):
        metadata = {"name": f"launcherkit-node-{name}", "namespace": NAMESPACE, "labels": labels}
        server.put(CONFIGMAPS, {"metadata": metadata, "data": {"node": name, **data}})
    first, second = published(NAMESPACE, None, {"KUBECONFIG": str(kubeconfig)})
    for node in (first, second):
        with pytest.raises(LauncherkitError) as raised:
            node.allocate({GPU: 1})
        assert raised.value.code == "LK865"
    with pytest.raises(LauncherkitError) as raised:
        first.allocate({GPU: 1})
    assert [f"LK865: {raised.value.message}"] == provoked("rehearsal", "LK865")


def test_a_record_is_believed_only_under_the_name_of_its_node(
    server: ApiServer, kubeconfig: Path, tmp_path: Path
) -> None:
    """A node's token may write the ConfigMap of its own node alone, and say there what it likes."""
    packed = pack(record_of(offer(tmp_path / "host", HELD)))
    metadata = {
        "name": "launcherkit-node-evil",
        "namespace": NAMESPACE,
        "labels": {"launcherkit.io/record": "node"},
    }
    server.put(CONFIGMAPS, {"metadata": metadata, "data": {"node": "node-1", "record": packed}})
    for node in (None, "evil"):
        (found,) = published(NAMESPACE, node, {"KUBECONFIG": str(kubeconfig)})
        with pytest.raises(LauncherkitError, match="ConfigMap launcherkit-node-evil is that of node-1") as raised:
            found.allocate({GPU: 1})
        assert raised.value.code == "LK865"


def test_a_namespace_that_may_not_be_read_is_an_error_and_so_is_one_without_records(
    server: ApiServer, kubeconfig: Path
) -> None:
    with raises_code(NO_NODES):
        published(NAMESPACE, None, {"KUBECONFIG": str(kubeconfig)})
    with raises_code(NO_CLUSTER, match="may not list"):
        published("other", None, {"KUBECONFIG": str(kubeconfig)})


@pytest.mark.parametrize("value", [None, "a", {}, {"record": 1}, {"record": "a", "problem": "b"}, {"other": "a"}])
def test_a_message_of_another_shape_ends_the_connection(value: object) -> None:
    with pytest.raises(ValueError, match="node-record"):
        wanted_record(value)
