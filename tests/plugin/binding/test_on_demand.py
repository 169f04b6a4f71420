"""Binding on demand: a card stays with its driver until a pod gets it, and goes back when nobody has it (K8)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from launcherkit.errors import LauncherkitError
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.binding.on_demand import FIRST_PAUSE_SECONDS
from launcherkit_plugin.devices import pci
from launcherkit_plugin.devices.cdi import CdiFiles, GrantedNodes
from launcherkit_plugin.devices.pci import PassedNodes, PciProvider
from launcherkit_plugin.devices.selectors import Selection
from launcherkit_plugin.host.driver_nodes import driver_nodes, nvidia_uuids
from launcherkit_plugin.host.processes import HolderProcess, OpenNodes
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.model.config import PciRule, Selector
from launcherkit_plugin.model.device import NO_USAGE, ClaimRef, Grant, Holder, Problem, Usage
from launcherkit_plugin.model.errors import (
    BINDING_TOO_SLOW,
    DEVICE_UNHEALTHY,
    GROUP_SPLIT,
    NOT_BOUND_ON_DEMAND,
    NOT_GIVEN_BACK_ON_DEMAND,
    WORK_HANGS,
)
from launcherkit_plugin.telemetry.reporter import Level
from tests.plugin.binding.demand import demand_parts
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.kernel import VFIO, FakeKernel, Killed
from tests.support.looping import TimedLoop, run_timed, settled
from tests.support.pages import ROOT
from tests.support.provoked import provoked

NAME = "example.com/GPU"
GPU, AUDIO, OTHER = "0000:01:00.0", "0000:01:00.1", "0000:02:00.0"
FREE, BOUND = ["nvidia", "snd_hda_intel"], [VFIO, VFIO]
GRACE = 60.0
NOBODY = Usage("pod-resources", {})
POD = Usage("pod-resources", {NAME: {GPU: Holder("vms/launcher", "compute")}})
XORG = (HolderProcess(812, "Xorg"),)
RULE = PciRule(select=(Selector(),), name=NAME, bind="on-demand", bind_seconds=30, grace_seconds=GRACE)


class Node:
    """A node with one card on its host drivers, and the daemon's parts that have to do with it."""

    def __init__(self, root: Path, *, one_group: bool = True, rule: PciRule = RULE) -> None:
        self.tree = HostTree(root)
        ids = {"nvidia": {(0x10DE, 0x2204)}, "snd_hda_intel": {(0x10DE, 0x1AEF)}}
        self.kernel = FakeKernel(self.tree, ids)
        self.tree.node("vfio/vfio")
        self.tree.function(GPU, driver="nvidia", group=44)
        group = 44 if one_group else 45
        self.tree.function(AUDIO, device=0x1AEF, class_code=0x040300, driver="snd_hda_intel", group=group)
        (root / "proc").mkdir()
        self.host = Host.from_sysfs(root)
        self.open: Mapping[str, tuple[HolderProcess, ...]] = {}
        self.unseen = ""
        self.usage = NOBODY
        self.now = 1000.0
        self.rule: PciRule | None = rule
        self.log: list[str] = []
        self.restart()

    def restart(self) -> None:
        """The daemon ends, and another one starts."""
        root = self.tree.root
        self.held_now: Usage | None = None
        self.queue, self.ledger, self.demand, self.reconciler = demand_parts(
            self.host,
            self.kernel,
            root,
            self._match,
            lambda: OpenNodes(self.open, self.unseen),
            self._tell,
            lambda: self.now,
            lambda: self.held_now,
        )
        self.provider = PciProvider(
            Selection(self._match, lambda _, rule: rule.name or ""),
            self.host,
            str(root),
            on_demand=self.demand,
            queue=self.queue,
            nodes=PassedNodes(granted=GrantedNodes(CdiFiles(f"{root}/cdi", "pci"))),
        )
        self.allocator = Allocator(Reservations(), lambda: self.now)

    def _tell(self, level: Level, text: str, **fields: object) -> None:
        self.log.append(text)

    def _match(self, function: PciFunction) -> PciRule | None:
        return self.rule if function.class_code >> 16 == 0x03 else None

    def turn(self, seconds: float = 0.0) -> None:
        """One turn of the daemon, so much later; waits until all is done that it has begun."""
        self.now += seconds
        asyncio.run(self.take_turn())

    async def give_back(self, usage: Usage = NOBODY) -> None:
        """What a turn does first; waits until all is done that it has begun."""
        await asyncio.gather(*self.reconciler.reconcile(self.look(), usage, self.now))

    async def take_turn(self) -> None:
        usage = self.allocator.observe(self.usage, self.now)
        await self.give_back(usage)
        self.provider.reconcile(self.look(), usage, self.now)
        facts = self.look()
        found = self.provider.resources(facts, self.allocator.usage(), self.now)
        self.allocator.advertise({each.name: Offer(each, self.provider) for each in found}, facts)
        self.seen = {key: device for each in found for key, device in each.devices.items()}

    def look(self) -> HostFacts:
        return read_node(self.host, self.provider.wants, vgpu=False)

    def allocate(self) -> Grant:
        (grant,) = asyncio.run(self.allocator.allocate(NAME, [[GPU]]))
        return grant

    def drivers(self) -> list[str | None]:
        return [self.kernel.driver(address) for address in (GPU, AUDIO)]

    @property
    def problem(self) -> Problem | None:
        return self.seen[GPU].problem

    def reason(self) -> str | None:
        return self.problem and self.problem.reason


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.turn()
    return made


