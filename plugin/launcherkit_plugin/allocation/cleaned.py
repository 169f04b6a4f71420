"""Devices that no pod gets before they are clean (K11)."""

from __future__ import annotations

from collections.abc import Sequence

from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.binding.cleaning import Cleaner
from launcherkit_plugin.devices.provider import Provider
from launcherkit_plugin.model.device import NO_PREFERENCES, Grant, Preferences, Resource, Usage


class CleanedProvider:
    """A `launcherkit_plugin.devices.provider.Provider` whose devices are cleaned between two pods.

    Args:
        provider: of the devices.
        cleaner: knows which of them are clean, and cleans the others.
    """

    changes_host = True

    def __init__(self, provider: Provider, cleaner: Cleaner) -> None:
        self._provider = provider
        self._cleaner = cleaner

    def wants(self, function: PciFunction) -> bool:
        """See `Provider.wants`."""
        return self._provider.wants(function)

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """See `Provider.resources`."""
        return self._cleaner.marked(self._provider.resources(host, usage, now), host, usage)

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: Preferences = NO_PREFERENCES) -> Grant:
        """See `Provider.allocate`."""
        async with self._cleaner.lending(resource, ids):
            return await self._provider.allocate(resource, ids, wishes)

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """See `Provider.check`."""
        await self._provider.check(resource, ids)
