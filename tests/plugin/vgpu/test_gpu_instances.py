"""GPU instances (MIG) of a layout: made before the vGPUs on them, whole or not at all, and given back (G6)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from launcherkit.atomic import Disk
from launcherkit_plugin.host.child import NoAnswer
from launcherkit_plugin.model.config import GpuInstances, LayoutEntry, VgpuRule
from launcherkit_plugin.model.device import NO_USAGE
from launcherkit_plugin.model.errors import GPU_INSTANCES_NOT_CHANGED, GPU_INSTANCES_REFUSED, NO_NVML
from launcherkit_plugin.vgpu.mig_records import Made, MadeRecords
from launcherkit_plugin.vgpu.nvml import Nvml, Placed
from tests.plugin.vgpu.kernel import Kernel
from tests.plugin.vgpu.mig import (
    A100_1C,
    BY_NAME,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    NO_PERMISSION,
    Mig,
    NvmlDouble,
    add_card,
)
from tests.plugin.vgpu.node import Node
from tests.support.errors import raises_code

CARD = "0000:41:00.0"
RESOURCE = "nvidia.com/NVIDIA_A100-1-5C"
FOREIGN = Placed(14, 4, 2)
"""Somebody else's, by nvidia-smi."""


class Killed(BaseException):
    """The process ends here, as by SIGKILL."""


class Stand:
    """A node with one card, and a plugin that can be killed and configured anew."""

    def __init__(self, folder: Path, mig: Mig | None = None, *, mdevs: bool = False) -> None:
        self.folder = folder
        self.mig = mig or Mig()
        self.kernel = Kernel()
        self.double = NvmlDouble()
        add_card(self.kernel, self.double, CARD, self.mig, mdevs=mdevs)
        self.boot = "first boot"

    def node(self, *instances: tuple[str, int], kind: str | None = None, number: int | None = None) -> Node:
        declared = tuple(GpuInstances(*each) for each in instances)
        layout = [LayoutEntry(CARD, kind, number, declared)] if declared else []
        rules = [VgpuRule((A100_1C.name,), mode="dynamic")]
        node = Node(self.kernel, vfs=rules, layout=layout, grace=0, asks=self.double.asks, state=str(self.folder))
        node.boot = self.boot
        node.restart()
        return node

    @property
    def names(self) -> list[str]:
        """The GPU instances that there are: ``1g.5gb at 0``."""
        names = {profile.id: name for name, profile in BY_NAME.items()}
        return [
            f"{names[each.profile]} at {each.start}" for each in sorted(self.mig.instances, key=lambda it: it.start)
        ]

    @property
    def recorded(self) -> Made | None:
        return MadeRecords(str(self.folder), self.boot).read().get(CARD)


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path / "gpu-instances")


def settle(node: Node, turns: int = 3) -> None:
    for _ in range(turns):
        node.turn()
        node.clock.now += 100


def test_gpu_instances_are_made_and_then_the_vgpus_on_them(stand: Stand) -> None:
    node = stand.node(("3g.20gb", 1), ("1g.5gb", 3), kind="NVIDIA A100-1-5C", number=2)
    settle(node)
    assert stand.names == ["3g.20gb at 0", "1g.5gb at 4", "1g.5gb at 5", "1g.5gb at 6"]
    assert sum(kind == A100_1C for kind in stand.kernel.gpus["0000:41:01.0"].given.values()) == 2
    assert not [line for line in node.recorded.lines if line.startswith("error")]
    assert "info: 0000:41:00.0 has GPU instances: 3 of 1g.5gb, 1 of 3g.20gb" in node.recorded.lines
    stand.double.calls.clear()
    settle(node)
    assert stand.double.calls == []


def test_mdevs_have_room_once_the_gpu_instances_are_there_and_hold_them(tmp_path: Path) -> None:
    stand = Stand(tmp_path, mdevs=True)
    node = stand.node(("1g.5gb", 3), kind="NVIDIA A100-1-5C", number=2)
    settle(node)
    assert len(stand.kernel.mdevs) == 2
    node = stand.node(("3g.20gb", 2))  # the vGPUs of the former layout are not this one's to remove
    settle(node)
    assert stand.names == ["1g.5gb at 0", "1g.5gb at 1", "1g.5gb at 2"]
    assert any(
        "LK792: 0000:41:00.0 is in use, to destroy" in line and "it has mdev" in line for line in node.recorded.lines
    )
    for uuid in [*stand.kernel.mdevs]:
        stand.kernel.unmake(uuid)
    settle(node)
    assert stand.names == ["3g.20gb at 0", "3g.20gb at 4"]


