"""Keeps resources served and registered, whatever happens to the kubelet and the sockets (K4).

Nothing is deduced from events: each check compares the actual state with the intended one. An event makes it come
sooner.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from launcherkit.errors import LauncherkitError
from launcherkit.rpc.unix_socket import SocketIdentity, identity
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.kubelet.client import KUBELET_SOCKET, no_kubelet, register
from launcherkit_plugin.kubelet.server import ResourceServer
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.model.errors import NoKubelet
from launcherkit_plugin.telemetry.reporter import Reporter

LOOK_SECONDS = 1.0
"""The interval of checks without an event. A check takes two calls of lstat."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
"""Pauses after failures; they double."""

UNWATCHED_SECONDS = 10.0
"""If the kubelet hasn't watched a registered resource for this long, it has forgotten the resource."""


class AdvertisedResource:
    """One resource. ``changed`` is called when `registered` changes."""

    def __init__(
        self,
        resource: Resource,
        folder: str,
        allocator: Allocator,
        reporter: Reporter,
        clock: Callable[[], float],
        changed: Callable[[], None],
        dev_root: str,
    ) -> None:
        self._folder = folder
        self._kubelet = f"{folder}/{KUBELET_SOCKET}"
        self._reporter = reporter
        self._clock = clock
        self._changed = changed
        self._resource = resource
        self._server = ResourceServer(resource, folder, allocator, reporter, self._left, dev_root)
        self._wake = asyncio.Event()
        self._known_to: SocketIdentity | None = None
        """The kubelet's socket at which it was registered."""
        self._since = 0.0
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._failing = False

    @property
    def registered(self) -> bool:
        """Whether it is registered with the kubelet, as far as is known."""
        return self._known_to is not None

    def update(self, resource: Resource) -> None:
        """Set its devices; the kubelet is sent them at once if they differ."""
        if resource != self._resource:
            self._resource = resource
            self._server.update(resource)

    def check_soon(self) -> None:
        """Check soon: something may have changed."""
        self._wake.set()

    async def serve_forever(self) -> None:
        """Serve and register it until cancelled; the caller must call `end` then."""
        while True:
            self._wake.clear()
            pause = LOOK_SECONDS
            seen = identity(self._kubelet)
            try:
                await self._keep_registered(seen)
                self._failing = False
                self._backoff.succeeded(None)
                self._reporter.solved(self._server.name)
            except Exception as problem:  # a failure of one resource doesn't affect the others
                self._failing = True
                pause = self._backoff.failed(None, self._clock())
                self._reporter.not_served(self._server.name, problem, self._server.name, resource=self._server.name)
            await self._rest(pause, seen)

    async def end(self, *, gone: bool) -> None:
        """Stop serving. If the resource is ``gone`` for good, an empty list of devices is sent first."""
        if gone:
            self._server.update(self._resource._replace(devices={}))
        self._reporter.solved(self._server.name)
        await self._server.stop()

    async def _keep_registered(self, kubelet: SocketIdentity | None) -> None:
        server = self._server
        if not os.path.isdir(self._folder):
            raise no_kubelet(self._kubelet, "there is no such folder")
        if not server.in_place():
            # The old streams end before the new registration: a kubelet that sees them in the other order drops both.
            await server.stop()
            self._is_known_to(None)
            await server.start()
        forgotten = not server.watchers and self._clock() - self._since > UNWATCHED_SECONDS
        if kubelet is not None and kubelet == self._known_to and not forgotten:
            return
        self._is_known_to(None)
        if kubelet is None:
            raise no_kubelet(self._kubelet, "there is no socket")
        try:
            await register(self._folder, self._resource)
        except LauncherkitError as error:
            self._reporter.metrics.registered(server.name, "failed" if isinstance(error, NoKubelet) else "refused")
            raise
        self._since = self._clock()
        self._is_known_to(kubelet)
        self._reporter.metrics.registered(server.name, "done")
        self._reporter.log("info", f"registered {server.name}, devices: {len(self._resource.devices)}")

    def _left(self) -> None:
        """The kubelet has closed its stream, or has died: the resource has to be registered again."""
        self._is_known_to(None)
        self._wake.set()

    def _is_known_to(self, kubelet: SocketIdentity | None) -> None:
        before, self._known_to = self._known_to, kubelet
        if before != kubelet:
            self._changed()

    async def _rest(self, pause: float, kubelet: SocketIdentity | None) -> None:
        """Wait for the next check. After a failure, an event ends the pause only if the kubelet has a new socket."""
        deadline = asyncio.get_running_loop().time() + pause
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    if not self._failing:
                        return
                    if identity(self._kubelet) != kubelet:
                        self._backoff.succeeded(None)
                        return


