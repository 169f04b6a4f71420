"""``launcherkit-plugin vgpu``: what people see and do."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from launcherkit.errors import Code, LauncherkitError
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.cli import vgpu
from launcherkit_plugin.host.processes import HolderProcess, OpenNodes
from launcherkit_plugin.model.device import NO_USAGE, Holder, Usage, UsageSource
from launcherkit_plugin.model.errors import BAD_LAYOUT, BAD_PLUGIN_CONFIG, NO_VGPU_ROOM, VGPU_IN_USE
from launcherkit_plugin.vgpu.maker import Maker
from launcherkit_plugin.vgpu.writer import VgpuWriter
from tests.plugin.vgpu.kernel import A2_4Q, A2_8Q, T4_1Q, Kernel
from tests.plugin.vgpu.node import Clock
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.pages import ROOT, blocks

CARD, SRIOV = "0000:01:00.0", "0000:41:00.0"


class Desk:
    """Somebody at a node; what they type, and what comes out."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.kernel = Kernel()
        self.kernel.card(CARD)
        self.kernel.card_of_vfs(SRIOV, 4, (A2_4Q, A2_8Q), mib=16384)
        self.usage = Usage("pod-resources", {})
        self.opened: Mapping[str, tuple[HolderProcess, ...]] = {}
        self.unseen = ""
        self._capfd = capfd

    def types(self, *words: str) -> tuple[int, str]:
        """Exit code and standard output."""
        parser = argparse.ArgumentParser()
        vgpu.add_arguments(parser, {})
        args = parser.parse_args(words)
        clock = Clock()
        writer = VgpuWriter(Maker(self.kernel, clock, clock.sleep), self.kernel.is_open)
        context = vgpu.ActionContext(args, {}, self.kernel.facts, lambda: self.usage, self.look, writer)
        self._capfd.readouterr()
        try:
            code: int = args.act(context)
        finally:
            self.said = self._capfd.readouterr()
        return code, self.said.out

    def look(self) -> OpenNodes:
        return OpenNodes(self.opened, self.unseen)

    def refused(self, error: Code[LauncherkitError], *words: str) -> str:
        with raises_code(error) as caught:
            self.types(*words)
        return str(caught.value)


@pytest.fixture
def desk(capfd: pytest.CaptureFixture[str]) -> Desk:
    return Desk(capfd)


@pytest.fixture
def layout(tmp_path: Path) -> Callable[..., str]:
    def write(*entries: dict[str, Any], **more: Any) -> str:
        path = tmp_path / "layout.yaml"
        path.write_text(json.dumps({"layout": entries, **more}))
        return str(path)

    return write


def test_list_shows_types_with_their_room_and_vgpus_with_their_users(desk: Desk) -> None:
    desk.types("create", "--parent", CARD, "--type", "GRID T4-1Q", "--count", "2")
    first, second = desk.kernel.mdevs
    desk.usage = Usage("pod-resources", {"nvidia.com/X": {first: Holder("default/vm", "compute")}})
    desk.opened = {desk.kernel.node(second): (HolderProcess(7, "qemu"),)}
    _, out = desk.types("list")
    rows = [line.split() for line in out.splitlines()]
    assert [CARD, "nvidia-222", "GRID", "T4-1Q", "2", "2"] in rows
    assert [CARD, "nvidia-223", "GRID", "T4-2Q", "0", "0"] in rows
    assert [SRIOV, "742", "NVIDIA", "A2-4Q", "0", "4"] in rows
    assert [first, CARD, "GRID", "T4-1Q", "layout", "pod", "default/vm"] in rows
    assert [second, CARD, "GRID", "T4-1Q", "layout", "qemu", "(PID", "7)"] in rows


