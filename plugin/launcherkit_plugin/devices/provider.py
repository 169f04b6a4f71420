"""The interfaces of a kind of device to the daemon: PCI passthrough, mediated devices, SR-IOV vGPU.

A provider advertises and allocates devices; a reconciler changes the host. A class may be both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.model.device import Grant, Preferences, Resource, Usage


class Provider(Protocol):
    """A kind of device. One provider has many resources; a resource has one provider."""

    @property
    def changes_host(self) -> bool:
        """Whether `allocate` may change the host. If so, it runs to its end even if the caller hangs up."""
        ...

    def wants(self, function: PciFunction) -> bool:
        """Whether the details of a function have to be read before `resources` is called."""
        ...

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """The resources to advertise, from the facts and from what this provider remembers; does no I/O.

        Args:
            host: a fresh scan.
            usage: which pod has which device, including those that were just allocated.
            now: seconds on a monotonic clock.
        """
        ...

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: Preferences = ...) -> Grant:
        """What a container gets for these devices, from the present state of the host (K2).

        Args:
            resource: of the devices.
            ids: of the devices.
            wishes: how a claim wants them. The caller checks that the nodes are of the kind that it wants.

        Raises:
            LauncherkitError: a device doesn't exist any more or isn't available. Nothing is left half done.
        """
        ...

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """Check devices once more before the container starts.

        Raises:
            LauncherkitError: see `allocate`.
        """
        ...


class Reconciler(Protocol):
    """Brings the host closer to the configuration: binds, creates, removes."""

    def wants(self, function: PciFunction) -> bool:
        """Whether the details of a function have to be read before `reconcile` is called."""
        ...

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> Sequence[asyncio.Task[bool]]:
        """Begin the necessary work, in independent tasks. Each returns whether it has changed something.

        Work that takes a device away is begun before this returns, since ``usage`` is valid only until then. Devices
        that are held according to ``usage`` are never touched; if it is unknown, nothing is removed. A card on which
        other work is in progress is left for a later call (K9). Failures are logged, and retried by a later call.
        """
        ...
