"""The gRPC services of a DRA driver, which the kubelet calls: claims (v1, v1beta1 DRAPlugin), health (v1alpha1, v1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from grpclib.server import Stream

from launcherkit.errors import LauncherkitError
from launcherkit.rpc.calls import receive, refusal
from launcherkit.rpc.methods import Servicer
from launcherkit_plugin.dra.claim_record import PreparedDevice
from launcherkit_plugin.dra.device_state import DeviceState
from launcherkit_plugin.dra.prepare import Preparer
from launcherkit_plugin.dra.proto import dra_health_v1_pb2, dra_health_v1alpha1_pb2, dra_v1_pb2, dra_v1beta1_pb2
from launcherkit_plugin.model.device import ClaimRef, without_names
from launcherkit_plugin.model.errors import DEVICE_TAKEN
from launcherkit_plugin.model.stream import StreamedValue
from launcherkit_plugin.telemetry.metrics import ActionOutcome, ClaimAction
from launcherkit_plugin.telemetry.reporter import Reporter

T = TypeVar("T")

REQUEST_BYTES = 1 << 20
"""The largest request that is read; a claim takes some hundred bytes."""
AGAIN_SECONDS = 10.0
"""The interval at which health is sent again; the kubelet forgets it after 30 s."""


class ClaimService(Servicer):
    """Prepares and unprepares claims. The answer has the devices or an error for each claim of the request.

    Args:
        preparer: does the work.
        reporter: receives errors; a lasting one is reported once.
    """

    wire: ClassVar[Any]

    def __init__(self, preparer: Preparer, reporter: Reporter) -> None:
        self._preparer = preparer
        self._reporter = reporter

    async def NodePrepareResources(self, stream: Stream[Any, Any]) -> None:
        request = await receive(stream, self.wire.NodePrepareResourcesRequest, REQUEST_BYTES)
        answer = self.wire.NodePrepareResourcesResponse()
        answers = await _together([self._prepare(_ref(claim)) for claim in request.claims])
        for claim, of_it in zip(request.claims, answers, strict=True):
            answer.claims[claim.uid].CopyFrom(of_it)
        await stream.send_message(answer)

    async def NodeUnprepareResources(self, stream: Stream[Any, Any]) -> None:
        request = await receive(stream, self.wire.NodeUnprepareResourcesRequest, REQUEST_BYTES)
        answer = self.wire.NodeUnprepareResourcesResponse()
        errors = await _together([self._unprepare(_ref(claim)) for claim in request.claims])
        for claim, error in zip(request.claims, errors, strict=True):
            answer.claims[claim.uid].error = error
        await stream.send_message(answer)

    async def _prepare(self, ref: ClaimRef) -> Any:
        devices: Sequence[PreparedDevice] = ()

        async def work() -> None:
            nonlocal devices
            devices = await self._preparer.prepare(ref)

        error = await self._guard("prepare", ref, work)
        return self.wire.NodePrepareResourceResponse(devices=map(self._device, devices), error=error)

    async def _unprepare(self, ref: ClaimRef) -> str:
        return await self._guard("unprepare", ref, lambda: self._preparer.unprepare(ref))

    def _device(self, device: PreparedDevice) -> Any:
        share = {"share_id": device.share_id} if device.share_id and self.wire is dra_v1_pb2 else {}
        return self.wire.Device(
            request_names=[device.request],
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi,
            **share,
        )

    async def _guard(self, action: ClaimAction, ref: ClaimRef, work: Callable[[], Awaitable[None]]) -> str:
        """Run ``work``; returns the error for the kubelet, empty if there is none. The kubelet shows errors of prepare
        in the pod's Events, but not those of unprepare; for those we publish an Event. It names no other claim.
        """
        about, began = ("claim", ref.uid), time.perf_counter()
        outcome: ActionOutcome = "failed"
        try:
            await work()
        except LauncherkitError as error:
            outcome = "refused" if error.code == DEVICE_TAKEN.code else "failed"
            event = "UnprepareFailed" if action == "unprepare" else None
            text = f"ResourceClaim {ref} can't be unprepared, so its pod doesn't end: {error.message}"
            self._reporter.problem(about, error, event, text, claim=str(ref), call=action)
            return without_names(refusal(error).message or error.message, f"ResourceClaim {ref}")
        except Exception as bug:
            text = f"internal error in {action}: {type(bug).__name__}"
            if self._reporter.is_new(about, f"{text}: {bug}"):
                self._reporter.bug(bug, f" in {action} of ResourceClaim {ref}", claim=str(ref), call=action)
            return f"{text}; the log of the plugin has more"
        else:
            outcome = "done"
            self._reporter.solved(about)
            return ""
        finally:
            self._reporter.metrics.claim(action, time.perf_counter() - began, outcome)


class ClaimServiceV1(ClaimService):
    """Kubernetes 1.34 and later."""

    wire: ClassVar[Any] = dra_v1_pb2
    service = dra_v1_pb2.DESCRIPTOR.services_by_name["DRAPlugin"]


class ClaimServiceV1Beta1(ClaimService):
    """Kubernetes 1.32 and 1.33."""

    wire: ClassVar[Any] = dra_v1beta1_pb2
    service = dra_v1beta1_pb2.DESCRIPTOR.services_by_name["DRAPlugin"]


async def _together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all calls. A single one, which is the usual case, needs no task."""
    return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)


