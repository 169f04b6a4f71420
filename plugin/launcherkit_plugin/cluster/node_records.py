"""Writes the record of this node to a ConfigMap in the plugin's namespace, for `launcherkit rehearse --cluster`."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from launcherkit.errors import shown
from launcherkit_plugin.cluster.api import Api
from launcherkit_plugin.cluster.publisher import owner_of
from launcherkit_plugin.telemetry.reporter import Reporter

CONFIGMAPS_PATH = "/api/v1/namespaces/{}/configmaps"
NAME = "launcherkit-node-"
"""The name of the ConfigMap, without the node's name at its end."""
LABEL = "launcherkit.io/record"
_KIND = "node"
SELECTOR = f"{LABEL}={_KIND}"
_MANAGER = "launcherkit-plugin"


def wanted_record(value: object) -> dict[str, str]:
    """The data in a message ``node-record``: a record, or why there is none.

    Raises:
        ValueError: the message is invalid.
    """
    match value:
        case {"record": str(text), **others} if not others:
            return {"record": text}
        case {"problem": str(text), **others} if not others:
            return {"problem": text}
    raise ValueError(f"node-record: {shown(value)} has neither a record nor a problem")


class NodeRecordWriter:
    """Writes the record of one node.

    Args:
        server: the API server.
        node: the node's name.
        namespace: of the ConfigMap.
        reporter: logs each writing.
    """

    def __init__(self, server: Api, node: str, namespace: str, reporter: Reporter) -> None:
        self._server = server
        self._node = node
        self._namespace = namespace
        self._reporter = reporter
        self._some = threading.Condition()
        self._wanted: Mapping[str, str] | None = None
        self._written: Mapping[str, str] | None = None

    def want(self, data: Mapping[str, str]) -> None:
        """Set the data to write."""
        with self._some:
            self._wanted = data
            self._some.notify_all()

    def write(self) -> bool:
        """Wait until the data differs from what was written, and write it. Returns True: there may be more.

        Raises:
            ApiProblem: the server doesn't answer, or refuses it.
        """
        with self._some:
            self._some.wait_for(lambda: self._wanted != self._written)
            wanted = self._wanted
        assert wanted is not None
        name = NAME + self._node
        owner = {key: value for key, value in owner_of(self._server, self._node).items() if key != "controller"}
        metadata = {"name": name, "namespace": self._namespace, "labels": {LABEL: _KIND}, "ownerReferences": [owner]}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"node": self._node, **wanted}}
        self._server.apply(f"{CONFIGMAPS_PATH.format(self._namespace)}/{name}", body, _MANAGER)
        self._written = wanted
        self._reporter.log("info", f"the node's record is in the ConfigMap {self._namespace}/{name}")
        return True
