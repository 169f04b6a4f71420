"""Critical errors (Xids) of containers' cards: who is asked, what makes a card Unhealthy, and the process that waits.

The process is a double here; the real one, with a stand-in of NVML, is in tests/plugin/vgpu/test_xids.py.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcherkit_plugin.daemon.wiring import Setup, Wiring, assemble
from launcherkit_plugin.devices.xid_watch import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, SILENT_SECONDS, XidWatch
from launcherkit_plugin.dra.inventory import inventory
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.kubelet.messages import device_list
from launcherkit_plugin.model.config import CardHealth, Config, ContainerUse, PciRule, Selector, Sharing
from launcherkit_plugin.model.device import Problem, Resource
from launcherkit_plugin.model.errors import DEVICE_UNHEALTHY, XIDS_UNSEEN
from launcherkit_plugin.telemetry.prometheus import PrometheusMetrics
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.plugin.devices.test_container import information
from tests.plugin.kubelet.parts import Lines
from tests.plugin.resources import rebind, usage
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.looping import TimedLoop, run_timed, settled
from tests.support.provoked import provoked
from tests.support.waiting import PATIENCE

CARDS = tuple(f"0000:{bus}:00.0" for bus in ("01", "41", "e1"))
FIRST, SECOND, THIRD = CARDS
NAME = "nvidia.com/gpu"
RULE = PciRule(
    select=(Selector(vendors=frozenset({0x10DE, 0x1002}), classes=("03",)),),
    name=NAME,
    use="container",
    container=ContainerUse("nodes", ("/dev/nvidiactl",)),
    health=CardHealth(xid=True),
)


class Process:
    """A double of the process, which a test lets speak and end."""

    def __init__(self, cards: Sequence[str]) -> None:
        self.cards = tuple(cards)
        self.stdout = asyncio.StreamReader()
        self.returncode: int | None = None
        self.hangs = False
        """In the kernel: it doesn't end when it is killed."""
        self._ended = asyncio.Event()

    def says(self, *words: object) -> None:
        self.stdout.feed_data(json.dumps(words).encode() + b"\n")

    def ends(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            self.stdout.feed_eof()
            self._ended.set()

    def kill(self) -> None:
        if not self.hangs:
            self.ends(-9)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode


class Node:
    """A host with three cards of NVIDIA, a configuration, and what the daemon makes of both."""

    def __init__(self, folder: Path, loop: TimedLoop) -> None:
        self.tree = HostTree(folder)
        self.loop = loop
        for number, card in enumerate(CARDS):
            self.tree.function(card, driver="nvidia", group=10 + number)
            information(folder, card, f"GPU-{number}", number)
        self.processes: list[Process] = []
        self.refusal: OSError | None = None
        self.changes = 0
        self.lines, self.metrics = Lines(), PrometheusMetrics()
        self.watch = XidWatch(Reporter(self.lines, self.metrics), self._changed, self._start)
        self.was_asked = False
        self.setup = self.configured(RULE)

    def _changed(self) -> None:
        self.changes += 1

    async def _start(self, cards: Sequence[str]) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.processes.append(Process(cards))
        return self.processes[-1]

    def configured(self, *rules: PciRule) -> Setup:
        root = str(self.tree.root)
        wiring = Wiring(node_host(root), root, Reporter(), WorkQueue(stall=PATIENCE), Stopped(), proc=f"{root}/proc")
        self.setup = assemble(Config(pci=rules), wiring._replace(xids=self._xids))
        return self.setup

    def _xids(self, asked: bool) -> XidWatch | None:
        self.was_asked = self.was_asked or asked
        return self.watch if self.was_asked else None

    async def turn(self) -> dict[str, Resource]:
        facts = read_node(node_host(str(self.tree.root)), self.setup.wants, vgpu=True)
        for reconciler in self.setup.reconcilers:
            await asyncio.gather(*reconciler.reconcile(facts, usage({}), 1000.0))
        await settled()
        found = [each for part in self.setup.providers for each in part.resources(facts, usage({}), 1000.0)]
        self.facts = facts
        return {each.name: each for each in found}

    async def problems(self) -> dict[str, Problem | None]:
        return {key: device.problem for key, device in (await self.turn())[NAME].devices.items()}

    async def process(self) -> Process:
        """The process of now, which waits."""
        await self.turn()
        self.processes[-1].says("watching")
        await settled()
        return self.processes[-1]

    def is_up(self) -> bool:
        value = self.metrics.registry.get_sample_value("launcherkit_plugin_xids_up")
        assert value is not None
        return bool(value)

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.returncode is None]

    async def later(self, seconds: float) -> None:
        self.loop.skip(seconds)
        await settled()


