"""A node's claims in one process: real providers on a built host, an API server that is a dictionary."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcherkit.atomic import Disk
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.dra.claim_files import ClaimPlaces
from launcherkit_plugin.dra.claim_queue import ClaimQueue, DriverLock
from launcherkit_plugin.dra.claim_record import PreparedDevice
from launcherkit_plugin.dra.claim_store import ClaimStore
from launcherkit_plugin.dra.inventory import DraDevice
from launcherkit_plugin.dra.prepare import Preparer
from launcherkit_plugin.dra.request_parts import ListedDevice
from launcherkit_plugin.model.config import PciRule
from launcherkit_plugin.model.device import NO_USAGE, ClaimRef, Usage
from launcherkit_plugin.model.errors import CLAIM_UNREADABLE
from launcherkit_plugin.model.wakeups import Wakeup
from tests.plugin.resources import RULE, Node
from tests.support.hosttree import HostTree

DRIVER = "pci.launcherkit.io"
REF = ClaimRef("vms", "gpu", "u-1")
AGAIN = REF._replace(uid="u-2")
"""Another claim under the name of the first."""
CARDS = ("0000:01:00", "0000:02:00", "0000:03:00")


class Killed(BaseException):
    """The process ends here: nothing that comes after it is done."""


class SteppedDisk(Disk):
    """Each file that is written or removed is a step, at which a test may do something."""

    def __init__(self, step: Callable[[str], object]) -> None:
        self._step = step

    def replace(self, path: str, data: bytes, mode: int = 0o644, folder_mode: int = 0o755) -> None:
        self._step(path)
        super().replace(path, data, mode, folder_mode)

    def remove(self, path: str) -> None:
        self._step(path)
        super().remove(path)


def dra_name(address: str) -> str:
    return "pci-" + address.replace(":", "-").replace(".", "-")


def claim_of(
    ref: ClaimRef, results: Mapping[str, list[str]], *, config: list[Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    """An allocated claim: addresses of cards by request."""
    return {
        "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid, "generation": 3, **metadata},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": request, "driver": DRIVER, "pool": "node-1", "device": dra_name(address)}
                        for request, addresses in results.items()
                        for address in addresses
                    ],
                    "config": config or [],
                }
            }
        },
    }


class ClaimDesk:
    """Claims on a host of three cards, each of two functions in a group of its own but the last two."""

    def __init__(self, folder: Path, rules: Mapping[int, PciRule] | None = None) -> None:
        self.folder = folder
        self.tree = HostTree(folder / "host")
        for number, slot in enumerate(CARDS):
            self.tree.card(slot, group=min(number, 1) + 7)
        self.node = Node(self.tree, {0x03: RULE._replace(dra=True)} if rules is None else rules)
        self.claims: dict[str, dict[str, Any]] = {}
        self.asked = 0
        self.usage: Usage = NO_USAGE._replace(source="pod-resources")
        self.woken: list[Wakeup] = []
        self.step: Callable[[str], object] = str
        self.environment = True
        self.boot = "boot-1"
        self.patience = 30.0
        """After so many seconds a call is answered; another process, see `restart`, may have another."""
        self.places = ClaimPlaces(DRIVER, str(folder / "kubelet"), str(folder / "cdi"))
        self.lock = self._unlocked()
        self.restart()

    def _unlocked(self) -> DriverLock:
        return DriverLock(f"{self.places.data}/serialize.lock")

    def restart(self) -> None:
        """Another process: it knows what is on disk."""
        Path(self.places.data).mkdir(parents=True, exist_ok=True)
        self.allocator = Allocator(Reservations(), time.monotonic, self.woken.append)
        self.lock.close()
        self.lock = self._unlocked()
        self.queue = ClaimQueue(self.lock, seconds=self.patience)
        store = ClaimStore(self.places, self.boot, SteppedDisk(lambda path: self.step(path)))
        self.preparer = Preparer(
            store, self.allocator, lambda *asked: self.get_claim(*asked), self.queue, lambda: self.environment
        )
        store.tidy()
        self.preparer.held()
        self.look()

    def look(self) -> None:
        """What the daemon's loop does."""
        facts = self.node.facts()
        used = self.allocator.observe(self.usage, time.monotonic())
        found = {each.name: each for each in self.node.provider.resources(facts, used, 0.0)}
        self.allocator.advertise({name: Offer(each, self.node.provider) for name, each in found.items()}, facts)
        self.preparer.listed(
            {
                dra_name(device.id): ListedDevice(
                    DraDevice(
                        dra_name(device.id), name, device.id, {"model": {"string": "A"}, "functions": {"int": 2}}, {}
                    ),
                    device,
                )
                for name, each in found.items()
                for device in each.devices.values()
            }
        )

    async def get_claim(self, namespace: str, name: str, uid: str, seconds: float) -> dict[str, Any]:
        self.asked += 1
        await asyncio.sleep(0)
        found = self.claims.get(f"{namespace}/{name}")
        if found is None:
            raise CLAIM_UNREADABLE(f"the ResourceClaim {namespace}/{name} can't be read: not found", "None.")
        return found

    def allocate(self, ref: ClaimRef = REF, *cards: str, **more: Any) -> None:
        """Let the API server have an allocated claim."""
        results = more.pop("results", {"gpu": [f"{card}.0" for card in cards or CARDS[:1]]})
        self.claims[str(ref)] = claim_of(ref, results, **more)

    def prepare(self, ref: ClaimRef = REF) -> tuple[PreparedDevice, ...]:
        return asyncio.run(self.preparer.prepare(ref))

    def unprepare(self, ref: ClaimRef = REF) -> None:
        asyncio.run(self.preparer.unprepare(ref))

    def held(self) -> dict[str, str]:
        """Who has which device."""
        return {key: str(holder) for held in self.allocator.usage().held.values() for key, holder in held.items()}

    def files(self) -> list[str]:
        """All files of claims, below the folders in which they are."""
        roots = (self.folder / "cdi", Path(self.places.metadata), Path(self.places.records))
        return sorted(
            str(path.relative_to(self.folder))
            for root in roots
            for path in root.rglob("*")
            if path.is_file() and path.name != "boot"
        )

    def cdi(self, name: str) -> dict[str, Any]:
        """A CDI file."""
        document: dict[str, Any] = json.loads((self.folder / "cdi" / name).read_text())
        return document
