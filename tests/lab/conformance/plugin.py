"""A device plugin in this process, on a small tree of a host; what it does can be replaced method by method."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from launcherkit_lab.conformance.driver import Driver
from launcherkit_lab.conformance.machine import Machine, variable
from launcherkit_lab.endpoint import serialized
from launcherkit_lab.proto import deviceplugin_v1beta1_pb2 as wire
from tests.support.hosttree import HostTree

GPU = "example.com/GPU"
MODEL = "10de:2204"
CARDS = ("0000:01:00", "0000:02:00")


class Tree(Machine):
    """A machine of plain files: what the kernel would do is done here."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.host = HostTree(root)
        for number, slot in enumerate(CARDS):
            self.host.card(slot, group=11 + number, numa=number)
        self.viable = True

    def is_viable(self, group: int) -> bool:
        return self.viable

    def unbind(self, address: str) -> None:
        self.host.bind(address, None)

    def bind(self, address: str, driver: str) -> None:
        self.host.bind(address, driver)


class SmallPlugin(Driver):
    """Lists the display functions of a tree, and gives each with its group."""

    version, endpoint, resource = "v1beta1", "small.sock", GPU
    options = wire.DevicePluginOptions(get_preferred_allocation_available=True)

    def __init__(self, folder: Path, tree: Tree, log: Path) -> None:
        super().__init__(["small-plugin"], log)
        self._folder = folder / "device-plugins"
        self.tree = tree
        self._server: grpc.Server | None = None
        self._stop = threading.Event()
        self._life: threading.Thread | None = None

    # What it does, to be replaced

    def ids(self) -> list[str]:
        return self.tree.having([MODEL])

    def device(self, key: str) -> wire.Device:
        node = self.tree.node(key)
        nodes = [] if node is None else [wire.NUMANode(ID=node)]
        return wire.Device(ID=key, health=self.health(key), topology=wire.TopologyInfo(nodes=nodes))

    def health(self, key: str) -> str:
        return "Healthy" if self.tree.unfit(key) == "" else "Unhealthy"

    def refused(self, key: str) -> bool:
        return key not in self.ids() or self.health(key) != "Healthy"

    def addresses(self, ids: Sequence[str]) -> list[str]:
        return list(ids)

    def nodes(self, ids: Sequence[str]) -> list[str]:
        return ["/dev/vfio/vfio", *dict.fromkeys(f"/dev/vfio/{self.tree.group(key)}" for key in ids)]

    def preferred(self, asked: wire.ContainerPreferredAllocationRequest) -> list[str]:
        ids = dict.fromkeys([*asked.must_include_deviceIDs, *asked.available_deviceIDs])
        return list(ids)[: asked.allocation_size]

    def leave(self) -> None:
        """What it does at its end."""
        (self._folder / self.endpoint).unlink(missing_ok=True)

    # Its life

    @property
    def running(self) -> bool:
        return self._server is not None

    def start(self) -> None:
        if self._server is None:
            self._stop = threading.Event()
            self._server = self._serve()
            self._life = threading.Thread(target=self._watch, daemon=True)
            self._life.start()

    def kill(self) -> None:
        server, self._server = self._server, None
        self._stop.set()
        if server is not None and self._life is not None:
            self._life.join()
            server.stop(0).wait()

    def end(self, seconds: float) -> int | None:
        self.kill()
        self.leave()
        return 0

    def _serve(self) -> grpc.Server:
        unary = grpc.unary_unary_rpc_method_handler
        prefer = unary(self._prefer, wire.PreferredAllocationRequest.FromString, serialized)
        handlers = {
            "GetDevicePluginOptions": unary(lambda *_: self.options, wire.Empty.FromString, serialized),
            "Allocate": unary(self._allocate, wire.AllocateRequest.FromString, serialized),
            "GetPreferredAllocation": prefer,
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self._list, wire.Empty.FromString, serialized)
        server = grpc.server(ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))
        (self._folder / self.endpoint).unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{self._folder / self.endpoint}")
        server.start()
        return server

    def _watch(self) -> None:
        """Register with each kubelet that there is."""
        registered = (0, 0)
        while not self._stop.is_set():
            path = self._folder / "kubelet.sock"
            status = path.stat() if path.exists() else None
            this = (status.st_ino, status.st_ctime_ns) if status else (0, 0)  # inodes are used again
            if status and this != registered:
                if any(registered) and self._server is not None:
                    self._server.stop(0).wait()
                    self._server = self._serve()
                registered = this
                self.register(path)
            self._stop.wait(0.01)

    def register(self, path: Path) -> None:
        # Without its options: kubelets ask for them when they have dialled.
        request = wire.RegisterRequest(version=self.version, endpoint=self.endpoint, resource_name=self.resource)
        with grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary("/v1beta1.Registration/Register", serialized, wire.Empty.FromString)
            try:
                call(request, timeout=10)
            except grpc.RpcError as error:
                self.log.write_text(f"not registered: {error.details()}\n")

    def _list(self, request: wire.Empty, context: grpc.ServicerContext) -> Iterator[wire.ListAndWatchResponse]:
        last = None
        while context.is_active() and not self._stop.is_set():
            now = wire.ListAndWatchResponse(devices=[self.device(key) for key in self.ids()])
            if now != last:
                yield now
                last = now
            self._stop.wait(0.01)

    def _allocate(self, request: wire.AllocateRequest, context: grpc.ServicerContext) -> wire.AllocateResponse:
        answer = wire.AllocateResponse()
        for asked in request.container_requests:
            for key in asked.devices_ids:
                if self.refused(key):
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no {key}")
            container = answer.container_responses.add()
            container.envs[variable(self.resource)] = ",".join(self.addresses(asked.devices_ids))
            for path in self.nodes(asked.devices_ids):
                container.devices.add(host_path=path, container_path=path, permissions="mrw")
        return answer

    def _prefer(
        self, request: wire.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> wire.PreferredAllocationResponse:
        answer = wire.PreferredAllocationResponse()
        for asked in request.container_requests:
            answer.container_responses.add(deviceIDs=self.preferred(asked))
        return answer
