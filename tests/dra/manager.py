"""The kubelet's DRA manager: what pods claim is prepared before their containers, and unprepared after the last one.

It keeps the state of the real one: claims of pods survive its restarts, that they are prepared does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.dra.api import Api, Refused, results_of
from tests.dra.held import HeldClaim, NotPrepared, Pod, Prepared
from tests.dra.plugins import CallFailed, Pace, Plugin
from tests.dra.registry import Registry
from tests.dra.runtime import QUALIFIED, Container, Runtime
from tests.support.waiting import PATIENCE

FAST = Pace().scaled(1 / 20)
"""For tests of the kubelet's own times: a deadline of 2.25 s, repeats after 0.3 s, slices gone after 1.5 s."""
PATIENT = FAST._replace(deadline=PATIENCE)
"""For all other tests: a call may take as long as it takes on a busy machine."""


class Manager:
    """A kubelet as DRA drivers see it; `start` and `stop` it as often as you like.

    Args:
        folder: what ``--kubelet-dir`` names.
        api: the cluster's.
        runtime: makes the containers.
    """

    def __init__(self, folder: Path, api: Api, runtime: Runtime, pace: Pace = PATIENT) -> None:
        self.registry = folder / "plugins_registry"
        self.registry.mkdir(parents=True, exist_ok=True)
        self.api = api
        self.runtime = runtime
        self.pace = pace
        self._lock = threading.RLock()
        self._registry: Registry | None = None
        self._plugins: list[Plugin] = []
        self._lost: dict[str, float] = {}
        """Drivers without a connection, and when their slices go."""
        self._claims: dict[str, HeldClaim] = {}
        self._pods: dict[str, Pod] = {}
        self.complaints: list[str] = []
        """What a driver has done that the real kubelet, or a runtime, would choke on."""
        self.events: list[str] = []
        """FailedPrepareDynamicResources, in order."""
        self.registrations = 0
        """How many drivers were registered since it was made, a process that came back among them."""
        self.errors: list[str] = []
        """Its log: why claims could not be unprepared."""

    # Its life

    def start(self) -> None:
        """Delete the node's slices, as the real one does at every start, and look for drivers."""
        assert self._registry is None
        self.api.wipe()
        for claim in self._claims.values():
            claim.prepared = False
        self._registry = Registry(
            self.registry, self.pace, register=self._register, forget=self._forget, changed=self._tick
        )
        self._wiper = threading.Thread(target=self._wipe_lost, args=(self._registry,))
        self._wiper.start()

    def stop(self) -> None:
        """Vanish: every connection breaks. The pods run on."""
        assert self._registry is not None
        registry, self._registry = self._registry, None
        registry.close()
        with self._lock:
            plugins, self._plugins, self._lost = self._plugins, [], {}
        self._wiper.join()
        for plugin in plugins:
            plugin.close()

    def restart(self) -> None:
        """Stop and start; every pod's claims are prepared again."""
        self.stop()
        self.start()
        for pod in list(self._pods.values()):
            self.prepare(pod)

    @property
    def refused(self) -> list[str]:
        """Registrations that were refused since the start."""
        assert self._registry is not None
        return self._registry.refused

    def drivers(self) -> dict[str, str]:
        """The endpoint of each driver that is called."""
        with self._lock:
            return {plugin.driver: plugin.endpoint for plugin in self._plugins if plugin.connected}

    def instances(self, driver: str) -> list[str]:
        """The endpoints of all processes of a driver."""
        with self._lock:
            return [plugin.endpoint for plugin in self._plugins if plugin.driver == driver and plugin.connected]

    def version(self, driver: str) -> str:
        """Of the service that is called."""
        with self._lock:
            return self.plugin(driver).version

    def health(self, driver: str) -> dict[str, tuple[int, str]]:
        """By device what the driver says of it."""
        with self._lock:
            return dict(self.plugin(driver).health)

    def health_lists(self, driver: str) -> int:
        with self._lock:
            return self.plugin(driver).health_lists

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something holds, of this kubelet or of others."""
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()) and time.monotonic() < deadline:
            time.sleep(self.pace.scan)
        refused = self._registry.refused if self._registry else []
        assert found, f"never saw {what}; refused: {refused[-3:]}, events: {self.events[-3:]}, {self.errors[-3:]}"

    def wait_for(self, driver: str) -> None:
        """Wait until a driver is registered, and connected."""
        self.wait(lambda: driver in self.drivers(), f"{driver} registered")

    # Pods

    def pods(self) -> list[Pod]:
        """Those that run, or are to."""
        with self._lock:
            return list(self._pods.values())

    def run(self, pod: Pod, *, patience: float = PATIENCE) -> dict[str, Container]:
        """Start a pod: its claims are prepared, again and again until they are, and its containers made.

        Raises:
            NotPrepared: the last error, when patience is at an end.
            NotCreated: the runtime's.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                self.prepare(pod)
                break
            except NotPrepared:
                if time.monotonic() + self.pace.again > deadline:
                    raise
            time.sleep(self.pace.again)
        return {name: self.runtime.create(self.cdi_devices(pod, name)) for name in pod.containers}

    def cdi_devices(self, pod: Pod, container: str) -> list[str]:
        """The names that the runtime is given for a container."""
        found: dict[str, None] = {}
        with self._lock:
            for name, request in pod.containers[container]:
                claim = next(one for one in self._claims.values() if one.name == name and pod.uid in one.pods)
                for device in claim.devices:
                    if not request or request in device.requests:
                        found |= dict.fromkeys(device.cdi)
        return list(found)

    def prepare(self, pod: Pod) -> None:
        """Prepare what a pod claims, once: one call a driver.

        Raises:
            NotPrepared: at the first thing that is wrong.
        """
        try:
            self._prepare(pod)
        except NotPrepared as problem:
            self.events.append(str(problem))
            raise

    def _prepare(self, pod: Pod) -> None:
        self._pods[pod.uid] = pod
        batches: dict[str, list[HeldClaim]] = {}
        known = []
        for name in pod.claims:
            claim = self._known(pod, name)
            known.append(claim)
            for driver in () if claim.prepared else claim.drivers:
                batches.setdefault(driver, []).append(claim)
        for driver, claims in batches.items():
            for claim in claims:
                claim.devices = [device for device in claim.devices if device.driver != driver]
            answers = self._call(driver, "NodePrepareResources", claims, self.pace.deadline)
            for uid, answer in answers.items():
                if uid not in {claim.uid for claim in claims}:
                    raise NotPrepared(f"NodePrepareResources returned result for unknown claim UID {uid}")
                claim = self._claims[uid]
                if answer.error:
                    raise NotPrepared(f"NodePrepareResources failed for ResourceClaim {claim.name}: {answer.error}")
                claim.devices += self._look_at(driver, claim, answer.devices)
            if missing := len(claims) - len(answers):
                raise NotPrepared(f"NodePrepareResources skipped {missing} ResourceClaims")
        for claim in known:
            claim.prepared = True

    def _known(self, pod: Pod, name: str) -> HeldClaim:
        try:
            found = self.api.claim("default", name)
        except Refused as refusal:
            raise NotPrepared(f"failed to fetch ResourceClaim {name}: {refusal}") from refusal
        if not results_of(found):
            raise NotPrepared(f"resource claim {name} not allocated")
        if all(one["uid"] != pod.uid for one in found["status"].get("reservedFor", ())):
            raise NotPrepared(f"pod {pod.name} is not allowed to use resource claim {name}")
        with self._lock:
            for other in self._claims.values():
                if other.name == name and other.uid != found["metadata"]["uid"]:
                    raise NotPrepared(
                        f"old ResourceClaim with same name {name} and different UID {other.uid} still exists"
                    )
            claim = self._claims.setdefault(found["metadata"]["uid"], HeldClaim(found))
            claim.pods.add(pod.uid)
        return claim

    def _look_at(self, driver: str, claim: HeldClaim, devices: Sequence[Any]) -> Iterator[Prepared]:
        """Check what the real one doesn't: it would only show in a container that lacks something."""
        answered = {(driver, one.pool_name, one.device_name) for one in devices}
        if wanted := {key for key in claim.allocated if key[0] == driver} ^ answered:
            self.complaints.append(f"{claim.name}: answered or allocated, not both: {sorted(wanted)}")
        for one in devices:
            if not one.request_names or any("/" in name for name in one.request_names):
                self.complaints.append(f"{claim.name}: requests {list(one.request_names)}")
            if not one.cdi_device_ids or not all(QUALIFIED.fullmatch(name) for name in one.cdi_device_ids):
                self.complaints.append(f"{claim.name}: CDI devices {list(one.cdi_device_ids)}")
            yield Prepared(driver, tuple(one.request_names), one.device_name, tuple(one.cdi_device_ids))

    def delete(self, pod: Pod, *, patience: float = PATIENCE) -> None:
        """End a pod; its claims are unprepared, again and again until they are."""
        deadline = time.monotonic() + patience
        while not self.unprepare(pod):
            assert time.monotonic() < deadline, f"{pod.name} stays Terminating: {self.errors[-1]}"
            time.sleep(self.pace.again)

    def unprepare(self, pod: Pod) -> bool:
        """Unprepare once what no other pod has. False: the pod stays Terminating."""
        batches: dict[str, list[HeldClaim]] = {}
        mine = [claim for claim in self._claims.values() if pod.uid in claim.pods]
        for claim in mine:
            if claim.pods == {pod.uid}:
                for driver in claim.drivers:
                    batches.setdefault(driver, []).append(claim)
            else:
                claim.pods.discard(pod.uid)
        try:
            for driver, claims in batches.items():
                answers = self._call(driver, "NodeUnprepareResources", claims, self.pace.deadline)
                for uid, answer in answers.items():
                    if answer.error:
                        raise NotPrepared(f"NodeUnprepareResources failed for {uid}: {answer.error}")
                if missing := len(claims) - len(answers):
                    raise NotPrepared(f"NodeUnprepareResources skipped {missing} ResourceClaims")
        except NotPrepared as problem:
            self.errors.append(str(problem))
            return False
        with self._lock:
            for claim in mine:
                if claim.pods == {pod.uid}:
                    del self._claims[claim.uid]
            self._pods.pop(pod.uid, None)
        return True

    def _call(self, driver: str, method: str, claims: Sequence[HeldClaim], seconds: float) -> dict[str, Any]:
        with self._lock:
            plugin = self.plugin(driver)
        try:
            return plugin.call(method, [(claim.namespace, claim.name, claim.uid) for claim in claims], seconds)
        except CallFailed as problem:
            raise NotPrepared(f"{method}: {problem}") from problem

    def plugin(self, driver: str) -> Plugin:
        """The one that was registered last; of those that are connected, if there are any."""
        found = [plugin for plugin in self._plugins if plugin.driver == driver]
        if not found:
            raise NotPrepared(f"DRA driver {driver} is not registered")
        return ([plugin for plugin in found if plugin.connected] or found)[-1]

    # Drivers come and go

    def _register(self, plugin: Plugin) -> None:
        with self._lock:
            self._plugins.append(plugin)
            self.registrations += 1
        self._tick()

    def _forget(self, plugin: Plugin) -> None:
        with self._lock:
            self._plugins.remove(plugin)
            if all(other.driver != plugin.driver for other in self._plugins):
                self._lost.setdefault(plugin.driver, time.monotonic() + self.pace.lost)
        plugin.close()
        self._tick()

    def _tick(self) -> None:
        """A connection has come or gone."""
        with self._lock:
            connected = {plugin.driver for plugin in self._plugins if plugin.connected}
            for driver in {plugin.driver for plugin in self._plugins} - connected:
                self._lost.setdefault(driver, time.monotonic() + self.pace.lost)
            for driver in connected:
                self._lost.pop(driver, None)

    def _wipe_lost(self, registry: Registry) -> None:
        while self._registry is registry:
            with self._lock:
                over = [driver for driver, moment in self._lost.items() if moment < time.monotonic()]
                for driver in over:
                    del self._lost[driver]
            for driver in over:
                self.api.wipe(driver)
            time.sleep(self.pace.scan)


@contextmanager
def running_manager(folder: Path, api: Api, runtime: Runtime, pace: Pace = PATIENT) -> Iterator[Manager]:
    """A kubelet that runs, and that has had nothing to complain of in the end."""
    manager = Manager(folder, api, runtime, pace)
    manager.start()
    try:
        yield manager
        assert manager.complaints == []
    finally:
        manager.stop()
