"""Every error about vGPUs, with the message that its page shows."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcherkit.errors import Code, LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit_plugin.config.reading import read_config
from launcherkit_plugin.model.config import GpuInstances, LayoutEntry
from launcherkit_plugin.model.device import Holder, Usage
from launcherkit_plugin.model.errors import (
    BAD_LAYOUT,
    GPU_INSTANCES_NOT_CHANGED,
    GPU_INSTANCES_REFUSED,
    NO_NVML,
    NO_VGPU_ROOM,
    VGPU_IN_USE,
    VGPU_NOT_MADE,
    VGPU_NOT_REMOVED,
    VM_LACKS_DEVICES,
    WRONG_VGPU,
)
from launcherkit_plugin.nodehook.service import NodeHook, read_vm
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.cards import Instance, cards
from launcherkit_plugin.vgpu.gpu_instances import MigMaker
from launcherkit_plugin.vgpu.layout import apply_layout
from launcherkit_plugin.vgpu.lifecycle import Stopped
from launcherkit_plugin.vgpu.maker import Maker
from launcherkit_plugin.vgpu.mdev_slots import MdevSlot
from launcherkit_plugin.vgpu.mig_records import MadeRecords
from launcherkit_plugin.vgpu.nvml import Nvml, Placed
from launcherkit_plugin.vgpu.writer import VgpuWriter
from tests.plugin.nodehook.test_service import ONE, POD, Answers, vmi
from tests.plugin.vgpu.kernel import A2_4Q, A2_8Q, T4_1Q, T4_2Q, Kernel
from tests.plugin.vgpu.mig import Mig, NvmlDouble, add_card
from tests.plugin.vgpu.node import Clock
from tests.support.errors import raises_code

CARD = "0000:01:00.0"
UUID = MdevSlot(CARD, T4_1Q.id, 0).uuid
MESSAGES = dict(
    line.split(": ", 1)
    for line in (Path(__file__).parents[2] / "provoked/vgpu.error").read_text(encoding="utf-8").splitlines()
)


@contextmanager
def raises_as_shown(error: Code[LauncherkitError]) -> Iterator[None]:
    with raises_code(error) as caught:
        yield
    assert caught.value.message == MESSAGES[error.code]


def failing(number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.fixture
def kernel() -> Kernel:
    kernel = Kernel()
    kernel.card(CARD)
    return kernel


@pytest.fixture
def maker(kernel: Kernel) -> Maker:
    clock = Clock()
    return Maker(kernel, clock, clock.sleep)


def test_a_driver_that_fails_to_make_one(kernel: Kernel, maker: Maker) -> None:
    kernel.touched = lambda _: failing(errno.EIO)
    with raises_as_shown(VGPU_NOT_MADE):
        maker.make(CARD, T4_1Q.id, UUID)


def test_a_card_without_room(kernel: Kernel, maker: Maker) -> None:
    kernel.make(CARD, T4_2Q.id, "00000000-0000-4000-8000-000000000000")
    with raises_as_shown(NO_VGPU_ROOM):
        maker.make(CARD, T4_1Q.id, UUID)


def test_a_vf_with_another_type(kernel: Kernel, maker: Maker) -> None:
    kernel.card_of_vfs("0000:41:00.0", 2, (A2_4Q, A2_8Q), mib=16384)
    vf = PciAddress.parse("0000:41:01.0")
    maker.set_type(vf, 743)
    with raises_as_shown(WRONG_VGPU):
        maker.set_type(vf, 742)


def test_one_that_is_open(kernel: Kernel, maker: Maker) -> None:
    maker.make(CARD, T4_1Q.id, UUID)
    kernel.open.add(kernel.node(UUID))
    with raises_as_shown(VGPU_IN_USE):
        VgpuWriter(maker, kernel.is_open).remove(Instance(UUID, CARD, T4_1Q.id, "GRID T4-1Q"))


def test_a_driver_that_fails_to_remove_one(kernel: Kernel, maker: Maker) -> None:
    maker.make(CARD, T4_1Q.id, UUID)
    kernel.touched = lambda _: failing(errno.EBUSY)
    with raises_as_shown(VGPU_NOT_REMOVED):
        maker.remove(UUID)


def test_a_layout_for_another_node(kernel: Kernel, maker: Maker) -> None:
    writer = VgpuWriter(maker, kernel.is_open)
    entries = [LayoutEntry("#2", "GRID T4-1Q", 1)]
    with raises_as_shown(BAD_LAYOUT):
        apply_layout(entries, (), kernel.facts, writer, lambda _: None, lambda _: None)


def test_a_vm_that_asks_for_more_than_its_pod_has() -> None:
    async def usage() -> Usage:
        return Usage("pod-resources", {ONE: {"u1": Holder(POD, "compute")}})

    hook = NodeHook(Answers(), usage, Stopped(), lambda: None, Reporter())
    with raises_as_shown(VM_LACKS_DEVICES):
        asyncio.run(hook.before_start(read_vm(vmi(devices=2))))


def test_gpu_instances_without_the_binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcherkit_plugin.config.reading.find_spec", lambda _: None)
    monkeypatch.chdir(tmp_path)
    Path("plugin.yaml").write_text(
        'vgpu: {layout: [{parent: "#0", gpuInstances: [{profile: 1g.5gb, count: 1}]}]}', encoding="utf-8"
    )
    with raises_as_shown(NO_NVML):
        read_config("plugin.yaml")


def test_a_mig_mode_that_stays_pending(kernel: Kernel, tmp_path: Path) -> None:
    clock, double = Clock(), NvmlDouble()
    add_card(kernel, double, "0000:c1:00.0", Mig(current=False, resets=False))
    double.cards["0000:41:00.0"] = double.cards["0000:c1:00.0"]
    [card] = [each for each in cards(kernel.facts()) if each.name == "0000:c1:00.0"]
    maker = Maker(kernel, clock, clock.sleep)
    mig = MigMaker(Nvml(str(tmp_path / "lock"), double.asks), MadeRecords(str(tmp_path), ""), maker)
    with raises_as_shown(GPU_INSTANCES_REFUSED):
        mig.bring(card._replace(name="0000:41:00.0"), [GpuInstances("1g.5gb", 1)], None)


def test_a_gpu_instance_where_one_is(tmp_path: Path) -> None:
    double = NvmlDouble(**{"0000:41:00.0": Mig()})
    nvml = Nvml(str(tmp_path / "lock"), double.asks)
    nvml.create("0000:41:00.0", Placed(19, 0, 1))
    with raises_as_shown(GPU_INSTANCES_NOT_CHANGED):
        nvml.create("0000:41:00.0", Placed(9, 0, 4))