def test_list_shows_where_the_driver_has_placed_the_vgpus_of_vfs(desk: Desk) -> None:
    desk.types("create", "--parent", SRIOV, "--type", "NVIDIA A2-4Q", "--count", "2")
    desk.types("create", "--parent", CARD, "--type", "GRID T4-1Q")
    _, out = desk.types("list")
    head, *rows = out.splitlines()[-4:]
    assert head.split() == ["DEVICE", "PARENT", "TYPE", "MADE", "FOR", "PLACE", "USED", "BY"]
    assert [row.split()[-2] for row in rows] == ["-", "0", "1"]
    _, out = desk.types("list", "--output", "json")
    places = [(each["placement"], each["gpuInstance"]) for card in json.loads(out)["cards"] for each in card["vgpus"]]
    assert places == [(None, None), (0, None), (1, None)]


@pytest.mark.parametrize(
    ("source", "unseen", "shown"),
    [("pod-resources", "", "-"), ("none", "", "?"), ("pod-resources", "init (PID 1)", "?")],
)
def test_list_tells_nobody_from_nobody_knows(desk: Desk, source: UsageSource, unseen: str, shown: str) -> None:
    """T2."""
    uuid = str(uuid4())
    desk.kernel.make(CARD, T4_1Q.id, uuid)
    desk.usage, desk.unseen = Usage(source, {}), unseen
    _, out = desk.types("list")
    (row,) = (line for line in out.splitlines() if line.startswith(uuid))
    assert row.split()[-1] == shown


def test_list_as_json_says_whether_there_may_be_other_users(desk: Desk) -> None:
    uuid = str(uuid4())
    desk.kernel.make(CARD, T4_1Q.id, uuid)
    desk.unseen = "init (PID 1)"
    _, out = desk.types("list", "--output", "json")
    card = json.loads(out)["cards"][0]
    assert card["name"] == CARD
    assert card["types"][0] == {"id": "nvidia-222", "name": "GRID T4-1Q", "there": 1, "room": 3}
    assert card["vgpus"] == [
        {
            "device": uuid,
            "parent": CARD,
            "type": {"id": "nvidia-222", "name": "GRID T4-1Q"},
            "madeFor": None,
            "placement": None,
            "gpuInstance": None,
            "users": [],
            "usersKnown": False,
        }
    ]


def test_create_makes_so_many_and_prints_them(desk: Desk) -> None:
    _, out = desk.types("create", "--parent", "#0", "--type", "nvidia-223", "--count", "2")
    made = list(desk.kernel.mdevs)
    assert out.splitlines() == [f"create GRID T4-2Q on #0: {uuid}" for uuid in made]
    _, out = desk.types("create", "--parent", SRIOV, "--type", "NVIDIA_A2-8Q", "--output", "json")
    assert [step["device"] for step in json.loads(out)] == ["0000:41:01.0"]


def test_create_tells_what_it_made_before_there_was_no_room(desk: Desk) -> None:
    text = desk.refused(NO_VGPU_ROOM, "create", "--parent", CARD, "--type", "GRID T4-2Q", "--count", "3")
    assert text == f"{CARD} has room for 2 of type GRID T4-2Q, not for 3"
    assert len(desk.said.out.splitlines()) == len(desk.kernel.mdevs) == 2


def test_a_dry_run_changes_nothing(desk: Desk, layout: Callable[..., str]) -> None:
    _, out = desk.types("create", "--parent", CARD, "--type", "GRID T4-1Q", "--count", "2", "--dry-run")
    assert len(out.splitlines()) == 2
    desk.refused(NO_VGPU_ROOM, "create", "--parent", CARD, "--type", "GRID T4-1Q", "--count", "5", "--dry-run")
    _, out = desk.types("apply", layout({"parent": CARD, "type": "GRID T4-2Q"}), "--dry-run")
    assert [line.split(":")[0] for line in out.splitlines()] == ["create GRID T4-2Q on 0000"] * 2
    assert desk.kernel.mdevs == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--parent", "0000:09:00.0", "--type", "x"),
            "no card is called '0000:09:00.0'; there are: 0000:01:00.0, 0000:41:00.0",
        ),
        (("--parent", "0000:*", "--type", "x"), "more than one card is called '0000:*'"),
        (("--parent", CARD, "--type", "x"), f"{CARD} has no vGPU type 'x'"),
        (("--parent", CARD, "--type", "GRID*"), f"{CARD} has several types 'GRID*': GRID T4-1Q, GRID T4-2Q"),
    ],
)
def test_create_needs_one_card_and_one_type(desk: Desk, words: tuple[str, ...], message: str) -> None:
    assert message in desk.refused(BAD_LAYOUT, "create", *words)


