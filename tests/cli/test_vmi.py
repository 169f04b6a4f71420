"""What every command does with ``--vmi`` (Q4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcherkit.cli.main import run
from launcherkit.errors import BAD_VMI
from tests.support.domains import domain
from tests.support.errors import raises_code

POD = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}}


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "domain.xml").write_text(domain())
    (tmp_path / "vmi.json").write_text(json.dumps(POD))
    return [f"--domain={tmp_path / 'domain.xml'}", f"--vmi={tmp_path / 'vmi.json'}", "--host=none"]


@pytest.mark.parametrize("command", ["translate", "explain", "doctor", "define", "run"])
def test_what_is_no_vmi_is_refused_and_nothing_is_printed(
    command: str, arguments: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with raises_code(BAD_VMI, match=r"vmi\.json: expected a VirtualMachineInstance, found a Pod \(v1\)"):
        run([command, *arguments], {})
    assert capfdbinary.readouterr().out == b""


def test_devices_that_the_vmi_does_not_ask_for_are_reported_of_by_doctor_and_explain(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vmi.json").write_text(json.dumps({"spec": {"domain": {"devices": {}}}}))
    env = {"PCI_RESOURCE_X_COM_GPU": "0000:e1:00.0"}
    text = "the VMI asks for no device; left alone: 1 in PCI_RESOURCE_X_COM_GPU"
    run(["explain", *arguments], env)
    assert f"note: {text}\n" in capfd.readouterr().out
    run(["doctor", *arguments, "--json"], env)
    findings = json.loads(capfd.readouterr().out)["findings"]
    (found,) = [finding for finding in findings if finding["check"] == "translation"]
    assert (found["status"], found["seen"]) == ("warn", text)
