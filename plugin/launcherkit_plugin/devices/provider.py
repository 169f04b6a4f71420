"""What the daemon asks of a kind of device: PCI passthrough, mediated devices, SR-IOV vGPU.

A provider advertises devices and hands them out; a reconciler changes the host. One thing may be both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit_plugin.model.device import Grant, Resource, Usage, Wishes


class Provider(Protocol):
    """A kind of device. One provider has many resources; a resource has one provider."""

    @property
    def changes_host(self) -> bool:
        """Whether `allocate` may change the host. What it has begun is completed then, even if the caller hangs up."""
        ...

    def wants(self, function: PciFunction) -> bool:
        """Whether the details of a function have to be read before `resources` is called."""
        ...

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """What there is to advertise; a pure look at the facts, and at what this provider remembers of earlier ones.

        Args:
            host: a fresh scan.
            usage: the pods' devices, those included that Allocate has just given away.
            now: seconds on a monotonic clock.
        """
        ...

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: Wishes = ...) -> Grant:
        """What a container gets for these devices, resolved on the host at this moment (K2).

        Args:
            resource: theirs.
            ids: of the devices.
            wishes: how a claim wants them. Whether the nodes are of the kind that is wanted is seen by the caller.

        Raises:
            LauncherkitError: a device is not there any more, or isn't available; nothing is half done.
        """
        ...

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """Once more before the container starts.

        Raises:
            LauncherkitError: as `allocate`.
        """
        ...


class Reconciler(Protocol):
    """Brings the host closer to what the configuration says: binds, makes, removes."""

    def wants(self, function: PciFunction) -> bool:
        """Whether the details of a function have to be read before `reconcile` is called."""
        ...

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> Sequence[asyncio.Task[bool]]:
        """Begin what has to be done, in tasks that wait for nobody; each returns whether it has changed something.

        What it takes away is begun before this returns: ``usage`` is true until then, and no longer. A card on which
        something is under way is left for a later call (K9). Never touches what ``usage`` says is held; removes nothing
        where ``usage`` isn't known. What fails is logged and tried again by a later call.
        """
        ...
