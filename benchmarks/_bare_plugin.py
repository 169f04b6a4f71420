"""The least that is a device plugin in Python: sockets, registrations, lists of devices that never change.

What the device plugin is measured against: it looks at no host, checks nothing, and answers what it was told to.

    python benchmarks/_bare_plugin.py FOLDER RESOURCES DEVICES
"""

from __future__ import annotations

import asyncio
import sys

from grpclib.client import Channel
from grpclib.config import Configuration
from grpclib.server import Server, Stream

from launcherkit.rpc.methods import Servicer, call
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire

SERVICES = wire.DESCRIPTOR.services_by_name


class Bare(Servicer):
    """One resource."""

    service = SERVICES["DevicePlugin"]

    def __init__(self, devices: int) -> None:
        self._devices = [wire.Device(ID=f"d{number}", health="Healthy") for number in range(devices)]

    async def GetDevicePluginOptions(self, stream: Stream[wire.Empty, wire.DevicePluginOptions]) -> None:
        await stream.recv_message()
        await stream.send_message(wire.DevicePluginOptions())

    async def ListAndWatch(self, stream: Stream[wire.Empty, wire.ListAndWatchResponse]) -> None:
        await stream.recv_message()
        await stream.send_message(wire.ListAndWatchResponse(devices=self._devices))
        await asyncio.Event().wait()

    async def GetPreferredAllocation(
        self, stream: Stream[wire.PreferredAllocationRequest, wire.PreferredAllocationResponse]
    ) -> None:
        await stream.recv_message()
        await stream.send_message(wire.PreferredAllocationResponse())

    async def Allocate(self, stream: Stream[wire.AllocateRequest, wire.AllocateResponse]) -> None:
        request = await stream.recv_message()
        assert request is not None
        answer = wire.AllocateResponse()
        for container in request.container_requests:
            nodes = ["/dev/vfio/vfio", *(f"/dev/vfio/{device}" for device in container.devices_ids)]
            devices = [wire.DeviceSpec(container_path=node, host_path=node, permissions="mrw") for node in nodes]
            answer.container_responses.add(envs={"DEVICES": ",".join(container.devices_ids)}, devices=devices)
        await stream.send_message(answer)

    async def PreStartContainer(
        self, stream: Stream[wire.PreStartContainerRequest, wire.PreStartContainerResponse]
    ) -> None:
        await stream.recv_message()
        await stream.send_message(wire.PreStartContainerResponse())


async def main(folder: str, resources: int, devices: int) -> None:
    """Serve and register until killed."""
    servers = []
    for number in range(resources):
        server = Server([Bare(devices)])
        await server.start(path=f"{folder}/bare{number}.sock")
        servers.append(server)
        async with Channel(path=f"{folder}/kubelet.sock", config=Configuration()) as channel:
            channel._authority = "localhost"
            request = wire.RegisterRequest(
                version="v1beta1", endpoint=f"bare{number}.sock", resource_name=f"bench.example/bare{number}"
            )
            await call(channel, SERVICES["Registration"].methods_by_name["Register"], request)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
