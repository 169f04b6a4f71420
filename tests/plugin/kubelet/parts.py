"""Resources that are advertised from a loop in a thread, and a stand-in for what answers the kubelet."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.kubelet.advertiser import Advertiser
from launcherkit_plugin.model.device import Device, Grant, Problem, Resource
from launcherkit_plugin.model.errors import DEVICE_UNHEALTHY, UNKNOWN_DEVICE, WORK_HANGS
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.support.looping import PATIENCE, Loop

NAME = "nvidia.com/GA102_GEFORCE_RTX_3090"
SICK = Problem("driver", "0000:01:00.0 is bound to nouveau")


def resource(*ids: str, name: str = NAME, sick: Sequence[str] = (), numa: int | None = None) -> Resource:
    """A resource with devices of these IDs."""
    devices = {id_: Device(id_, numa_node=numa, problem=SICK if id_ in sick else None) for id_ in ids}
    return Resource(name, f"PCI_RESOURCE_{name.upper()}", devices, made_at_start=True)


class Shelf(Allocator):
    """Answers the kubelet from what it was given last."""

    def __init__(self) -> None:
        super().__init__(Reservations(), time.monotonic)
        self.resources: dict[str, Resource] = {}
        self.checked: list[str] = []

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Grant]:
        return [self._grant(resource, ids) for ids in containers]

    def _grant(self, resource: str, ids: Sequence[str]) -> Grant:
        for device in ids:
            if device not in self.resources[resource].devices:
                raise UNKNOWN_DEVICE(f"{resource}: there is no device {device!r}", "Ask for another.")
            if problem := self.resources[resource].devices[device].problem:
                raise DEVICE_UNHEALTHY(f"{resource}: {device} is Unhealthy: {problem.text}", "Mend it.")
        if "a bug" in ids:
            raise ZeroDivisionError
        if "stuck" in ids:
            raise WORK_HANGS(f"{resource}: the kernel hasn't answered", "See dmesg.")
        nodes = ("/dev/vfio/vfio", *(f"/dev/vfio/{number}" for number, _ in enumerate(ids)))
        return Grant({self.resources[resource].variable: ",".join(ids)}, nodes, tuple(f"x.io/y={id_}" for id_ in ids))

    async def check(self, resource: str, ids: Sequence[str]) -> None:
        self.checked += ids
        self._grant(resource, ids)

    def prefer(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        rest = sorted(set(available) - set(must_include), reverse=True)
        return [*must_include, *rest][:size]


class Lines:
    """A log that can be read."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, level: str, text: str, **fields: object) -> None:
        self.lines.append(f"{level}: {text}")


class Tries(Metrics):
    """Counts registrations, and how Allocates end."""

    def __init__(self) -> None:
        self.tries: list[str] = []
        self.outcomes: list[str] = []

    def allocated(self, resource: str, seconds: float, outcome: str) -> None:
        self.outcomes.append(outcome)

    def registered(self, resource: str, outcome: str) -> None:
        self.tries.append(resource)


def until(condition: Callable[[], object]) -> None:
    """Wait until something holds that nobody tells of."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def provoked(code: str) -> str:
    """The message that the page of an error shows."""
    lines = (Path(__file__).parents[2] / "provoked" / "kubelet.error").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(code))
    return line.partition(": ")[2]


HELP = {
    715: "See the kubelet's log. It accepts v1beta1 since Kubernetes 1.10.",
    716: "Run only one device plugin for each resource: stop the other one, or give its resource another name.",
    717: "Mount the kubelet's folder device-plugins, writable, and name its parent with --kubelet-dir.",
}


class Plugin:
    """Resources that are kept advertised, and what is told of it."""

    def __init__(self, loop: Loop, folder: Path, dev_root: str = "") -> None:
        self.loop = loop
        self.shelf = Shelf()
        self.log = Lines()
        self.metrics = Tries()
        reporter = Reporter(self.log, self.metrics)
        advertiser = partial(Advertiser, dev_root=dev_root)
        self.advertiser = loop.call(advertiser, str(folder), self.shelf, reporter, time.monotonic)

    def advertise(self, *resources: Resource) -> None:
        self.shelf.resources = {resource.name: resource for resource in resources}
        self.loop.call(self.advertiser.update, resources)

    def look(self) -> None:
        self.loop.call(self.advertiser.check_soon)

    def tries(self, name: str) -> int:
        """How often registering a resource has been tried, or was not worth a try."""
        return self.metrics.tries.count(name)

    @staticmethod
    def help(number: int) -> str:
        """What the errors of this package advise."""
        return HELP[number]

    def unregistered(self) -> list[str]:
        return self.loop.call(self.advertiser.unregistered)

    def close(self) -> None:
        self.loop.run(self.advertiser.close())
