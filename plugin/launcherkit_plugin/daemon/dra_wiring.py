"""The DRA drivers of a node: that of the configuration, and those of earlier ones as long as claims have something."""

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
    """None is made, and nothing of it imported, where no configuration asks for one and no claim has anything.

    Args:
        make: makes a driver.
        plugins: the kubelet's folder of the drivers' own folders.
    """

    def __init__(self, make: Callable[[DraConfig], NodeDriver], plugins: str) -> None:
        self._make = make
        self._plugins = plugins
        self._drivers: dict[str, NodeDriver] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, config: DraConfig | None) -> None:
        """Hold what claims have before anything else is done. What an earlier configuration gave them counts, too."""
        if config is not None:
            self._driver(config)
        elif has_records(f"{self._plugins}/{DRA_DRIVER}/claims"):
            self._driver(DraConfig(), tidy=False)

    def listed(self, facts: HostFacts, resources: Sequence[Resource], config: DraConfig | None) -> None:
        """What there is from now on, by this configuration."""
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
        """The drivers that the kubelet doesn't know."""
        return sorted(name for name, driver in self._drivers.items() if not driver.registered)

    async def close(self) -> None:
        """Stop serving; what claims have stays theirs."""
        await asyncio.gather(*(driver.close() for driver in self._drivers.values()), *self._ending)
