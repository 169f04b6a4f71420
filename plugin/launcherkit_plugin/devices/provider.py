"""What the daemon asks of a kind of device: PCI passthrough, mediated devices, SR-IOV vGPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit_plugin.model.device import Grant, Resource
from launcherkit_plugin.model.usage import Usage


class Provider(Protocol):
    """A kind of device. One provider has many resources; a resource has one provider."""

    def wants(self, function: PciFunction) -> bool:
        """Whether the details of a function have to be read before `resources` and `reconcile` are called."""
        ...

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """What there is to advertise; a pure look at the facts, and at what this provider remembers of earlier ones.

        Args:
            host: a fresh scan.
            usage: the pods' devices, those included that Allocate has just given away.
            now: seconds on a monotonic clock.
        """
        ...

    async def allocate(self, resource: Resource, ids: Sequence[str]) -> Grant:
        """What a container gets for these devices, resolved on the host at this moment (K2).

        Raises:
            LauncherkitError: a device is not there any more, or can't be had; nothing is half done.
        """
        ...

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """Once more before the container starts.

        Raises:
            LauncherkitError: as `allocate`.
        """
        ...

    async def reconcile(self, host: HostFacts, usage: Usage, now: float) -> bool:
        """Bring the host closer to what the configuration says: bind, make, remove. True where something was changed.

        Never touches what ``usage`` says is held; removes nothing where ``usage`` isn't known. What fails is logged and
        tried again by a later call.
        """
        ...
