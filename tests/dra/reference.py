"""The least that a DRA driver is, by Google's gRPC: the double is tested with it. It does wrong where it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.dra import wire
from tests.dra.api import Api, Refused, key_of, results_of

DRIVER = "gpu.example.com"
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")


class Reference:
    """A driver for some devices; ``start`` and ``stop`` it.

    Args:
        folder: the kubelet's.
        cdi: folder of CDI files.
        api: where claims are read, directly.
        instance: part of the sockets' names, for two at a time.
    """

    def __init__(
        self, folder: Path, cdi: Path, api: Api, *, versions: Sequence[str] = VERSIONS, instance: str = ""
    ) -> None:
        self.endpoint = folder / "plugins" / DRIVER / f"dra{instance}.sock"
        self.registration = folder / "plugins_registry" / f"{DRIVER}{instance}-reg.sock"
        self._cdi = cdi
        self._api = api
        self._versions = versions
        self.kind = "DRAPlugin"
        self.notified: list[tuple[bool, str]] = []
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        """Method and names of claims."""
        self.error = ""
        """What Prepare and Unprepare answer."""
        self.skips = False
        """Leaves out every claim of the answer."""
        self.answer_for_other = False
        """Answers for a claim that nobody asked for."""
        self.credulous = False
        """Prepares whatever it is asked for, and fails for what it hasn't prepared."""
        self.keeps_files = False
        """Unprepare leaves the CDI file."""
        self.nodes: Sequence[str] = ()
        """Of whatever is prepared."""
        self.request_suffix = ""
        self.cdi_suffix = ""
        self.slow = threading.Event()
        """While it is not set Prepare waits."""
        self.slow.set()
        self._servers: list[grpc.Server] = []
        self._held: dict[str, set[tuple[str, str, str]]] = {}
        self._ending = threading.Event()

    def start(self) -> None:
        """Serve ``dra.sock`` first, then the registration."""
        self._ending.clear()
        self._cdi.mkdir(exist_ok=True)
        services = [
            self._service(f"{wire.DRA}.{version}.DRAPlugin", f"{wire.DRA}.{version}", method, self._answer)
            for version in ("v1", "v1beta1")
            for method in ("NodePrepareResources", "NodeUnprepareResources")
        ]
        health = grpc.unary_stream_rpc_method_handler(
            self._health,
            wire.message("v1alpha1", "NodeWatchResourcesRequest").FromString,
            lambda answer: answer.SerializeToString(),
        )
        services.append(("v1alpha1.DRAResourceHealth", "NodeWatchResources", health))
        self._serve(self.endpoint, services)
        handlers = {
            "GetInfo": ("InfoRequest", self._info),
            "NotifyRegistrationStatus": ("RegistrationStatus", self._note),
        }
        self._serve(
            self.registration,
            [
                ("pluginregistration.Registration", method, _unary(wire.message("pluginregistration", asked), answer))
                for method, (asked, answer) in handlers.items()
            ],
        )

    def stop(self) -> None:
        """As on SIGTERM: the sockets are removed."""
        self.registration.unlink(missing_ok=True)
        self.vanish()
        self.endpoint.unlink(missing_ok=True)

    def vanish(self) -> None:
        """Every connection breaks."""
        self._ending.set()
        servers, self._servers = self._servers, []
        for server in servers:
            server.stop(0).wait()

    def _serve(self, path: Path, services: Sequence[tuple[str, str, Any]]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(8))
        by_name: dict[str, dict[str, Any]] = {}
        for name, method, handler in services:
            by_name.setdefault(name, {})[method] = handler
        server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in by_name.items())
        )
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    def _service(self, service: str, package: str, method: str, answer: Any) -> tuple[str, str, Any]:
        handler = _unary(wire.message(package, f"{method}Request"), lambda request, _: answer(package, method, request))
        return service, method, handler

    def _info(self, *_: object) -> Any:
        return wire.message("pluginregistration", "PluginInfo")(
            type=self.kind, name=DRIVER, endpoint=str(self.endpoint), supported_versions=self._versions
        )

    def _note(self, status: Any, _: object) -> Any:
        self.notified.append((status.plugin_registered, status.error))
        return wire.message("pluginregistration", "RegistrationStatusResponse")()

    def _answer(self, package: str, method: str, request: Any) -> Any:
        self.calls.append((method, tuple(claim.name for claim in request.claims)))
        self.slow.wait()
        answer = wire.message(package, f"{method}Response")()
        for claim in request.claims:
            if self.skips:
                continue
            entry = answer.claims.add(key="other" if self.answer_for_other else claim.uid)
            entry.value.error = self.error
            if self.error:
                continue
            file = self._cdi / f"{DRIVER}_{claim.uid}.json"
            if "Unprepare" in method:
                entry.value.error = "not prepared" if self.credulous and claim.uid not in self._held else ""
                self._held.pop(claim.uid, None)
                if not self.keeps_files:
                    file.unlink(missing_ok=True)
                continue
            found = self._found(claim)
            results = results_of(found) if found else []
            devices = {key_of(result) for result in results}
            others = {key for uid, keys in self._held.items() if uid != claim.uid for key in keys}
            if not self.credulous and (not devices or found["metadata"]["uid"] != claim.uid or devices & others):
                entry.value.error = "it is not allocated, or something else is"
                continue
            self._held[claim.uid] = devices
            beside = self._cdi / f".{threading.get_ident()}"  # a call may come while an earlier one goes on
            beside.write_text(json.dumps(self._cdi_file(claim.uid, results)))
            beside.replace(file)
            for number, result in enumerate(results):
                entry.value.devices.add(
                    request_names=[result["request"].partition("/")[0] + self.request_suffix],
                    pool_name=result["pool"],
                    device_name=result["device"],
                    cdi_device_ids=[f"{DRIVER}/claim={claim.uid}-{number}{self.cdi_suffix}"],
                )
        return answer

    def _found(self, claim: Any) -> dict[str, Any]:
        try:
            return self._api.claim(claim.namespace, claim.name)
        except Refused:
            return {}

    def _cdi_file(self, uid: str, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
        devices = [
            {
                "name": f"{uid}-{number}",
                "containerEdits": {
                    "env": [f"DEVICE_{number}={result['device']}"],
                    "deviceNodes": [{"path": path} for path in self.nodes],
                },
            }
            for number, result in enumerate(results)
        ]
        return {"cdiVersion": "0.5.0", "kind": f"{DRIVER}/claim", "devices": devices}

    def _health(self, *_: object) -> Iterator[Any]:
        answer = wire.message("v1alpha1", "NodeWatchResourcesResponse")()
        device = answer.devices.add(health=wire.UNHEALTHY, message="it smokes")
        device.device.pool_name, device.device.device_name = self._api.node, "gpu-0"
        yield answer
        self._ending.wait()


def _unary(asked: Any, answer: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(answer, asked.FromString, lambda message: message.SerializeToString())


def slice_of(*devices: dict[str, Any], generation: int = 1, count: int = 1, node: str = "node-1") -> dict[str, Any]:
    """A ResourceSlice's spec of this driver."""
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    return {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(devices)}


@contextmanager
def running_reference(folder: Path, cdi: Path, api: Api, **options: Any) -> Iterator[Reference]:
    """A driver that serves, and has gone afterwards."""
    driver = Reference(folder, cdi, api, **options)
    driver.start()
    try:
        yield driver
    finally:
        driver.slow.set()
        driver.stop()