def test_remove_takes_what_nobody_has(desk: Desk) -> None:
    desk.types("create", "--parent", CARD, "--type", "GRID T4-1Q", "--count", "2")
    desk.types("create", "--parent", SRIOV, "--type", "742")
    first, second = desk.kernel.mdevs
    _, out = desk.types("remove", first.upper(), "0000:41:01.0")
    assert [line.split()[0] for line in out.splitlines()] == ["remove", "remove"]
    assert list(desk.kernel.mdevs) == [second]
    assert desk.kernel.facts().details  # the VF is there, without a type
    assert "there is no vGPU" in desk.refused(BAD_LAYOUT, "remove", first)


def test_remove_refuses_before_the_first_where_one_is_in_use_or_nobody_knows(desk: Desk) -> None:
    desk.types("create", "--parent", CARD, "--type", "GRID T4-1Q", "--count", "2")
    first, second = desk.kernel.mdevs
    desk.usage = Usage("checkpoint", {"nvidia.com/X": {second: Holder("uid:1234", "compute")}})
    assert "is in use by pod uid:1234" in desk.refused(VGPU_IN_USE, "remove", first, second)
    desk.usage = NO_USAGE
    assert "may be a pod's" in desk.refused(VGPU_IN_USE, "remove", first)
    desk.usage, desk.unseen = Usage("checkpoint", {}), "init (PID 1) can't be inspected"
    assert "may be in use: init (PID 1) can't be inspected" in desk.refused(VGPU_IN_USE, "remove", first)
    assert len(desk.kernel.mdevs) == 2


def test_apply_brings_a_layout_about_and_assert_says_so(desk: Desk, layout: Callable[..., str]) -> None:
    file = layout(
        {"parent": "#0", "type": "GRID T4-1Q", "count": 3}, {"parent": SRIOV, "type": "NVIDIA A2-8Q", "count": 1}
    )
    code, out = desk.types("assert", file)
    assert code == 1
    assert out.splitlines()[0] == "0000:01:00.0: GRID T4-1Q: 3 wanted, 0 there"
    code, out = desk.types("apply", file)
    assert (code, len(out.splitlines())) == (0, 4)
    assert desk.types("assert", file) == (0, "")
    assert desk.types("apply", file) == (0, "")


def test_apply_spreads_types_over_the_other_cards(desk: Desk, layout: Callable[..., str]) -> None:
    desk.types("apply", layout(spread=["NVIDIA A2-4Q", "GRID T4-2Q"]))
    assert len(desk.kernel.mdevs) == 2
    assert desk.types("assert", layout(spread=["NVIDIA A2-4Q", "GRID T4-2Q"]), "--output", "json") == (0, "[]\n")


def test_apply_refuses_what_is_in_use(desk: Desk, layout: Callable[..., str]) -> None:
    desk.types("create", "--parent", CARD, "--type", "GRID T4-1Q")
    (uuid,) = desk.kernel.mdevs
    desk.opened = {desk.kernel.node(uuid): (HolderProcess(7, "qemu"),)}
    file = layout({"parent": CARD, "type": "GRID T4-2Q", "count": 1})
    for more in ([], ["--dry-run"]):
        assert "is in use by qemu (PID 7)" in desk.refused(VGPU_IN_USE, "apply", file, *more)
    assert list(desk.kernel.mdevs) == [uuid]


