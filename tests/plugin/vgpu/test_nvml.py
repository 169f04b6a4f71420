"""GPU instances by NVIDIA's own binding, and a stand-in for the library that it calls: a process for each question."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit_plugin.model.errors import GPU_INSTANCES_NOT_CHANGED, NO_NVML
from launcherkit_plugin.vgpu import nvml as module
from launcherkit_plugin.vgpu.nvml import MigCard, Nvml, Placed, Profile
from tests.support.errors import raises_code

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed; ./dev test has it")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here, which makes the stand-in of NVML"),
]

CARD, OTHER, OLD = "0000:41:00.0", "0000:c1:00.0", "0000:01:00.0"


class StandIn:
    """A folder with the library and the file that has the state of its cards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"

    def has(self, *lines: str) -> None:
        self.state.write_text("".join(f"{line}\n" for line in lines))

    @property
    def lines(self) -> list[str]:
        return self.state.read_text().splitlines()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    source, made = Path(__file__).parent / "nvml.c", folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", made, source], check=True)
    return folder


@pytest.fixture
def stand_in(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("NVML_STATE", str(found.state))
    found.has(f"card {CARD} 1 1 1 1", f"card {OTHER} 1 0 0 0", f"card {OLD} 0 0 0 0")
    return found


@pytest.fixture
def nvml(tmp_path: Path) -> Nvml:
    return Nvml(str(tmp_path / "records" / "lock"))


def test_a_card_in_mig_mode_is_read(stand_in: StandIn, nvml: Nvml) -> None:
    stand_in.has(f"card {CARD} 1 1 1 1", f"instance {CARD} 3 9 4 4 0", f"instance {OTHER} 1 19 0 1 0")
    found = nvml.read(CARD)
    assert (found.enabled, found.pending) == (True, True)
    assert found.instances == {Placed(9, 4, 4)}
    assert found.profiles[0] == Profile(19, "1g.5gb", 7, tuple((start, 1) for start in range(7)))
    names = ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "1g.5gb+me"]
    assert [profile.name for profile in found.profiles] == names
    assert found.summary == "1 of 3g.20gb"


def test_cards_out_of_mig_mode_and_without_one_are_read(stand_in: StandIn, nvml: Nvml) -> None:
    assert nvml.read(OTHER) == MigCard(False, False)
    assert nvml.read(OLD) == MigCard(None, False)


def test_gpu_instances_are_made_at_their_place_and_destroyed(stand_in: StandIn, nvml: Nvml) -> None:
    for start in (2, 0, 5):
        nvml.create(CARD, Placed(19, start, 1))
    nvml.destroy(CARD, Placed(19, 0, 1), 7)
    nvml.destroy(CARD, Placed(19, 0, 1), 7)  # it has gone already
    assert nvml.read(CARD).instances == {Placed(19, 2, 1), Placed(19, 5, 1)}
    assert sum(line == "call nvmlGpuInstanceDestroy" for line in stand_in.lines) == 1


@pytest.mark.parametrize(
    ("card", "instance", "code"),
    [
        (CARD, Placed(19, 1, 1), 23),
        (CARD, Placed(9, 0, 4), 23),
        (CARD, Placed(9, 2, 4), 2),
        (CARD, Placed(99, 0, 1), 2),
        (OTHER, Placed(19, 1, 1), 3),
        (OLD, Placed(19, 1, 1), 3),
        ("0000:99:00.0", Placed(19, 1, 1), 6),
    ],
)
def test_what_nvml_refuses_is_an_error_with_its_number(
    stand_in: StandIn, nvml: Nvml, card: str, instance: Placed, code: int
) -> None:
    nvml.create(CARD, Placed(19, 1, 1))
    before = stand_in.lines
    with raises_code(GPU_INSTANCES_NOT_CHANGED, match=rf"{card}: nvml\w+: .* \({code}\)"):
        nvml.create(card, instance)
    assert stand_in.lines == before


def test_one_that_a_process_uses_isnt_destroyed(stand_in: StandIn, nvml: Nvml) -> None:
    stand_in.has(f"card {CARD} 1 1 1 1", f"instance {CARD} 1 19 0 1 1")
    with raises_code(GPU_INSTANCES_NOT_CHANGED, match=r"nvmlGpuInstanceDestroy: In use by another client \(19\)"):
        nvml.destroy(CARD, Placed(19, 0, 1), 7)


def test_mig_mode_is_set_at_once_or_stays_pending(stand_in: StandIn, nvml: Nvml) -> None:
    nvml.set_mode(OTHER, enabled=True)
    assert nvml.read(OTHER) == MigCard(False, True)
    nvml.set_mode(CARD, enabled=False)
    assert nvml.read(CARD) == MigCard(False, False)


