"""The library of Fabric Manager, called by a process of its own: a stand-in of ours in C, and the daemon with it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit_lab.kubelet import Kubelet, NotAdmitted, running_kubelet
from launcherkit_plugin.fabric.manager import CODES, NotBegun, ProcessManager
from launcherkit_plugin.model.config import FabricConfig
from launcherkit_plugin.model.errors import FABRIC_UNREACHABLE, PARTITION_NOT_CHANGED, PARTITION_OF_OTHERS
from tests.plugin.daemon.test_serve import ENV
from tests.plugin.fabric.double import CARDS, MODULES, TABLE, Board, addresses, cards_of
from tests.plugin.fabric.hgx import NAME, SWITCHES, Node, key_of
from tests.plugin.kubelet.parts import until
from tests.support.dying import MACHINE, Life, Whom, live
from tests.support.errors import raises_code
from tests.support.forked import PLUGIN
from tests.support.hooks import ServerProcess
from tests.support.hosttree import HostTree

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")
compiled = pytest.mark.skipif(COMPILER is None, reason="no C compiler: apt-get install gcc libc6-dev")
Table = Sequence[tuple[int, Sequence[int]]]


class StandIn:
    """The state of the stand-in, in a file: see nvfm.c."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fm"
        self.start()

    def start(self, table: Table = TABLE, *, run: int = 1, mode: int = 1, reports: bool = True) -> None:
        """Fabric Manager starts, with nothing active."""
        lines = [f"run {run}", f"mode {mode}"]
        for number, modules in table:
            gpus = [f"{each},GPU-{each},0000{MODULES[each].upper()}" if reports else f"{each},-,-" for each in modules]
            lines.append(f"partition {number} 0 {' '.join(gpus)}")
        self.path.write_text("\n".join(lines) + "\n")

    def stop(self) -> None:
        self.path.unlink()

    def fail(self, *lines: str) -> None:
        """What the next calls return: ``fmConnect -9``."""
        Path(f"{self.path}.errors").write_text("".join(f"{line}\n" for line in lines))

    def calls(self) -> list[str]:
        """The changes that were made."""
        with suppress(FileNotFoundError):
            return Path(f"{self.path}.calls").read_text().splitlines()
        return []

    def active(self) -> set[int]:
        found = [line.split() for line in self.path.read_text().splitlines() if line.startswith("partition")]
        return {int(number) for _, number, active, *_ in found if active == "1"}

    def is_covered(self, cards: frozenset[str]) -> bool:
        """Whether just these cards are an active partition."""
        return cards in {cards_of(number) for number in self.active()}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    assert COMPILER is not None
    path = tmp_path_factory.mktemp("nvfm") / "libnvfm.so.1"
    subprocess.run([COMPILER, "-Wall", "-Werror", "-shared", "-fPIC", "-o", path, HERE / "nvfm.c"], check=True)
    return str(path)