def test_a_device_says_which_gpu_instances_its_card_has(stand: Stand) -> None:
    node = stand.node(("1g.5gb", 2))
    settle(node)
    assert len(node.healthy(RESOURCE)) == 8
    assert all(each.description.endswith(", GPU instances: 2 of 1g.5gb") for each in node.devices(RESOURCE))
    node.allocate(RESOURCE, "0000:41:01.0")


def test_mig_mode_is_set_on_a_card_that_nothing_uses_and_ended_with_the_layout(tmp_path: Path) -> None:
    stand = Stand(tmp_path, Mig(current=False))
    settle(stand.node(("1g.5gb", 1)))
    assert stand.mig.current
    assert stand.names == ["1g.5gb at 0"]
    settle(stand.node())
    assert [stand.mig.current, stand.recorded] == [False, None]


def test_mig_mode_that_somebody_else_has_set_stays(stand: Stand) -> None:
    settle(stand.node(("1g.5gb", 1)))
    settle(stand.node())
    assert stand.mig.current
    assert stand.names == []
    assert stand.recorded is None


def test_a_pending_mode_is_a_problem_that_says_how_the_card_is_reset(tmp_path: Path) -> None:
    stand = Stand(tmp_path, Mig(current=False, resets=False))
    node = stand.node(("1g.5gb", 1))
    settle(node, 5)
    assert stand.double.calls == ["mode"]
    [line] = [line for line in node.recorded.lines if "LK792" in line]
    assert "0000:41:00.0: MIG mode is pending until the card is reset" in line
    assert "nvidia-smi --gpu-reset -i 0000:41:00.0" in line
    stand.mig.reset()
    settle(node)
    assert stand.names == ["1g.5gb at 0"]


def test_a_device_without_room_says_what_its_card_lacks(tmp_path: Path) -> None:
    stand = Stand(tmp_path, Mig(resets=False))
    node = stand.node(("1g.5gb", 1))
    settle(node)
    stand.mig.pending = False  # by nvidia-smi, and a reset of the card
    stand.mig.reset()
    stand.kernel.recount()
    settle(node)
    assert node.reasons(RESOURCE) == {"no-room"}
    texts = {each.problem.text for each in node.devices(RESOURCE) if each.problem}
    assert all("; 0000:41:00.0: MIG mode is pending until the card is reset" in text for text in texts)


def test_mig_mode_isnt_ended_while_a_pod_has_something_of_the_card(tmp_path: Path) -> None:
    stand = Stand(tmp_path, Mig(current=False))
    settle(stand.node(("1g.5gb", 1)))
    stand.mig.instances.clear()  # by somebody else
    node = stand.node()
    node.hold("another/resource", "0000:41:01.2")
    settle(node)
    assert stand.mig.current
    node.hold("another/resource")
    settle(node)
    assert not stand.mig.current


def test_an_instance_that_a_killed_process_has_left_isnt_destroyed_under_a_vgpu(stand: Stand) -> None:
    def killed() -> None:
        raise Killed

    stand.double.after = killed
    with pytest.raises(Killed):
        stand.node(("1g.5gb", 3)).turn()
    stand.double.after = lambda: None
    assert stand.names == ["1g.5gb at 0"]
    stand.kernel.gpus["0000:41:01.0"].given["0000:41:01.0"] = A100_1C  # it is a pod's by now
    stand.kernel.recount()
    numbers = count()
    stand.double.fails = lambda question: 23 if question["call"] == "create" and next(numbers) == 1 else 0
    node = stand.node(("1g.5gb", 3))
    node.hold(RESOURCE, "0000:41:01.0")
    node.turn()
    assert stand.names == ["1g.5gb at 0"]
    settle(node)
    assert stand.names == ["1g.5gb at 0", "1g.5gb at 1", "1g.5gb at 2"]


def test_success_that_nothing_comes_of_is_an_error(stand: Stand) -> None:
    node = stand.node(("1g.5gb", 1))
    stand.double.after = stand.mig.instances.clear
    settle(node, 1)
    assert any("LK793: 0000:41:00.0: NVML reported success" in line for line in node.recorded.lines)


def test_a_card_without_mig_mode_is_named(tmp_path: Path) -> None:
    stand = Stand(tmp_path, Mig(current=None))
    node = stand.node(("1g.5gb", 1))
    settle(node)
    assert any("0000:41:00.0 has no MIG mode" in line for line in node.recorded.lines)
    assert stand.double.calls == []


@pytest.mark.parametrize("current", [True, False])
def test_nothing_is_destroyed_and_no_mode_is_set_while_the_card_has_a_vgpu(tmp_path: Path, *, current: bool) -> None:
    stand = Stand(tmp_path, Mig(current=current))
    if current:
        settle(stand.node(("1g.5gb", 3)))
    stand.mig.instances |= {FOREIGN}
    stand.kernel.recount()
    node = stand.node(("1g.5gb", 2))
    node.hold(RESOURCE, "0000:41:01.0")
    stand.kernel.gpus["0000:41:01.0"].given["0000:41:01.0"] = A100_1C
    stand.kernel.recount()
    stand.double.calls.clear()
    settle(node)
    assert stand.double.calls == []
    assert any("LK792: 0000:41:00.0 is in use" in line for line in node.recorded.lines)


