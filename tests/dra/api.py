"""An API server's ResourceSlices and ResourceClaims of one node, and what it refuses of them."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.dra.limits import LABEL, SUBDOMAIN, wrong_in_slice
from tests.support.waiting import PATIENCE

NODE = "node-1"
OPAQUE_BYTES = 10 * 1024


class Refused(Exception):
    """422, 404 or 409, as text."""


class Api:
    """Objects as they would be in etcd; whoever reads gets copies."""

    def __init__(self, node: str = NODE) -> None:
        self.node = node
        self._change = threading.Condition(threading.RLock())
        self._slices: dict[str, dict[str, Any]] = {}
        self._claims: dict[tuple[str, str], dict[str, Any]] = {}
        self._made = 0
        self.writes = 0
        """Of slices: how many were created, replaced or deleted by a driver."""
        self.wiped: list[str] = []
        """Names of drivers whose slices the kubelet has deleted; empty where it was those of all."""
        self._watchers: list[Callable[[], None]] = []

    # Slices

    def replace_slices(self, driver: str, specs: Sequence[Mapping[str, Any]]) -> None:
        """Make these a driver's slices on the node.

        Raises:
            Refused: one is invalid; none has changed then.
        """
        wrong = [f"{index}: {text}" for index, spec in enumerate(specs) for text in wrong_in_slice(spec)]
        with self._change:
            if wrong:
                raise Refused("; ".join(wrong))
            self.writes += 1
            self._slices = {name: one for name, one in self._slices.items() if one["spec"]["driver"] != driver}
            for index, spec in enumerate(specs):
                name = f"{index:x}-{driver}-{self.node}-{self._number():05d}"
                self._slices[name] = {"metadata": {"name": name}, "spec": json.loads(json.dumps(spec))}
            self._change.notify_all()

    def wipe(self, driver: str = "") -> None:
        """The kubelet deletes slices of its node: those of a driver, or all."""
        with self._change:
            self.wiped.append(driver)
            self._slices = {
                name: one for name, one in self._slices.items() if driver and one["spec"]["driver"] != driver
            }
            self._change.notify_all()
        for tell in list(self._watchers):
            tell()

    def watch(self, tell: Callable[[], None]) -> None:
        """Call something whenever slices are wiped."""
        self._watchers.append(tell)

    def slices(self, driver: str = "") -> list[dict[str, Any]]:
        """The specs of slices, in the order of their names."""
        with self._change:
            found = [self._slices[name]["spec"] for name in sorted(self._slices)]
            return copy.deepcopy([spec for spec in found if not driver or spec["driver"] == driver])

    def devices(self, driver: str = "") -> dict[str, dict[str, Any]]:
        """The devices of all slices, by name."""
        return {device["name"]: device for spec in self.slices(driver) for device in spec.get("devices", ())}

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something holds of these objects."""
        with self._change:
            assert self._change.wait_for(condition, PATIENCE), f"never saw {what}; slices: {self._slices}"

    def touch(self) -> None:
        """Let whoever waits look again."""
        with self._change:
            self._change.notify_all()

    # Claims

    def create_claim(
        self,
        name: str,
        requests: Sequence[Mapping[str, Any]],
        *,
        config: Sequence[Any] = (),
        constraints: Sequence[Any] = (),
        pod_claim: str = "",
    ) -> dict[str, Any]:
        """A claim, which nothing is allocated to yet.

        Args:
            name: of the claim.
            requests: as in `requested`.
            config: ``{"requests": [...], "opaque": {"driver": ..., "parameters": {...}}}``.
            constraints: ``{"requests": [...], "matchAttribute": "..."}``.
            pod_claim: of the pod's entry, for one that is made from a template.

        Raises:
            Refused: there is one of that name, or it is invalid.
        """
        if (
            not SUBDOMAIN.fullmatch(name)
            or len(name) > 253
            or any(not LABEL.fullmatch(request["name"]) for request in requests)
        ):
            raise Refused(f"names: {name}, {requests}")
        if any(len(json.dumps(one["opaque"]["parameters"])) > OPAQUE_BYTES for one in config):
            raise Refused("opaque parameters are too long")
        names = {request["name"] for request in requests}
        for one in constraints:
            if not names.issuperset(one["requests"]) or "/" not in one["matchAttribute"]:
                raise Refused(f"constraint: {one}")
        with self._change:
            if ("default", name) in self._claims:
                raise Refused(f"resourceclaims {name!r} already exists")
            number = self._number()
            annotations = {"resource.kubernetes.io/pod-claim-name": pod_claim} if pod_claim else {}
            metadata = {"name": name, "namespace": "default", "uid": f"{number:08d}-aaaa-4bbb-8ccc-000000000000"}
            claim = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {**metadata, "annotations": annotations, "generation": 1, "resourceVersion": str(number)},
                "spec": {
                    "devices": {"requests": list(requests), "config": list(config), "constraints": list(constraints)}
                },
                "status": {},
            }
            self._claims["default", name] = claim
            return copy.deepcopy(claim)

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """Raises Refused where there is none."""
        with self._change:
            if (namespace, name) not in self._claims:
                raise Refused(f'resourceclaims.resource.k8s.io "{name}" not found')
            return copy.deepcopy(self._claims[namespace, name])

    def claims(self) -> list[dict[str, Any]]:
        with self._change:
            return copy.deepcopy(list(self._claims.values()))

    def delete_claim(self, name: str) -> None:
        with self._change:
            self._claims.pop(("default", name), None)
            self._change.notify_all()

    def set_status(self, name: str, status: Mapping[str, Any]) -> None:
        """What the scheduler and the claim controller write."""
        with self._change:
            self._claims["default", name]["status"] = copy.deepcopy(dict(status))
            self._change.notify_all()

    def set_device_status(self, value: Mapping[str, Any]) -> None:
        """What a driver writes of its devices, as the message ``claim-status`` has it.

        Raises:
            Refused: there is no such claim, or its allocation has no such device.
        """
        with self._change:
            claim = self._claims.get((value["namespace"], value["name"]))
            if claim is None or claim["metadata"]["uid"] != value["uid"]:
                raise Refused(f"resourceclaims {value['name']} of UID {value['uid']} not found")
            allocated = {key_of(result) for result in results_of(claim)}
            for device in value["devices"]:
                if key_of(device) not in allocated:
                    raise Refused(f"status.devices: {key_of(device)} is not allocated: {sorted(allocated)}")
                if wrong := [one for one in device.get("conditions", ()) if not _is_condition(one)]:
                    raise Refused(f"status.devices: conditions {wrong}")
                if len(json.dumps(device.get("data") or {})) > OPAQUE_BYTES:
                    raise Refused("status.devices: data is too long")
            claim["status"]["devices"] = copy.deepcopy(list(value["devices"]))
            self._change.notify_all()

    def _number(self) -> int:
        self._made += 1
        return self._made


def results_of(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The devices that are allocated to a claim."""
    found: list[dict[str, Any]] = ((claim["status"].get("allocation") or {}).get("devices") or {}).get("results", [])
    return found


def key_of(device: Mapping[str, Any]) -> tuple[str, str, str]:
    """A device of an allocation, or of a status: driver, pool, name."""
    return device["driver"], device["pool"], device["device"]


def _is_condition(condition: Mapping[str, Any]) -> bool:
    """As `metav1.Condition` has it."""
    needed = {"type", "status", "reason", "lastTransitionTime"}
    return needed <= condition.keys() and condition["status"] in ("True", "False", "Unknown") and "message" in condition
