"""``launcherkit-plugin check-config`` and ``serve --check-config``."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.process.edge import guarded
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.model.errors import NVML_BINDING


def outcome(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, list[str]]:
    code = guarded(lambda: run(arguments, {}), {})
    out, err = capfd.readouterr()
    return code, out, err.splitlines()


@pytest.fixture(params=["check-config", "serve"])
def command(request: pytest.FixtureRequest) -> list[str]:
    return ["check-config"] if request.param == "check-config" else ["serve", "--check-config", "--config"]


def test_a_good_one_is_told_to_be_fine(command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("resources: [{select: [{vendors: [10de]}]}]\naliases: {T4: A, T5: B}")
    code, out, err = outcome(capfd, *command, str(path))
    assert (code, err) == (0, [])
    assert out == f"{path}: fine: 1 rule for PCI functions, 0 for vGPUs, 2 aliases\n"


def test_what_is_served_by_dra_is_reported(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("resources: [{select: [{vendors: [10de]}], dra: true}, {select: [{vendors: [1002]}]}]")
    rules = f"{path}: fine: 2 rules for PCI functions, 0 for vGPUs"
    assert outcome(capfd, *command, str(path))[1] == f"{rules}, 1 of them by DRA as pci.launcherkit.io, 0 aliases\n"
    assert "2 of them by DRA" in outcome(capfd, *command, str(path), "--dra")[1]


def test_gpu_instances_need_the_binding_of_nvml(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("vgpu: {layout: [{parent: '#0', gpuInstances: [{profile: 1g.5gb, count: 7}]}]}")
    monkeypatch.setattr("launcherkit_plugin.config.reading.find_spec", lambda _: True)
    rules = "0 rules for PCI functions, 0 for vGPUs, 1 for GPU instances, 0 aliases"
    assert outcome(capfd, *command, str(path)) == (0, f"{path}: fine: {rules}\n", [])
    monkeypatch.setattr("launcherkit_plugin.config.reading.find_spec", lambda _: None)
    code, out, err = outcome(capfd, *command, str(path))
    assert (code, out) == (78, "")
    assert err[:2] == [
        f"error[LK791]: {path}, vgpu.layout.0.gpuInstances: the Python module pynvml is not installed",
        f"help: {NVML_BINDING}",
    ]


def test_a_wrong_one_is_reported_whole(command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("auto: x\nbogus: 1")
    code, out, err = outcome(capfd, *command, str(path))
    assert (code, out) == (78, "")
    assert [line.partition(":")[0] for line in err] == ["error[LK701]", "error[LK701]", "help", "help"]


def test_notes_are_reported(command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("kubevirt: {permittedHostDevices: {usb: [{resourceName: a/b}]}}")
    code, _, err = outcome(capfd, *command, str(path))
    assert code == 0
    left = "a/b is left to KubeVirt: it lacks externalResourceProvider: true"
    assert err == [f"note: {path}, kubevirt, permittedHostDevices.usb.0: {left}"]


def test_auto_is_that_of_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("{}")
    assert "1 rule for PCI functions" in outcome(capfd, "check-config", "--auto", "gpu", str(path))[1]
    assert (
        "1 rule for PCI functions"
        in outcome(capfd, "serve", "--auto", "gpu", "--check-config", "--config", str(path))[1]
    )


def test_serve_needs_a_configuration_to_check(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        run(["serve", "--auto", "gpu", "--check-config"], {})
    assert raised.value.code == 2
    assert "--check-config needs --config" in capfd.readouterr().err