@pytest.mark.parametrize("code", [1, 4, 9, 15, 18, 999])
@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances"])
def test_an_error_of_any_call_is_named(stand_in: StandIn, nvml: Nvml, function: str, code: int) -> None:
    stand_in.has(f"card {CARD} 1 1 1 1", f"fail {function} {code}")
    with raises_code(GPU_INSTANCES_NOT_CHANGED, match=rf"{function.removesuffix('WithFlags')}: .* \({code}\)"):
        nvml.read(CARD)


def test_a_crash_of_the_library_ends_only_its_process(stand_in: StandIn, nvml: Nvml) -> None:
    stand_in.has(f"card {CARD} 1 1 1 1", "fail nvmlDeviceCreateGpuInstanceWithPlacement crash")
    with raises_code(GPU_INSTANCES_NOT_CHANGED, match="was killed by signal 11"):
        nvml.create(CARD, Placed(19, 0, 1))
    stand_in.has(f"card {CARD} 1 1 1 1")
    nvml.create(CARD, Placed(19, 0, 1))


def test_a_call_that_hangs_is_given_up(stand_in: StandIn, nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALL_SECONDS", 2.0)
    stand_in.has(f"card {CARD} 1 1 1 1", "fail nvmlDeviceCreateGpuInstanceWithPlacement hang")
    with raises_code(GPU_INSTANCES_NOT_CHANGED, match="no answer within 2 s"):
        nvml.create(CARD, Placed(19, 0, 1))


def test_without_the_library_it_is_said_so(
    stand_in: StandIn, nvml: Nvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with raises_code(NO_NVML, match=r"nvmlInit: .* \(12\)"):
        nvml.read(CARD)


def test_the_commands_make_assert_and_list_them(stand_in: StandIn, tmp_path: Path) -> None:
    host = tmp_path / "host"
    card, vf = (host / "sys/bus/pci/devices" / address for address in (CARD, "0000:41:00.4"))
    for function in (card, vf):
        function.mkdir(parents=True)
        facts = f"DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:20F1\nPCI_SLOT_NAME={function.name}\n"
        (function / "uevent").write_text(facts)
    (vf / "physfn").symlink_to(f"../{CARD}")
    (vf / "nvidia").mkdir()
    (vf / "nvidia/current_vgpu_type").write_text("0\n")
    (vf / "nvidia/creatable_vgpu_types").write_text("ID    : vGPU Name\n")
    (host / "sys/bus/mdev/devices").mkdir(parents=True)
    (host / "proc").mkdir()
    layout = tmp_path / "layout.json"
    wanted = [{"profile": "3g.20gb", "count": 1}, {"profile": "1g.5gb", "count": 2}]
    layout.write_text(json.dumps({"layout": [{"parent": CARD, "gpuInstances": wanted}]}))

    def types(*words: str) -> tuple[int, str, str]:
        state = str(tmp_path / "state-folder")
        places = ["--host", str(host), "--kubelet-dir", str(tmp_path / "kubelet"), "--state", state]
        command = [sys.executable, "-m", "launcherkit_plugin", "vgpu", *words, *places]
        ended = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        return ended.returncode, ended.stdout, ended.stderr

    code, out, err = types("assert", str(layout))
    assert (code, err) == (1, "")
    missing = "create 3g.20gb at 0, create 1g.5gb at 4, create 1g.5gb at 5"
    assert out == f"{CARD}: GPU instances: none there; to {missing}\n"
    code, out, err = types("apply", str(layout), "--dry-run")
    assert (code, out, err) == (0, "", f"note: {CARD}: GPU instances: {missing}\n")
    code, out, err = types("apply", str(layout))
    assert (code, out, err) == (0, "", f"note: {CARD} has GPU instances: 2 of 1g.5gb, 1 of 3g.20gb\n")
    assert types("assert", str(layout))[0] == 0
    listed = json.loads(types("list", "--output", "json")[1])["cards"][0]
    assert listed["gpuInstances"] == [
        {"profile": {"id": 9, "name": "3g.20gb"}, "start": 0, "size": 4},
        {"profile": {"id": 19, "name": "1g.5gb"}, "start": 4, "size": 1},
        {"profile": {"id": 19, "name": "1g.5gb"}, "start": 5, "size": 1},
    ]
    assert [line.split() for line in types("list")[1].splitlines()[3:6]] == [
        [CARD, "3g.20gb", "0", "4"],
        [CARD, "1g.5gb", "4", "1"],
        [CARD, "1g.5gb", "5", "1"],
    ]
    stand_in.has(f"card {CARD} 1 1 1 1", "fail nvmlInitWithFlags 9")
    code, out, err = types("apply", str(layout))
    assert (code, out) == (69, "")
    assert err.startswith(f"error[LK793]: {CARD}: nvmlInit: ")
