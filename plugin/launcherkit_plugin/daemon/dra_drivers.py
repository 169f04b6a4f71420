"""The DRA drivers of a node: the configured one, and those of earlier configurations as long as claims have devices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcherkit.model.host import HostFacts
from launcherkit_plugin.daemon.wiring import has_records
from launcherkit_plugin.model.config import DRA_DRIVER, DraConfig
from launcherkit_plugin.model.device import Resource

if TYPE_CHECKING:
    from launcherkit_plugin.dra.node_driver import NodeDriver


class DraDrivers:
    """The drivers, by name. Nothing of DRA is imported unless one is configured or a claim has devices.

    Args:
        make: makes a driver.
        plugins: the kubelet's folder ``plugins``, which has a folder for each driver.
    """

    def __init__(self, make: Callable[[DraConfig], NodeDriver], plugins: str) -> None:
        self._make = make
        self._plugins = plugins
        self._drivers: dict[str, NodeDriver] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, config: DraConfig | None) -> None:
        """Read which devices claims have, before anything else is done; also those from an earlier configuration."""
        if config is not None:
            self._driver(config)
        elif has_records(f"{self._plugins}/{DRA_DRIVER}/claims"):
            self._driver(DraConfig(), tidy=False)

    def listed(self, facts: HostFacts, resources: Sequence[Resource], config: DraConfig | None) -> None:
        """Set the facts, resources and configuration from now on. Drivers that are no longer needed are closed."""
        if config is not None:
            self._driver(config)
        for name, driver in list(self._drivers.items()):
            driver.listed(facts, resources if config is not None and name == config.driver else ())
            if (config is None or name != config.driver) and not driver.has_claims:
                del self._drivers[name]
                ending = asyncio.create_task(driver.close())
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)

    def _driver(self, config: DraConfig, *, tidy: bool = True) -> None:
        driver = self._drivers.get(config.driver)
        if driver is None:
            driver = self._drivers[config.driver] = self._make(config)
            driver.start(tidy=tidy)
        driver.config = config

    def unregistered(self) -> list[str]:
        """The names of the drivers that aren't registered with the kubelet."""
        return sorted(name for name, driver in self._drivers.items() if not driver.registered)

    async def close(self) -> None:
        """Stop serving; claims keep their devices."""
        await asyncio.gather(*(driver.close() for driver in self._drivers.values()), *self._ending)