def on_a_node(folder: Path, scene: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    async def played(loop: TimedLoop) -> None:
        loop.hold()
        node = Node(folder, loop)
        await scene(node)
        await node.watch.close()
        assert node.alive == []

    run_timed(played)


def unhealthy(problems: dict[str, Problem | None]) -> dict[str, str]:
    return {card: problem.text for card, problem in problems.items() if problem is not None}


# What makes a card Unhealthy


def test_a_card_with_an_xid_is_unhealthy_for_the_kubelet_and_refused_and_the_reason_names_it(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        process = await node.process()
        assert process.cards == CARDS
        assert unhealthy(await node.problems()) == {}
        process.says("xid", SECOND, 79, [])
        await settled()
        assert node.changes == 1
        resource = (await node.turn())[NAME]
        text = f"{SECOND}: NVIDIA's driver reported Xid 79"
        assert {each.ID: each.health for each in device_list(resource).devices} == {
            FIRST: "Healthy",
            SECOND: "Unhealthy",
            THIRD: "Healthy",
        }
        assert resource.devices[SECOND].problem == Problem("xid", text)
        assert node.setup.containers is not None
        with raises_code(DEVICE_UNHEALTHY, match=text):
            await node.setup.containers.allocate(resource, [SECOND])
        await node.setup.containers.allocate(resource, [FIRST, THIRD])

    on_a_node(tmp_path, scene)


@pytest.mark.parametrize(("evict", "effect"), [(False, "NoSchedule"), (True, "NoExecute")])
def test_a_card_with_an_xid_is_tainted_where_it_is_published_by_dra(tmp_path: Path, evict: bool, effect: str) -> None:
    async def scene(node: Node) -> None:
        node.configured(RULE._replace(dra=True))
        (await node.process()).says("xid", FIRST, 48, [])
        await settled()
        published = inventory((await node.turn()).values(), node.facts, evict=evict)
        taints = {each.id: [(taint.key, taint.effect) for taint in each.taints] for each in published}
        assert taints == {FIRST: [("launcherkit.io/xid", effect)], SECOND: [], THIRD: []}

    on_a_node(tmp_path, scene)


def test_all_replicas_of_a_card_with_an_xid_are_unhealthy(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        node.configured(RULE._replace(sharing=Sharing(2)))
        (await node.process()).says("xid", FIRST, 48, [])
        await settled()
        assert unhealthy(await node.problems()).keys() == {f"{FIRST}::0", f"{FIRST}::1"}

    on_a_node(tmp_path, scene)


# What NVIDIA/k8s-device-plugin ignores: internal/rm/health.go at 02597b97a66aee924ae59788e8de24955d07f2d0.
OF_APPLICATIONS = {13, 31, 43, 45, 68, 109}


def test_errors_of_applications_make_no_card_unhealthy_and_all_others_do(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        process = await node.process()
        for number in OF_APPLICATIONS:
            process.says("xid", FIRST, number, [])
        await settled()
        assert unhealthy(await node.problems()) == {}
        for number in (1, 48, 63, 74, 79, 94, 95, 119, 154, 999):
            node.watch.watch({})
            process = await node.process()
            process.says("xid", FIRST, number, [])
            await settled()
            assert unhealthy(await node.problems()) == {FIRST: f"{FIRST}: NVIDIA's driver reported Xid {number}"}

    on_a_node(tmp_path, scene)


def test_another_list_takes_the_place_of_the_usual_one(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        node.configured(RULE._replace(health=CardHealth(xid=True, ignored=frozenset({94}))))
        process = await node.process()
        process.says("xid", FIRST, 94, [])
        process.says("xid", SECOND, 13, [])
        await settled()
        assert unhealthy(await node.problems()).keys() == {SECOND}

    on_a_node(tmp_path, scene)


@pytest.mark.parametrize(
    ("instance", "text"),
    [([], ""), ([3], ", GPU instance 3"), ([3, 0], ", GPU instance 3, compute instance 0")],
)
def test_the_part_of_a_card_that_an_xid_is_about_is_named(tmp_path: Path, instance: list[int], text: str) -> None:
    async def scene(node: Node) -> None:
        (await node.process()).says("xid", FIRST, 95, instance)
        await settled()
        assert unhealthy(await node.problems()) == {FIRST: f"{FIRST}: NVIDIA's driver reported Xid 95{text}"}

    on_a_node(tmp_path, scene)


def test_of_several_xids_the_first_is_the_reason(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        process = await node.process()
        process.says("xid", FIRST, 48, [])
        process.says("xid", FIRST, 154, [])
        await settled()
        assert unhealthy(await node.problems()) == {FIRST: f"{FIRST}: NVIDIA's driver reported Xid 48"}

    on_a_node(tmp_path, scene)


LOST = {"code": 15, "from": "nvmlDeviceGetHandleByPciBusId", "text": "GPU is lost"}
OLD = {"code": 3, "from": "nvmlDeviceRegisterEvents", "text": "Not Supported"}


def test_a_card_that_is_lost_is_unhealthy_and_one_that_is_too_old_only_named(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        await node.turn()
        (process,) = node.processes
        process.says("refused", FIRST, OLD)
        process.says("refused", SECOND, LOST)
        process.says("watching")
        await settled()
        lost = f"{SECOND} is lost, says NVML: nvmlDeviceGetHandleByPciBusId: GPU is lost (15)"
        assert unhealthy(await node.problems()) == {SECOND: lost}
        old = f"Xids of {FIRST} aren't seen: nvmlDeviceRegisterEvents: Not Supported (3)"
        assert node.lines.lines == [f"warning: {old}"]
        assert node.is_up()

    on_a_node(tmp_path, scene)


# How long


def test_a_card_stays_unhealthy_until_it_has_its_driver_anew(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        (await node.process()).says("xid", FIRST, 79, [])
        await settled()
        for _ in range(3):
            node.configured(RULE._replace(sharing=None))  # a new configuration that asks as well
            assert unhealthy(await node.problems()).keys() == {FIRST}
        rebind(node.tree, FIRST, None)
        assert "has no driver" in unhealthy(await node.problems())[FIRST]
        rebind(node.tree, FIRST, "nvidia")
        assert unhealthy(await node.problems()) == {}
        assert node.processes[-1].cards == CARDS

    on_a_node(tmp_path, scene)


@pytest.mark.parametrize("rule", [RULE._replace(health=None), RULE._replace(use="vm", container=None, health=None)])
def test_a_rule_that_no_longer_asks_forgets_what_its_cards_had_and_lets_go_of_them(
    tmp_path: Path, rule: PciRule
) -> None:
    async def scene(node: Node) -> None:
        (await node.process()).says("xid", FIRST, 79, [])
        await settled()
        (await node.process()).ends(1)
        await settled()
        assert not node.is_up()
        node.configured(rule)
        assert "xid" not in {problem.reason for problem in (await node.problems()).values() if problem is not None}
        assert node.alive == []
        assert node.is_up()

    on_a_node(tmp_path, scene)


# Who is asked


def test_a_card_that_had_an_xid_is_let_go_for_its_reset_and_of_the_others_nothing_is_missed(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        before = await node.process()
        before.says("xid", FIRST, 79, [])
        await settled()
        await node.turn()
        assert node.alive == [before, node.processes[-1]]
        assert node.processes[-1].cards == (SECOND, THIRD)
        before.says("xid", SECOND, 74, [])  # the new one doesn't wait yet
        await settled()
        node.processes[-1].says("watching")
        await settled()
        assert before not in node.alive
        assert unhealthy(await node.problems()).keys() == {FIRST, SECOND}
        await node.process()
        assert [process.cards for process in node.alive] == [(THIRD,)]

    on_a_node(tmp_path, scene)


def test_what_a_card_has_after_it_was_given_to_a_guest_is_nobodys_here(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        before = await node.process()
        rebind(node.tree, SECOND, "vfio-pci")
        await node.turn()
        before.says("xid", SECOND, 79, [])
        before.says("refused", SECOND, LOST)
        before.says("xid", FIRST, 79, [])
        await settled()
        rebind(node.tree, SECOND, "nvidia")
        assert unhealthy(await node.problems()).keys() == {FIRST}

    on_a_node(tmp_path, scene)


def test_only_cards_of_nvidia_with_its_driver_are_asked_and_only_for_rules_that_say_so(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        node.tree.function("0000:f1:00.0", vendor=0x1002, driver="amdgpu", group=50)
        rebind(node.tree, SECOND, "vfio-pci")
        await node.process()
        assert [process.cards for process in node.processes] == [(FIRST, THIRD)]
        only = RULE._replace(select=(Selector(addresses=(THIRD,)),))
        node.configured(only, RULE._replace(health=CardHealth()))
        await node.process()
        assert [process.cards for process in node.alive] == [(THIRD,)]

    on_a_node(tmp_path, scene)


@pytest.mark.parametrize("use", ["vm", "container"])
def test_without_the_key_there_is_no_process(tmp_path: Path, use: Any) -> None:
    async def scene(node: Node) -> None:
        node.was_asked = False
        node.configured(RULE._replace(use=use, container=None, health=None))
        await node.turn()
        assert not node.was_asked
        assert node.processes == []

    on_a_node(tmp_path, scene)


def test_whatever_happens_to_cards_one_process_waits_for_those_that_are_well(tmp_path: Path) -> None:
    """Against a model: which card has its driver, and which one had an error since."""

    async def scene(node: Node) -> None:
        chosen = random.Random(7)
        driver, broken = dict.fromkeys(CARDS, "nvidia"), set[str]()
        for _ in range(50):
            card = chosen.choice(CARDS)
            if chosen.random() < 0.5:
                driver[card] = chosen.choice(["nvidia", "vfio-pci"])
                rebind(node.tree, card, driver[card])
                broken -= set() if driver[card] == "nvidia" else {card}
            elif driver[card] == "nvidia" and card not in broken and node.alive:
                node.alive[0].says("xid", card, 79, [])
                broken |= {card}
                await settled()
            problems = await node.problems()
            assert {key for key, each in problems.items() if each and each.reason == "xid"} == broken
            well = tuple(each for each in CARDS if driver[each] == "nvidia" and each not in broken)
            if node.alive:
                node.alive[-1].says("watching")
                await settled()
            assert [process.cards for process in node.alive] == ([well] if well else [])

    on_a_node(tmp_path, scene)


# The process


@pytest.mark.parametrize("code", [-11, 1])
def test_a_process_that_dies_changes_no_card_is_reported_and_started_anew(tmp_path: Path, code: int) -> None:
    async def scene(node: Node) -> None:
        process = await node.process()
        process.says("xid", FIRST, 79, [])
        await settled()
        await node.process()
        process = node.processes[-1]
        process.ends(code)
        await settled()
        assert unhealthy(await node.problems()).keys() == {FIRST}
        assert not node.is_up()
        how = "was killed by signal 11" if code < 0 else "has ended with exit code 1"
        (line,) = node.lines.lines
        assert line.startswith(f"error: {XIDS_UNSEEN.code}: Xids of cards aren't seen: the process that waits")
        assert how in line
        assert node.alive == []
        await node.later(FIRST_PAUSE_SECONDS)
        (again,) = node.alive
        assert again.cards == (SECOND, THIRD)
        again.says("watching")
        again.says("alive")
        again.says("xid", SECOND, 79, [])
        await settled()
        assert node.is_up()
        assert unhealthy(await node.problems()).keys() == {FIRST, SECOND}

    on_a_node(tmp_path, scene)


def test_one_that_dies_again_and_again_is_started_after_longer_pauses_and_reported_once(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        await node.turn()
        pause = FIRST_PAUSE_SECONDS
        for _ in range(10):
            node.processes[-1].says("watching")
            node.processes[-1].ends(1)
            await settled()
            number = len(node.processes)
            await node.later(pause - 0.5)
            assert len(node.processes) == number
            await node.later(0.5)
            assert len(node.processes) == number + 1
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        assert len(node.lines.lines) == 1
        node.processes[-1].says("alive")
        node.processes[-1].ends(1)
        await settled()
        assert len(node.lines.lines) == 2
        await node.later(FIRST_PAUSE_SECONDS)
        assert len(node.alive) == 1

    on_a_node(tmp_path, scene)


def test_what_nvml_says_in_the_end_is_reported(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        await node.turn()
        node.processes[-1].says("ended", {"code": 9, "from": "nvmlInit", "text": "Driver Not Loaded"})
        node.processes[-1].ends(0)
        await settled()
        (line,) = node.lines.lines
        (message,) = provoked("vgpu", "LK794")
        assert line.startswith(f"error: {message}. The container needs libnvidia-ml.so.1")
        assert unhealthy(await node.problems()) == {}

    on_a_node(tmp_path, scene)


def test_one_that_says_nothing_for_a_minute_is_killed_and_one_that_is_alive_never_is(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        process = await node.process()
        for _ in range(5):
            await node.later(SILENT_SECONDS - 1)
            process.says("alive")
            await settled()
        assert node.alive == [process]
        await node.later(SILENT_SECONDS)
        assert process.returncode == -9
        assert not node.is_up()
        assert "hangs: nothing for 60 s" in node.lines.lines[0]
        assert unhealthy(await node.problems()) == {}
        await node.later(FIRST_PAUSE_SECONDS)
        assert len(node.alive) == 1

    on_a_node(tmp_path, scene)


def test_beside_one_that_hangs_in_the_kernel_no_second_one_is_started(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        process = await node.process()
        process.hangs = True
        await node.later(SILENT_SECONDS)
        for _ in range(20):
            await node.later(LONGEST_PAUSE_SECONDS)
        assert node.processes == [process]
        process.ends(-9)
        await settled()
        await node.later(FIRST_PAUSE_SECONDS)
        assert len(node.processes) == 2

    on_a_node(tmp_path, scene)


def test_one_that_can_not_be_started_is_reported_and_tried_again(tmp_path: Path) -> None:
    async def scene(node: Node) -> None:
        node.refusal = OSError(12, "Cannot allocate memory")
        await node.turn()
        assert "Cannot allocate memory" in node.lines.lines[0]
        node.refusal = None
        await node.later(FIRST_PAUSE_SECONDS)
        assert len(node.alive) == 1

    on_a_node(tmp_path, scene)