def test_nothing_is_destroyed_while_a_pod_has_a_vf_of_the_card_or_nobody_knows(stand: Stand) -> None:
    settle(stand.node(("1g.5gb", 3)))
    node = stand.node(("1g.5gb", 2))
    node.config = node.config._replace(vfs=())  # so that nothing gives the VF its type
    node.restart()
    node.hold("another/resource", "0000:41:01.2", pod="default/vm")
    settle(node)
    assert len(stand.names) == 3
    assert any("default/vm has 0000:41:01.2" in line for line in node.recorded.lines)
    node.usage = NO_USAGE._replace(source="none")
    settle(node)
    assert len(stand.names) == 3
    node.hold("another/resource")
    settle(node)
    assert len(stand.names) == 2


def test_vgpus_elsewhere_on_the_card_dont_keep_others_from_being_made(stand: Stand) -> None:
    settle(stand.node(("1g.5gb", 1), kind="NVIDIA A100-1-5C", number=1))
    settle(stand.node(("1g.5gb", 2), kind="NVIDIA A100-1-5C", number=2))
    assert stand.names == ["1g.5gb at 0", "1g.5gb at 1"]


@pytest.mark.parametrize("failing", range(3))
def test_a_layout_that_the_driver_refuses_in_the_middle_is_undone(stand: Stand, failing: int) -> None:
    settle(stand.node(("1g.5gb", 2)))
    stand.mig.instances.add(FOREIGN)
    before, record = {*stand.mig.instances}, stand.recorded
    numbers = count()

    def fails(question: Mapping[str, Any]) -> int:
        return INSUFFICIENT_RESOURCES if question["call"] == "create" and next(numbers) == failing else 0

    stand.double.fails = fails
    node = stand.node(("1g.5gb", 5))
    node.turn()
    assert stand.mig.instances == before
    assert stand.recorded == record
    assert any("LK793: 0000:41:00.0: create: Insufficient Resources (23)" in line for line in node.recorded.lines)
    assert len(node.healthy(RESOURCE)) == 8  # those that are there are as good as before
    node.clock.now += 100
    settle(node)
    assert len(stand.names) == 6


def test_mig_mode_that_the_driver_refused_to_us_is_not_ours_to_end(tmp_path: Path) -> None:
    """G6: an administrator sets it afterwards, and the layout no longer asks for it."""
    stand = Stand(tmp_path, Mig(current=False))
    stand.double.fails = lambda question: IN_USE if question["call"] == "mode" else 0
    settle(stand.node(("1g.5gb", 2)))
    assert not stand.mig.current
    stand.mig.current = stand.mig.pending = True
    stand.double.fails = lambda question: 0
    settle(stand.node())
    assert stand.mig.current


def test_so_it_is_if_it_was_ours_once(tmp_path: Path) -> None:
    stand = Stand(tmp_path, Mig(current=False))
    settle(stand.node(("1g.5gb", 2)))
    assert stand.recorded is not None
    assert stand.recorded.mode
    stand.mig.instances.clear()
    stand.mig.current = stand.mig.pending = False
    stand.double.fails = lambda question: IN_USE if question["call"] == "mode" else 0
    settle(stand.node(("1g.5gb", 2)))
    stand.mig.current = stand.mig.pending = True
    stand.double.fails = lambda question: 0
    settle(stand.node())
    assert stand.mig.current


def test_what_was_destroyed_for_a_layout_that_fails_is_made_again(stand: Stand) -> None:
    settle(stand.node(("1g.5gb", 2)))
    before = {*stand.mig.instances}
    stand.double.fails = lambda question: INSUFFICIENT_RESOURCES if question.get("profile") == 5 else 0
    settle(stand.node(("4g.20gb", 1), ("1g.5gb", 1)))
    assert stand.mig.instances == before


def test_a_layout_that_doesnt_fit_is_refused_before_the_first_change(stand: Stand) -> None:
    settle(stand.node(("1g.5gb", 2)))
    stand.double.calls.clear()
    node = stand.node(("4g.20gb", 2))
    settle(node)
    assert stand.double.calls == []
    assert any("0000:41:00.0 can't hold 2 of 4g.20gb together" in line for line in node.recorded.lines)


def test_an_unknown_profile_is_named_with_those_that_there_are(stand: Stand) -> None:
    node = stand.node(("1g.10gb+gfx", 1))
    settle(node)
    assert any("no GPU instance profile '1g.10gb+gfx'; there are: 1g.5gb (19)" in line for line in node.recorded.lines)


