"""The least that is a DRA driver in Python: one service that writes the CDI file of a claim, and answers.

What the DRA driver is measured against: it looks at no host, writes no metadata and remembers nothing. With a socket of
the cluster it asks for the claim first, as every driver must: the kubelet doesn't say which devices are in it. Without
one it knows them before it is asked.

    python benchmarks/_bare_dra.py SOCKET FOLDER CARDS DEV [CLUSTER]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from grpclib.server import Server, Stream

from launcherkit.rpc.methods import Servicer
from launcherkit_plugin.cluster.socket import ClusterSocket
from launcherkit_plugin.dra.proto import dra_v1_pb2 as wire
from launcherkit_plugin.model.wakeups import WakeupQueue
from launcherkit_plugin.telemetry.reporter import silent

KIND = "bare.example.org/claim"


class Bare(Servicer):
    """Every claim gets all cards; their nodes are below a folder."""

    service = wire.DESCRIPTOR.services_by_name["DRAPlugin"]

    def __init__(self, folder: Path, cards: int, dev: str, cluster: ClusterSocket | None) -> None:
        self._folder = folder
        self._cluster = cluster
        self._dev = dev
        self._cards = [f"0000:{card + 1:02x}:00.0" for card in range(cards)]
        self._known = [
            {"request": "gpu", "pool": "node-1", "device": f"pci-0000-{card + 1:02x}-00-0"} for card in range(cards)
        ]

    async def NodePrepareResources(
        self, stream: Stream[wire.NodePrepareResourcesRequest, wire.NodePrepareResourcesResponse]
    ) -> None:
        request = await stream.recv_message()
        assert request is not None
        answer = wire.NodePrepareResourcesResponse()
        for claim in request.claims:
            results = self._known
            if self._cluster is not None:
                asked = await self._cluster.get_claim(claim.namespace, claim.name, claim.uid, 10.0)
                results = asked["status"]["allocation"]["devices"]["results"]
            devices = []
            for group, result in enumerate(results):
                nodes = [
                    {"path": path, "hostPath": f"{self._dev}{path}", "permissions": "rwm"}
                    for path in ("/dev/vfio/vfio", f"/dev/vfio/{group}")
                ]
                edits = {"env": [f"PCI_RESOURCE_NVIDIA_COM_2204={','.join(self._cards)}"], "deviceNodes": nodes}
                name = f"{claim.uid}_{result['device']}"
                devices.append({"name": name, "containerEdits": edits})
                answer.claims[claim.uid].devices.add(
                    request_names=[result["request"]],
                    pool_name=result["pool"],
                    device_name=result["device"],
                    cdi_device_ids=[f"{KIND}={name}"],
                )
            text = json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices})
            beside = self._folder / f".{claim.uid}"
            beside.write_text(text)
            beside.rename(self._folder / f"{claim.uid}.json")
        await stream.send_message(answer)

    async def NodeUnprepareResources(
        self, stream: Stream[wire.NodeUnprepareResourcesRequest, wire.NodeUnprepareResourcesResponse]
    ) -> None:
        request = await stream.recv_message()
        assert request is not None
        answer = wire.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            os.unlink(self._folder / f"{claim.uid}.json")
            answer.claims[claim.uid].error = ""
        await stream.send_message(answer)


async def main(socket: str, folder: str, cards: int, dev: str, path: str = "") -> None:
    """Serve until killed."""
    async with AsyncExitStack() as opened:
        cluster = None
        if path:
            cluster = ClusterSocket(silent, WakeupQueue(1.0))
            await opened.enter_async_context(cluster.listening(path))
        server = Server([Bare(Path(folder), cards, dev, cluster)])
        await server.start(path=socket)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
