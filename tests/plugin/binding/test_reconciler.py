"""Binding by configuration: bound where a rule wants it, given back where none does, tried again where it fails."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction
from launcherkit.model.policy import Siblings
from launcherkit_plugin.binding.binder import Binder
from launcherkit_plugin.binding.in_use import Holders
from launcherkit_plugin.binding.ledger import Ledger
from launcherkit_plugin.binding.reconciler import FIRST_PAUSE_SECONDS, BindingReconciler
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.host.processes import HolderProcess, OpenNodes
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import PciRule, Selector
from launcherkit_plugin.model.device import NO_USAGE, Holder, Usage
from launcherkit_plugin.telemetry.metrics import ActionOutcome, Binding, Metrics
from launcherkit_plugin.telemetry.reporter import Level, Reporter
from tests.support.hosttree import HostTree
from tests.support.kernel import VFIO, FakeKernel
from tests.support.waiting import PATIENCE

GPU, AUDIO, NIC = "0000:01:00.0", "0000:01:00.1", "0000:02:00.0"
NOBODY = Usage("pod-resources", {})


class Counted(Metrics):
    """Keeps what was counted."""

    def __init__(self) -> None:
        self.bindings: list[tuple[Binding, ActionOutcome]] = []

    def bound(self, action: Binding, outcome: ActionOutcome) -> None:
        self.bindings.append((action, outcome))


class Node:
    """A card whose functions are in groups of their own, and a network card that nobody wants."""

    def __init__(self, root: Path, *, one_group: bool = True) -> None:
        self.tree = HostTree(root)
        ids = {"nvidia": {(0x10DE, 0x2204)}, "snd_hda_intel": {(0x10DE, 0x1AEF)}, "mlx5_core": {(0x15B3, 0x101D)}}
        self.kernel = FakeKernel(self.tree, ids)
        self.tree.function(GPU, driver="nvidia", group=44)
        group = 44 if one_group else 45
        self.tree.function(AUDIO, device=0x1AEF, class_code=0x040300, driver="snd_hda_intel", group=group)
        self.tree.function(NIC, vendor=0x15B3, device=0x101D, class_code=0x020000, driver="mlx5_core", group=12)
        (root / "proc").mkdir()
        self.host = Host.from_sysfs(root)
        self.open = OpenNodes({})
        self.usage = NOBODY
        self.now = 0.0
        self.metrics = Counted()
        self.log: list[str] = []
        self.events: list[str] = []
        self.rule: PciRule | None = PciRule(select=(Selector(),), bind=True)
        self.restart()

    @property
    def ledger(self) -> Ledger:
        return Ledger(str(self.tree.root / "ledger"), "boot")

    def restart(self) -> None:
        """The daemon ends, and another one starts."""
        self.queue = WorkQueue(stall=PATIENCE)
        root = str(self.tree.root)
        proc = f"{root}/proc"
        holders = Holders(self.host, lambda: NO_USAGE, lambda _: self.open, root=root, proc=proc)
        sysfs = Sysfs(root, make_worker=self.kernel.hand)
        binder = Binder(self.host, sysfs, self.ledger, holders, proc)
        reporter = Reporter(self._tell, self.metrics, self)
        self.reconciler = BindingReconciler(self.match, binder, self.queue, reporter)

    def event(self, type: str, reason: str, message: str) -> None:  # noqa: A002
        """As a `Recorder`."""
        self.events.append(reason)

    def _tell(self, level: Level, text: str, **fields: object) -> None:
        self.log.append(text)

    def match(self, function: PciFunction) -> PciRule | None:
        return self.rule if function.class_code >> 16 == 0x03 else None

    def turn(self, seconds: float = 0.0) -> bool:
        """One turn of the daemon, so much later; waits until all is done that it has begun."""
        self.now += seconds

        async def reconcile() -> bool:
            return any(await asyncio.gather(*self.reconciler.reconcile(self.host.scan(), self.usage, self.now)))

        return asyncio.run(reconcile())

    def drivers(self) -> list[str | None]:
        return [self.kernel.driver(address) for address in (GPU, AUDIO, NIC)]

    def problem(self, address: str) -> str | None:
        found = self.reconciler.problem(PciAddress.parse(address))
        return None if found is None else found.text


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


BOUND = [VFIO, VFIO, "mlx5_core"]
FREE = ["nvidia", "snd_hda_intel", "mlx5_core"]


def test_what_a_rule_wants_is_bound_with_its_group_and_given_back_when_it_does_not(node: Node) -> None:
    assert node.turn()
    assert node.drivers() == BOUND
    assert not node.turn(), "it is done"
    node.rule = None
    assert node.turn()
    assert node.drivers() == FREE
    assert node.ledger.records() == []
    assert node.metrics.bindings == [("bind", "done"), ("unbind", "done")]
    assert node.events == ["DevicesBound", "DevicesGivenBack"]
    assert node.log[0] == "bound: 0000:01:00.0 nvidia -> vfio-pci, 0000:01:00.1 snd_hda_intel -> vfio-pci"


def test_a_daemon_that_was_started_again_gives_back_what_an_earlier_one_has_bound(node: Node) -> None:
    node.turn()
    node.rule = PciRule(select=(Selector(),))
    node.restart()
    node.turn()
    assert node.drivers() == FREE


@pytest.mark.parametrize(("siblings", "audio"), [("slot", VFIO), ("reserve", VFIO), ("none", "snd_hda_intel")])
def test_siblings_in_other_groups_are_bound_where_they_would_come_along(
    tmp_path: Path, siblings: Siblings, audio: str
) -> None:
    node = Node(tmp_path, one_group=False)
    node.rule = PciRule(select=(Selector(),), bind=True, siblings=siblings)
    node.turn()
    assert node.drivers() == [VFIO, audio, "mlx5_core"]


def test_what_a_command_has_bound_is_not_given_back(node: Node) -> None:
    node.turn()
    record = node.ledger.records()[0]
    node.ledger.write(record._replace(by="command"))
    node.rule = None
    assert not node.turn()
    assert node.drivers() == BOUND


def test_what_somebody_has_is_given_back_when_he_has_it_no_more(node: Node) -> None:
    node.turn()
    node.rule = None
    node.usage = Usage("pod-resources", {"nvidia.com/GPU": {GPU: Holder("vms/launcher")}})
    node.turn()
    node.usage = NO_USAGE
    node.turn(1000)
    node.usage = NOBODY
    node.open = OpenNodes({"/dev/vfio/44": (HolderProcess(7, "qemu"),)})
    node.turn(1000)
    node.open = OpenNodes({}, "this is a container")
    node.turn(1000)
    assert node.drivers() == BOUND
    assert node.metrics.bindings[1:] == [("unbind", "refused")] * 4
    node.open = OpenNodes({})
    node.turn(1000)
    assert node.drivers() == FREE


def test_what_a_process_uses_by_the_drivers_node_is_bound_when_it_is_closed(node: Node) -> None:
    card = node.tree.path(GPU) / "drm/card1"
    card.mkdir(parents=True)
    (card / "dev").write_text("226:1\n")
    (card / "uevent").write_text("DEVNAME=dri/card1\n")
    node.open = OpenNodes({"/dev/dri/card1": (HolderProcess(812, "Xorg"),)})
    assert not node.turn()
    assert node.drivers() == FREE
    assert node.problem(GPU) == "it can't be bound to vfio-pci: /dev/dri/card1 is open in Xorg (PID 812)"
    node.open = OpenNodes({})
    assert node.turn(FIRST_PAUSE_SECONDS)
    assert node.drivers() == BOUND


def test_what_fails_is_reported_once_and_tried_again_after_growing_pauses(node: Node) -> None:
    node.kernel.probe_fails.add((VFIO, AUDIO))
    attempts = []
    for second in range(int(8 * FIRST_PAUSE_SECONDS)):
        before = len(node.metrics.bindings)
        node.turn(1)
        if len(node.metrics.bindings) > before:
            attempts.append(second)
    assert attempts == [0, 5, 15, 35]
    assert node.drivers() == FREE
    assert (node.problem(GPU) or "").startswith("it can't be bound to vfio-pci: 0000:01:00.1 is bound to no driver")
    assert node.events == ["BindingFailed"]
    node.kernel.probe_fails.clear()
    node.turn(1000)
    assert node.drivers() == BOUND
    node.turn()
    assert node.problem(GPU) is None


def test_it_is_tried_again_at_once_where_a_driver_has_changed(node: Node) -> None:
    node.kernel.refuses["unbind", AUDIO] = 16
    node.turn()
    assert node.drivers() == FREE
    node.kernel.refuses.clear()
    node.turn(1)
    assert node.drivers() == FREE
    node.kernel.write(f"{node.tree.root}/sys/bus/pci/drivers/snd_hda_intel/unbind", AUDIO)
    node.turn(1)
    assert node.drivers() == BOUND


def test_a_group_with_a_member_that_the_host_uses_stays_as_it_is(node: Node) -> None:
    port = node.tree.path(NIC) / "net/eth0"
    port.mkdir(parents=True)
    (port / "flags").write_text("0x1003\n")
    (node.tree.root / "sys/class/net").mkdir(parents=True)
    node.tree.link("sys/class/net/eth0", port)
    (node.tree.root / "proc/1/net").mkdir(parents=True)
    (node.tree.root / "proc/1/net/route").touch()
    node.match = lambda function: node.rule  # type: ignore[method-assign]
    node.restart()
    node.turn()
    assert node.drivers() == BOUND
    assert "network interface eth0 is up" in (node.problem(NIC) or "")
    assert sorted(node.metrics.bindings) == [("bind", "done"), ("bind", "refused")]


def test_a_rule_that_matches_everything_binds_neither_bridges_nor_a_function_with_vfs(node: Node) -> None:
    """K8: a bridge of its own group isn't even tried, one in a card's group is left out."""
    bridge, above, nic, vf = "0000:00:01.0", "0000:00:02.0", "0000:03:00.0", "0000:03:00.4"
    node.tree.function(above, class_code=0x060400, header_type=1, driver="pcieport", group=44)
    node.tree.function(bridge, class_code=0x060400, header_type=1, driver="pcieport", group=2)
    node.tree.function(nic, class_code=0x020000, driver="mlx5_core", group=7)
    node.tree.vf(nic, vf, class_code=0x020000, group=8)
    node.match = lambda function: node.rule  # type: ignore[method-assign]
    node.restart()
    node.turn()
    assert node.drivers() == [VFIO] * 3
    assert [node.kernel.driver(each) for each in (bridge, above, nic, vf)] == [
        "pcieport",
        "pcieport",
        "mlx5_core",
        VFIO,
    ]
    assert "has VFs (1), which would be gone with its driver" in (node.problem(nic) or "")
    assert [node.problem(each) for each in (bridge, above, vf)] == [None] * 3
    assert node.metrics.bindings.count(("bind", "refused")) == 1


def test_without_an_iommu_it_says_so(node: Node) -> None:
    node.tree.function("0000:03:00.0", driver="nvidia")
    node.turn()
    assert "is in no IOMMU group" in (node.problem("0000:03:00.0") or "")


def test_a_vf_of_a_vgpu_card_is_had_by_its_own_driver(node: Node) -> None:
    node.tree.function("0000:03:00.0", driver="nvidia", group=7, class_code=0x020000)
    node.tree.vf("0000:03:00.0", "0000:03:00.4", driver="nvidia", group=8, vgpu="0")
    node.turn()
    assert node.kernel.driver("0000:03:00.4") == "nvidia"


def test_what_was_killed_half_way_is_brought_to_an_end_at_the_start(node: Node) -> None:
    node.kernel.busy.add(AUDIO)
    node.turn()
    assert node.drivers() == FREE, "it waits for its driver"
    assert [record.is_settled for record in node.ledger.records()] == [False]
    node.kernel.let_go(AUDIO)
    node.rule = None
    node.restart()
    node.turn()
    assert node.drivers() == FREE
    assert node.ledger.records() == []


def test_what_a_command_is_at_right_now_is_left_to_it(node: Node) -> None:
    node.turn()
    record = node.ledger.records()[0]
    binding = record._replace(entries=tuple(entry._replace(state="binding") for entry in record.entries))
    node.ledger.write(binding)
    with node.ledger.locked([record.leader]):
        node.turn()
    assert node.ledger.records() == [binding]
    assert node.events == ["DevicesBound"]


def test_a_record_that_can_not_be_read_is_reported_and_keeps_nothing_else_from_going_on(node: Node) -> None:
    node.turn()
    (node.tree.root / f"ledger/{GPU}.json").write_text("{")
    assert not node.turn()
    assert not node.turn()
    assert len([line for line in node.log if "LK729" in line]) == 1


@pytest.mark.parametrize("content", ["", "{", '{"version": 2, "boot": "boot", "content": {}, "crc32": "0"}'])
def test_a_record_that_can_not_be_read_goes_when_its_group_has_its_host_drivers(node: Node, content: str) -> None:
    """As where a person has given the group back, or a change was interrupted before it began."""
    record = node.tree.root / f"ledger/{GPU}.json"
    node.turn()
    node.rule = None
    node.turn()
    record.write_text(content)
    node.turn()
    assert not record.exists()
    assert any(f"the record of {GPU}, which could not be read, was removed" in line for line in node.log)
    node.rule = PciRule(select=(Selector(),), bind=True)
    assert node.turn()
    assert node.drivers() == BOUND


def test_a_record_that_can_not_be_read_stays_while_it_is_not_certain_that_nothing_is_bound(node: Node) -> None:
    """One member has no driver, or a VFIO driver; or the record is a newer version's."""
    record = node.tree.root / f"ledger/{GPU}.json"
    for driver in (VFIO, None):
        node.kernel.set_driver(AUDIO, driver)
        record.parent.mkdir(exist_ok=True)
        record.write_text("{")
        node.rule = None
        node.turn()
        assert record.exists(), driver
    node.kernel.set_driver(AUDIO, "snd_hda_intel")
    record.write_text('{"version": 99, "boot": "boot"}')
    node.turn()
    assert record.exists()