def test_a_card_with_its_host_driver_is_advertised_and_stays_with_it(node: Node) -> None:
    node.turn(1000)
    assert node.problem is None
    assert [str(function) for function in node.seen[GPU].functions] == [GPU, AUDIO]
    assert node.seen[GPU].description == f"{GPU} display controller 10de:2204, on nvidia until it is allocated"
    assert node.drivers() == FREE
    assert node.ledger.records() == []


def test_a_pod_gets_the_whole_group_bound(node: Node) -> None:
    grant = node.allocate()
    assert node.drivers() == BOUND
    assert grant.env == {"PCI_RESOURCE_EXAMPLE_COM_GPU": GPU}
    assert grant.nodes == ("/dev/vfio/vfio", "/dev/vfio/44")
    node.turn()
    assert node.problem is None
    assert node.seen[GPU].description == f"{GPU} display controller 10de:2204"


def test_what_is_bound_and_given_back_is_reported(node: Node) -> None:
    node.allocate()
    bound = f"bound: {GPU} nvidia -> vfio-pci, {AUDIO} snd_hda_intel -> vfio-pci"
    assert node.log == [bound]
    node.turn(1000)
    node.turn(1000)
    assert node.log[0] == bound
    assert node.log[-1].startswith(f"given back: {GPU} vfio-pci -> nvidia")
    node.kernel.probe_fails.add((VFIO, AUDIO))
    refused(node)
    assert f"{AUDIO} is bound to no driver after it was offered to vfio-pci" in node.log[-1]


def test_it_goes_back_when_nobody_has_had_it_for_the_grace_time(node: Node) -> None:
    node.allocate()
    node.usage = POD
    for _ in range(3):
        node.turn(GRACE)
    assert node.drivers() == BOUND
    node.usage = NOBODY
    node.turn(1)
    node.turn(GRACE - 1)
    assert node.drivers() == BOUND
    node.turn(1)
    assert node.drivers() == FREE
    assert node.problem is None
    node.allocate()
    assert node.drivers() == BOUND


def test_what_was_given_back_a_moment_ago_is_given_back_again(tmp_path: Path) -> None:
    node = Node(tmp_path, rule=RULE._replace(grace_seconds=0))
    node.turn()
    for _ in range(2):
        (resource,) = node.provider.resources(node.look(), NOBODY, node.now)
        asyncio.run(node.provider.allocate(resource, [GPU]))
        assert node.drivers() == BOUND
        asyncio.run(node.give_back())
        assert node.drivers() == FREE


def test_it_stays_where_nobody_knows_what_pods_have(node: Node) -> None:
    node.allocate()
    node.usage = NO_USAGE
    node.turn(GRACE)
    node.turn(10 * GRACE)
    assert node.drivers() == BOUND
    assert not [line for line in node.log if "LK724" in line], "there is nothing to do about it yet"


def test_a_rule_may_keep_it_bound(tmp_path: Path) -> None:
    node = Node(tmp_path, rule=RULE._replace(grace_seconds=60, give_back="never"))
    node.turn()
    node.allocate()
    node.turn(100)
    node.turn(10 * GRACE)
    assert node.drivers() == BOUND
    node.rule = None
    node.turn()
    assert node.drivers() == FREE, "no rule wants it any more"


def test_the_runtime_finds_its_nodes_as_soon_as_the_pod_may_start(node: Node) -> None:
    node.allocate()
    node.turn()
    assert '"/dev/vfio/44"' in (node.tree.root / "cdi" / "launcherkit.io-vfio-pci.json").read_text()


