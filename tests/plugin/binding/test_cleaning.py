"""Between two pods a device is cleaned, and until then nobody gets it (K11)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcherkit.errors import UNREADABLE_FILE
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit_plugin.binding import cleaning
from launcherkit_plugin.binding.cleaning import FIRST_PAUSE_SECONDS
from launcherkit_plugin.binding.ledger import Ledger
from launcherkit_plugin.binding.lent import Lent
from launcherkit_plugin.devices.pci import PciProvider
from launcherkit_plugin.host.processes import HolderProcess
from launcherkit_plugin.host.supervised import ProgramFailed
from launcherkit_plugin.model.config import ContainerUse, PciRule, Selector, VgpuConfig, VgpuRule
from launcherkit_plugin.model.device import NO_USAGE, ClaimRef, Desired, Device, Holder, Usage
from launcherkit_plugin.model.errors import CAME_BACK_WRONG, DEVICE_UNHEALTHY, NOT_CLEANED, WORK_HANGS
from tests.plugin.binding.cleaned import AUDIO, GPU, NAME, NOBODY, POD, RESET, Node
from tests.support.dying import MACHINE, Life, Whom, live
from tests.support.errors import raises_code
from tests.support.faults import failing
from tests.support.kernel import VFIO
from tests.support.provoked import provoked

ON_DEMAND = RESET._replace(bind="on-demand")
QEMU = (HolderProcess(812, "qemu-system-x86"),)
ADDRESS = PciAddress.parse(GPU)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.turn()
    return made


def test_without_release_nothing_is_recorded_and_nothing_reset(tmp_path: Path) -> None:
    node = Node(tmp_path, RESET._replace(release=None))
    node.turn()
    node.allocate()
    node.end_of_pod()
    assert (node.reason(), node.kernel.resets, (tmp_path / "state").exists()) == (None, [], False)


def test_a_card_is_reset_after_a_pod_with_all_its_functions(node: Node) -> None:
    assert node.allocate().env == {"PCI_RESOURCE_EXAMPLE_COM_GPU": GPU}
    node.turn(POD)
    assert (node.reason(), node.kernel.resets) == (None, [])
    assert node.lent.read()[ADDRESS].state == "used"
    node.turn(NOBODY, 100)
    assert (node.reason(), node.kernel.resets) == (None, [GPU, AUDIO])
    assert (node.lent.read(), node.outcomes) == ({}, ["done"])
    assert node.events[-1] == ("DeviceCleaned", f"{NAME}: {GPU} is clean again after a pod had it")


def test_a_card_that_no_pod_had_is_not_reset(node: Node) -> None:
    node.turn(NOBODY, 100)
    node.allocate()
    assert node.kernel.resets == []


def test_nothing_is_begun_while_it_is_unknown_who_has_what(node: Node) -> None:
    node.allocate()
    node.turn(POD)
    node.restart()
    node.turn(NO_USAGE, 100)
    assert (node.reason(), node.kernel.resets) == (None, [])
    with raises_code(DEVICE_UNHEALTHY, match="it is unknown whether a pod has"):
        node.allocate()


def test_what_a_process_still_has_open_waits_for_it(node: Node) -> None:
    node.allocate()
    node.open = {"/dev/vfio/44": QEMU}
    node.end_of_pod()
    assert (node.reason(), node.kernel.resets, node.outcomes) == ("cleaning", [], ["refused"])
    assert node.text() == "/dev/vfio/44 is open in qemu-system-x86 (PID 812)"
    node.open = {}
    node.turn(seconds=100)
    assert (node.reason(), node.kernel.resets) == (None, [GPU, AUDIO])


def test_where_not_all_processes_can_be_seen_it_stays_as_it_is(node: Node) -> None:
    node.allocate()
    node.unseen = "/proc does not show all processes of the host"
    node.end_of_pod()
    assert (node.reason(), node.kernel.resets, node.outcomes) == ("cleaning", [], ["refused"])


def test_a_reset_that_the_kernel_refuses_is_tried_again_after_a_pause(node: Node) -> None:
    node.allocate()
    node.kernel.refuses[("reset", AUDIO)] = errno.ENOTTY
    node.end_of_pod()
    assert (node.reason(), node.outcomes) == ("cleaning", ["failed"])
    assert node.text().startswith(f"{GPU} can't be cleaned: writing 1 to ")
    assert node.text().endswith(f"/{AUDIO}/reset: Inappropriate ioctl for device")
    assert node.events[-1] == ("CleaningFailed", node.text())
    node.kernel.refuses.clear()
    node.turn(seconds=FIRST_PAUSE_SECONDS - 1)
    assert (node.reason(), node.outcomes) == ("cleaning", ["failed"])
    node.turn(seconds=2)
    assert (node.reason(), node.outcomes) == (None, ["failed", "done"])


def test_a_card_without_a_way_to_reset_it_stays_and_a_sibling_without_one_is_left_out(node: Node) -> None:
    (node.tree.path(AUDIO) / "reset").unlink()
    node.allocate()
    node.end_of_pod()
    assert (node.reason(), node.kernel.resets) == (None, [GPU])
    (node.tree.path(GPU) / "reset").unlink()
    node.allocate()
    node.end_of_pod()
    assert node.text() == f"{GPU} can't be cleaned: the kernel knows no way to reset it: there is no file `reset`"


def test_a_program_gets_the_addresses_and_the_resource_and_nothing_else(node: Node) -> None:
    node.program('env | sort >"$1/log"')
    node.turn()
    node.allocate()
    node.end_of_pod()
    own = [line for line in node.lines() if not line.startswith(("PWD=", "SHLVL=", "_=", "OLDPWD="))]
    ours = [f"LAUNCHERKIT_ADDRESSES={GPU} {AUDIO}", f"LAUNCHERKIT_RESOURCE={NAME}"]
    assert own == [*ours, "LC_ALL=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    assert (node.reason(), node.kernel.resets) == (None, [])


def test_a_program_that_fails_keeps_the_card_with_its_last_line(node: Node, tmp_path: Path) -> None:
    node.program("echo looking; echo no such namespace >&2; exit 5")
    node.turn()
    node.allocate()
    node.end_of_pod()
    said = f"{GPU} can't be cleaned: {tmp_path}/clean: it ended with exit code 5: no such namespace"
    assert (node.reason(), node.text(), node.outcomes) == ("cleaning", said, ["failed"])
    assert node.lent.read()[ADDRESS].text == said
    with raises_code(DEVICE_UNHEALTHY, match="no such namespace"):
        node.allocate()
    node.restart()
    node.turn()
    assert node.text() == said, "the next daemon knows it, too"


def test_the_error_of_a_program_is_that_of_its_page(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ProgramFailed("it ended with exit code 1: /dev/nvme0: Device or resource busy")

    monkeypatch.setattr(cleaning, "run_program", fails)
    node.program("")
    node.rule = node.rule._replace(release=node.rule.release._replace(command=("/opt/clean/nvme",)))  # type: ignore[union-attr]
    node.restart()
    node.turn()
    node.allocate()
    node.turn(POD)
    node.turn(NOBODY, 100)
    assert provoked("binding", NOT_CLEANED.code) == [f"{NOT_CLEANED.code}: {node.text()}"]


def test_a_pod_that_comes_before_the_daemon_has_noticed_waits_until_the_card_is_clean(node: Node) -> None:
    node.program('echo cleaned >>"$1/log"')
    node.turn()
    node.allocate()
    node.turn(POD)
    assert node.allocate().env == {"PCI_RESOURCE_EXAMPLE_COM_GPU": GPU}
    assert (node.lines(), node.lent.read()[ADDRESS].state) == (["cleaned"], "used")


def test_one_that_takes_too_long_for_a_pod_goes_on_and_the_next_pod_gets_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = node.root / "gate"
    os.mkfifo(gate)
    node.program('read -r line <"$1/gate"')
    node.turn()
    node.allocate()
    node.turn(POD, 100)
    monkeypatch.setattr(cleaning, "ALLOCATE_SECONDS", 0.0)

    async def scene() -> None:
        with raises_code(DEVICE_UNHEALTHY, match=f"{GPU} is not clean yet since a pod had it"):
            await node.take()
        node.usage = NOBODY
        await node.take_turn(patient=False)
        assert node.reason() == "cleaning"
        with raises_code(DEVICE_UNHEALTHY):
            await node.take()
        await asyncio.to_thread(gate.write_text, "go\n")
        await node.take_turn()

    asyncio.run(scene())
    assert (node.reason(), node.outcomes) == (None, ["done"])
    node.allocate()


def test_the_next_pod_does_not_begin_it_a_second_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = node.root / "gate"
    os.mkfifo(gate)
    node.program('echo begun >>"$1/log"; read -r line <"$1/gate"')
    node.turn()
    node.allocate()
    node.turn(POD, 100)
    monkeypatch.setattr(cleaning, "ALLOCATE_SECONDS", 0.05)

    async def scene() -> None:
        with raises_code(DEVICE_UNHEALTHY):
            await node.take()
        with raises_code(WORK_HANGS, match=f"cleaning {GPU} has not returned"):
            await node.take()
        await asyncio.to_thread(gate.write_text, "go\n")
        await node.take_turn()

    asyncio.run(scene())
    assert node.lines() == ["begun"]


def test_a_program_finds_the_card_with_its_own_driver_if_that_is_where_it_is_kept(tmp_path: Path) -> None:
    node = Node(tmp_path, ON_DEMAND, driver="nvidia")
    node.program('basename "$(readlink "$1/sys/bus/pci/devices/${LAUNCHERKIT_ADDRESSES% *}/driver")" >>"$1/log"')
    node.turn()
    node.allocate()
    assert node.kernel.driver(GPU) == VFIO
    node.end_of_pod()
    assert (node.lines(), node.kernel.driver(GPU), node.reason()) == (["nvidia"], "nvidia", None)
    node.allocate()
    node.turn(POD)
    node.allocate()
    assert (node.lines(), node.kernel.driver(GPU)) == (["nvidia", "nvidia"], VFIO)


def test_a_card_that_can_not_be_given_back_to_its_driver_is_not_cleaned(tmp_path: Path) -> None:
    node = Node(tmp_path, ON_DEMAND, driver="nvidia")
    node.program('echo cleaned >>"$1/log"')
    node.turn()
    node.allocate()
    node.kernel.probe_fails.add(("nvidia", GPU))
    node.end_of_pod()
    assert (node.lines(), node.reason()) == ([], "cleaning")
    assert "is bound to no driver and should be bound to nvidia again" in node.text()
    node.kernel.probe_fails.clear()
    node.turn(seconds=100)
    assert (node.lines(), node.reason()) == (["cleaned"], None)


def test_a_card_is_reset_with_the_driver_that_it_has(tmp_path: Path) -> None:
    node = Node(tmp_path, ON_DEMAND._replace(grace_seconds=1000), driver="nvidia")
    node.turn()
    node.allocate()
    node.end_of_pod()
    assert (node.kernel.resets, node.kernel.driver(GPU), node.reason()) == ([GPU, AUDIO], VFIO, None)


# What came back wrong


def fallen_off(node: Node) -> None:
    (node.tree.path(GPU) / "config").write_bytes(b"\xff" * 64)


def asleep(node: Node) -> None:
    (node.tree.path(GPU) / "power_state").write_text("D3cold\n")


def without_link(node: Node) -> None:
    for name, text in (("current_link_speed", "Unknown"), ("current_link_width", "0"), ("max_link_width", "16")):
        (node.tree.path(GPU) / name).write_text(f"{text}\n")
    (node.tree.path(GPU) / "max_link_speed").write_text("16.0 GT/s PCIe\n")


def lost(node: Node) -> None:
    node.kernel.unplug(GPU)


WRONG = [
    (fallen_off, f"{GPU} reads all ones from config space"),
    (asleep, f"{GPU} is in D3cold"),
    (without_link, f"{GPU} has no PCIe link any more"),
]


@pytest.mark.parametrize(("happens", "why"), WRONG)
def test_a_card_that_came_back_wrong_goes_to_quarantine(node: Node, happens: Callable[[Node], None], why: str) -> None:
    node.allocate()
    node.turn(POD)
    happens(node)
    node.turn(NOBODY, 100)
    said = f"{GPU} is in quarantine: {why}"
    assert (node.reason(), node.text(), node.outcomes) == ("quarantined", said, ["failed"])
    assert ("DeviceQuarantined", said) in node.events
    if happens is fallen_off:
        assert provoked("binding", CAME_BACK_WRONG.code) == [f"{CAME_BACK_WRONG.code}: {said}"]


def quarantined(node: Node) -> None:
    config = (node.tree.path(GPU) / "config").read_bytes()
    node.allocate()
    node.turn(POD)
    fallen_off(node)
    node.turn(NOBODY, 100)
    assert node.reason() == "quarantined"
    (node.tree.path(GPU) / "config").write_bytes(config)


def test_one_in_quarantine_stays_there_although_it_answers_again_and_is_not_touched(node: Node) -> None:
    quarantined(node)
    node.kernel.resets.clear()
    node.turn(seconds=1000)
    node.restart()
    node.turn(seconds=1000)
    assert (node.reason(), node.kernel.resets) == ("quarantined", [])
    with raises_code(DEVICE_UNHEALTHY, match="in quarantine"):
        node.allocate()


def found_again(node: Node) -> None:
    """The kernel gives it another inode."""
    path = node.tree.path(GPU)
    path.rename(path.with_name("gone"))
    path.mkdir()
    for file in path.with_name("gone").iterdir():
        file.rename(path / file.name)


def booted(node: Node) -> None:
    node.boot("second")
    node.restart()


@pytest.mark.parametrize("happens", [found_again, booted])
def test_quarantine_ends_when_the_card_was_off_the_bus_and_then_it_is_cleaned(
    node: Node, happens: Callable[[Node], None]
) -> None:
    quarantined(node)
    node.kernel.resets.clear()
    happens(node)
    node.turn(seconds=1000)
    assert (node.reason(), node.kernel.resets, node.lent.read()) == (None, [GPU, AUDIO], {})


def test_a_card_that_is_lost_while_it_is_cleaned_is_cleaned_when_it_is_back(node: Node) -> None:
    node.program('mv "$1/sys/bus/pci/devices/0000:01:00.0" "$1/lost"')
    node.turn()
    node.allocate()
    node.end_of_pod()
    assert node.lent.read()[ADDRESS].text == f"{GPU} is in quarantine: {GPU} is no longer on the bus"
    (node.root / "lost").rename(node.root / "sys/bus/pci/devices" / GPU)
    node.program('echo cleaned >>"$1/log"')
    node.turn(seconds=100)
    assert (node.lines(), node.reason()) == (["cleaned"], None)


def test_one_that_can_not_be_looked_at_afterwards_is_not_clean(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Host.facts
    unread = {PciAddress.parse(AUDIO): "Input/output error"}

    def after_the_reset(self: Host, *asked: Any, **how: Any) -> HostFacts:
        found = facts(self, *asked, **how)
        return found._replace(unknown=unread) if node.kernel.resets else found

    node.allocate()
    node.turn(POD)
    with monkeypatch.context() as patch:
        patch.setattr(Host, "facts", after_the_reset)
        node.turn(NOBODY, 100)
    assert node.text() == f"{GPU} can't be cleaned: {AUDIO} can't be read: Input/output error"
    node.turn(seconds=100)
    assert node.reason() is None


# With its driver of the host


BY_NODES = RESET._replace(use="container", container=ContainerUse(by="nodes"))


def with_driver(tmp_path: Path, rule: PciRule = BY_NODES, vgpu: VgpuConfig | None = None) -> Node:
    """A card of containers, with a device node."""
    node = Node(tmp_path, rule, driver="nvidia", vgpu=vgpu)
    drm = tmp_path / "sys/bus/pci/devices" / GPU / "drm/card1"
    drm.mkdir(parents=True)
    (drm / "dev").write_text("226:1\n")
    (drm / "uevent").write_text("DEVNAME=dri/card1\n")
    for _ in range(2):
        node.turn()
    return node


@pytest.mark.parametrize("bind", [None, "on-demand"])
def test_what_a_process_has_open_by_the_hosts_driver_is_not_cleaned(tmp_path: Path, bind: Any) -> None:
    rule = BY_NODES if bind is None else RESET._replace(bind="on-demand", grace_seconds=0.0)
    node = with_driver(tmp_path, rule)
    node.allocate()
    node.turn(POD, 100)
    node.open = {"/dev/dri/card1": (HolderProcess(7, "left-behind"),)}
    for _ in range(3):
        node.turn(NOBODY, 100)
    assert (node.kernel.driver(GPU), node.kernel.resets, node.reason()) == ("nvidia", [], "cleaning")
    assert "/dev/dri/card1 is open in left-behind" in node.text()
    node.open = {}
    node.turn(seconds=400)
    assert (node.kernel.resets[0], node.reason()) == (GPU, None)


def test_while_it_is_unknown_what_processes_have_open_it_is_not_cleaned(tmp_path: Path) -> None:
    """T2."""
    node = with_driver(tmp_path)
    node.allocate()
    node.turn(POD, 100)
    node.unseen = "no hostPID"
    node.turn(NOBODY, 100)
    assert (node.kernel.resets, node.reason()) == ([], "cleaning")


def test_a_disk_that_is_mounted_is_not_cleaned(tmp_path: Path) -> None:
    node = with_driver(tmp_path)
    disk = tmp_path / "sys/devices/pci0000:00" / GPU / "nvme/nvme0/nvme0n1"
    (disk / "holders").mkdir(parents=True)
    (disk / "dev").write_text("259:0\n")
    (tmp_path / "sys/class/block").mkdir(parents=True)
    (tmp_path / "sys/class/block/nvme0n1").symlink_to(disk)
    (tmp_path / "proc/1/net").mkdir(parents=True)
    (tmp_path / "proc/1/net/route").write_text("Iface\n")
    (tmp_path / "proc/swaps").write_text("\n")
    (tmp_path / "proc/1/mountinfo").write_text("36 35 259:0 / /srv rw - ext4 /dev/nvme0n1 rw\n")
    node.allocate()
    node.turn(POD, 100)
    node.turn(NOBODY, 100)
    assert (node.kernel.resets, node.reason()) == ([], "cleaning")
    assert "nvme0n1 is mounted at /srv" in node.text()


def test_a_card_is_not_reset_while_a_vm_has_one_of_its_virtual_functions(tmp_path: Path) -> None:
    node = with_driver(tmp_path)
    vf = "0000:01:00.4"
    node.tree.vf(GPU, vf, driver=VFIO, group=60)
    node.turn()
    node.allocate()
    vm = {"example.com/VF": {vf: Holder("vms/b", "compute")}}
    node.turn(Usage("pod-resources", {**POD.held, **vm}), 100)
    node.turn(Usage("pod-resources", vm), 100)
    assert (node.kernel.resets, node.reason()) == ([], "cleaning")
    assert f"{vf} is held by pod vms/b" in node.text()
    node.turn(NOBODY, 100)
    assert (node.kernel.resets, node.reason()) == ([GPU], None)


UUID, VGPU = "11111111-2222-4333-8444-555555555555", "intel.com/vgpu"


@pytest.fixture
def vgpus(tmp_path: Path) -> Node:
    """A card that containers can have, and of which there is a vGPU."""
    node = with_driver(tmp_path, vgpu=VgpuConfig(mdevs=(VgpuRule(("nvidia-11",), VGPU, "static"),)))
    kind = {"name": "i915-GVTg_V5_4", "device_api": "vfio-pci", "available_instances": "1"}
    node.tree.mdev_type(GPU, "nvidia-11", **kind)
    node.tree.mdev(GPU, "nvidia-11", UUID, group=70)
    node.tree.node("vfio/vfio")
    for _ in range(2):
        node.turn()
    assert node.seen[UUID].healthy
    return node


def test_a_vgpu_of_a_card_that_is_not_clean_is_not_given_away(vgpus: Node) -> None:
    """Its memory may have what the container has left in it."""
    vgpus.allocate()
    vgpus.turn(POD, 100)
    vgpus.kernel.refuses[("reset", GPU)] = errno.EIO
    vgpus.turn(NOBODY, 100)
    assert (vgpus.reason(), vgpus.seen[UUID].problem) == ("cleaning", vgpus.seen[GPU].problem)
    with raises_code(DEVICE_UNHEALTHY):
        asyncio.run(vgpus.allocator.allocate(VGPU, [[UUID]]))
    vgpus.kernel.refuses.clear()
    vgpus.turn(NOBODY, 400)
    assert (vgpus.kernel.resets, vgpus.reason(), vgpus.seen[UUID].problem) == ([GPU], None, None)


@pytest.mark.parametrize("how", ["pod", "process"])
def test_a_card_is_not_reset_below_a_guest_that_has_its_vgpu(vgpus: Node, how: str) -> None:
    vgpus.allocate()
    vm = {VGPU: {UUID: Holder("vms/b", "compute")}} if how == "pod" else {}
    vgpus.open = {"/dev/vfio/70": QEMU} if how == "process" else {}
    vgpus.turn(Usage("pod-resources", {**POD.held, **vm}), 100)
    vgpus.turn(Usage("pod-resources", vm), 100)
    assert (vgpus.kernel.resets, vgpus.reason()) == ([], "cleaning")
    assert vgpus.text() == f"{GPU} has the mediated device {UUID}, which a guest has"


def test_a_card_that_nothing_cleans_any_more_keeps_nobody_from_its_vgpus(vgpus: Node) -> None:
    vgpus.allocate()
    vgpus.turn(POD, 100)
    vgpus.kernel.refuses[("reset", GPU)] = errno.EIO
    vgpus.turn(NOBODY, 100)
    vgpus.rule = RESET._replace(select=(Selector(classes=("0108",)),), name="a/NVME")
    vgpus.restart()
    for _ in range(2):
        vgpus.turn(NOBODY, 100)
    assert vgpus.seen[UUID].healthy


# Records


def test_a_card_is_cleaned_though_another_of_its_functions_is_advertised_now(node: Node) -> None:
    node.allocate()
    node.turn(POD, 100)
    node.rule = PciRule(select=(Selector(models=frozenset({(0x10DE, 0x1AEF)})),), name="a/AUDIO", release="reset")
    node.restart()
    node.kernel.refuses[("reset", GPU)] = errno.EIO
    node.turn(NOBODY, 100)
    problem = node.seen[AUDIO].problem
    assert problem is not None
    assert problem.reason == "cleaning"
    node.kernel.refuses.clear()
    node.turn(seconds=100)
    assert (node.kernel.resets, node.seen[AUDIO].problem) == ([GPU, AUDIO], None)


def test_while_the_records_can_not_be_read_no_pod_gets_a_card_and_the_rest_goes_on(node: Node) -> None:
    """K9, T2."""
    node.allocate()
    node.turn(POD, 100)
    with failing(node.root / "state/lent", errno.EIO, "launcherkit_plugin.records"):
        node.turn()
        assert node.reason() is None, "it is the pod's"
        node.turn(NOBODY, 100)
        assert (node.reason(), node.kernel.resets) == ("cleaning", [])
    node.turn(seconds=100)
    assert (node.reason(), node.kernel.resets) == (None, [GPU, AUDIO])


def test_a_pods_card_is_recorded_when_release_is_configured(tmp_path: Path) -> None:
    node = Node(tmp_path, RESET._replace(release=None))
    node.turn()
    node.allocate()
    node.turn(POD)
    node.rule = RESET
    node.restart()
    node.turn()
    assert (node.reason(), node.lent.read()[ADDRESS].resource) == (None, NAME)
    node.turn(NOBODY, 100)
    assert node.kernel.resets == [GPU, AUDIO]


def test_a_broken_record_of_a_card_that_a_container_has_by_its_uuid_is_no_reason_to_clean_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.allocate()
    (node.root / f"state/lent/{GPU}.json").write_text("")
    monkeypatch.setattr(Device, "card_ids", property(lambda device: (device.id, "GPU-1")))
    node.restart()
    held = Usage("pod-resources", {"a/GPU-container": {"GPU-1": Holder("ml/train", "main")}})
    for _ in range(2):
        node.turn(held, 100)
    assert (node.kernel.resets, node.reason()) == ([], None)
    node.turn(NOBODY, 100)
    assert node.kernel.resets == [GPU, AUDIO]


def test_a_card_in_quarantine_was_tried_one_in_use_is_not_looked_at(node: Node) -> None:
    node.allocate()
    node.turn(POD)
    node.open = {"/dev/vfio/44": QEMU}
    fallen_off(node)
    node.turn(NOBODY, 100)
    assert (node.reason(), node.outcomes) == ("cleaning", ["refused"])


def test_where_the_records_can_not_be_read_no_pod_gets_a_card(node: Node) -> None:
    node.allocate()
    with failing(node.root / "state", errno.EIO, "launcherkit_plugin.records"), raises_code(UNREADABLE_FILE):
        node.allocate()


@pytest.mark.parametrize("content", ["", "{}", '{"version": 9, "boot": "x"}'])
def test_a_broken_record_still_says_which_card_is_not_clean(node: Node, content: str) -> None:
    node.allocate()
    (node.root / f"state/lent/{GPU}.json").write_text(content)
    node.boot("second")
    node.restart()
    node.usage = NOBODY
    node.advertise()
    with raises_code(DEVICE_UNHEALTHY):
        node.kernel.refuses[("reset", GPU)] = errno.EIO
        node.allocate()
    node.kernel.refuses.clear()
    node.turn(seconds=100)
    assert (node.kernel.resets, node.lent.read(), node.reason()) == ([GPU, AUDIO], {}, None)


def test_a_time_that_no_calendar_has_is_a_broken_record(node: Node) -> None:
    node.allocate()
    path = node.root / f"state/lent/{GPU}.json"
    content = json.loads(path.read_text())["content"]
    path.write_text(json.dumps({"version": 1, "boot": "", **content, "since": 10**30}))  # without a checksum
    assert "can't be read" in node.lent.read()[ADDRESS].text


def test_where_it_can_not_be_recorded_no_pod_gets_a_card(node: Node) -> None:
    (node.root / "state").write_text("no folder")
    with pytest.raises(Exception, match="state"):
        node.allocate()


def test_another_boot_does_not_make_a_card_clean(node: Node) -> None:
    node.allocate()
    node.boot("second")
    node.restart()
    node.turn(NOBODY)
    assert node.kernel.resets == [GPU, AUDIO]


def test_a_claim_gets_no_card_that_is_not_clean_either(node: Node) -> None:
    node.allocate()
    node.turn(POD)
    claim = Holder("", claim=ClaimRef("vms", "gpu", "u-1"))

    async def scene() -> None:
        with raises_code(DEVICE_UNHEALTHY, match="can't be cleaned"):
            async with node.allocator.claiming(claim, [Desired(NAME, [GPU])]):
                pass
        node.kernel.refuses.clear()
        async with node.allocator.claiming(claim, [Desired(NAME, [GPU])]):
            assert (node.kernel.resets, node.lent.read()[ADDRESS].state) == ([GPU, AUDIO], "used")

    node.kernel.refuses[("reset", GPU)] = errno.EIO
    node.usage = NOBODY
    node.allocator.observe(NOBODY, node.now + 1)
    node.now += 100
    asyncio.run(scene())


def test_a_card_of_containers_is_known_by_all_its_ids() -> None:
    lent = Lent((ADDRESS,), NAME, ("GPU-1", GPU), "used", 0)
    assert lent.is_among(frozenset({"GPU-1"}))
    assert lent.is_among(frozenset({GPU}))
    assert not lent.is_among(frozenset({AUDIO}))


# What is left alone, and what is remembered


def test_nothing_is_tried_while_it_is_unknown_or_another_pod_has_a_function_beside_it(node: Node) -> None:
    node.allocate()
    node.turn(POD, 1)
    node.turn(NO_USAGE, 100)
    node.turn(Usage("pod-resources", {"a/AUDIO": {AUDIO: Holder("vms/other", "compute")}}), 100)
    assert (node.kernel.resets, node.outcomes) == ([], [])


def test_a_card_that_a_container_has_by_its_uuid_is_not_cleaned(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "card_ids", property(lambda device: (device.id, "GPU-1")))
    node.allocate()
    held = Usage("pod-resources", {"a/GPU-container": {"GPU-1": Holder("ml/train", "main")}})
    node.turn(held, 100)
    node.turn(held, 100)
    assert (node.kernel.resets, node.reason()) == ([], None)


def test_a_turn_while_a_card_is_being_allocated_records_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*_: object) -> None:
        await node.take_turn()
        raise DEVICE_UNHEALTHY("no", "no")

    monkeypatch.setattr(PciProvider, "allocate", refuses)
    with raises_code(DEVICE_UNHEALTHY):
        node.allocate()
    assert node.lent.read() == {}


def test_the_next_pods_card_is_cleaned_without_a_pause(node: Node) -> None:
    for times in (1, 2):
        node.allocate()
        node.turn(POD, 1)
        node.turn(NOBODY, 1)
        assert node.kernel.resets == [GPU, AUDIO] * times


def test_a_failure_is_reported_and_recorded_once_and_again_after_a_success(node: Node) -> None:
    node.kernel.refuses[("reset", GPU)] = errno.EIO
    node.allocate()
    node.end_of_pod()
    record = os.stat(node.root / f"state/lent/{GPU}.json")
    node.turn(seconds=100)
    assert [reason for reason, _ in node.events] == ["CleaningFailed"]
    assert os.stat(node.root / f"state/lent/{GPU}.json").st_ino == record.st_ino
    node.kernel.refuses.clear()
    node.turn(seconds=1000)
    node.kernel.refuses[("reset", GPU)] = errno.EIO
    node.allocate()
    node.end_of_pod()
    assert [reason for reason, _ in node.events] == ["CleaningFailed", "DeviceCleaned", "CleaningFailed"]


DRIVER = 'basename "$(readlink "$1/sys/bus/pci/devices/${LAUNCHERKIT_ADDRESSES% *}/driver")" >>"$1/log"'


def test_a_card_that_is_never_given_back_is_cleaned_with_vfio(tmp_path: Path) -> None:
    node = Node(tmp_path, ON_DEMAND._replace(give_back="never"), driver="nvidia")
    node.program(DRIVER)
    node.turn()
    node.allocate()
    node.end_of_pod()
    assert (node.lines(), node.reason()) == ([VFIO], None)


def test_a_card_that_a_command_bound_is_cleaned_with_vfio(tmp_path: Path) -> None:
    node = Node(tmp_path, ON_DEMAND, driver="nvidia")
    node.program(DRIVER)
    node.turn()
    node.allocate()
    ledger = Ledger(f"{tmp_path}/ledger", "first")
    (record,) = ledger.records()
    ledger.write(record._replace(by="command"))
    node.end_of_pod()
    assert (node.lines(), node.reason()) == ([VFIO], None)


def test_a_card_that_sleeps_with_its_own_driver_is_well(tmp_path: Path) -> None:
    node = Node(tmp_path, ON_DEMAND, driver="nvidia")
    node.program(f'echo D3cold >"$1/sys/bus/pci/devices/{GPU}/power_state"')
    node.turn()
    node.allocate()
    node.end_of_pod()
    assert node.lent.read() == {}


def in_the_root_complex(node: Node) -> None:
    without_link(node)
    (node.tree.path(GPU) / "max_link_width").write_text("0\n")


def virtual(node: Node) -> None:
    without_link(node)
    (node.tree.path(GPU) / "physfn").symlink_to(f"../{AUDIO}")


@pytest.mark.parametrize("happens", [in_the_root_complex, virtual])
def test_a_function_that_has_no_link_of_its_own_misses_none(node: Node, happens: Callable[[Node], None]) -> None:
    node.allocate()
    node.turn(POD, 1)
    happens(node)
    node.turn(NOBODY, 100)
    assert (node.outcomes, node.lent.read()) == (["done"], {})


# Kills

LIFE = 'echo begin >>"$1/work/log"; mkdir -p "$1/work/scratch"; rmdir "$1/work/scratch"; echo cleaned >>"$1/work/log"'


def tell(root: Path, line: str) -> None:
    with open(root / "work/log", "a") as log:
        log.write(f"{line}\n")


def pods_come_and_go(root: Path, rule: PciRule, times: int = 3) -> None:
    """Be a daemon whose pods have the card one after the other."""
    node = Node(root, rule)
    node.turn(NOBODY)
    for number in range(times):
        try:
            node.allocate()
        except Exception as refused:
            tell(root, f"refused {refused}")
            raise
        tell(root, "given")
        node.turn(POD, 100)
        if number % 2 == 0:
            node.turn(NOBODY, 100)  # else the next pod comes first


def cleaned_between(lines: list[str]) -> bool:
    """Whether between two pods the card was cleaned, to the end."""
    is_clean = True
    for line in lines:
        if line == "given":
            if not is_clean:
                return False
            is_clean = False
        is_clean |= line == "cleaned"
    return True


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != MACHINE, reason=f"system calls of {MACHINE}")
@pytest.mark.parametrize(("whom", "bind"), [("all", False), ("first", "on-demand")], ids=["bound", "on demand"])
def test_whoever_is_killed_when_no_pod_gets_a_card_that_is_not_clean(tmp_path: Path, whom: Whom, bind: object) -> None:
    """The daemon, alone or with the program, at each change that one of them makes to its own files."""

    def made(name: str) -> tuple[Path, PciRule]:
        root = tmp_path / name
        (root / "work").mkdir(parents=True)
        node = Node(root, RESET._replace(bind=bind), driver=VFIO if not bind else "nvidia")  # type: ignore[arg-type]
        return root, node.program(LIFE)

    def lived(root: Path, rule: PciRule, die_at: int) -> Life:
        imported = [__name__, "launcherkit_plugin.binding.cleaning", "launcherkit_plugin.allocation.cleaned"]
        return live(
            pods_come_and_go,
            root,
            rule,
            below=[root / name for name in ("state", "ledger", "work")],
            die_at=die_at,
            whom=whom,
            imported=imported,
        )

    root, rule = made("whole")
    whole = lived(root, rule, 0)
    assert whole.code == 0, (root / "work/log").read_text()
    assert (root / "work/log").read_text().count("cleaned") == 3
    for number in range(1, whole.changes + 1):
        root, rule = made(str(number))
        end = lived(root, rule, number)
        assert end.last is not None
        next_one = Node(root, rule)
        next_one.turn(NOBODY, 1000)
        next_one.turn(NOBODY, 1000)
        next_one.allocate()
        tell(root, "given")
        said = (root / "work/log").read_text().splitlines()
        assert cleaned_between(said), f"{number}, {end.last}: {said}"


def test_that_a_card_was_given_before_it_was_clean_is_noticed() -> None:
    assert cleaned_between(["given", "begin", "cleaned", "given"])
    assert not cleaned_between(["given", "begin", "given"])