def test_assert_tells_of_cards_that_arent_there(desk: Desk, layout: Callable[..., str]) -> None:
    code, out = desk.types("assert", layout({"parent": "#7", "type": "x", "count": 1}))
    assert (code, out) == (1, "layout: no card is called '#7'; there are: 0000:01:00.0, 0000:41:00.0\n")


def test_a_layout_file_is_checked(desk: Desk, layout: Callable[..., str]) -> None:
    file = layout({"parent": "#x", "type": "GRID T4-1Q", "count": -1})
    desk.refused(BAD_PLUGIN_CONFIG, "apply", file)


def test_the_command_works_on_a_host_below_a_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = HostTree(tmp_path / "host")
    tree.function(CARD, class_code=0x030200, driver="nvidia", group=4)
    tree.mdev_type(CARD, "nvidia-222", name="GRID T4-1Q", available_instances="16", device_api="vfio-pci")
    words = ["--host", str(tree.root), "--kubelet-dir", str(tmp_path / "none")]
    assert run(["vgpu", "list", *words], {}) == 0
    assert f"{CARD}  nvidia-222  GRID T4-1Q  0         16" in capfd.readouterr().out
    assert run(["vgpu", "create", "--parent", "#0", "--type", "nvidia-222", "--dry-run", *words], {}) == 0
    assert "create GRID T4-1Q on #0" in capfd.readouterr().out


def test_who_has_a_vgpu_is_looked_for_where_proc_and_the_kubelets_socket_are_said_to_be(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = HostTree(tmp_path / "host")
    tree.function(CARD, class_code=0x030200, driver="nvidia", group=4)
    tree.mdev_type(CARD, "nvidia-222", name="GRID T4-1Q", available_instances="15", device_api="vfio-pci")
    tree.mdev(CARD, "nvidia-222", uuid := str(uuid4()), group=20)
    (tmp_path / "proc/1/fd").mkdir(parents=True)
    (tmp_path / "proc/2").mkdir()
    (tmp_path / "proc/2/comm").write_text("kthreadd\n")
    places = ["--host", str(tree.root), "--kubelet-dir", str(tmp_path / "none")]
    proc, socket = ["--proc", str(tmp_path / "proc")], ["--pod-resources", str(tmp_path / "none.sock")]

    def held(*words: str) -> str:
        capfd.readouterr()
        assert run(["vgpu", "list", *places, *words], {}) == 0
        (line,) = [line for line in capfd.readouterr().out.splitlines() if uuid in line]
        return line.split()[-1]

    assert [held(), held(*proc), held(*proc, *socket)] == ["?", "-", "?"]


def test_the_page_of_vgpus_shows_what_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    desk = Desk(capfd)
    desk.kernel = Kernel()
    desk.kernel.card(CARD, mib=16384)
    desk.kernel.card_of_vfs(SRIOV, 16, (A2_4Q,), mib=65536)
    page = blocks(ROOT / "docs/how-to/vgpu.md")
    (layout,) = [block.text for block in page if block.reported.get("file") == "layout.yaml"]
    (tmp_path / "layout.yaml").write_text(layout)
    for block in page:
        if block.language == "text":
            prompt, *lines = block.text.splitlines()
            _, out = desk.types(*prompt.removeprefix("# launcherkit-plugin vgpu ").split())
            assert out.splitlines() == lines
        elif block.language == "sh":
            for line in block.text.splitlines():
                words = line.partition(" && ")[0].split()[2:]
                assert desk.types(*words[:1], str(tmp_path / words[1]), *words[2:])[0] == 0, line
    assert len(desk.kernel.mdevs) == 4


def test_a_recording_without_vgpus_says_nothing_of_the_driver(capfd: pytest.CaptureFixture[str]) -> None:
    recording = Path(__file__).parents[2] / "data/rack-server.umockdev"
    assert run(["vgpu", "list", "--host", str(recording)], {}) == 0
    said = capfd.readouterr()
    assert said.out == ""
    assert "driver isn't loaded" not in said.err
    assert "were recorded" in said.err
