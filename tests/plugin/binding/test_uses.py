"""A card that VMs, Kata and containers can get: whoever asks first has it, and its driver follows (K10)."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcherkit.errors import LauncherkitError
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.devices import container
from launcherkit_plugin.devices.cdi import CdiFiles, GrantedNodes
from launcherkit_plugin.devices.container import ContainerProvider
from launcherkit_plugin.devices.container_card import CardAccess, CardUuids, read_card
from launcherkit_plugin.devices.pci import PassedNodes, PciProvider
from launcherkit_plugin.devices.selectors import Selection
from launcherkit_plugin.host.processes import HolderProcess, OpenNodes
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.model.config import (
    CardUse,
    ContainerBy,
    ContainerUse,
    ContainerVariable,
    PciRule,
    Selector,
    Sharing,
)
from launcherkit_plugin.model.device import Device, Grant, Holder, Usage
from launcherkit_plugin.model.errors import (
    CARD_IN_OTHER_USE,
    DEVICE_UNHEALTHY,
    GIVING_BACK_TOO_SLOW,
    NOT_BOUND_ON_DEMAND,
    NOT_GIVEN_BACK_ON_DEMAND,
)
from launcherkit_plugin.telemetry.reporter import Level
from tests.plugin.binding.demand import demand_parts
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.kernel import VFIO, FakeKernel, Killed
from tests.support.looping import TimedLoop, run_timed
from tests.support.pages import ROOT
from tests.support.provoked import provoked

NAME: dict[CardUse, str] = {
    "vm": "example.com/GPU",
    "kata": "example.com/GPU-kata",
    "container": "example.com/GPU-container",
}
GRACE = 60.0
CARD = "0000:01:00.0"
UUID = "GPU-5a0c0000-0000-4000-8000-00000000000"
RULE = PciRule(
    select=(Selector(),),
    name=NAME["vm"],
    bind="on-demand",
    bind_seconds=30,
    grace_seconds=GRACE,
    use="any",
    with_kata=True,
    environment=ContainerVariable(void=True),
)


class Node:
    """A node with cards of NVIDIA on its driver, and the daemon's parts that have to do with them."""

    def __init__(self, root: Path, rule: PciRule = RULE, *, cards: int = 1) -> None:
        self.tree = HostTree(root)
        self.kernel = FakeKernel(self.tree, {"nvidia": {(0x10DE, 0x2204)}})
        self.tree.node("vfio/vfio")
        self.cards = [f"0000:{number:02x}:00.0" for number in range(1, cards + 1)]
        for number, card in enumerate(self.cards, 1):
            self.tree.function(card, driver="nvidia", group=number)
            information = root / f"proc/driver/nvidia/gpus/{card}/information"
            information.parent.mkdir(parents=True)
            information.write_text(f"GPU UUID: {UUID}{number}\nDevice Minor: {number}\n")
        self.host = Host.from_sysfs(root)
        self.open: Mapping[str, tuple[HolderProcess, ...]] = {}
        self.held: dict[str, dict[str, Holder]] = {}
        self.now = 1000.0
        self.rule = rule
        self.log: list[str] = []
        self.restart()

    def restart(self) -> None:
        """The daemon ends, and another one starts."""
        root = self.tree.root
        self.queue, self.ledger, on_demand, self.reconciler = demand_parts(
            self.host,
            self.kernel,
            root,
            self._match,
            lambda: OpenNodes(self.open, ""),
            self._tell,
            lambda: self.now,
        )
        selection = Selection(self._match, lambda _, rule: rule.name or "")
        kata = GrantedNodes(CdiFiles(f"{root}/cdi", "kata", by_resource=True), environment=False)
        pci = PciProvider(
            selection,
            self.host,
            str(root),
            on_demand=on_demand,
            queue=self.queue,
            nodes=PassedNodes(kata=kata),
        )
        containers = ContainerProvider(
            selection,
            self.host,
            read=self._read,
            uuids=CardUuids(f"{root}/ledger", "boot"),
            queue=self.queue,
            gives_back=on_demand,
        )
        self.providers: tuple[PciProvider, ContainerProvider] = (pci, containers)
        self.allocator = Allocator(Reservations(), lambda: self.now)

    def _read(self, address: PciAddress) -> CardAccess:
        """A card with another driver isn't NVIDIA's, though the tree's files stay."""
        return read_card(str(self.tree.root), f"{self.tree.root}/proc", address)

    def _tell(self, level: Level, text: str, **fields: object) -> None:
        self.log.append(text)

    def _match(self, function: PciFunction) -> PciRule | None:
        return self.rule

    def turn(self, seconds: float = 0.0) -> None:
        """One turn of the daemon, so much later; waits until all is done that it has begun."""
        self.now += seconds
        asyncio.run(self._turn())

    async def _turn(self) -> None:
        usage = self.allocator.observe(Usage("pod-resources", self.held), self.now)
        await asyncio.gather(*self.reconciler.reconcile(self.look(), usage, self.now))
        for provider in self.providers:
            await asyncio.gather(*provider.reconcile(self.look(), usage, self.now))
        facts = self.look()
        offers = {
            found.name: Offer(found, provider)
            for provider in self.providers
            for found in provider.resources(facts, self.allocator.usage(), self.now)
        }
        listed = self.allocator.advertise(offers, facts)
        self.resources = [offer.resource for offer in listed.values()]
        self.seen = {resource.name: resource.devices for resource in self.resources}

    def look(self) -> HostFacts:
        return read_node(self.host, lambda function: any(each.wants(function) for each in self.providers), vgpu=False)

    def allocate(self, use: CardUse, device: str) -> Grant:
        (grant,) = asyncio.run(self.allocator.allocate(NAME[use], [[device]]))
        return grant

    def run(self, use: CardUse, device: str = "") -> Grant:
        """A pod gets a device, and the kubelet names it."""
        device = device or next(iter(self.seen[NAME[use]]))
        grant = self.allocate(use, device)
        self.held = {**self.held, NAME[use]: {**self.held.get(NAME[use], {}), device: Holder(f"default/{use}")}}
        self.turn(1)
        return grant

    def end(self, use: CardUse) -> None:
        """The pods of a use have ended, and the kubelet has seen that."""
        self.held = {name: held for name, held in self.held.items() if name != NAME[use]}
        self.turn(1)

    def reasons(self) -> dict[CardUse, str | None]:
        """Why the first device of each use is Unhealthy."""
        problems = {use: _first(self.seen[name]).problem for use, name in NAME.items()}
        return {use: problem and problem.reason for use, problem in problems.items()}

    def driver(self, card: str = CARD) -> str | None:
        return self.kernel.driver(card)