class Advertiser:
    """All resources, each with its own task.

    Args:
        folder: the folder of the device plugins' sockets.
        allocator: answers the kubelet's calls.
        reporter: receives problems and registrations.
        clock: seconds, monotonic.
        dev_root: see `launcherkit_plugin.kubelet.messages.allocation`.
        changed: called with the names of the resources that aren't registered, when that may have changed.
    """

    def __init__(
        self,
        folder: str,
        allocator: Allocator,
        reporter: Reporter,
        clock: Callable[[], float],
        *,
        dev_root: str = "",
        changed: Callable[[Sequence[str]], object] = lambda _: None,
    ) -> None:
        self._reporter = reporter
        self._advertised = partial(
            AdvertisedResource,
            folder=folder,
            allocator=allocator,
            reporter=reporter,
            clock=clock,
            changed=self._notify,
            dev_root=dev_root,
        )
        self._changed = changed
        self._kept: dict[str, tuple[AdvertisedResource, asyncio.Task[None]]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    def update(self, resources: Iterable[Resource]) -> None:
        """Advertise these, and no others, from now on."""
        by_name = {resource.name: resource for resource in resources}
        for name in self._kept.keys() - by_name.keys():
            one, task = self._kept.pop(name)
            self._reporter.log("info", f"{name} is no longer advertised")
            ending = self._end(name, one, task, self._ending.get(name), gone=True)
            self._ending[name] = asyncio.create_task(ending)
        for name, resource in by_name.items():
            if name in self._kept:
                self._kept[name][0].update(resource)
            else:
                one = self._advertised(resource)
                self._kept[name] = one, asyncio.create_task(self._keep(one, self._ending.get(name)))
        self._notify()

    def check_soon(self) -> None:
        """Check all soon: something has changed in the folder of the sockets."""
        for one, _ in self._kept.values():
            one.check_soon()

    def unregistered(self) -> list[str]:
        """The names of the resources that aren't registered."""
        return sorted(name for name, (one, _) in self._kept.items() if not one.registered)

    def _notify(self) -> None:
        self._changed(self.unregistered())

    async def close(self) -> None:
        """Stop serving all of them, after calls in progress have finished."""
        kept, self._kept = self._kept, {}
        ends = [self._end(name, one, task, self._ending.get(name), gone=False) for name, (one, task) in kept.items()]
        await asyncio.gather(*ends, *self._ending.values())

    @staticmethod
    async def _keep(one: AdvertisedResource, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})  # it has the socket until then
        await one.serve_forever()

    async def _end(
        self,
        name: str,
        one: AdvertisedResource,
        task: asyncio.Task[None],
        before: asyncio.Task[None] | None,
        *,
        gone: bool,
    ) -> None:
        """End one, after an earlier one of that name has ended."""
        task.cancel()
        await asyncio.wait({task} if before is None else {task, before})
        try:
            await one.end(gone=gone)
        except Exception as bug:
            self._reporter.bug(bug, f" while {name} was ending")
        finally:
            if self._ending.get(name) is asyncio.current_task():
                del self._ending[name]
