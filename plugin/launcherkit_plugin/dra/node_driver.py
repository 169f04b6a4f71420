"""The DRA driver of a node, in the daemon: publishes the loop's resources, and prepares claims of their devices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

from launcherkit.atomic import make_folders
from launcherkit.errors import LauncherkitError
from launcherkit.model.host import HostFacts
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.dra.claim_queue import ClaimQueue, DriverLock
from launcherkit_plugin.dra.claim_record import ClaimRecord, ClaimRecords, PreparedDevice
from launcherkit_plugin.dra.claim_store import ClaimStore
from launcherkit_plugin.dra.device_state import ClaimStatuses, DeviceState
from launcherkit_plugin.dra.inventory import DraDevice, inventory
from launcherkit_plugin.dra.kubelet_sockets import KubeletSockets, socket_paths
from launcherkit_plugin.dra.node_service import (
    ClaimServiceV1,
    ClaimServiceV1Beta1,
    Healths,
    HealthServiceV1,
    HealthServiceV1Alpha1,
)
from launcherkit_plugin.dra.prepare import Preparer
from launcherkit_plugin.dra.request_parts import ListedDevice
from launcherkit_plugin.dra.slices import slices
from launcherkit_plugin.model.config import NODE, DraConfig
from launcherkit_plugin.model.device import AwaitingClaim, Resource
from launcherkit_plugin.telemetry.reporter import Reporter

END_SECONDS = 10.0


class ClusterSide(Protocol):
    """`launcherkit_plugin.cluster.socket.ClusterSocket`: the API server, which is a dictionary in tests."""

    async def get_claim(self, namespace: str, name: str, uid: str, seconds: float) -> dict[str, Any]: ...

    def publish_slices(self, driver: str, specs: Sequence[Mapping[str, Any]]) -> None: ...

    def want_claims(self) -> None: ...

    @property
    def awaiting(self) -> Sequence[AwaitingClaim] | None: ...

    def claim_status(self, namespace: str, name: str, uid: str, devices: Sequence[Mapping[str, Any]]) -> None: ...


class NodeDriver:
    """A DRA driver. From `start` on it holds the devices of claims; from the first `listed` on it serves the kubelet.

    Args:
        config: of the driver.
        store: the files of its claims.
        allocator: allocates devices to claims.
        cluster: reads claims, and writes slices and the status of claims.
        reporter: receives problems and changes.
        env: of the process: `NODE`, which is the pool's name, and ``POD_UID`` of the pod in which it runs.
        changed: called when `registered` changes.
    """

    def __init__(
        self,
        config: DraConfig,
        store: ClaimStore,
        allocator: Allocator,
        cluster: ClusterSide,
        reporter: Reporter,
        env: Mapping[str, str],
        changed: Callable[[], object],
    ) -> None:
        self.config = config
        self._store = store
        places = store.places
        self._cluster = cluster
        self._reporter = reporter
        self._node = env.get(NODE, "")
        self._lock = DriverLock(f"{places.data}/serialize.lock")
        self._queue = ClaimQueue(self._lock)
        self._preparer = Preparer(store, allocator, cluster.get_claim, self._queue, lambda: self.config.environment)
        self._healths = Healths(())
        self._statuses = ClaimStatuses(config.driver)
        self._sockets = KubeletSockets(
            config.driver,
            socket_paths(places.kubelet_dir, config.driver, env.get("POD_UID", "")),
            [
                *(service(self._preparer, reporter) for service in (ClaimServiceV1, ClaimServiceV1Beta1)),
                *(service(self._healths) for service in (HealthServiceV1Alpha1, HealthServiceV1)),
            ],
            self._healths,
            reporter,
            changed,
        )
        self._published: Mapping[str, DraDevice] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._has_claims = False
        self._broken: set[str] = set()

    @property
    def registered(self) -> bool:
        """Whether it is registered with the kubelet, as far as is known."""
        return self._sockets.registered

    @property
    def has_claims(self) -> bool:
        """Whether a claim has devices, or may have some."""
        return self._has_claims

    def start(self, *, tidy: bool = True) -> None:
        """Read which devices claims have, before anything else is done.

        Args:
            tidy: also remove files that a killed process left.
        """
        with suppress(OSError):  # the sockets give the reason
            make_folders(self._store.places.data, 0o750)
            if tidy and self._lock.try_lock():  # otherwise another process of this driver may be preparing a claim
                self._store.tidy()
                self._lock.release()
        self._held()

    def listed(self, facts: HostFacts, resources: Sequence[Resource]) -> None:
        """Set the facts and resources from now on; ``resources`` includes those of the device plugin."""
        awaiting = self._awaiting()
        published = inventory(
            resources,
            facts,
            evict=self.config.evict,
            # Only while it is seen who waits: nobody would say that the device is ready.
            binding_conditions=awaiting is not None,
            before=self._published,
        )
        self._published = {each.name: each for each in published}
        self._cluster.publish_slices(self.config.driver, slices(published, self.config.driver))
        devices = {resource.name: resource.devices for resource in resources}
        self._preparer.listed({each.name: ListedDevice(each, devices[each.resource][each.id]) for each in published})
        states = {each.name: DeviceState(each.name, each.problem, each.in_container, each.is_usb) for each in published}
        records = self._held()
        if self._keeping is None:
            self._statuses.note_prepared(list(records.claims.values()), states)
            self._keeping = asyncio.create_task(self._sockets.serve_forever())
        self._notify(records, states, awaiting)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_states())

    async def _tell_states(self) -> None:
        try:
            await self._preparer.tell_states()
        except LauncherkitError as problem:
            self._reporter.problem("states", problem)
        else:
            self._reporter.solved("states")

    def _held(self) -> ClaimRecords:
        records = self._preparer.held()
        for uid in self._broken - records.broken.keys():
            self._reporter.solved(("record", uid))
        self._broken = set(records.broken)
        for uid, broken in records.broken.items():
            self._reporter.problem(("record", uid), broken.error, "BadClaimRecord")
        for note in records.notes:
            self._reporter.once(note, "warning", note)
        self._has_claims = bool(records.claims or records.broken)
        return records

    def _awaiting(self) -> Sequence[ClaimRecord] | None:
        """The claims whose pods wait for devices of this driver, in the form of records; None: this isn't known, or
        isn't to be."""
        if not self.config.binding_conditions:
            return None
        self._cluster.want_claims()
        if self._cluster.awaiting is None:
            return None
        return [
            ClaimRecord(
                claim.ref,
                tuple(
                    PreparedDevice(one.request, one.pool, one.device, "", one.device, (), one.share_id)
                    for one in claim.devices
                    if one.driver == self.config.driver
                ),
                "",
            )
            for claim in self._cluster.awaiting
        ]

    def _notify(
        self, records: ClaimRecords, states: Mapping[str, DeviceState], awaiting: Sequence[ClaimRecord] | None
    ) -> None:
        """Send the health of all devices to the kubelet, and the status of claims to the cluster."""
        claims = list(records.claims.values())
        pools = {device.device: device.pool for record in claims for device in record.devices}
        self._healths.put(states, lambda name: pools.get(name, self._node))
        now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        claims += [each for each in awaiting or () if each.devices and each.ref.uid not in records.claims]
        for ref, devices in self._statuses.changed(claims, states, now, awaited=awaiting is not None):
            self._cluster.claim_status(ref.namespace, ref.name, ref.uid, devices)

    async def close(self) -> None:
        """Stop serving; claims keep their devices."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait({self._telling})
        await self._sockets.end()
        await self._queue.end(END_SECONDS)
        self._lock.close()
