"""A node with a DRA driver: its process, its sockets as the kubelet has them, slices and claims in the API, CDI."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from launcherkit_lab.api import Api, ApiError
from launcherkit_lab.conformance.cdi import Edits, edits
from launcherkit_lab.conformance.driver import Driver
from launcherkit_lab.conformance.expectation import NotTried, Unmet
from launcherkit_lab.conformance.machine import Machine
from launcherkit_lab.conformance.node import Limits, start
from launcherkit_lab.dra_socket import KNOWN, CallFailed, ClaimRef, DriverSocket, Prepared, register, sockets
from launcherkit_lab.kubelet import Kubelet

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_LOOK_SECONDS = 0.05
Found = TypeVar("Found")
Device = Mapping[str, Any]
"""As a ResourceSlice has it."""
Key = tuple[str, str]
"""A pool's name and a device's."""


@dataclass
class DraNode:
    """What the expectations of DRA drivers are tried on.

    Args:
        kubelet: the folder that is ``/var/lib/kubelet`` on a node; no other driver may be registered in it.
        cdi: where the runtime looks for CDI files.
        name: the Node's, by which the driver publishes.
        namespace: for claims; it has to be there.
    """

    driver: Driver
    machine: Machine
    api: Api
    kubelet: Path
    cdi: Path
    name: str
    namespace: str = "default"
    limits: Limits = field(default_factory=Limits)
    _socket: DriverSocket | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """The rest of a kubelet serves meanwhile, which says who has what, and drivers' sockets have their folder; in
        the end the driver is gone, too.

        Raises:
            CannotServe: it can't.
        """
        kubelet = Kubelet(self.kubelet, patience=self.limits.patience)
        start(kubelet)
        self.registry.mkdir(parents=True, exist_ok=True)
        try:
            yield
        finally:
            self.driver.kill()
            kubelet.stop()

    def prepare(self) -> None:
        """See `launcherkit_lab.conformance.trial.Prepared`."""
        had = self._socket
        try:
            self.start()
        except (TimeoutError, Unmet) as error:
            raise Unmet(str(error)) if had is None else NotTried(str(error)) from error

    def complaints(self) -> Sequence[str]:
        return ()

    def position(self) -> int:
        return self.driver.position()

    def said_since(self, position: int, lines: int) -> str:
        return self.driver.said_since(position, lines)

    @property
    def registry(self) -> Path:
        return self.kubelet / "plugins_registry"

    @property
    def socket(self) -> DriverSocket:
        assert self._socket is not None
        return self._socket

    def wait(self, look: Callable[[], Found | None], event: str, seconds: float | None = None) -> Found:
        """What something finds, once it does.

        Raises:
            TimeoutError: it never has.
        """
        deadline = time.monotonic() + (self.limits.patience if seconds is None else seconds)
        problem = ""
        while time.monotonic() < deadline:
            try:
                if seen := look():
                    return seen
            except CallFailed as error:
                problem = f": {error}"
            if not self.driver.running:
                raise TimeoutError(f"never saw {event}, and the driver has ended")
            time.sleep(_LOOK_SECONDS)
        raise TimeoutError(f"never saw {event}{problem}")

    def start(self) -> None:
        """Start the driver, unless it runs, till it is registered and has published a device."""
        if not self.driver.running or self._socket is None:
            self.driver.start()
            self._socket = self.wait(self._registered, f"a socket in {self.registry} that answers")
        self.wait(self.devices, f"a ResourceSlice of {self.socket.name} for {self.name} with a device")

    def _registered(self) -> DriverSocket | None:
        """Register what serves on a socket, as the kubelet does; one that was left behind doesn't answer."""
        failed: CallFailed | None = None
        for path in sockets(self.registry):
            try:
                return register(path)
            except CallFailed as error:
                failed = error
        if failed:
            raise failed
        return None

    def version(self) -> str:
        """The service that a kubelet calls.

        Raises:
            Unmet: there is none.
        """
        for version in self.socket.versions:
            if version in KNOWN:
                return version
        raise Unmet(f"it has {', '.join(self.socket.versions) or 'no version'}; kubelets know {' and '.join(KNOWN)}")

    # What it publishes

    def _published(self) -> list[dict[str, Any]]:
        query = f"fieldSelector=spec.nodeName%3D{self.name},spec.driver%3D{self.socket.name}"
        items: list[dict[str, Any]] = self.api.ask("GET", f"{_SLICES}?{query}")["items"]
        return items

    def slices(self) -> dict[str, list[dict[str, Any]]]:
        """For each pool the specs of its newest generation."""
        by_pool: dict[str, list[dict[str, Any]]] = {}
        for item in self._published():
            by_pool.setdefault(item["spec"]["pool"]["name"], []).append(item["spec"])
        newest = {name: max(spec["pool"]["generation"] for spec in specs) for name, specs in by_pool.items()}
        return {
            name: [spec for spec in specs if spec["pool"]["generation"] == newest[name]]
            for name, specs in by_pool.items()
        }

    def devices(self) -> dict[Key, Device]:
        specs = [(name, spec) for name, specs in self.slices().items() for spec in specs]
        return {(name, one["name"]): one for name, spec in specs for one in spec.get("devices") or ()}

    def wipe(self) -> None:
        """Delete its slices, as the kubelet does at every start."""
        for item in self._published():
            options = {"preconditions": {"uid": item["metadata"]["uid"]}}
            self.api.ask("DELETE", f"{_SLICES}/{item['metadata']['name']}", options)

    def free(self) -> Key:
        """A device that a scheduler could allocate.

        Raises:
            NotTried: there is none.
        """
        free = [key for key, device in self.devices().items() if not bars_pods(device)]
        if not free:
            raise NotTried("every device has a taint")
        return min(free)

    # Claims

    def _claims(self, name: str = "") -> str:
        return f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims" + (name and f"/{name}")

    @contextmanager
    def claim(self, device: Key | None = None) -> Iterator[ClaimRef]:
        """A claim with a request ``r0``, which has this device; with none it still waits for the scheduler."""
        name = f"lab-{uuid.uuid4().hex[:12]}"
        exactly = {"deviceClassName": "lab", "allocationMode": "ExactCount", "count": 1}
        made = self.api.ask(
            "POST",
            self._claims(),
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"devices": {"requests": [{"name": "r0", "exactly": exactly}]}},
            },
        )
        try:
            if device:
                result = {"request": "r0", "driver": self.socket.name, "pool": device[0], "device": device[1]}
                pod = {"resource": "pods", "name": name, "uid": str(uuid.uuid4())}
                made["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [pod]}
                self.api.ask("PUT", f"{self._claims(name)}/status", made)
            yield ClaimRef(self.namespace, name, made["metadata"]["uid"])
        finally:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Delete a claim, if it is there, whoever has it."""
        with suppress(ApiError):
            claim = self.api.ask("GET", self._claims(name))
            self.api.ask("PUT", f"{self._claims(name)}/status", {**claim, "status": {}})
        with suppress(ApiError):
            self.api.ask("DELETE", self._claims(name), {})

    def prepare_claim(self, claim: ClaimRef, version: str = "") -> tuple[Prepared, ...]:
        """What a claim is given.

        Raises:
            Unmet: an error, or no answer.
        """
        try:
            devices, error = self.socket.prepare(version or self.version(), claim).get(
                claim.uid, ((), "no answer for it")
            )
        except CallFailed as failure:
            raise Unmet(str(failure)) from failure
        if error:
            raise Unmet(f"NodePrepareResources for {claim.name}: {error}")
        return devices

    def unprepare_claim(self, claim: ClaimRef) -> None:
        """Take it back.

        Raises:
            Unmet: an error, or no answer.
        """
        try:
            error = self.socket.unprepare(self.version(), claim).get(claim.uid, "no answer for it")
        except CallFailed as failure:
            raise Unmet(str(failure)) from failure
        if error:
            raise Unmet(f"NodeUnprepareResources for {claim.name}: {error}")

    @contextmanager
    def prepared(self) -> Iterator[tuple[ClaimRef, Key, tuple[Prepared, ...]]]:
        """A claim, its device, and what was prepared for it, which is taken back in the end.

        Raises:
            Unmet: nothing was.
        """
        device = self.free()
        with self.claim(device) as claim:
            try:
                yield claim, device, self.prepare_claim(claim)
            finally:
                with suppress(Unmet):
                    self.unprepare_claim(claim)

    def edits(self, devices: Sequence[Prepared]) -> list[Edits]:
        """What a runtime makes of the CDI devices.

        Raises:
            Unmet: one isn't in exactly one file.
        """
        return edits(self.cdi, (name for device in devices for name in device.cdi))


def bars_pods(device: Device) -> bool:
    """Whether a taint keeps pods away from a device."""
    return any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in device.get("taints") or ())