def _ref(claim: Any) -> ClaimRef:
    return ClaimRef(claim.namespace, claim.name, claim.uid)


class Healths(StreamedValue[Sequence[tuple[str, DeviceState]]]):
    """The state of all devices, each with its pool."""

    def put(self, states: Mapping[str, DeviceState], pool_of: Callable[[str], str]) -> None:
        """Set the states; devices whose pool is empty are left out."""
        self.set([(pool, states[name]) for name in sorted(states) if (pool := pool_of(name))])


class HealthService(Servicer):
    """Sends the health of all devices whenever it changes, and before the kubelet would forget it.

    Args:
        healths: what is sent.
        clock: seconds since the epoch.
        again: after how many seconds the list is sent again.
    """

    wire: ClassVar[Any]

    def __init__(self, healths: Healths, clock: Callable[[], float] = time.time, again: float = AGAIN_SECONDS) -> None:
        self._healths = healths
        self._clock = clock
        self._again = again

    async def NodeWatchResources(self, stream: Stream[Any, Any]) -> None:
        await receive(stream, self.wire.NodeWatchResourcesRequest, REQUEST_BYTES)
        while self._healths.is_open:
            sent = self._healths.now
            await stream.send_message(self._list(sent))
            await self._healths.change(sent, self._again)

    def _list(self, healths: Sequence[tuple[str, DeviceState]]) -> Any:
        wire, now = self.wire, int(self._clock())
        devices = [
            wire.DeviceHealth(
                device=wire.DeviceIdentifier(pool_name=pool, device_name=state.name),
                health=wire.HEALTHY if state.healthy else wire.UNHEALTHY,
                last_updated_time=now,
                message=state.message,
            )
            for pool, state in healths
        ]
        return wire.NodeWatchResourcesResponse(devices=devices)


class HealthServiceV1Alpha1(HealthService):
    """Kubernetes 1.34 and later, which calls this version even if the driver doesn't announce it."""

    wire: ClassVar[Any] = dra_health_v1alpha1_pb2
    service = dra_health_v1alpha1_pb2.DESCRIPTOR.services_by_name["DRAResourceHealth"]


class HealthServiceV1(HealthService):
    """Kubernetes 1.37."""

    wire: ClassVar[Any] = dra_health_v1_pb2
    service = dra_health_v1_pb2.DESCRIPTOR.services_by_name["DRAResourceHealth"]


ENDLESS = frozenset(
    f"/{health.service.full_name}/NodeWatchResources" for health in (HealthServiceV1Alpha1, HealthServiceV1)
)
"""The paths of the calls that never end."""
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth")
"""The services that the driver announces to the kubelet, which uses the first of each kind that it knows."""
