"""A node with an NVSwitch board of eight cards: the daemon's parts on a host that is a tree, and pods on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.daemon.wiring import Wiring, assemble
from launcherkit_plugin.fabric.activations import ActivatedPartitions
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.host.scan import NodeReader
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import Config, FabricConfig, PciRule, Selector
from launcherkit_plugin.model.device import Device, Grant, Holder, Problem, Resource, Usage
from launcherkit_plugin.telemetry.metrics import ActionOutcome, FabricChange, Metrics
from launcherkit_plugin.telemetry.reporter import EventType, Level, Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.plugin.fabric.double import CARDS, Board
from tests.support.advertised import advertise
from tests.support.hosttree import HostTree
from tests.support.waiting import PATIENCE

NAME = "nvidia.com/A100"
RULE = PciRule(select=(Selector(classes=("0302",)),), name=NAME)
SWITCHES = ("0000:c4:00.0", "0000:c5:00.0")
UNKNOWN = Usage("none", {})


class Node(Metrics):
    """A node; a folder that has one already is gone on with, as by the next daemon."""

    def __init__(self, root: Path, board: Board, *, fabric: FabricConfig | None = None, rule: PciRule = RULE) -> None:
        self.root, self.board = root, board
        self.fabric = fabric or FabricConfig()
        self.rule = rule
        is_new = not (root / "sys").exists()
        self.tree = HostTree(root)
        if is_new:
            for number, card in enumerate(CARDS):
                self.tree.function(
                    card, device=0x20B0, class_code=0x030200, driver="vfio-pci", group=10 + number, numa=number // 2
                )
            for number, switch in enumerate(SWITCHES):
                self.tree.function(switch, device=0x1AF1, class_code=0x068000, driver="nvidia", group=30 + number)
            (root / "proc/sys/kernel/random").mkdir(parents=True)
            self.boot("first")
        self.now = 1000.0
        self.pods: dict[str, tuple[str, tuple[str, ...]]] = {}
        """The resource and the devices of each pod, as the kubelet has them."""
        self.usage_known = True
        self.outcomes: list[tuple[str, str]] = []
        self.up: list[int | None] = []
        self.events: list[tuple[str, str]] = []
        self.restart()

    def boot(self, name: str) -> None:
        """The machine boots."""
        (self.root / "proc/sys/kernel/random/boot_id").write_text(f"{name}\n")

    def restart(self) -> None:
        """The daemon ends, however, and another one starts; or it has another configuration."""
        wiring = Wiring(
            Host.from_sysfs(self.root),
            str(self.root),
            Reporter(self._tell, self, self),
            WorkQueue(stall=PATIENCE),
            Stopped(),
            proc=f"{self.root}/proc",
            ledger=f"{self.root}/ledger",
            state=f"{self.root}/state",
            usage=lambda: self.allocator.usage(),
            helper=lambda devices={}: OpenNodes({}, ""),  # type: ignore[arg-type]
            clock=lambda: self.now,
            fabric=self.board.manager,
        )
        self.setup = assemble(Config(pci=(self.rule,), fabric=self.fabric), wiring)
        self.reader = NodeReader(numa=True)
        self.allocator = Allocator(Reservations(), lambda: self.now)
        self.listed: dict[str, Resource] = {}
        self.records = ActivatedPartitions(f"{self.root}/ledger/fabric", "first")

    def fabric_state(self, active: int | None) -> None:
        self.up.append(active)

    def fabric_changed(self, action: FabricChange, outcome: ActionOutcome) -> None:
        self.outcomes.append((action, outcome))

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        self.events.append((reason, message))

    def _tell(self, level: Level, text: str, **fields: object) -> None:
        """The log isn't looked at: what matters is an Event, too."""

    # What the daemon does

    def turn(self, seconds: float = 100.0) -> None:
        """A turn of the daemon's loop, so much later."""
        self.now += seconds
        asyncio.run(self.take_turn())

    def look(self) -> HostFacts:
        return self.reader.read(Host.from_sysfs(self.root), self.setup.wants, vgpu=False)

    async def take_turn(self) -> None:
        held: dict[str, dict[str, Holder]] = {}
        for pod, (resource, ids) in self.pods.items():
            held.setdefault(resource, {}).update(dict.fromkeys(ids, Holder(f"vms/{pod}", "compute")))
        usage = self.allocator.observe(Usage("pod-resources", held) if self.usage_known else UNKNOWN, self.now)
        facts = self.look()
        for reconciler in self.setup.reconcilers:
            await asyncio.gather(*reconciler.reconcile(facts, usage, self.now))
        self.listed = advertise(self.setup, self.allocator, facts, self.now)

    # What the kubelet does

    def free(self, resource: str) -> list[str]:
        """The devices that the kubelet would give away: Healthy when they were listed last, and no pod's."""
        held = {key for name, ids in self.pods.values() if name == resource for key in ids}
        devices = self.listed[resource].devices if resource in self.listed else {}
        return sorted(key for key, device in devices.items() if device.healthy and key not in held)

    def admit(self, pod: str, resource: str, count: int = 1) -> Grant:
        """A pod gets devices, those that the plugin prefers.

        Raises:
            LookupError: there are too few.
            LauncherkitError: the plugin refuses.
        """
        free = self.free(resource)
        if len(free) < count:
            raise LookupError(f"{resource}: {len(free)} of {count}")
        ids = asyncio.run(self.allocator.preferred(resource, free, [], count))
        return self.give(pod, resource, *ids)

    def give(self, pod: str, resource: str, *ids: str) -> Grant:
        """A pod gets these devices."""
        (grant,) = asyncio.run(self.allocator.allocate(resource, [list(ids)]))
        self.pods[pod] = resource, ids
        return grant

    def end(self, pod: str) -> None:
        """A pod ends; nobody tells the plugin."""
        del self.pods[pod]

    # What is seen

    def device(self, key: str, resource: str = NAME) -> Device:
        return self.listed[resource].devices[key]

    def problem(self, key: str, resource: str = NAME) -> Problem | None:
        return self.device(key, resource).problem

    def text(self, key: str, resource: str = NAME) -> str:
        problem = self.problem(key, resource)
        assert problem is not None
        return f"{problem.reason}: {problem.text}"

    def cards_of(self, pod: str) -> frozenset[str]:
        return frozenset(card for key in self.pods[pod][1] for card in key.split("+"))


def key_of(cards: Sequence[str] | frozenset[str]) -> str:
    """The ID of a partition."""
    return "+".join(sorted(cards, key=PciAddress.parse))
