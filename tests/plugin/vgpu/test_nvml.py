"""GPU instances by NVIDIA's own binding, and a stand-in for the library that it calls: a process for each question."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit_plugin.model.errors import GPU_INSTANCES_NOT_CHANGED, NO_NVML
from launcherkit_plugin.vgpu import nvml as module
from launcherkit_plugin.vgpu.nvml import MigCard, Nvml, Placed, Profile, ask_process
from tests.plugin.vgpu.stand_in import CARD, OLD, OTHER, StandIn, needed
from tests.support.errors import raises_code
from tests.support.pages import ROOT, blocks
from tests.support.waiting import PATIENCE

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed; ./dev test has it")
pytestmark = [*needed]


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
    monkeypatch.setattr("launcherkit_plugin.host.child.END_SECONDS", PATIENCE)  # a busy machine may take longer
    stand_in.has(f"card {CARD} 1 1 1 1", "fail nvmlDeviceCreateGpuInstanceWithPlacement hang")
    with raises_code(GPU_INSTANCES_NOT_CHANGED, match="no answer within 2 s"):
        nvml.create(CARD, Placed(19, 0, 1))


def test_without_the_library_it_is_said_so(
    stand_in: StandIn, nvml: Nvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with raises_code(NO_NVML, match=r"nvmlInit: .* \(12\)"):
        nvml.read(CARD)


class Machine:
    """A host with a card and VFs for commands, and what they have recorded."""

    def __init__(self, stand_in: StandIn, tmp_path: Path) -> None:
        self.stand_in = stand_in
        self.folder = tmp_path
        self.vfs = [f"0000:41:00.{number}" for number in range(4, 8)]
        devices = tmp_path / "host/sys/bus/pci/devices"
        for name in (CARD, *self.vfs):
            (devices / name).mkdir(parents=True)
            numbers = "PCI_CLASS=30200\nPCI_ID=10DE:20F1\nPCI_SUBSYS_ID=10DE:145F"
            facts = f"DRIVER=nvidia\n{numbers}\nPCI_SLOT_NAME={name}\n"
            (devices / name / "uevent").write_text(facts)
        for vf in self.vfs:
            (devices / vf / "physfn").symlink_to(f"../{CARD}")
            (devices / vf / "nvidia").mkdir()
            (devices / vf / "nvidia/current_vgpu_type").write_text("0\n")
            (devices / vf / "nvidia/creatable_vgpu_types").write_text("ID    : vGPU Name\n1 : NVIDIA A100-1-5C\n")
        (tmp_path / "host/sys/bus/mdev/devices").mkdir(parents=True)
        (tmp_path / "host/proc").mkdir()

    def begins(self, *words: str) -> subprocess.Popen[str]:
        folders = {"--host": "host", "--kubelet-dir": "kubelet", "--state": "state"}
        places = [f"{option}={self.folder / name}" for option, name in folders.items()]
        command = [sys.executable, "-m", "launcherkit_plugin", *words, *places]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def types(self, *words: str) -> tuple[int, str, str]:
        with self.begins(*words) as process:
            out, err = process.communicate()
            return process.returncode, out, err

    def layout(self, **counts: int) -> str:
        wanted = [{"profile": name, "count": number} for name, number in counts.items()]
        path = self.folder / "layout.json"
        path.write_text(json.dumps({"layout": [{"parent": CARD, "gpuInstances": wanted}]}))
        return str(path)


@pytest.fixture
def machine(stand_in: StandIn, tmp_path: Path) -> Machine:
    return Machine(stand_in, tmp_path)


def test_the_commands_make_assert_and_list_them(machine: Machine) -> None:
    layout = machine.layout(**{"3g.20gb": 1, "1g.5gb": 2})
    missing = "create 3g.20gb at 0, create 1g.5gb at 4, create 1g.5gb at 5"
    code, out, err = machine.types("vgpu", "assert", layout)
    assert (code, out, err) == (1, f"{CARD}: GPU instances: none there; to {missing}\n", "")
    code, out, err = machine.types("vgpu", "apply", layout, "--dry-run")
    assert (code, out, err) == (0, "", f"note: {CARD}: GPU instances: {missing}\n")
    code, out, err = machine.types("vgpu", "apply", layout)
    assert (code, out, err) == (0, "", f"note: {CARD} has GPU instances: 2 of 1g.5gb, 1 of 3g.20gb\n")
    assert machine.types("vgpu", "assert", layout)[0] == 0
    listed = json.loads(machine.types("vgpu", "list", "--output", "json")[1])["cards"][0]
    assert listed["gpuInstances"] == [
        {"profile": {"id": 9, "name": "3g.20gb"}, "start": 0, "size": 4},
        {"profile": {"id": 19, "name": "1g.5gb"}, "start": 4, "size": 1},
        {"profile": {"id": 19, "name": "1g.5gb"}, "start": 5, "size": 1},
    ]
    rows = [line.split() for line in machine.types("vgpu", "list")[1].splitlines()]
    assert rows[3:7] == [
        ["CARD", "GPU", "INSTANCE", "START", "SIZE"],
        [CARD, "3g.20gb", "0", "4"],
        [CARD, "1g.5gb", "4", "1"],
        [CARD, "1g.5gb", "5", "1"],
    ]
    [card] = [line for line in machine.types("status")[1].splitlines() if line.startswith(CARD)]
    assert card.endswith("profile 9 at 0, profile 19 at 4, profile 19 at 5")
    machine.stand_in.has(f"card {CARD} 1 1 1 1", "fail nvmlInitWithFlags 9")
    code, out, err = machine.types("vgpu", "apply", layout)
    assert (code, out) == (69, "")
    assert err.startswith(f"error[LK793]: {CARD}: nvmlInit: ")


def test_the_page_of_mig_shows_what_is_done(machine: Machine) -> None:
    page = blocks(ROOT / "docs/how-to/mig.md")
    (layout,) = [block.text for block in page if block.reported.get("file") == "mig.yaml"]
    (machine.folder / "mig.yaml").write_text(layout)
    for block in page:
        for line in block.text.splitlines() if block.language == "sh" else ():
            words = [str(machine.folder / word) if word == "mig.yaml" else word for word in line.split()[1:]]
            assert machine.types(*words)[0] == 0, line
    assert len(Nvml("", ask_process).read(CARD).instances) == 4
    types = [(machine.folder / f"host/sys/bus/pci/devices/{vf}/nvidia/current_vgpu_type") for vf in machine.vfs]
    assert sorted(each.read_text() for each in types) == ["0\n", "1\n", "1\n", "1\n"]


def test_discover_tells_of_those_that_a_card_has(machine: Machine) -> None:
    config = machine.folder / "plugin.yaml"
    layout = [{"parent": "#0", "gpuInstances": [{"profile": "1g.5gb", "count": 2}]}]
    rules = [{"types": ["*"], "mode": "dynamic"}]
    config.write_text(json.dumps({"vgpu": {"layout": layout, "virtualFunctions": rules}}))
    machine.stand_in.has(f"card {CARD} 1 1 1 1", f"instance {CARD} 1 19 0 1 0")
    command = [sys.executable, "-m", "launcherkit_plugin", "discover", f"--config={config}"]
    ended = subprocess.run(
        [*command, "-o", "json", f"--host={machine.folder / 'host'}"], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    (resource,) = json.loads(ended.stdout)["resources"]
    assert len(resource["devices"]) == len(machine.vfs)
    assert all(each["description"].endswith(", GPU instances: 1 of 1g.5gb") for each in resource["devices"])


FIRST, SECOND = {"1g.5gb": 3}, {"3g.20gb": 1, "1g.5gb": 2}


@pytest.mark.parametrize("when", ["hang", "late"])
@pytest.mark.parametrize(
    "function", ["nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy"]
)
def test_killed_in_a_call_the_next_process_finishes_the_change(machine: Machine, function: str, when: str) -> None:
    others = f"instance {CARD} 9 20 6 1 0"
    if function == "nvmlDeviceSetMigMode":
        machine.stand_in.has(f"card {CARD} 1 0 0 1", f"fail {function} {when}")
    else:
        machine.stand_in.has(f"card {CARD} 1 1 1 1", others)
        assert machine.types("vgpu", "apply", machine.layout(**FIRST))[0] == 0
        machine.stand_in.has(*machine.stand_in.lines, f"fail {function} {when}")
    layout = machine.layout(**(SECOND if "Create" in function else {"1g.5gb": 2}))
    with machine.begins("vgpu", "apply", layout) as process:
        while f"hangs {function}" not in machine.stand_in.lines:
            assert process.poll() is None
        process.kill()
    machine.stand_in.has(*(line for line in machine.stand_in.lines if not line.startswith(("fail", "hangs"))))
    assert machine.types("vgpu", "apply", layout)[0] == 0
    assert machine.types("vgpu", "assert", layout)[0] == 0
    assert function == "nvmlDeviceSetMigMode" or others in machine.stand_in.lines
    with open(machine.folder / "state/gpu-instances" / f"{CARD}.json", encoding="utf-8") as record:
        made = json.load(record)["content"]
    assert len(made["instances"]) == sum(SECOND.values() if "Create" in function else (2,))
    assert made["instances"] == made["whole"]
    assert made["mode"] == (function == "nvmlDeviceSetMigMode")
