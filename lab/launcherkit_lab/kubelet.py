"""A double of the kubelet as device plugins see it, strict where the real one is, by Google's gRPC.

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
from typing import NamedTuple

import grpc
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from launcherkit_lab.endpoint import Answer, Endpoint, NotAdmitted, serialized
from launcherkit_lab.proto import deviceplugin_v1beta1_pb2 as wire
from launcherkit_lab.proto import podresources_v1_pb2 as podresources

__all__ = ["CHECKPOINT", "Holding", "Kubelet", "NotAdmitted", "running_kubelet"]

PATIENCE = 60.0
"""Seconds before it gives up on a plugin; nothing here should take one."""

DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
EXTENDED_RESOURCE = re.compile(rf"{DOMAIN}/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
CHECKPOINT = "kubelet_internal_checkpoint"
SOCKET_PATH_BYTES = 107
"""How long the path of a socket may be (unix(7), `sun_path`)."""


class Holding(NamedTuple):
    """What a container has of a resource."""

    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: wire.ContainerAllocateResponse


class Kubelet:
    """A kubelet with its folder; `start` and `stop` it as often as you like."""

    def __init__(self, folder: Path, *, versions: Sequence[str] = ("v1beta1",), patience: float = PATIENCE) -> None:
        """``folder`` is what is ``/var/lib/kubelet`` on a node; ``patience`` is in seconds."""
        self.plugins = folder / "device-plugins"
        self.plugins.mkdir(parents=True, exist_ok=True)
        self._pod_resources = folder / "pod-resources"
        self._pod_resources.mkdir(exist_ok=True)
        self._versions = versions
        self._patience = patience
        self._change = threading.Condition()
        self._server: grpc.Server | None = None
        self._endpoints: dict[str, Endpoint] = {}
        self.holdings: list[Holding] = []
        self.others: list[tuple[str, str]] = []
        """Pods without a device, by namespace and name."""
        self.admitting = ""
        """The pod that is being admitted, which is listed without a device before the plugin is asked."""
        self.registrations: list[str] = []
        """Every resource name that was taken, in order, over all restarts."""
        self.refusals: list[str] = []
        """Why registrations were not taken."""
        self.ended: list[str] = []
        """The resource of each ListAndWatch that a plugin has ended, in order."""
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
            self._list, podresources.ListPodResourcesRequest.FromString, serialized
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
        server.stop(0).wait(self._patience)
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

    def listed(self, resource: str) -> tuple[str, ...]:
        """The IDs of the last list, as they came."""
        with self._change:
            return self._endpoints[resource].listed

    def options(self, resource: str) -> wire.DevicePluginOptions:
        """What it says of itself when it is dialled."""
        with self._change:
            return self._endpoints[resource].options

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

    def wait(self, condition: Callable[[], object], event: str = "", seconds: float | None = None) -> None:
        """Wait until something holds of this kubelet.

        Raises:
            TimeoutError: it never did, within these seconds or else the kubelet's patience; the text is ``event``.
        """
        with self._change:
            if not self._change.wait_for(condition, self._patience if seconds is None else seconds):
                raise TimeoutError(event or f"complaints: {self.complaints}")

    def wait_for(self, resource: str, devices: Mapping[str, bool] | None = None) -> None:
        """Wait until a resource is there, with exactly these devices if they are given.

        Raises:
            TimeoutError: it never was.
        """
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
        holdings: list[Holding] = []
        self.admitting = pod
        try:
            for container, resource, count in requests:
                holding = self._allocate(pod, container, resource, count)
                holdings.append(holding)
                self.holdings.append(holding)
            self.admitting = ""
            for holding in holdings:
                self.start_container(holding)
        except NotAdmitted:
            self.admitting = ""
            self.delete(pod)
            raise
        return holdings

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
            ids = [device for one in preferred.container_responses[:1] for device in one.deviceIDs]
            if len(set(ids)) != len(ids) or not set(ids) <= set(free) or len(ids) > count:
                self.complaints.append(f"{resource}: {count} of {free} preferred as {ids}")
            chosen = [*ids, *(device for device in free if device not in ids)][:count]
        return self._ask(pod, container, resource, chosen)

    def admit_with(self, pod: str, resource: str, ids: Sequence[str], container: str = "compute") -> Holding:
        """Admit a pod with these very devices, which this kubelet could have chosen.

        Raises:
            NotAdmitted: with the plugin's status and message; the pod has nothing then.
        """
        holding = self._ask(pod, container, resource, ids)
        self.holdings.append(holding)
        try:
            self.start_container(holding)
        except NotAdmitted:
            self.delete(pod)
            raise
        return holding

    def _ask(self, pod: str, container: str, resource: str, chosen: Sequence[str]) -> Holding:
        answer = self.call_allocate(resource, chosen)
        if len(answer.container_responses) != 1:
            self.complaints.append(f"{resource}: {len(answer.container_responses)} answers for one container")
            raise NotAdmitted(self.complaints[-1])
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

    def _endpoint(self, resource: str) -> Endpoint:
        with self._change:
            endpoint = self._endpoints.get(resource)
        if endpoint is None:
            raise NotAdmitted(f"can't allocate unregistered device {resource}")
        return endpoint

    # Registration

    def _register(self, request: wire.RegisterRequest, context: grpc.ServicerContext) -> wire.Empty:
        wrong = self._what_is_wrong(request)
        if wrong:
            self._refuse(wrong, context)
        endpoint = Endpoint(
            self.plugins / request.endpoint,
            request.resource_name,
            patience=self._patience,
            changed=self._changed,
            left=self._left,
        )
        if not self.forgetful:
            try:
                endpoint.connect()
            except NotAdmitted as problem:
                self._refuse(str(problem), context)
        with self._change:
            self.registrations.append(request.resource_name)
            self._change.notify_all()
            if self.forgetful:
                endpoint.close()
                return wire.Empty()
            if old := self._endpoints.get(request.resource_name):  # has what it had, until the new list comes
                endpoint.listed, endpoint.devices, endpoint.numa = old.listed, old.devices, old.numa
            self._endpoints[request.resource_name] = endpoint  # the old one's stream goes on, and counts no more
            self._change.notify_all()
        endpoint.start()
        return wire.Empty()

    def _refuse(self, wrong: str, context: grpc.ServicerContext) -> None:
        """End the call with an error, which abort raises."""
        with self._change:
            self.refusals.append(wrong)
            self._change.notify_all()
        context.abort(grpc.StatusCode.UNKNOWN, wrong)

    def _what_is_wrong(self, request: wire.RegisterRequest) -> str:
        name = request.resource_name
        if request.version not in self._versions:
            versions = ", ".join(self._versions)
            return (
                f'requested API version "{request.version}" is not supported by kubelet. Supported versions: {versions}'
            )
        if not EXTENDED_RESOURCE.fullmatch(name) or name.split("/")[0].endswith("kubernetes.io"):
            return f'the ResourceName "{name}" is invalid'
        if not request.endpoint or "/" in request.endpoint or request.endpoint == "kubelet.sock":
            return f'the endpoint "{request.endpoint}" is not the name of a socket of a plugin'
        if len(str(self.plugins / request.endpoint).encode()) > SOCKET_PATH_BYTES:
            return f'the endpoint "{request.endpoint}" makes a path that is too long'
        if len(UnknownFieldSet(request)):
            return "the request has fields that nobody knows"
        return ""

    def _list(self, _request: object, _context: grpc.ServicerContext) -> podresources.ListPodResourcesResponse:
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

    def _changed(self, endpoint: Endpoint, response: wire.ListAndWatchResponse) -> None:
        """A list has come; of an endpoint's own thread."""
        ids = [device.ID for device in response.devices]
        with self._change:
            if len(set(ids)) != len(ids) or not all(ids):
                self.complaints.append(f"{endpoint.resource}: IDs {ids}")
            if not {device.health for device in response.devices} <= {"Healthy", "Unhealthy"}:
                self.complaints.append(f"{endpoint.resource}: health {response.devices}")
            endpoint.listed = tuple(ids)
            endpoint.devices = {device.ID: device.health == "Healthy" for device in response.devices}
            endpoint.numa = {device.ID: node.ID for device in response.devices for node in device.topology.nodes}
            endpoint.pushes += 1
            self.last_lists[endpoint.resource] = endpoint.devices
            self._change.notify_all()

    def _left(self, endpoint: Endpoint) -> None:
        """A stream has ended: its devices can't be had any more."""
        with self._change:
            endpoint.devices = dict.fromkeys(endpoint.devices, False)
            if self._endpoints.get(endpoint.resource) is endpoint:
                del self._endpoints[endpoint.resource]
                self.ended.append(endpoint.resource)
            self._change.notify_all()


@contextmanager
def running_kubelet(folder: Path, patience: float = PATIENCE) -> Iterator[Kubelet]:
    """A kubelet that runs, and that has had nothing to complain of in the end."""
    kubelet = Kubelet(folder, patience=patience)
    kubelet.start()
    try:
        yield kubelet
        assert kubelet.complaints == []
    finally:
        with suppress(AssertionError):
            kubelet.stop()
