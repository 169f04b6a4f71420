"""A driver in this process whose every step may be its last; claims come and go at random.

Dying is an exception that nothing may handle: whatever would be written after it isn't.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcherkit.atomic import Disk
from launcherkit.errors import UNWRITABLE_FILE, LauncherkitError
from launcherkit.model.host import NO_FACTS, PciFunction
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.dra.claim_files import ClaimPlaces
from launcherkit_plugin.dra.claim_queue import ClaimQueue, DriverLock
from launcherkit_plugin.dra.claim_store import ClaimStore
from launcherkit_plugin.dra.inventory import inventory
from launcherkit_plugin.dra.prepare import Preparer
from launcherkit_plugin.dra.request_parts import ListedDevice
from launcherkit_plugin.dra.slices import slices
from launcherkit_plugin.model.device import ClaimRef, Device, Grant, Holder, Resource, Usage
from launcherkit_plugin.model.errors import CLAIM_UNREADABLE
from tests.dra.api import Api, Refused, results_of
from tests.dra.node import DRIVER
from tests.dra.runtime import Runtime
from tests.dra.scheduler import DeviceClass, Scheduler, Unschedulable, requested

CLAIMED, ALLOCATED = "example.com/CLAIMED", "example.com/ALLOCATED"
"""Resources of DRA and of the device plugin."""


class Killed(BaseException):
    """The process has died."""


class Fate:
    """What is going to go wrong."""

    def __init__(self) -> None:
        self.steps: int | None = None
        """After so many more steps the process dies; None: it lives."""
        self.full = False
        """The disk."""
        self.away = False
        """The API server."""

    def step(self) -> None:
        """Raises Killed, and from then on at every step."""
        if self.steps is not None:
            self.steps -= 1
            if self.steps < 0:
                raise Killed

    @property
    def dead(self) -> bool:
        return self.steps is not None and self.steps < 0


class MortalDisk(Disk):
    """Files of a process that may die before, within or after each operation, on a disk that may be full."""

    def __init__(self, fate: Fate) -> None:
        self._fate = fate

    def replace(self, path: str, data: bytes, mode: int = 0o644, folder_mode: int = 0o755) -> None:
        self._fate.step()
        if self._fate.full:
            raise UNWRITABLE_FILE(f"{path}: No space left on device", "Make room.", file=path)
        beside = Path(os.path.dirname(path), f".{os.path.basename(path)}.half")
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data[: len(data) // 2])
        self._fate.step()
        beside.unlink()
        super().replace(path, data, mode, folder_mode)
        self._fate.step()

    def remove(self, path: str) -> None:
        self._fate.step()
        super().remove(path)
        self._fate.step()


class Cards:
    """A provider of some devices; which of them share a group is chance."""

    changes_host = False

    def __init__(self, chance: random.Random, fate: Fate) -> None:
        self._chance = chance
        self._fate = fate
        count = chance.randint(4, 9)
        devices = [
            Device(
                f"0000:{number:02x}:00.0", groups=frozenset(chance.sample(range(count), chance.choice((1, 1, 1, 2))))
            )
            for number in range(1, count + 1)
        ]
        split = chance.randint(count // 2, count - 1)
        self.resources_ = tuple(
            Resource(
                name, f"PCI_RESOURCE_{name.rpartition('/')[2]}", {one.id: one for one in part}, dra=name == CLAIMED
            )
            for name, part in ((CLAIMED, devices[:split]), (ALLOCATED, devices[split:]))
        )
        self.groups = {device.id: device.groups for device in devices}

    def wants(self, _: PciFunction) -> bool:
        return False

    def resources(self, *_: object) -> tuple[Resource, ...]:
        return self.resources_

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: object = None) -> Grant:
        for _ in range(self._chance.randint(0, 4)):
            self._fate.step()
            await asyncio.sleep(0)
        each = {key: tuple(f"/dev/vfio/{group}" for group in sorted(self.groups[key])) for key in ids}
        nodes = dict.fromkeys(["/dev/vfio/vfio", *(node for own in each.values() for node in own)])
        return Grant({resource.variable: ",".join(ids)}, tuple(nodes), each=each)

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """Nothing to be made."""


class World:
    """A node with its kubelet and cluster; `act` does something at random.

    Args:
        folder: for files.
        chance: decides everything.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance = chance
        self.fate = Fate()
        self.api = Api()
        self.scheduler = Scheduler(self.api, {"gpu": DeviceClass(DRIVER)}, chance)
        self.cards = Cards(chance, self.fate)
        self.places = ClaimPlaces(DRIVER, str(folder / "k"), str(folder / "cdi"), str(folder / "host"))
        for group in range(9):
            node = folder / f"host/dev/vfio/{group}"
            node.parent.mkdir(parents=True, exist_ok=True)
            node.touch()
        (folder / "host/dev/vfio/vfio").touch()
        Path(self.places.data).mkdir(parents=True)
        self.runtime = Runtime(folder / "cdi")
        self.pods: dict[str, tuple[str, ...]] = {}
        """Of the device plugin, with the IDs that they have."""
        self.known: dict[str, ClaimRef] = {}
        """Claims by UID that the kubelet has asked to prepare, and that aren't unprepared."""
        self.prepared: dict[str, tuple[str, ...]] = {}
        """Those of which it was told that they are, with the CDI devices."""
        self.seen: dict[str, tuple[str, ...]] = {}
        """The devices of each of these."""
        self._numbers = iter(range(10**6))
        self._last: dict[str, int] = {}
        """When the last call to prepare a claim began, and the last one to unprepare it."""
        self._ended: dict[str, int] = {}
        self.done: list[str] = []
        """What was done, for who reads of a failure."""
        self.lock = DriverLock(f"{self.places.data}/serialize.lock")
        self._start()

    # The process

    def _start(self) -> None:
        """A new process: nothing but the files is as it was."""
        self.fate.steps = None
        self.allocator = Allocator(Reservations(), lambda: 0.0)
        store = ClaimStore(self.places, disk=MortalDisk(self.fate))
        self.lock.close()
        self.lock = DriverLock(f"{self.places.data}/serialize.lock")
        queue = ClaimQueue(self.lock)
        self.preparer = Preparer(store, self.allocator, self.get_claim, queue)
        self.allocator.observe(self._usage(), 0.0)
        store.tidy()
        self.preparer.held()
        self.turn()

    def turn(self) -> None:
        """A turn of the loop."""
        offers = {resource.name: Offer(resource, self.cards) for resource in self.cards.resources_}
        self.allocator.observe(self._usage(), 0.0)
        self.preparer.held()
        listed = {name: offer.resource for name, offer in self.allocator.advertise(offers, NO_FACTS).items()}
        published = inventory(list(listed.values()), NO_FACTS)
        self.preparer.listed({one.name: ListedDevice(one, listed[one.resource].devices[one.id]) for one in published})
        specs = slices(published, DRIVER)
        pool = {"name": self.api.node, "generation": 1, "resourceSliceCount": len(specs)}
        self.api.replace_slices(DRIVER, [{**spec, "nodeName": self.api.node, "pool": pool} for spec in specs])

    def _usage(self) -> Usage:
        held: dict[str, dict[str, Holder]] = {}
        for pod, ids in self.pods.items():
            held.setdefault(ALLOCATED, {}).update(dict.fromkeys(ids, Holder(f"default/{pod}")))
        return Usage("pod-resources", held)

    async def get_claim(self, namespace: str, name: str, uid: str, _: float) -> dict[str, Any]:
        """What the cluster's socket does."""
        await asyncio.sleep(0)
        try:
            claim = self.api.claim(namespace, name)
        except Refused as refusal:
            raise CLAIM_UNREADABLE(str(refusal), "Wait.") from refusal
        if self.fate.away or claim["metadata"]["uid"] != uid:
            raise CLAIM_UNREADABLE("away, or another one", "Wait.")
        return claim

    async def _run(self, *calls: Coroutine[Any, Any, None]) -> None:
        """Calls at the same time. Where the process dies in one of them all of them end, and it starts again."""
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.wait(tasks)
        for task in tasks:
            if task.exception() is not None and not isinstance(task.exception(), Killed):
                raise task.exception()  # type: ignore[misc]
        if self.fate.dead:
            self.done.append("died")
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)
            self._start()

    # What the kubelet does

    async def prepare(self, ref: ClaimRef) -> None:
        self.known[ref.uid] = ref
        self._forget_former(ref.uid)
        mine = self._last[ref.uid] = next(self._numbers)
        try:
            devices = await self.preparer.prepare(ref)
        except LauncherkitError as error:
            self.done.append(f"not prepared: {ref.uid[:8]} {error.message}")
            return
        self.done.append(f"prepared: {ref.uid[:8]}")
        if self._ended.get(ref.uid, -1) < mine:  # else it was given up meanwhile, and nobody waits for this answer
            self._forget_former(ref.uid)
            names = tuple(name for device in devices for name in device.cdi)
            assert self.prepared.setdefault(ref.uid, names) == names, "another answer than before"
            self.seen[ref.uid] = tuple(device.id for device in devices)
            allocated = self._allocated(ref.uid)
            if allocated and not self.fate.away:
                assert {device.device for device in devices} == allocated, "what it had before it was allocated again"

    def _forget_former(self, uid: str) -> None:
        """What a claim had before it was allocated again isn't its own any more."""
        allocated = self._allocated(uid)
        if allocated and allocated != {self.name_of(key) for key in self.seen.get(uid, ())}:
            for reported in (self.prepared, self.seen):
                reported.pop(uid, None)

    def _allocated(self, uid: str) -> set[str]:
        """What the cluster says that a claim has now; nothing where it is gone."""
        claims = [claim for claim in self.api.claims() if claim["metadata"]["uid"] == uid]
        return {result["device"] for claim in claims for result in results_of(claim)}

    def name_of(self, key: str) -> str:
        """How a card is called in a slice."""
        return f"pci-{key.replace(':', '-').replace('.', '-')}"

    async def unprepare(self, uid: str) -> None:
        mine = self._ended[uid] = next(self._numbers)
        for reported in (self.prepared, self.seen):
            reported.pop(uid, None)
        try:
            await self.preparer.unprepare(self.known[uid])
        except LauncherkitError as error:
            self.done.append(f"not unprepared: {uid[:8]} {error.message}")
            return
        self.done.append(f"unprepared: {uid[:8]}")
        if self._last[uid] < mine:  # else it was asked for again meanwhile
            self.known.pop(uid, None)

    async def allocate(self) -> None:
        """A pod asks the device plugin for a device."""
        ids = list(self.cards.resources_[1].devices)
        taken = {key for held in self.pods.values() for key in held}
        free = [key for key in ids if key not in taken]
        if not free:
            return
        key = self.chance.choice(free)
        try:
            await self.allocator.allocate(ALLOCATED, [[key]])
        except LauncherkitError:
            return
        self.pods[f"pod-{next(self._numbers)}"] = (key,)

    # What happens

    def refs(self) -> list[ClaimRef]:
        """The claims of the cluster that are allocated."""
        return [
            ClaimRef(one["metadata"]["namespace"], one["metadata"]["name"], one["metadata"]["uid"])
            for one in self.api.claims()
            if one["status"].get("allocation")
        ]

    def _claim(self, name: str) -> None:
        """A user makes a claim, and the scheduler allocates."""
        self.api.create_claim(name, [requested("gpu", "gpu", self.chance.choice((1, 1, 2)))])
        try:
            self.scheduler.reserve(name, f"pod-of-{name}")
            self.done.append(f"allocated: {name}")
        except Unschedulable:
            self.api.delete_claim(name)

    def _delete(self) -> None:
        """Somebody deletes a claim, and perhaps makes another one of its name, while its pod still runs."""
        refs = self.refs()
        if refs:
            name = self.chance.choice([ref for ref in refs if ref.uid in self.prepared] or refs).name
            self.api.delete_claim(name)
            self.done.append(f"deleted: {name}")
            if self.chance.random() < 0.7:
                self._claim(name)

    def _reallocate(self) -> None:
        """A claim is given up and allocated again, without an end that the kubelet knows of."""
        refs = self.refs()
        if refs:
            name = self.chance.choice(refs).name
            self.scheduler.release(name, f"pod-of-{name}")
            with suppress(Unschedulable):
                self.scheduler.reserve(name, f"pod-of-{name}")
            self.done.append(f"allocated again: {name}")

    def _end_pod(self) -> None:
        if self.pods:
            del self.pods[self.chance.choice(sorted(self.pods))]

    async def act(self) -> None:
        """Something happens, or several things at once."""
        chance, fate = self.chance, self.fate
        fate.full, fate.away = chance.random() < 0.15, chance.random() < 0.15
        if chance.random() < 0.5:
            fate.steps = chance.randint(0, 14)
        calls: list[Callable[[], Coroutine[Any, Any, None]]] = []
        for _ in range(chance.randint(1, 3)):
            refs, known = self.refs(), sorted(self.known)
            kind = chance.choice(
                [
                    "claim",
                    "claim",
                    "reallocate",
                    *["prepare"] * 4,
                    "unprepare",
                    *["delete"] * 2,
                    "allocate",
                    "end",
                    "list",
                ]
            )
            if kind == "claim":
                self._claim(f"claim-{next(self._numbers)}")
            elif kind == "delete":
                self._delete()
            elif kind == "reallocate":
                self._reallocate()
            elif kind == "end":
                self._end_pod()
            elif kind == "allocate" and self.allocate not in calls:  # the kubelet admits one pod after the other
                calls.append(self.allocate)
            elif kind == "prepare" and refs:
                ref = chance.choice(refs)
                calls.append(lambda ref=ref: self.prepare(ref))  # type: ignore[misc]
            elif kind == "unprepare" and known:
                uid = chance.choice(known)
                calls.append(lambda uid=uid: self.unprepare(uid))  # type: ignore[misc]
        if calls:
            await self._run(*(call() for call in calls))
        fate.steps, fate.full, fate.away = None, False, False
        self._deallocate()
        self.turn()

    def _deallocate(self) -> None:
        """Claims whose pod was unprepared may be given up by it."""
        for ref in self.refs():
            if ref.uid not in self.known and self.chance.random() < 0.4:
                self.api.delete_claim(ref.name)

    # What must hold

    def check(self) -> None:
        """Nothing is lost, and no group is in two places: neither by the scheduler nor at the driver."""
        names = {self.name_of(key): key for key in self.cards.groups}
        self._check_apart(
            {
                claim["metadata"]["uid"]: tuple(names[result["device"]] for result in results_of(claim))
                for claim in self.api.claims()
            }
        )
        self._check_apart({**self.seen, **self.pods})
        held = self.allocator.usage().held.get(CLAIMED, {})
        for uid, cdi in self.prepared.items():
            for key in self.seen[uid]:
                holder = held[key]
                assert holder.claim is not None
                assert holder.claim.uid == uid
            container = self.runtime.create(cdi)
            groups = {int(path.rpartition("/")[2]) for path in container.nodes if path != "/dev/vfio/vfio"}
            assert groups == {group for key in self.seen[uid] for group in self.cards.groups[key]}
            assert sorted(container.env["PCI_RESOURCE_CLAIMED"].split(",")) == sorted(self.seen[uid])
            assert container.mounts
            for path in container.mounts:
                assert uid in container.read(path)

    def _check_apart(self, places: Mapping[str, Sequence[str]]) -> None:
        owners: dict[int, str] = {}
        for owner, ids in places.items():
            for group in {group for key in ids for group in self.cards.groups[key]}:
                other = owners.setdefault(group, owner)
                assert other == owner, f"group {group} is with {other} and {owner}"

    async def end(self) -> None:
        """All pods end, and the process starts once more: nothing is left.

        Raises:
            AssertionError: something is.
        """
        self._start()
        for uid in sorted(self.known):
            await self.unprepare(uid)
        self.pods.clear()
        self._start()
        assert self.known == {}
        assert self.allocator.usage().held.get(CLAIMED, {}) == {}
        assert self.left() == []

    def left(self) -> list[str]:
        """Every file of the driver that is there."""
        folders = (self.places.cdi, self.places.data)
        found = [str(path) for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
        return sorted(path for path in found if not path.endswith(("serialize.lock", "/boot")))


async def interleave(folder: Path, seed: int, actions: int = 25) -> Mapping[str, int]:
    """One random history; gives how often the most telling things happened in it.

    Raises:
        AssertionError: something was lost, is left or is in two places; its notes tell the history.
    """
    world = World(folder, random.Random(seed))
    try:
        for _ in range(actions):
            await world.act()
            world.check()
        await world.end()
    except BaseException as problem:
        problem.add_note(f"seed {seed}: " + "; ".join(world.done[-40:]))
        raise
    finally:
        world.lock.close()
    return {word: sum(line.startswith(word) for line in world.done) for word in ("died", "prepared", "unprepared")}
