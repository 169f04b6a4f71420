"""A node for tests of the vGPU providers: a kernel, a clock, and what the daemon does with them."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Mapping, Sequence

from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.devices.cdi import GrantedNodes
from launcherkit_plugin.devices.provider import Provider
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import LayoutEntry, VgpuConfig, VgpuRule
from launcherkit_plugin.model.device import Device, Grant, Holder, Resource, Usage
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.gpu_instances import MigKeeper, MigMaker
from launcherkit_plugin.vgpu.lifecycle import Stopped
from launcherkit_plugin.vgpu.maker import Maker
from launcherkit_plugin.vgpu.mig_records import MadeRecords
from launcherkit_plugin.vgpu.nvml import Ask, Nvml
from launcherkit_plugin.vgpu.providers import vgpus_of
from launcherkit_plugin.vgpu.writer import VgpuWriter
from tests.plugin.vgpu.kernel import Kernel
from tests.support.waiting import PATIENCE

_loop = asyncio.Runner()
"""One for all: a test that turns a thousand times would spend most of its time on making and closing others."""
atexit.register(_loop.close)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Recorded(Metrics):
    """Keeps what is counted and recorded."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, str]] = []
        self.events: list[tuple[str, str, str]] = []
        self.lines: list[str] = []

    def vgpu(self, action: str, outcome: str) -> None:
        self.counted.append((action, outcome))

    def event(self, type: str, reason: str, message: str) -> None:  # noqa: A002
        self.events.append((type, reason, message))

    def log(self, level: str, text: str, **fields: object) -> None:
        self.lines.append(f"{level}: {text}")


def name_of(name: str, vendor: int | None) -> str:
    return f"{'nvidia.com' if vendor == 0x10DE else 'other'}/{name.replace(' ', '_')}"


class Node:
    """The plugin on a node; `restart` forgets all that it has in memory."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        mdevs: Sequence[VgpuRule] = (),
        vfs: Sequence[VgpuRule] = (),
        layout: Sequence[LayoutEntry] = (),
        spread: Sequence[str] = (),
        grace: float = 60.0,
        granted: GrantedNodes | None = None,
        asks: Ask | None = None,
        state: str = "",
    ) -> None:
        self._asks = asks
        self._state = state
        self.boot = "first boot"
        self.kernel = kernel
        self.clock = Clock()
        self.granted = granted
        self.config = VgpuConfig(tuple(layout), tuple(spread), tuple(mdevs), tuple(vfs), grace)
        self.usage = Usage("pod-resources", {})
        self.recorded = Recorded()
        self.restart()

    def ended(self, *cards: str) -> None:
        """Wait until nothing is done on these cards any more, as when the process is dead: its threads die at their
        next step."""
        _loop.run(self.queue.quiet(cards, PATIENCE))

    def restart(self) -> None:
        self.reservations = Reservations()
        self.stopped = Stopped()
        maker = Maker(self.kernel, self.clock, self.clock.sleep)
        writer = VgpuWriter(maker, self.kernel.is_open, Reporter(self.recorded.log, self.recorded, self.recorded))
        self.queue = WorkQueue(stall=PATIENCE)
        mig = None
        if self._asks is not None:
            made = MigMaker(Nvml(f"{self._state}/lock", self._asks), MadeRecords(self._state, self.boot), maker)
            mig = MigKeeper(self.config.layout, made, writer, self.queue)
        self.providers, self.reconcilers = vgpus_of(
            self.config, name_of, writer, self.queue, stopped=self.stopped, mdev_nodes=self.granted, mig=mig
        )
        self.offers: Mapping[str, tuple[Resource, Provider]] = {}

    def hold(self, resource: str, *devices: str, pod: str = "default/vm", source: str = "pod-resources") -> None:
        """From now on a pod has these devices, and no others have any."""
        self.usage = Usage(source, {resource: dict.fromkeys(devices, Holder(pod, "compute"))})  # type: ignore[arg-type]

    def turn(self) -> bool:
        """One turn of the daemon's loop."""
        return _loop.run(self._turn())

    async def _turn(self) -> bool:
        changed = False
        facts = self.kernel.facts()
        usage = self.usage
        for _ in range(20):  # a change is followed by another look
            usage = self.reservations.merged(self.usage, self.clock.now, self.clock.now + 0.001)
            begun = [
                task for reconciler in self.reconcilers for task in reconciler.reconcile(facts, usage, self.clock.now)
            ]
            results = await asyncio.gather(*begun)
            changed |= any(results)
            if not any(results):
                break
            facts = self.kernel.facts()
        self.offers = {
            resource.name: (resource, provider)
            for provider in self.providers
            for resource in provider.resources(facts, usage, self.clock.now)
        }
        return changed

    def work(self) -> list[str]:
        """What is begun on cards now, whether it changes anything or not."""
        return _loop.run(self._work())

    async def _work(self) -> list[str]:
        facts = self.kernel.facts()
        begun: list[asyncio.Task[bool]] = []
        for reconciler in self.reconcilers:
            begun += reconciler.reconcile(facts, self.usage, self.clock.now)
        await asyncio.gather(*begun)
        return [task.get_name() for task in begun]

    def devices(self, resource: str) -> list[Device]:
        return list(self.offers[resource][0].devices.values()) if resource in self.offers else []

    def healthy(self, resource: str) -> list[str]:
        return [device.id for device in self.devices(resource) if device.healthy]

    def reasons(self, resource: str) -> set[str]:
        return {device.problem.reason for device in self.devices(resource) if device.problem}

    def allocate(self, name: str, *devices: str) -> Grant:
        """What the kubelet's Allocate gives; the pod is not seen yet."""
        resource, provider = self.offers[name]
        grant = _loop.run(provider.allocate(resource, devices))
        self.reservations.reserve(name, devices, self.clock.now)
        return grant

    def check(self, name: str, *devices: str) -> None:
        """PreStartContainer."""
        resource, provider = self.offers[name]
        _loop.run(provider.check(resource, devices))