def _first(devices: Mapping[str, Device]) -> Device:
    return next(iter(devices.values()))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.turn()
    return made


def test_a_card_is_advertised_for_each_use(node: Node) -> None:
    assert {name: list(devices) for name, devices in node.seen.items()} == {
        NAME["vm"]: [CARD],
        NAME["kata"]: [CARD],
        NAME["container"]: [f"{UUID}1"],
    }
    assert node.reasons() == {"vm": None, "kata": None, "container": None}


def test_a_container_then_a_vm_then_a_container_then_kata_get_the_same_card(node: Node) -> None:
    assert node.run("container").cdi == (f"nvidia.com/gpu={UUID}1",)
    assert node.driver() == "nvidia"
    assert node.reasons() == {"vm": "other-use", "kata": "other-use", "container": None}
    node.end("container")
    assert node.reasons() == {"vm": None, "kata": None, "container": None}

    grant = node.run("vm")
    assert grant.env == {"PCI_RESOURCE_EXAMPLE_COM_GPU": CARD, "NVIDIA_VISIBLE_DEVICES": "void"}
    assert grant.nodes == ("/dev/vfio/vfio", "/dev/vfio/1")
    assert node.driver() == VFIO
    assert node.reasons() == {"vm": None, "kata": "other-use", "container": "other-use"}
    node.end("vm")
    assert (node.driver(), node.reasons()["container"]) == (VFIO, None), "it goes back when a container gets it"

    assert node.run("container").cdi == (f"nvidia.com/gpu={UUID}1",)
    assert node.driver() == "nvidia"
    assert node.ledger.records() == []
    node.end("container")

    grant = node.run("kata")
    assert (grant.env, grant.cdi) == ({}, (f"example.com/GPU-kata={CARD}",))
    assert '"/dev/vfio/1"' in (node.tree.root / "cdi/launcherkit.io-vfio-kata-example.com_GPU-kata.json").read_text()
    assert node.reasons() == {"vm": "other-use", "kata": None, "container": "other-use"}
    node.end("kata")
    node.turn(GRACE)
    assert node.driver() == "nvidia"


@pytest.mark.parametrize(("has", "asks"), [("container", "vm"), ("vm", "container"), ("kata", "vm")])
def test_what_another_use_has_is_refused_by_name(node: Node, has: CardUse, asks: CardUse) -> None:
    first = list(node.seen[NAME[asks]])
    node.run(has)
    node.seen = {}
    with pytest.raises(LauncherkitError, match=f"pod default/{has} has it as {NAME[has]}"):
        node.allocate(asks, first[0])