def test_the_daemon_goes_on_while_something_is_being_bound(node: Node) -> None:
    write = node.kernel.write
    gate = threading.Event()

    def slow(path: str, text: str, seconds: float = 1) -> None:
        gate.wait(60)
        write(path, text, seconds)

    async def scene() -> None:
        node.kernel.write = slow  # type: ignore[method-assign]
        (begun,) = node.reconciler.reconcile(node.host.scan(), node.usage, 0.0)
        assert not node.reconciler.reconcile(node.host.scan(), node.usage, 1000.0), "nothing is begun beside it"
        gate.set()
        assert await begun

    asyncio.run(scene())
    assert node.drivers() == BOUND
    assert node.metrics.bindings == [("bind", "done")]


def test_a_group_that_hangs_does_not_keep_another_one_from_being_bound(node: Node) -> None:
    other = "0000:04:00.0"
    node.tree.function(other, driver="nvidia", group=46)
    write = node.kernel.write
    gate = threading.Event()

    def slow(path: str, text: str, seconds: float = 1) -> None:
        if GPU in path or text == GPU:
            gate.wait(60)
        write(path, text, seconds)

    async def scene() -> None:
        node.kernel.write = slow  # type: ignore[method-assign]
        begun = node.reconciler.reconcile(node.host.scan(), node.usage, 0.0)
        assert len(begun) == 2
        done, waiting = await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), node.kernel.driver(other), node.kernel.driver(GPU)) == (1, VFIO, "nvidia")
        gate.set()
        await asyncio.wait(waiting)

    asyncio.run(scene())
    assert node.drivers() == BOUND


