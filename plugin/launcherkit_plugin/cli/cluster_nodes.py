"""The nodes of a cluster, from their published records: `launcherkit.model.candidate.NodeSource.published`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcherkit.errors import NO_NODES, LauncherkitError
from launcherkit.model.candidate import NodeAllocation
from launcherkit_plugin.cluster.api import Api, ApiProblem, Json, configured, items_of, part, whole
from launcherkit_plugin.cluster.requests import CONFIGMAPS_PATH, RECORD_NAME, RECORD_SELECTOR
from launcherkit_plugin.model.errors import BAD_NODE_RECORD, NO_CLUSTER
from launcherkit_plugin.rehearsal.candidate_node import CandidateNode
from launcherkit_plugin.rehearsal.node_record import read_record, unpack

_NOT_FOUND = 404


class UnknownNode:
    """A node whose record is missing or can't be read; rehearsals on other nodes still work."""

    def __init__(self, name: str, error: LauncherkitError) -> None:
        self._name = name
        self._why = error

    @property
    def error(self) -> LauncherkitError:
        """Why nothing is known of it."""
        return self._why

    @property
    def name(self) -> str:
        return self._name

    def allocate(self, counts: Mapping[str, int]) -> NodeAllocation:  # noqa: ARG002  # nothing is known of the node
        """Always raises the reason why nothing is known."""
        raise self._why


def published(namespace: str, node: str | None, env: Mapping[str, str]) -> list[CandidateNode | UnknownNode]:
    """See `launcherkit.model.candidate.NodeSource.published`."""
    return published_at(Api(configured(env)), namespace, node)


def published_at(server: Api, namespace: str, node: str | None) -> list[CandidateNode | UnknownNode]:
    """The same, from a given server.

    Raises:
        NoCluster: it doesn't answer, or refuses.
        NO_NODES: no node has published a record.
    """
    path = CONFIGMAPS_PATH.format(namespace)
    try:
        items = list(_maps(server, path, node))
    except ApiProblem as problem:
        raise NO_CLUSTER(
            f"the nodes' records can't be read: {problem}",
            f"Check that KUBECONFIG is right, and that you may list configmaps in the namespace {namespace}.",
            key="--cluster",
        ) from problem
    if not items:
        raise NO_NODES(
            f"no node has published a record in the namespace {namespace}" + (f" as {node}" if node else ""),
            "Add the component `node-record` to the device plugin's kustomization; another namespace is given with "
            "--namespace.",
            key="--cluster",
        )
    records = (item for item in items if isinstance(part(item, "data").get("node"), str))
    return sorted(map(_candidate, records), key=lambda candidate: candidate.name)


def _maps(server: Api, path: str, node: str | None) -> Iterator[Json]:
    if node is None:
        yield from map(part, items_of(server.list(path, whole, labelSelector=RECORD_SELECTOR)))
        return
    try:
        yield server.get(f"{path}/{RECORD_NAME}{node}")
    except ApiProblem as problem:
        if problem.status != _NOT_FOUND:
            raise


def _candidate(item: Json) -> CandidateNode | UnknownNode:
    """The node of a record, which only a node's own token may write under the node's name."""
    data, written_as = part(item, "data"), str(part(item, "metadata").get("name"))
    name = str(data["node"])
    try:
        if written_as != RECORD_NAME + name:
            raise BAD_NODE_RECORD(
                f"the record in the ConfigMap {written_as} is that of {name}: a node's is in {RECORD_NAME}{name}",
                "Remove that ConfigMap, and see who wrote it: kubectl get configmap -o yaml --show-managed-fields.",
                file=written_as,
            )
        if not isinstance(data.get("record"), str):
            problem = data.get("problem") or "there is no record"
            raise BAD_NODE_RECORD(
                f"{name} has published no record to rehearse on: {problem}",
                "See the log of its device plugin; give a snapshot of the node with --nodes.",
                file=name,
            )
        return CandidateNode(read_record(unpack(data["record"], name), name))
    except LauncherkitError as error:
        return UnknownNode(name, error)