def test_an_allocate_that_the_list_was_too_late_for_is_refused(node: Node) -> None:
    """The kubelet goes by the list that it has had."""
    node.allocate("container", f"{UUID}1")
    with raises_code(CARD_IN_OTHER_USE) as raised:
        node.allocate("vm", CARD)
    assert [f"LK843: {raised.value.message}"] == provoked("allocator", "LK843")
    assert raised.value.message in (ROOT / "docs/errors/LK843.md").read_text()


def test_after_a_restart_the_card_has_the_id_that_the_kubelet_knows(node: Node) -> None:
    node.run("vm")
    (node.tree.root / f"proc/driver/nvidia/gpus/{CARD}/information").unlink()
    node.restart()
    node.turn()
    assert list(node.seen[NAME["container"]]) == [f"{UUID}1"]
    assert node.reasons()["container"] == "other-use"


@pytest.mark.parametrize("ways", [("environment", "nodes"), ("nodes", "cdi")])
def test_a_container_keeps_its_card_when_the_configuration_gives_cards_another_way(
    tmp_path: Path, ways: tuple[ContainerBy, ContainerBy]
) -> None:
    """The card's ID is its UUID or its address, by the way in which containers get it."""
    node = Node(tmp_path, RULE._replace(container=ContainerUse(by=ways[0])))
    node.turn()
    node.run("container")
    (had,) = node.seen[NAME["container"]]
    node.rule = RULE._replace(container=ContainerUse(by=ways[1]))
    node.restart()
    node.turn()
    node.turn()
    (now,) = node.seen[NAME["container"]]
    assert {had, now} == {CARD, f"{UUID}1"}
    assert node.reasons() == {"vm": "other-use", "kata": "other-use", "container": "other-use"}
    for use in NAME:
        with raises_code(CARD_IN_OTHER_USE, match=f"pod default/container has it as {NAME['container']}"):
            node.allocate(use, now if use == "container" else CARD)
    node.end("container")
    assert node.reasons() == {"vm": None, "kata": None, "container": None}


def test_a_card_that_another_plugin_gave_to_a_container_is_not_taken(tmp_path: Path) -> None:
    """NVIDIA's own, which names cards by their UUIDs; no process has the card open yet."""
    node = Node(tmp_path, RULE._replace(use="vm"))
    node.held = {"nvidia.com/gpu": {f"{UUID}1::2": Holder("default/cuda")}}
    node.turn()
    with raises_code(NOT_BOUND_ON_DEMAND, match=f"{CARD} is held by pod default/cuda"):
        node.allocate("vm", CARD)
    assert node.driver() == "nvidia"


def test_a_card_that_a_process_still_has_open_is_not_given_back(node: Node) -> None:
    node.run("vm")
    node.end("vm")
    node.open = {"/dev/vfio/1": (HolderProcess(812, "qemu-system-x86"),)}
    with raises_code(NOT_GIVEN_BACK_ON_DEMAND) as raised:
        node.allocate("container", f"{UUID}1")
    assert [f"LK753: {raised.value.message}"] == provoked("binding", "LK753")
    assert raised.value.message in (ROOT / "docs/errors/LK753.md").read_text()
    assert node.driver() == VFIO
    node.turn()
    assert node.reasons()["container"] == "failed"
    node.open = {}
    node.turn(GRACE)
    node.turn()
    assert node.reasons()["container"] is None
    node.run("container")


def test_a_container_waits_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "monotonic", lambda: 0.0)  # nothing of the time is gone when it is given back
    node = Node(tmp_path, RULE._replace(bind="on-demand", bind_seconds=30, grace_seconds=GRACE))
    node.turn()
    node.run("vm")
    node.end("vm")
    gate, write = threading.Event(), node.kernel.write

    def slow(path: str, text: str, seconds: float = 1) -> None:
        gate.wait(60)
        write(path, text, seconds)

    async def scene(loop: TimedLoop) -> None:
        node.kernel.write = slow  # type: ignore[method-assign]
        allocating = asyncio.create_task(node.allocator.allocate(NAME["container"], [[f"{UUID}1"]]))
        while not node.queue.is_busy("IOMMU group 1"):
            await asyncio.sleep(0)
        loop.skip(30)
        with raises_code(GIVING_BACK_TOO_SLOW) as raised:
            await allocating
        assert f"LK754: {raised.value.message}" == provoked("binding", "LK754")[0]
        gate.set()
        while node.queue.is_busy("IOMMU group 1"):
            await asyncio.sleep(0.01)

    run_timed(scene)
    assert node.driver() == "nvidia"


def test_what_stays_bound_for_vms_is_not_for_containers_any_more(tmp_path: Path) -> None:
    node = Node(tmp_path, RULE._replace(bind="on-demand", give_back="never"))
    node.turn()
    node.run("vm")
    node.end("vm")
    assert node.reasons() == {"vm": None, "kata": None, "container": "other-use"}


