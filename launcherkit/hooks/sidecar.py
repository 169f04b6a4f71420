"""The hook sidecar: what KubeVirt's launcher finds on a socket in ``/var/run/kubevirt-hooks``.

The launcher asks Info, picks the newest version that it knows too, and calls the hook points that Info names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from grpclib.server import Stream

from launcherkit.hooks.core import HookSettings, complete_domain
from launcherkit.hooks.proto import hooks_info_pb2 as info
from launcherkit.hooks.proto import hooks_v1alpha1_pb2 as v1
from launcherkit.hooks.proto import hooks_v1alpha2_pb2 as v2
from launcherkit.hooks.proto import hooks_v1alpha3_pb2 as v3
from launcherkit.hooks.server import Endpoint, check_name
from launcherkit.rpc.calls import receive
from launcherkit.rpc.methods import Servicer

VERSIONS = ("v1alpha1", "v1alpha2", "v1alpha3")

HOOK_POINTS = ("OnDefineDomain", "Shutdown")
"""Not PreCloudInitIso, though it is served: the launcher takes the answer of the first sidecar that asked for it and
calls no other, so a sidecar that changes nothing would keep the launcher from calling one that does."""


def sidecar(folder: str, settings: HookSettings, stop: asyncio.Event) -> Endpoint:
    """The sidecar's services, on a socket named after the container: names must differ within a pod.

    Raises:
        BAD_HOOK_NAME: ``CONTAINER_NAME`` is not a valid name.
    """
    return Endpoint(
        f"{folder}/{socket_name(settings.env)}",
        (Info(), Version1(settings), Version2(settings), Version3(settings, stop)),
        "the hook sidecar",
    )


def socket_name(env: Mapping[str, str]) -> str:
    """``$CONTAINER_NAME.sock``; KubeVirt sets it."""
    return check_name(env.get("CONTAINER_NAME") or "launcherkit", "CONTAINER_NAME") + ".sock"


class Info(Servicer):
    """Answers with version and hook points. A failure would fail the VM, so it depends on nothing else."""

    service = info.DESCRIPTOR.services_by_name["Info"]

    async def Info(self, stream: Stream[info.InfoParams, info.InfoResult]) -> None:
        await receive(stream, info.InfoParams)
        points = [info.HookPoint(name=name, priority=0) for name in HOOK_POINTS]
        await stream.send_message(info.InfoResult(name="launcherkit", hookPoints=points, versions=VERSIONS))


class Version1(Servicer):
    service = v1.DESCRIPTOR.services_by_name["Callbacks"]

    def __init__(self, settings: HookSettings) -> None:
        self._settings = settings

    async def OnDefineDomain(self, stream: Stream[v1.OnDefineDomainParams, v1.OnDefineDomainResult]) -> None:
        asked = await receive(stream, v1.OnDefineDomainParams)
        domain = complete_domain(asked.domainXML, asked.vmi, self._settings)
        await stream.send_message(v1.OnDefineDomainResult(domainXML=domain))


class Version2(Servicer):
    service = v2.DESCRIPTOR.services_by_name["Callbacks"]

    def __init__(self, settings: HookSettings) -> None:
        self._settings = settings

    async def OnDefineDomain(self, stream: Stream[v2.OnDefineDomainParams, v2.OnDefineDomainResult]) -> None:
        asked = await receive(stream, v2.OnDefineDomainParams)
        domain = complete_domain(asked.domainXML, asked.vmi, self._settings)
        await stream.send_message(v2.OnDefineDomainResult(domainXML=domain))

    async def PreCloudInitIso(self, stream: Stream[v2.PreCloudInitIsoParams, v2.PreCloudInitIsoResult]) -> None:
        asked = await receive(stream, v2.PreCloudInitIsoParams)
        await stream.send_message(
            v2.PreCloudInitIsoResult(
                cloudInitNoCloudSource=asked.cloudInitNoCloudSource, cloudInitData=asked.cloudInitData
            )
        )


class Version3(Servicer):
    service = v3.DESCRIPTOR.services_by_name["Callbacks"]

    def __init__(self, settings: HookSettings, stop: asyncio.Event) -> None:
        self._settings = settings
        self._stop = stop

    async def OnDefineDomain(self, stream: Stream[v3.OnDefineDomainParams, v3.OnDefineDomainResult]) -> None:
        asked = await receive(stream, v3.OnDefineDomainParams)
        domain = complete_domain(asked.domainXML, asked.vmi, self._settings)
        await stream.send_message(v3.OnDefineDomainResult(domainXML=domain))

    async def PreCloudInitIso(self, stream: Stream[v3.PreCloudInitIsoParams, v3.PreCloudInitIsoResult]) -> None:
        asked = await receive(stream, v3.PreCloudInitIsoParams)
        await stream.send_message(
            v3.PreCloudInitIsoResult(
                cloudInitNoCloudSource=asked.cloudInitNoCloudSource, cloudInitData=asked.cloudInitData
            )
        )

    async def Shutdown(self, stream: Stream[v3.ShutdownParams, v3.ShutdownResult]) -> None:
        """The VM is gone: end the process, which first waits until this call is answered."""
        await receive(stream, v3.ShutdownParams)
        await stream.send_message(v3.ShutdownResult())
        self._stop.set()