def test_siblings_in_groups_of_their_own_are_bound_and_given_back_with_it(tmp_path: Path) -> None:
    node = Node(tmp_path, one_group=False)
    node.turn()
    assert node.seen[GPU].groups == {44, 45}
    assert node.allocate().nodes == ("/dev/vfio/vfio", "/dev/vfio/44", "/dev/vfio/45")
    assert node.drivers() == BOUND
    node.turn(100)
    node.turn(GRACE)
    assert node.drivers() == FREE


# Refused


def refused(node: Node) -> str:
    with raises_code(NOT_BOUND_ON_DEMAND) as raised:
        node.allocate()
    assert node.drivers() == FREE
    assert node.ledger.records() == []
    return raised.value.message


def test_whoever_uses_the_card_is_named_and_keeps_it(node: Node) -> None:
    with_display(node)
    node.open = {"/dev/dri/card1": XORG}
    message = refused(node)
    assert message.endswith("can't be bound to vfio-pci: /dev/dri/card1 is open in Xorg (PID 812)")
    assert [f"LK752: {message}"] == provoked("binding", "LK752")
    assert f"error[LK752]: {message}" in (ROOT / "docs/errors/LK752.md").read_text()


def test_what_could_not_be_bound_is_unhealthy_for_a_while(node: Node) -> None:
    with_display(node)
    node.open = {"/dev/dri/card1": XORG}
    refused(node)
    node.turn()
    assert node.reason() == "failed"
    with raises_code(DEVICE_UNHEALTHY, match="is open in Xorg"):
        node.allocate()
    node.open = {}
    node.turn(FIRST_PAUSE_SECONDS)
    assert node.reason() is None
    node.allocate()
    assert node.drivers() == BOUND


def with_display(node: Node) -> None:
    card = node.tree.path(GPU) / "drm/card1"
    card.mkdir(parents=True)
    (card / "dev").write_text("226:1\n")
    (card / "uevent").write_text("MAJOR=226\nMINOR=1\nDEVNAME=dri/card1\nDEVTYPE=drm_minor\n")


def test_where_not_all_processes_can_be_seen_nothing_is_taken(node: Node) -> None:
    node.unseen = "/proc does not show all processes of the host"
    assert "it is unknown whether a process has" in refused(node)


def test_a_group_of_which_a_pod_has_a_part_by_another_plugin_is_not_taken(node: Node) -> None:
    node.usage = Usage("pod-resources", {"other.com/audio": {AUDIO: Holder("media/player", "app")}})
    node.turn()
    with raises_code(GROUP_SPLIT, match=f"pod media/player has {AUDIO}"):
        node.allocate()
    assert node.drivers() == FREE


def test_a_group_that_could_never_be_bound_is_unhealthy_from_the_start(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tree.function("0000:00:1f.0", class_code=0x060100, header_type=0, driver="lpc_ich", group=44)
    node.turn()
    assert node.problem is not None
    assert node.problem.reason == "not-viable"
    assert "part of this host's chipset, bound to lpc_ich" in node.problem.text


def test_a_card_with_vfs_is_unhealthy_from_the_start_and_a_bridge_beside_it_is_left_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tree.function("0000:00:01.0", class_code=0x060400, header_type=1, driver="pcieport", group=44)
    node.turn()
    assert node.reason() is None
    node.tree.vf(GPU, "0000:01:00.4", class_code=0x020000, group=8)
    node.turn()
    assert node.reason() == "not-viable"
    with pytest.raises(LauncherkitError, match=r"has VFs \(1\)"):
        node.allocate()
    assert node.drivers() == FREE
    assert node.kernel.driver("0000:00:01.0") == "pcieport"


# Failed


def test_what_the_kernel_refuses_is_put_back(node: Node) -> None:
    node.kernel.probe_fails.add((VFIO, AUDIO))
    assert f"{AUDIO} is bound to no driver after it was offered to vfio-pci" in refused(node)


def test_where_a_later_group_fails_the_earlier_ones_go_back_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, one_group=False)
    node.turn()
    node.kernel.probe_fails.add((VFIO, AUDIO))
    with raises_code(NOT_BOUND_ON_DEMAND, match=AUDIO):
        node.allocate()
    node.turn()
    assert node.drivers() == FREE
    assert node.ledger.records() == []


def test_where_a_later_group_hangs_the_earlier_ones_go_back_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, one_group=False, rule=RULE._replace(bind_seconds=60, give_back="never"))
    node.turn()
    gate = threading.Event()

    async def scene() -> None:
        work = node.queue.begin("IOMMU group 45", "finishing an earlier change", lambda: gate.wait(60), 60)
        assert work is not None
        node.queue.give_up("IOMMU group 45")
        with raises_code(WORK_HANGS):
            await node.demand.bind(NAME, [node.seen[GPU]], 60)
        assert node.drivers() == [VFIO, FREE[1]]
        gate.set()
        await work

    asyncio.run(scene())
    node.turn()
    assert node.drivers() == FREE
    assert node.ledger.records() == []