def test_what_somebody_else_has_bound_is_not_given_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.kernel.write(f"{node.tree.root}/sys/bus/pci/drivers/nvidia/unbind", CARD)
    node.kernel.write(f"{node.tree.root}/sys/bus/pci/devices/{CARD}/driver_override", VFIO)
    node.kernel.write(f"{node.tree.root}/sys/bus/pci/drivers_probe", CARD)
    node.turn()
    assert node.driver() == VFIO
    assert node.reasons()["vm"] is None
    assert [each.problem and each.problem.reason for each in node.seen[NAME["container"]].values()] == ["driver"]


def test_what_a_command_has_bound_is_not_given_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.turn()
    node.run("vm")
    (record,) = node.ledger.records()
    node.ledger.write(record._replace(by="command"))
    node.end("vm")
    assert node.reasons() == {"vm": None, "kata": None, "container": "driver"}
    with raises_code(DEVICE_UNHEALTHY, match=f"launcherkit-plugin unbind {CARD}"):
        node.allocate("container", f"{UUID}1")
    assert node.driver() == VFIO


def test_replicas_of_a_card_keep_it_from_vms_until_the_last_has_ended(tmp_path: Path) -> None:
    node = Node(tmp_path, RULE._replace(sharing=Sharing(2)))
    node.turn()
    node.run("container", f"{UUID}1::1")
    node.run("container", f"{UUID}1::0")
    assert node.reasons() == {"vm": "other-use", "kata": "other-use", "container": None}
    del node.held[NAME["container"]][f"{UUID}1::1"]
    node.turn(1)
    assert node.reasons()["vm"] == "other-use"
    node.end("container")
    assert node.reasons()["vm"] is None


def test_cards_that_are_given_by_their_nodes_have_their_addresses_for_ids(tmp_path: Path) -> None:
    node = Node(tmp_path, RULE._replace(container=ContainerUse("nodes")))
    node.turn()
    assert node.run("container").nodes == ("/dev/nvidia1",)
    assert node.reasons() == {"vm": "other-use", "kata": "other-use", "container": None}
    node.end("container")
    node.run("vm")
    assert node.reasons() == {"vm": None, "kata": "other-use", "container": "other-use"}


# Random pods


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("LAUNCHERKIT_TEST_EXAMPLES", "1"))))
def test_of_random_pods_with_restarts_and_kills_never_two_uses_have_a_card(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    node = Node(
        tmp_path, RULE._replace(sharing=Sharing(2), bind="on-demand", bind_seconds=30, grace_seconds=5), cards=4
    )
    node.turn()
    pods: dict[str, tuple[CardUse, str]] = {}
    began = 0
    changes = 0
    while began < 500:
        if pods and rng.random() < 0.45:
            del pods[rng.choice(list(pods))]
        elif free := _free(node, pods):
            use, device = rng.choice(free)
            began += 1
            before = [node.driver(card) for card in node.cards]
            if rng.random() < 0.15:
                node.kernel.new_process(die_at=rng.randrange(1, 40))
            try:
                node.allocate(use, device)
                pods[f"default/{began}"] = use, device
            except LauncherkitError:
                pass
            except Killed:
                node.restart()
            changes += before != [node.driver(card) for card in node.cards]
        if rng.random() < 0.1:
            node.restart()
        node.held = {}
        for pod, (use, device) in pods.items():
            node.held.setdefault(NAME[use], {})[device] = Holder(pod)
        _check(node, pods)
        if rng.random() < 0.8:
            try:
                node.turn(rng.choice([0, 1, 61]))
            except Killed:
                node.restart()
            _check(node, pods)
    assert changes > 50


def _free(node: Node, pods: Mapping[str, tuple[CardUse, str]]) -> list[tuple[CardUse, str]]:
    """What the kubelet would give away, by the last list that it has had."""
    taken = set(pods.values())
    return [
        (use, key)
        for use, name in NAME.items()
        for key, device in node.seen.get(name, {}).items()
        if device.healthy and (use, key) not in taken
    ]


def _check(node: Node, pods: Mapping[str, tuple[CardUse, str]]) -> None:
    by_card: dict[str, list[CardUse]] = {}
    for use, device in pods.values():
        card = device if use != "container" else node.cards[int(device.partition("::")[0][-1]) - 1]
        by_card.setdefault(card, []).append(use)
    for card, uses in by_card.items():
        if "container" in uses:
            assert set(uses) == {"container"}, f"{card}: {pods}"
            assert node.driver(card) == "nvidia"
        else:
            assert len(uses) == 1, f"{card}: {pods}"
            assert node.driver(card) == VFIO