@pytest.fixture
def fm(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


@pytest.fixture
def manager(library: str, fm: StandIn, tmp_path: Path) -> Iterator[ProcessManager]:
    config = FabricConfig(str(fm.path), library=library)
    with closing_manager(ProcessManager(config, f"{tmp_path}/lock")) as opened:
        yield opened


@contextmanager
def closing_manager(manager: ProcessManager) -> Iterator[ProcessManager]:
    try:
        yield manager
    finally:
        manager.close()


def active(manager: ProcessManager) -> set[int]:
    return {each.number for each in manager.board().partitions if each.active}


# Without a compiler


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    config = FabricConfig(library=f"{tmp_path}/libnvfm.so.1")
    with closing_manager(ProcessManager(config)) as manager:
        with raises_code(FABRIC_UNREACHABLE, match="libnvfm.so.1: cannot open shared object file"):
            manager.board()
        with raises_code(PARTITION_NOT_CHANGED, match="cannot open shared object file"):
            manager.activate(3)


def test_another_library_is_none() -> None:
    with (
        closing_manager(ProcessManager(FabricConfig(library="libc.so.6"))) as manager,
        raises_code(FABRIC_UNREACHABLE, match="undefined symbol: fmLibInit"),
    ):
        manager.board()


# With the stand-in


@pytest.mark.slow
@compiled
def test_partitions_are_read_with_modules_uuids_and_addresses(manager: ProcessManager, fm: StandIn) -> None:
    read = {each.number: each for each in manager.board().partitions}
    assert read.keys() == dict(TABLE).keys()
    for number, modules in TABLE:
        assert [gpu.module for gpu in read[number].gpus] == list(modules)
        assert [str(gpu.address) for gpu in read[number].gpus] == [MODULES[each] for each in modules]
        assert [gpu.uuid for gpu in read[number].gpus] == [f"GPU-{each}" for each in modules]
    fm.start(reports=False)
    assert all(gpu.address is None and gpu.uuid == "" for each in manager.board().partitions for gpu in each.gpus)


@pytest.mark.slow
@compiled
def test_a_partition_is_activated_and_deactivated(manager: ProcessManager, fm: StandIn) -> None:
    manager.activate(3)
    assert (fm.active(), active(manager)) == ({3}, {3})
    manager.activate(4)
    manager.deactivate(3)
    assert (fm.active(), active(manager)) == ({4}, {4})
    assert fm.calls() == ["activate 3", "activate 4", "deactivate 3"]


@pytest.mark.slow
@compiled
def test_with_a_condition_the_board_is_read_and_the_record_renamed_before_the_activation(
    manager: ProcessManager, fm: StandIn, tmp_path: Path
) -> None:
    beside, record = tmp_path / "beside", tmp_path / "record"
    beside.write_text("3")
    paths = (str(beside), str(record))
    seen = manager.board()
    fm.fail("fmGetSupportedFabricPartitions crash")
    with raises_code(PARTITION_NOT_CHANGED, match="killed by signal 6"):
        manager.activate(3, (), (seen, paths))
    assert (beside.exists(), record.exists()) == (True, False)
    fm.fail("fmActivateFabricPartition crash")
    with raises_code(PARTITION_NOT_CHANGED, match="killed by signal 6"):
        manager.activate(3, (), (seen, paths))
    assert (beside.exists(), record.read_text(), fm.active()) == (False, "3", set())
    record.rename(beside)
    assert manager.activate(3, (), (seen, paths)).active == [manager.board().numbered(3)]
    assert (record.read_text(), fm.active()) == ("3", {3})


@pytest.mark.slow
@compiled
def test_if_the_condition_is_not_met_nothing_is_done(manager: ProcessManager, fm: StandIn, tmp_path: Path) -> None:
    beside, record = tmp_path / "beside", tmp_path / "record"
    beside.write_text("3")
    seen = manager.board()
    manager.activate(4)
    with pytest.raises(NotBegun):
        manager.activate(3, (), (seen, (str(beside), str(record))))
    assert (beside.exists(), record.exists()) == (True, False)
    seen = manager.board()
    with pytest.raises(NotBegun):
        manager.activate(3, (), (seen, (str(beside), f"{tmp_path}/none/record")))
    fm.fail("fmGetSupportedFabricPartitions -2")
    with pytest.raises(NotBegun):
        manager.activate(3, (), (seen, (str(beside), str(record))))
    assert (beside.exists(), record.exists()) == (True, False)
    assert fm.calls() == ["activate 4"]


@pytest.mark.slow
@compiled
def test_what_is_in_use_is_somebody_elses(manager: ProcessManager, fm: StandIn) -> None:
    manager.activate(3)
    for number in (3, 1, 0):
        with raises_code(PARTITION_OF_OTHERS, match="FM_ST_IN_USE"):
            manager.activate(number)
    with raises_code(PARTITION_NOT_CHANGED, match="FM_ST_UNINITIALIZED"):
        manager.deactivate(4)
    with raises_code(PARTITION_NOT_CHANGED, match="FM_ST_BADPARAM"):
        manager.activate(99)


@pytest.mark.slow
@compiled
def test_vfs_are_passed_in_their_order_where_fabric_manager_is_in_its_mode(
    manager: ProcessManager, fm: StandIn
) -> None:
    vfs = addresses("0000:47:00.4", "0000:0f:01.2")
    with raises_code(PARTITION_NOT_CHANGED, match="fmActivateFabricPartitionWithVFs returned FM_ST_NOT_SUPPORTED"):
        manager.activate(3, vfs)
    fm.start(run=2, mode=2)
    with raises_code(PARTITION_NOT_CHANGED, match="FM_ST_CONNECTION_NOT_VALID"):
        manager.activate(3, vfs)
    manager.activate(3, vfs)
    assert fm.calls() == ["activate 3 0000:47:00.4 0000:0f:01.2"]
    with raises_code(PARTITION_NOT_CHANGED, match="fmActivateFabricPartition returned FM_ST_NOT_SUPPORTED"):
        manager.activate(4)


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("code", sorted(CODES, reverse=True))
def test_every_call_may_return_every_code_once(manager: ProcessManager, fm: StandIn, code: int) -> None:
    fm.fail(f"fmConnect {code}")
    with raises_code(FABRIC_UNREACHABLE, match=f"fmConnect returned {CODES[code]}"):
        manager.board()
        manager.board()  # after a lost connection the first is tried again by itself
        raise FABRIC_UNREACHABLE(f"fmConnect returned {CODES[code]}", "")
    assert active(manager) == set()
    fm.fail(*[f"fmGetSupportedFabricPartitions {code}"] * 2)
    with raises_code(FABRIC_UNREACHABLE, match=f"fmGetSupportedFabricPartitions returned {CODES[code]}"):
        manager.board()
    Path(f"{fm.path}.errors").unlink()
    fm.fail(f"fmActivateFabricPartition {code}", f"fmDeactivateFabricPartition {code}")
    with pytest.raises((PARTITION_OF_OTHERS.kind, PARTITION_NOT_CHANGED.kind), match=CODES[code]):
        manager.activate(3)
    manager.activate(3)
    with raises_code(PARTITION_NOT_CHANGED, match=CODES[code]):
        manager.deactivate(3)
    manager.deactivate(3)
    assert fm.active() == set()


@pytest.mark.slow
@compiled
def test_after_a_restart_of_fabric_manager_it_is_connected_to_again(manager: ProcessManager, fm: StandIn) -> None:
    manager.activate(3)
    fm.start(run=2)
    assert active(manager) == set()
    fm.stop()
    with raises_code(FABRIC_UNREACHABLE, match="FM_ST_CONNECTION_NOT_VALID"):
        manager.board()
    fm.start(run=3)
    assert active(manager) == set()


@pytest.mark.slow
@compiled
def test_a_library_that_crashes_takes_only_its_process_with_it(manager: ProcessManager, fm: StandIn) -> None:
    fm.fail("fmActivateFabricPartition crash")
    with raises_code(PARTITION_NOT_CHANGED, match="the process with libnvfm was killed by signal 6"):
        manager.activate(3)
    manager.activate(3)
    assert fm.calls() == ["activate 3"]


@pytest.mark.slow
@compiled
def test_the_process_of_one_that_hangs_is_killed(manager: ProcessManager, fm: StandIn) -> None:
    manager.activate(3)
    manager.close()
    fm.fail("fmDeactivateFabricPartition hang")
    with (
        closing_manager(ProcessManager(manager.config, f"{fm.path.parent}/lock", seconds=2.0)) as hasty,
        raises_code(PARTITION_NOT_CHANGED, match="libnvfm has not returned in time, and its process was killed"),
    ):
        hasty.deactivate(3)
    fm.fail()  # where even starting the process took too long, nothing has hung yet
    manager.deactivate(3)
    assert fm.calls() == ["activate 3", "deactivate 3"]


@pytest.mark.slow
@compiled
def test_while_a_process_lives_no_other_begins_a_change(
    manager: ProcessManager, fm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcherkit_plugin.fabric.manager.LOCK_SECONDS", 0.0)
    assert active(manager) == set()
    with closing_manager(ProcessManager(manager.config, f"{fm.path.parent}/lock")) as other:
        with raises_code(PARTITION_NOT_CHANGED, match="another process has it"):
            other.activate(3)
        manager.close()
        other.activate(3)
    assert fm.active() == {3}


# The daemon


class Machine:
    """A node with the board, whose daemon is a process with the stand-in, and its kubelet."""

    def __init__(self, folder: Path, library: str) -> None:
        self.folder = folder
        own = folder / "fabric-manager"  # the daemon watches the folder of its configuration
        own.mkdir()
        self.fm = StandIn(own)
        self.tree = HostTree(folder / "host")
        for number, card in enumerate(CARDS):
            self.tree.function(card, device=0x20B0, class_code=0x030200, driver="vfio-pci", group=10 + number)
        for number, switch in enumerate(SWITCHES):
            self.tree.function(switch, device=0x1AF1, class_code=0x068000, driver="nvidia", group=30 + number)
        self.config = folder / "plugin.yaml"
        self.configure({"fabric": {"socket": str(self.fm.path), "library": library}})

    def configure(self, more: Mapping[str, object]) -> None:
        rule = {"name": NAME, "select": [{"classes": ["0302"]}]}
        self.config.write_text(json.dumps({"resources": [rule], "rescanSeconds": 1, **more}))

    def serve(self) -> ServerProcess:
        places = {
            "--config": self.config,
            "--host": self.tree.root,
            "--dev-root": self.tree.root,
            "--kubelet-dir": self.folder / "k",
            "--ledger": self.folder / "ledger",
            "--state": self.folder / "state",
            "--features-dir": self.folder / "features.d",
        }
        return ServerProcess([PLUGIN, "serve", *(str(part) for pair in places.items() for part in pair)], ENV)


@pytest.fixture
def machine(library: str) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="fm-") as folder:
        yield Machine(Path(folder), library)


def sets_of(kubelet: Kubelet) -> set[frozenset[str]]:
    """The cards of each pod."""
    return {frozenset(card for key in holding.ids for card in key.split("+")) for holding in kubelet.holdings}


def serving(machine: Machine, kubelet: Kubelet) -> ServerProcess:
    """A new daemon, once the kubelet has its devices."""
    before = Counter(kubelet.registrations)
    process = machine.serve()
    names = [NAME, *(f"{NAME}-x{size}" for size in (2, 4, 8))]
    kubelet.wait(lambda: all(kubelet.registrations.count(name) > before[name] for name in names))
    kubelet.wait(lambda: all(kubelet.pushes(name) for name in names))
    return process


def settled(machine: Machine, kubelet: Kubelet) -> bool:
    """Each pod has an active partition of its own, and no other is active."""
    return {cards_of(number) for number in machine.fm.active()} == sets_of(kubelet)


@pytest.mark.slow
@compiled
def test_pods_of_every_size_while_the_daemon_is_killed_again_and_again(machine: Machine) -> None:
    chosen, numbers = random.Random(7), iter(range(1000))
    admitted = 0
    with running_kubelet(machine.folder / "k") as kubelet:
        for _ in range(20):
            process = serving(machine, kubelet)
            try:
                for pod in [each.pod for each in kubelet.holdings if chosen.random() < 0.6]:
                    kubelet.delete(pod)
                if chosen.random() < 0.5:
                    until(lambda: settled(machine, kubelet))
                for size in chosen.sample((1, 1, 2, 2, 4, 8), 4):
                    asked = (NAME, size) if size == 1 or chosen.random() < 0.5 else (f"{NAME}-x{size}", 1)
                    with suppress(NotAdmitted):
                        kubelet.admit(f"pod-{next(numbers)}", [("compute", *asked)])
                        admitted += 1
                cards = [card for cards in sets_of(kubelet) for card in cards]
                assert len(set(cards)) == len(cards), "two pods have one card"
                assert all(machine.fm.is_covered(cards) for cards in sets_of(kubelet))
            finally:
                process.end(signal.SIGKILL)
                process.close()
        process = serving(machine, kubelet)
        try:
            until(lambda: settled(machine, kubelet))
            for pod in [each.pod for each in kubelet.holdings]:
                kubelet.delete(pod)
            until(lambda: machine.fm.active() == set())
            kubelet.wait_for(f"{NAME}-x8", {"+".join(sorted(CARDS, key=PciAddress.parse)): True})
            assert process.end() == 0
        finally:
            process.close()
    assert admitted > 20


# Killed at every change, of its own files or of Fabric Manager's


class RealBoard(Board):
    """A board behind the stand-in, which the process with the library asks."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.managers = ExitStack()
        self._lock = f"{folder}/lock"

    def manager(self, config: FabricConfig | None = None) -> ProcessManager:
        return self.managers.enter_context(closing(ProcessManager(config or FabricConfig(), self._lock)))


@contextmanager
def daemon(folder: Path, library: str) -> Iterator[Node]:
    """The next daemon of a node whose kubelet has no pods."""
    board = RealBoard(folder)
    with board.managers:
        yield Node(folder / "node", board, fabric=FabricConfig(f"{folder}/manager/fm", library=library))


def give_and_take_back(folder: Path, library: str) -> None:
    """Be a daemon that gives a pod a partition, and takes it back after the pod."""
    with daemon(folder, library) as node, suppress(LauncherkitError, ExceptionGroup):
        node.turn()
        node.give("one", f"{NAME}-x2", key_of(cards_of(3)))
        node.turn()
        node.end("one")
        node.turn()


@pytest.mark.slow
@compiled
@pytest.mark.skipif(os.uname().machine != MACHINE, reason=f"system calls of {MACHINE}")
@pytest.mark.parametrize("whom", ["all", "first", "caller"])
def test_whoever_is_killed_when_the_next_daemon_leaves_no_partition_active_and_those_of_others_alone(
    library: str, tmp_path: Path, whom: Whom
) -> None:
    """``first``: the process with the library still makes the change, such as the record's renaming, and goes on."""

    def lived(die_at: int = 0) -> tuple[Path, StandIn, Life]:
        folder = tmp_path / str(die_at)
        manager = folder / "manager"
        manager.mkdir(parents=True)
        fm = StandIn(manager)
        fm.path.write_text(fm.path.read_text().replace("partition 5 0", "partition 5 1"))  # somebody else's
        below = [manager, folder / "node" / "ledger"]
        work = give_and_take_back, folder, library
        return folder, fm, live(*work, below=below, die_at=die_at, whom=whom, imported=[__name__])

    _, fm, life = lived()
    assert (fm.calls(), life.code) == (["activate 3", "deactivate 3"], 0)
    seen = set()
    for number in range(1, life.changes + 1):
        folder, fm, died = lived(number)
        assert died.last is not None
        seen.add(died.last.call)
        with daemon(folder, library) as node:
            node.turn()
            node.turn()
            where = f"{number}: {died.last}"
            assert (fm.active(), dict(node.records.read())) == ({5}, {}), where
            unhealthy = [key for key, device in node.listed[f"{NAME}-x2"].devices.items() if not device.healthy]
            assert unhealthy == [key_of(cards_of(5))], where
    assert {"rename", "unlink"} <= seen
