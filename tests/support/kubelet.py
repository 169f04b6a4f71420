"""A kubelet as device plugins see it, strict where the real one is, by Google's gRPC: another one than the plugin's.

It keeps the state of the real device manager: who has what survives its restarts, what it was told of resources does
not. All calls block, with a generous deadline.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from launcherkit.rpc.proto import podresources_v1_pb2 as podresources
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire

PATIENCE = 60.0
"""Seconds before a test gives up; nothing here should take one."""

DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
EXTENDED_RESOURCE = re.compile(rf"{DOMAIN}/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
CHECKPOINT = "kubelet_internal_checkpoint"
SOCKET_PATH_BYTES = 107

Answer = TypeVar("Answer", bound=Message)


class Holding(NamedTuple):
    """What a container has of a resource."""

    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: wire.ContainerAllocateResponse


class NotAdmitted(Exception):
    """The pod is turned away: too few healthy devices, or the plugin has said no."""


class Kubelet:
    """A kubelet with its folder; `start` and `stop` it as often as you like."""

    def __init__(self, folder: Path, *, versions: Sequence[str] = ("v1beta1",)) -> None:
        """``folder`` is what ``--kubelet-dir`` names."""
        self.plugins = folder / "device-plugins"
        self.plugins.mkdir(parents=True, exist_ok=True)
        self._pod_resources = folder / "pod-resources"
        self._pod_resources.mkdir(exist_ok=True)
        self._versions = versions
        self._change = threading.Condition()
        self._server: grpc.Server | None = None
        self._endpoints: dict[str, _Endpoint] = {}
        self.holdings: list[Holding] = []
        self.others: list[tuple[str, str]] = []
        """Pods without a device, by namespace and name."""
        self.admitting = ""
        """The pod that is being admitted, which is listed without a device before the plugin is asked."""
        self.registrations: list[str] = []
        """Every resource name that was taken, in order, over all restarts."""
        self.forgetful = False
        """Takes registrations, and does nothing with them."""
        self.complaints: list[str] = []
        """What a plugin has done that the real kubelet would choke on."""
        self.asked_for_pods = 0
        """How often the plugin has asked who has what."""
        self.last_lists: dict[str, dict[str, bool]] = {}
        """The last list of devices that came for a resource, over all restarts."""

    # Its life

    def start(self) -> None:
        """Remove whatever is in the folder, as the real one does, and serve."""
        assert self._server is None
        for path in self.plugins.iterdir():
            if path.name != CHECKPOINT:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (self._pod_resources / "kubelet.sock").unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(8))
        register = grpc.unary_unary_rpc_method_handler(
            self._register, wire.RegisterRequest.FromString, wire.Empty.SerializeToString
        )
        listing = grpc.unary_unary_rpc_method_handler(
            self._list, podresources.ListPodResourcesRequest.FromString, _serialized
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register}),
                grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": listing}),
            )
        )
        server.add_insecure_port(f"unix:{self._pod_resources / 'kubelet.sock'}")
        server.add_insecure_port(f"unix:{self.plugins / 'kubelet.sock'}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """Vanish: every connection breaks. The pods run on."""
        assert self._server is not None
        server, self._server = self._server, None
        server.stop(0).wait(PATIENCE)
        with self._change:
            endpoints, self._endpoints = list(self._endpoints.values()), {}
        for endpoint in endpoints:
            endpoint.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    # What it knows of resources

    def devices(self, resource: str) -> dict[str, bool]:
        """Each device, and whether it is healthy; nothing where the plugin has gone."""
        with self._change:
            endpoint = self._endpoints.get(resource)
            return dict(endpoint.devices) if endpoint else {}

    def topology(self, resource: str) -> dict[str, int]:
        """NUMA nodes of the devices that have one."""
        with self._change:
            return dict(self._endpoints[resource].numa)

    def capacity(self, resource: str) -> int:
        return len(self.devices(resource))

    def allocatable(self, resource: str) -> int:
        return sum(self.devices(resource).values())

    def resources(self) -> set[str]:
        with self._change:
            return set(self._endpoints)

    def pushes(self, resource: str) -> int:
        """How many lists of devices have come from the plugin that serves it now."""
        with self._change:
            return self._endpoints[resource].pushes

    def wait(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait until something holds of this kubelet."""
        with self._change:
            assert self._change.wait_for(condition, PATIENCE), what or f"complaints: {self.complaints}"

    def wait_for(self, resource: str, devices: Mapping[str, bool] | None = None) -> None:
        """Wait until a resource is there, with exactly these devices if they are given."""
        self.wait(
            lambda: (
                resource in self._endpoints
                and self._endpoints[resource].pushes
                and (devices is None or self._endpoints[resource].devices == devices)
            ),
            f"{resource}: {devices} wanted, {self.devices(resource)} there; complaints: {self.complaints}",
        )

    def drop_streams(self) -> None:
        """Close every ListAndWatch, and nothing else."""
        with self._change:
            endpoints = list(self._endpoints.values())
        for endpoint in endpoints:
            endpoint.close()

    # Pods

    def admit(self, pod: str, requests: Iterable[tuple[str, str, int]]) -> list[Holding]:
        """Admit a pod and start its containers: (container, resource, count) each.

        Raises:
            NotAdmitted: it has nothing then.
        """
        given: list[Holding] = []
        self.admitting = pod
        try:
            for container, resource, count in requests:
                holding = self._allocate(pod, container, resource, count)
                given.append(holding)
                self.holdings.append(holding)
            self.admitting = ""
            for holding in given:
                self.start_container(holding)
        except NotAdmitted:
            self.admitting = ""
            self.delete(pod)
            raise
        return given

    def start_container(self, holding: Holding) -> None:
        """What comes before each start of a container, the first and every later one."""
        endpoint = self._endpoint(holding.resource)
        if endpoint.options.pre_start_required:
            endpoint.call("PreStartContainer", wire.PreStartContainerRequest(devices_ids=holding.ids), wire.Empty)

    def delete(self, pod: str) -> None:
        """The pod's devices are free again; the plugin isn't told."""
        self.holdings = [holding for holding in self.holdings if holding.pod != pod]

    def call(self, resource: str, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Any call of a plugin.

        Raises:
            NotAdmitted: with the plugin's status and message.
        """
        return self._endpoint(resource).call(method, request, answer)

    def call_allocate(self, resource: str, *containers: Sequence[str]) -> wire.AllocateResponse:
        """Allocate for containers, whatever this kubelet thinks of it.

        Raises:
            NotAdmitted: with the plugin's status and message.
        """
        asked = [wire.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        request = wire.AllocateRequest(container_requests=asked)
        return self._endpoint(resource).call("Allocate", request, wire.AllocateResponse)

    def _allocate(self, pod: str, container: str, resource: str, count: int) -> Holding:
        endpoint = self._endpoint(resource)
        taken = {device for holding in self.holdings if holding.resource == resource for device in holding.ids}
        free = sorted(device for device, healthy in self.devices(resource).items() if healthy and device not in taken)
        if len(free) < count:
            raise NotAdmitted(f"requested: {count}, available: {len(free)}")
        chosen = free[:count]
        if endpoint.options.get_preferred_allocation_available:
            asked = wire.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=count)
            preferred = endpoint.call(
                "GetPreferredAllocation",
                wire.PreferredAllocationRequest(container_requests=[asked]),
                wire.PreferredAllocationResponse,
            )
            (one,) = preferred.container_responses
            wanted = list(one.deviceIDs)
            if len(set(wanted)) != len(wanted) or not set(wanted) <= set(free) or len(wanted) > count:
                self.complaints.append(f"{resource}: {count} of {free} preferred as {wanted}")
            chosen = [*wanted, *(device for device in free if device not in wanted)][:count]
        request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=chosen)])
        answer = endpoint.call("Allocate", request, wire.AllocateResponse)
        (response,) = answer.container_responses
        self._look_at(resource, response)
        return Holding(pod, container, resource, tuple(chosen), response)

    def _look_at(self, resource: str, answer: wire.ContainerAllocateResponse) -> None:
        paths = [device.container_path for device in answer.devices]
        if len(set(paths)) != len(paths):
            self.complaints.append(f"{resource}: a device node more than once: {paths}")
        for device in answer.devices:
            absolute = device.host_path.startswith("/") and device.container_path.startswith("/")
            if not absolute or not device.permissions or not set(device.permissions) <= set("mrw"):
                self.complaints.append(f"{resource}: no device that a runtime takes: {device}")

    def _endpoint(self, resource: str) -> _Endpoint:
        with self._change:
            endpoint = self._endpoints.get(resource)
        if endpoint is None:
            raise NotAdmitted(f"can't allocate unregistered device {resource}")
        return endpoint

    # Registration

    def _register(self, request: wire.RegisterRequest, context: grpc.ServicerContext) -> wire.Empty:
        wrong = self._what_is_wrong(request)
        if wrong:
            context.abort(grpc.StatusCode.UNKNOWN, wrong)
        endpoint = _Endpoint(self, request)
        with self._change:
            self.registrations.append(request.resource_name)
            self._change.notify_all()
            if self.forgetful:
                endpoint.close()
                return wire.Empty()
            self._endpoints[request.resource_name] = endpoint  # the old one's stream goes on, and counts no more
            self._change.notify_all()
        endpoint.thread.start()
        return wire.Empty()

    def _what_is_wrong(self, request: wire.RegisterRequest) -> str:
        name = request.resource_name
        if request.version not in self._versions:
            known = ", ".join(self._versions)
            return f'requested API version "{request.version}" is not supported by kubelet. Supported versions: {known}'
        if not EXTENDED_RESOURCE.fullmatch(name) or name.split("/")[0].endswith("kubernetes.io"):
            return f'the ResourceName "{name}" is invalid'
        if not request.endpoint or "/" in request.endpoint or request.endpoint == "kubelet.sock":
            return f'the endpoint "{request.endpoint}" is not the name of a socket of a plugin'
        if len(str(self.plugins / request.endpoint).encode()) > SOCKET_PATH_BYTES:
            return f'the endpoint "{request.endpoint}" makes a path that is too long'
        if len(UnknownFieldSet(request)):
            return "the request has fields that nobody knows"
        return ""

    def _list(self, _: object, context: grpc.ServicerContext) -> podresources.ListPodResourcesResponse:
        answer = podresources.ListPodResourcesResponse()
        with self._change:
            self.asked_for_pods += 1
            self._change.notify_all()
        for namespace, name in self.others:
            answer.pod_resources.add(name=name, namespace=namespace)
        for pod in dict.fromkeys(filter(None, (*(holding.pod for holding in self.holdings), self.admitting))):
            entry = answer.pod_resources.add(name=pod, namespace="default")
            for holding in self.holdings:
                if holding.pod == pod:
                    container = entry.containers.add(name=holding.container)
                    container.devices.add(resource_name=holding.resource, device_ids=holding.ids)
        return answer

    def changed(self, endpoint: _Endpoint, response: wire.ListAndWatchResponse) -> None:
        """A list has come; of an endpoint's own thread."""
        ids = [device.ID for device in response.devices]
        with self._change:
            if len(set(ids)) != len(ids) or not all(ids):
                self.complaints.append(f"{endpoint.resource}: IDs {ids}")
            if not {device.health for device in response.devices} <= {"Healthy", "Unhealthy"}:
                self.complaints.append(f"{endpoint.resource}: health {response.devices}")
            endpoint.devices = {device.ID: device.health == "Healthy" for device in response.devices}
            endpoint.numa = {device.ID: node.ID for device in response.devices for node in device.topology.nodes}
            endpoint.pushes += 1
            self.last_lists[endpoint.resource] = endpoint.devices
            self._change.notify_all()

    def left(self, endpoint: _Endpoint) -> None:
        """A stream has ended: its devices can't be had any more."""
        with self._change:
            endpoint.devices = dict.fromkeys(endpoint.devices, False)
            if self._endpoints.get(endpoint.resource) is endpoint:
                del self._endpoints[endpoint.resource]
            self._change.notify_all()


class _Endpoint:
    """A plugin's socket, which the kubelet dials when the plugin registers."""

    def __init__(self, kubelet: Kubelet, request: wire.RegisterRequest) -> None:
        self._kubelet = kubelet
        self.resource = request.resource_name
        self.options = request.options
        self.devices: dict[str, bool] = {}
        self.numa: dict[str, int] = {}
        self.pushes = 0
        self._channel = grpc.insecure_channel(f"unix:{kubelet.plugins / request.endpoint}", [(_OWN_POOL, 1)])
        self._stream: Any = None
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def stub(self, method: str, answer: type[Answer]) -> Callable[..., Any]:
        return self._channel.unary_unary(  # type: ignore[no-any-return]
            f"/v1beta1.DevicePlugin/{method}", request_serializer=_serialized, response_deserializer=answer.FromString
        )

    def call(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        try:
            result: Answer = self.stub(method, answer)(request, timeout=PATIENCE)
        except grpc.RpcError as refusal:
            raise NotAdmitted(f"{refusal.code().name}: {refusal.details()}") from refusal
        except ValueError as closed:  # the kubelet was stopped in between
            raise NotAdmitted(str(closed)) from closed
        return result

    def _watch(self) -> None:
        try:
            # A closed channel ends this call, however long the plugin has been gone.
            ask = self.stub("GetDevicePluginOptions", wire.DevicePluginOptions)
            options = ask(wire.Empty(), timeout=PATIENCE, wait_for_ready=True)
            if options != self.options:
                self._kubelet.complaints.append(f"{self.resource}: registered with {self.options}, then says {options}")
            self._stream = self._channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch",
                request_serializer=_serialized,
                response_deserializer=wire.ListAndWatchResponse.FromString,
            )(wire.Empty())
            for response in self._stream:
                self._kubelet.changed(self, response)
        except (grpc.RpcError, ValueError):
            pass  # it has gone, or we have
        finally:
            self._kubelet.left(self)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self._channel.close()
        with suppress(RuntimeError):
            self.thread.join(PATIENCE)


_OWN_POOL = "grpc.use_local_subchannel_pool"  # else a connection outlives its channel, and the next one gets it


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


@contextmanager
def running_kubelet(folder: Path) -> Iterator[Kubelet]:
    """A kubelet that runs, and that has had nothing to complain of in the end."""
    kubelet = Kubelet(folder)
    kubelet.start()
    try:
        yield kubelet
        assert kubelet.complaints == []
    finally:
        with suppress(AssertionError):
            kubelet.stop()