def test_no_group_is_begun_when_no_time_is_left(tmp_path: Path) -> None:
    node = Node(tmp_path, one_group=False)
    node.turn()

    async def scene() -> None:
        with raises_code(BINDING_TOO_SLOW):
            await node.demand.bind(NAME, [node.seen[GPU]], 0.0)

    asyncio.run(scene())
    assert node.drivers() == FREE


def test_a_container_takes_no_card_from_a_vm_that_got_it_a_moment_ago(tmp_path: Path) -> None:
    """What is given back with a card may be in a group with another one, which K3 hasn't been checked for."""
    node = Node(tmp_path, one_group=False)
    node.tree.function(OTHER, driver="snd_hda_intel", device=0x1AEF, class_code=0x040300, group=45)
    node.turn()
    node.allocate()
    assert node.kernel.driver(OTHER) == VFIO
    node.demand.note_records(node.ledger.records())
    assert node.demand.goes_with(PciAddress.parse(GPU)) == frozenset(map(PciAddress.parse, (GPU, AUDIO, OTHER)))
    for holder in (Holder("", "of call 7"), Holder("", claim=ClaimRef("vms", "gpu", "u-1"))):
        node.held_now = Usage("pod-resources", {"example.com/other": {OTHER: holder}})

        async def scene() -> None:
            with raises_code(NOT_GIVEN_BACK_ON_DEMAND, match=f"{OTHER} is held by"):
                await node.demand.give_back(NAME, [GPU], [PciAddress.parse(GPU)], 30)

        asyncio.run(scene())
        assert node.kernel.driver(OTHER) == VFIO
    node.held_now = NOBODY
    asyncio.run(node.demand.give_back(NAME, [GPU], [PciAddress.parse(GPU)], 30))
    assert (node.drivers(), node.kernel.driver(OTHER)) == (FREE, "snd_hda_intel")


def test_an_allocate_waits_no_longer_than_it_may_and_what_comes_later_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pci, "monotonic", lambda: 0.0)  # nothing of the time is gone when it is bound
    node = Node(tmp_path, rule=RULE)
    node.turn()
    gate, write = threading.Event(), node.kernel.write

    def slow(path: str, text: str, seconds: float = 1) -> None:
        gate.wait(60)
        write(path, text, seconds)

    async def scene(loop: TimedLoop) -> None:
        node.kernel.write = slow  # type: ignore[method-assign]
        allocating = asyncio.create_task(node.allocator.allocate(NAME, [[GPU]]))
        while not node.queue.is_busy("IOMMU group 44"):
            await asyncio.sleep(0)
        loop.skip(30)
        with raises_code(BINDING_TOO_SLOW) as raised:
            await allocating
        assert f"LK751: {raised.value.message}" == provoked("binding", "LK751")[0]
        await node.take_turn()
        assert node.problem is not None
        assert "has not returned" in node.problem.text
        gate.set()
        while node.queue.is_busy("IOMMU group 44"):
            await asyncio.sleep(0.01)
        assert node.drivers() == BOUND
        await node.take_turn()

    run_timed(scene)
    assert node.drivers() == FREE


def test_a_card_that_does_not_go_back_is_unhealthy_until_it_has(node: Node) -> None:
    node.allocate()
    node.turn(100)
    node.kernel.probe_fails.add(("snd_hda_intel", AUDIO))
    node.turn(GRACE)
    node.turn()
    assert node.problem is not None
    assert node.problem.reason == "failed"
    assert "it can't be given back to its driver: 0000:01:00.1 is bound to no driver" in node.problem.text
    with raises_code(DEVICE_UNHEALTHY):
        node.allocate()
    node.kernel.probe_fails.clear()
    node.turn(1000)
    assert node.drivers() == FREE
    node.turn()
    assert node.problem is None


def test_what_a_process_still_has_open_goes_back_later(node: Node) -> None:
    node.allocate()
    node.turn(100)
    node.open = {"/dev/vfio/44": (HolderProcess(7, "qemu"),)}
    node.turn(GRACE)
    node.turn()
    assert node.drivers() == BOUND
    assert node.problem is not None
    assert "/dev/vfio/44 is open in qemu (PID 7)" in node.problem.text
    node.open = {}
    node.turn(1000)
    assert node.drivers() == FREE


