"""A node with a device plugin: the double of the kubelet, the plugin's process, the machine."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab.conformance.cdi import FOLDER, edits
from launcherkit_lab.conformance.driver import Driver
from launcherkit_lab.conformance.expectation import NotTried, Unmet
from launcherkit_lab.conformance.machine import KUBEVIRT_PREFIX, Given, Machine, read_given, variable
from launcherkit_lab.kubelet import SOCKET_PATH_BYTES, Holding, Kubelet, NotAdmitted

_LOOK_SECONDS = 0.5
"""How often it is seen whether the driver still runs."""


class Limits(NamedTuple):
    """How much is tried, and how long is waited."""

    pods: int = 100
    kills: int = 20
    health_seconds: float = 10.0
    patience: float = 120.0
    """Seconds for anything else."""
    steady_seconds: float = 1.0
    """How long what was registered is watched for an end of its list."""


class CannotServe(Exception):
    """The double can't be the kubelet of a folder; the text says why."""


def start(kubelet: Kubelet) -> None:
    """Let a kubelet serve.

    Raises:
        CannotServe: another does, or its sockets can't be there.
    """
    path = kubelet.plugins / "kubelet.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise CannotServe(f"{path}: too long a path for a socket; --kubelet-dir names a shorter folder")
    with socket.socket(socket.AF_UNIX) as probe:
        if path.exists() and probe.connect_ex(os.fspath(path)) == 0:
            raise CannotServe(f"a kubelet serves on {path}; --kubelet-dir names another folder")
    try:
        kubelet.start()
    except RuntimeError as error:  # gRPC's
        raise CannotServe(f"{path}: {error}") from error


class Node:
    """What the expectations of device plugins are tried on.

    Args:
        models: vendor and device IDs of the functions that the plugin is to list.
        variable_prefix: what the variable with a container's addresses begins with.
        cdi: where the runtime looks for CDI files.
    """

    def __init__(
        self,
        kubelet_dir: Path,
        driver: Driver,
        resources: Sequence[str],
        models: Sequence[str],
        machine: Machine,
        limits: Limits = Limits(),  # noqa: B008  # an immutable value
        variable_prefix: str = KUBEVIRT_PREFIX,
        cdi: Path = FOLDER,
    ) -> None:
        self.kubelet = Kubelet(kubelet_dir, patience=limits.patience)
        self.driver = driver
        self.resources = tuple(resources)
        self.models = tuple(models)
        self.machine = machine
        self.limits = limits
        self._variable_prefix = variable_prefix
        self._cdi = cdi
        self._serving = False
        self._first: Mapping[str, Mapping[str, bool]] = {}
        self._lost = ""
        self._pods = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """The kubelet serves meanwhile; in the end the plugin is gone, too.

        Raises:
            CannotServe: another does, or its sockets can't be there.
        """
        start(self.kubelet)
        try:
            yield
        finally:
            self.driver.kill()
            self.kubelet.stop()

    def prepare(self) -> None:
        """See `launcherkit_lab.conformance.trial.Prepared`."""
        for pod in {holding.pod for holding in self.kubelet.holdings}:
            self.kubelet.delete(pod)
        if self._lost:
            raise NotTried(self._lost)
        try:
            try:
                self.become_ready()
            except TimeoutError:  # what was tried before may have got it stuck
                self.driver.kill()
                self.become_ready()
        except TimeoutError as error:
            self._lost = str(error)
            raise NotTried(self._lost) if self._first else Unmet(self._lost) from error

    def become_ready(self) -> None:
        """Start the plugin, unless it runs, and wait until it is registered and all is as the first time.

        Raises:
            TimeoutError: it never is.
        """
        # The kubelet may not have noticed yet that the one before has ended: its devices are those of nobody.
        before = Counter[str]() if self.driver.running else Counter(self.kubelet.registrations)
        self.driver.start()
        self._wait_registered(before)
        self._first = self._first or {name: self.kubelet.devices(name) for name in self.resources}
        self.wait_back()  # which may take a driver some time after a pod has ended

    def _wait_registered(self, before: Counter[str]) -> None:
        """Wait until every resource was registered since then, and has a list of devices.

        Raises:
            TimeoutError: one hasn't.
        """

        def listed(resource: str) -> bool:
            registered = self.kubelet.registrations.count(resource) > before[resource]
            return registered and bool(self.kubelet.devices(resource))

        for resource in self.resources:
            self._wait(partial(listed, resource), f"{resource} has no devices")

    def wait_back(self) -> None:
        """Wait until every resource has the devices again that it had the first time, healthy as they were.

        Raises:
            TimeoutError: one hasn't.
        """
        for resource, devices in self._first.items():
            self._wait(lambda: self.kubelet.devices(resource) == devices, f"{resource} has not {dict(devices)} again")  # noqa: B023

    def _wait(self, condition: Callable[[], object], problem: str) -> None:
        """Wait until something holds; not for a driver that has ended."""
        deadline = time.monotonic() + self.limits.patience
        while True:
            try:
                return self.kubelet.wait(condition, problem, _LOOK_SECONDS)
            except TimeoutError:
                also = "".join(f"; refused: {text}" for text in dict.fromkeys(self.kubelet.refusals))
                also += "".join(f"; {name}: ListAndWatch has ended" for name in dict.fromkeys(self.kubelet.ended))
                if not self.driver.running:
                    raise TimeoutError(f"{problem}, and the driver has ended{also}") from None
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{problem} after {self.limits.patience:.0f} s{also}") from None

    def complaints(self) -> Sequence[str]:
        return self.kubelet.complaints

    def position(self) -> int:
        return self.driver.position()

    def said_since(self, position: int, lines: int) -> str:
        return self.driver.said_since(position, lines)

    def variable(self, resource: str) -> str:
        """The variable that names the functions of a resource."""
        return variable(resource, self._variable_prefix)

    def healthy(self, resource: str) -> list[str]:
        return sorted(device for device, healthy in self.kubelet.devices(resource).items() if healthy)

    @contextmanager
    def pod(self, resource: str, ids: Sequence[str]) -> Iterator[Given]:
        """A pod has these devices meanwhile.

        Raises:
            Unmet: it was refused.
        """
        self._pods += 1
        name = f"pod-{self._pods}"
        try:
            holding = self.kubelet.admit_with(name, resource, ids)
        except NotAdmitted as refusal:
            raise Unmet(f"a pod can't have {', '.join(ids)} of {resource}: {refusal}") from refusal
        try:
            yield self.read(holding)
        finally:
            self.kubelet.delete(name)

    def read(self, holding: Holding) -> Given:
        """What a holding comes to.

        Raises:
            Unmet: it names a CDI device that a runtime doesn't find.
        """
        named = edits(self._cdi, (device.name for device in holding.answer.cdi_devices))
        return read_given(holding, self.machine, self.variable(holding.resource), named)

    def each(self) -> Iterator[Given]:
        """One pod after the other, each with one healthy device, until each device had its turn.

        Raises:
            Unmet: one was refused.
            NotTried: none is healthy.
        """
        devices = [(resource, device) for resource in self.resources for device in self.healthy(resource)]
        if not devices:
            raise NotTried("no device is healthy")
        for resource, device in devices:
            with self.pod(resource, [device]) as container:
                yield container

    def several(self) -> Iterator[Given]:
        """As `each`; then a pod with two devices of each resource that has them."""
        yield from self.each()
        for resource in self.resources:
            if len(ids := self.healthy(resource)[:2]) == 2:
                with self.pod(resource, ids) as container:
                    yield container