def _with_a_variant(node: Node) -> str:
    """The kernel has a variant for the GPU alone."""
    node.tree.modules_alias(
        "alias vfio_pci:v000010DEd00002204sv*sd*bc*sc*i* x_vfio_pci\nalias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
    )
    for address, device in ((GPU, "00002204"), (AUDIO, "00001AEF")):
        path = node.tree.root / "sys/bus/pci/devices" / address / "modalias"
        path.write_text(f"pci:v000010DEd{device}sv0sd0bc03sc00i00\n")
    node.kernel.load("x_vfio_pci")
    return "x_vfio_pci"


def test_a_rule_with_driver_auto_binds_to_the_variant_and_gives_back(node: Node) -> None:
    variant = _with_a_variant(node)
    node.rule = PciRule(select=(Selector(),), bind=True, driver="auto")
    node.turn()
    assert node.drivers() == [variant, VFIO, "mlx5_core"]
    assert f"nvidia -> {variant}" in node.log[-1]
    assert not node.turn()
    node.rule = None
    node.turn()
    assert node.drivers() == FREE


def test_a_rule_without_driver_binds_to_vfio_pci_whatever_the_kernel_has(node: Node) -> None:
    _with_a_variant(node)
    node.turn()
    assert node.drivers() == BOUND


def test_where_the_aliases_can_not_be_read_the_reason_is_the_devices(node: Node) -> None:
    node.rule = PciRule(select=(Selector(),), bind=True, driver="auto")
    node.turn()
    assert node.drivers() == FREE
    assert "modules.alias: No such file" in (node.problem(GPU) or "")