def test_where_nobody_knows_who_has_it_open_it_stays_and_another_pod_can_get_it(node: Node) -> None:
    node.allocate()
    node.turn(100)
    node.unseen = "/proc does not show all processes of the host"
    node.turn(GRACE)
    node.turn()
    assert node.drivers() == BOUND
    assert node.problem is None
    node.allocate()


def test_a_pod_that_comes_while_it_goes_back_waits_and_gets_it(node: Node) -> None:
    node.allocate()
    node.turn(100)
    gate, write = threading.Event(), node.kernel.write

    def slow(path: str, text: str, seconds: float = 1) -> None:
        gate.wait(60)
        write(path, text, seconds)

    async def scene() -> None:
        node.kernel.write = slow  # type: ignore[method-assign]
        node.now += GRACE
        turning = asyncio.create_task(node.take_turn())
        while not node.queue.is_busy("IOMMU group 44"):
            await asyncio.sleep(0)
        allocating = asyncio.create_task(node.allocator.allocate(NAME, [[GPU]]))
        await settled()
        assert not allocating.done()
        gate.set()
        await asyncio.gather(turning, allocating)

    asyncio.run(scene())
    assert node.drivers() == BOUND


@pytest.mark.slow
def test_whenever_it_is_killed_the_card_is_whole_and_goes_back(tmp_path: Path) -> None:
    """At each moment of an Allocate and of giving back; the next daemon finds what the last one left."""
    for at in range(1, 200):
        node = Node(tmp_path / f"allocate-{at}")
        node.turn()
        node.kernel.new_process(die_at=at)
        with suppress(Killed, LauncherkitError):
            node.allocate()
        if node.kernel.moments < at:
            break
        came_through(node)
    assert at > 10
    for at in range(1, 200):
        node = Node(tmp_path / f"back-{at}")
        node.turn()
        node.allocate()
        node.turn(100)
        node.kernel.new_process(die_at=at)
        with suppress(Killed, LauncherkitError):
            node.turn(GRACE)
        if node.kernel.moments < at:
            break
        came_through(node)
    assert at > 10


def came_through(node: Node) -> None:
    node.restart()
    node.turn()
    assert node.drivers() in (FREE, BOUND)
    node.allocate()
    assert node.drivers() == BOUND
    node.turn(100)
    node.turn(GRACE)
    assert node.drivers() == FREE
    assert node.ledger.records() == []


# Whose nodes they are


def test_the_uuids_of_other_cards_are_known_where_one_can_not_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "driver/nvidia/gpus"
    for name in (GPU, "0000:02:00.0", "nonsense"):
        (folder / name).mkdir(parents=True)
    (folder / GPU / "information").mkdir()
    uuid = "GPU-5a0c0000-0000-4000-8000-000000000001"
    (folder / "0000:02:00.0/information").write_text(f"GPU UUID: {uuid}\n")
    assert nvidia_uuids(str(tmp_path)) == {uuid: "0000:02:00.0"}


def test_the_nodes_of_a_driver_are_found_by_their_numbers(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function(GPU, driver="nvidia", group=44)
    for folder, number, name in (
        ("drm/card1", "226:1", "dri/card1"),
        ("sound/card0/pcmC0D3p", "116:5", "snd/pcmC0D3p"),
    ):
        place = tree.path(GPU) / folder
        place.mkdir(parents=True)
        (place / "dev").write_text(f"{number}\n")
        (place / "uevent").write_text(f"DEVNAME={name}\n")
    information = tmp_path / f"proc/driver/nvidia/gpus/{GPU}/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA A40\nDevice Minor: \t 2\nGPU Excluded:\t No\n")
    found = driver_nodes(str(tmp_path), f"{tmp_path}/proc", [PciAddress.parse(GPU)])
    assert found == {"/dev/dri/card1": (226, 1), "/dev/snd/pcmC0D3p": (116, 5), "/dev/nvidia2": (195, 2)}


def test_on_demand_a_card_is_bound_to_the_variant_that_the_kernel_has(tmp_path: Path) -> None:
    node = Node(tmp_path, rule=RULE._replace(driver="auto"))
    node.tree.modules_alias("alias vfio_pci:v000010DEd00002204sv*sd*bc*sc*i* x_vfio_pci\n")
    for address, device in ((GPU, "00002204"), (AUDIO, "00001AEF")):
        path = tmp_path / "sys/bus/pci/devices" / address / "modalias"
        path.write_text(f"pci:v000010DEd{device}sv0sd0bc03sc00i00\n")
    node.kernel.load("x_vfio_pci")
    node.turn()
    assert node.problem is None
    node.allocate()
    assert node.drivers() == ["x_vfio_pci", VFIO]
    node.turn(1000)
    node.turn(1000)
    assert node.drivers() == FREE