def test_after_a_reboot_they_are_made_again_and_what_others_made_then_is_not_ours(stand: Stand) -> None:
    settle(stand.node(("1g.5gb", 2)))
    stand.mig.reset()
    stand.kernel.reboot()
    stand.boot = "second boot"
    stand.mig.instances.add(Placed(19, 0, 1))
    settle(stand.node(("1g.5gb", 2)))
    assert stand.names == ["1g.5gb at 0", "1g.5gb at 1"]
    settle(stand.node())
    assert stand.names == ["1g.5gb at 0"]


def killed_at(number: int, stand: Stand) -> Callable[[], None]:
    """Ends the process before or after the change with this number, or around the record before it."""
    calls = count()

    def step() -> None:
        if next(calls) == number:
            raise Killed

    return step


@pytest.mark.parametrize("number", range(16))
def test_killed_at_any_step_the_next_process_brings_it_about_or_gives_it_back(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts = [(("1g.5gb", 3),), (("3g.20gb", 1), ("1g.5gb", 1)), ()]
    stand = Stand(tmp_path, Mig(current=False))
    hits = 0
    for layout in layouts:
        step = killed_at(number, stand)
        replace = Disk.replace

        def written(self: Disk, *args: Any, step: Any = step, replace: Any = replace, **more: Any) -> None:
            step()
            replace(self, *args, **more)
            step()

        with monkeypatch.context() as patched:
            patched.setattr(Disk, "replace", written)
            stand.double.before = stand.double.after = step
            try:
                settle(stand.node(*layout))
            except Killed:
                hits += 1
        stand.double.before = stand.double.after = lambda: None
        foreign = Placed(20, 6, 1)
        others = {foreign} if stand.mig.current and layout else set()
        stand.mig.instances |= others
        settle(stand.node(*layout), 4)
        wanted = {"1g.5gb": 0, "3g.20gb": 0} | dict(layout)
        counts = {name: sum(each.profile == BY_NAME[name].id for each in stand.mig.instances) for name in wanted}
        assert counts == wanted, (layout, number)
        assert others <= stand.mig.instances
        stand.mig.instances -= others
    settle(stand.node())
    assert stand.recorded is None
    assert not stand.mig.current
    assert hits or number > 8


def test_while_a_call_that_was_given_up_may_be_under_way_nothing_else_is_changed(tmp_path: Path) -> None:
    double = NvmlDouble(**{CARD: Mig()})
    kept: list[int] = []

    def asks(question: Mapping[str, Any], seconds: float, keep: Any) -> Mapping[str, Any]:
        kept.extend(map(os.dup, keep))  # as a process that hangs in the kernel keeps them
        raise NoAnswer(f"no answer within {seconds:g} s")

    lock = str(tmp_path / "lock")
    with raises_code(GPU_INSTANCES_NOT_CHANGED, match="no answer within 60 s"):
        Nvml(lock, asks).create(CARD, Placed(19, 0, 1))
    with raises_code(GPU_INSTANCES_NOT_CHANGED, match="another process changes GPU instances"):
        Nvml(lock, double.asks).create(CARD, Placed(19, 0, 1))
    for file in kept:
        os.close(file)
    Nvml(lock, double.asks).create(CARD, Placed(19, 0, 1))
    assert double.cards[CARD].instances == {Placed(19, 0, 1)}


def test_errors_of_nvml_are_named_with_function_number_and_remedy(tmp_path: Path) -> None:
    double = NvmlDouble(**{CARD: Mig()})
    nvml = Nvml(str(tmp_path / "lock"), double.asks)
    nvml.create(CARD, Placed(19, 0, 1))
    double.cards[CARD].used.add(Placed(19, 0, 1))
    with raises_code(GPU_INSTANCES_NOT_CHANGED, match=r"nvmlGpuInstanceDestroy: In use .* \(19\)") as caught:
        nvml.destroy(CARD, Placed(19, 0, 1), 7)
    assert "fuser -v /dev/nvidia*" in caught.value.remedy
    double.fails = lambda _: NO_PERMISSION
    with raises_code(GPU_INSTANCES_NOT_CHANGED) as caught:
        nvml.read(CARD)
    assert "need root" in caught.value.remedy
    for code in (12, 13):
        double.fails = lambda _, code=code: code  # type: ignore[misc]
        with raises_code(NO_NVML, match="NVML can't be used"):
            nvml.read(CARD)
    with raises_code(NO_NVML, match="No module named 'pynvml'") as missing:
        Nvml("/nonexistent", lambda *_: {"missing": "No module named 'pynvml'"}).read(CARD)
    assert "its extra `nvml`" in missing.value.remedy
    assert IN_USE == 19
    assert GPU_INSTANCES_REFUSED.code == "LK792"
