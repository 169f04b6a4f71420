"""What every command does with ``--vmi`` (Q4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcherkit.cli.main import run
from launcherkit.errors import BadVmi
from tests.support.domains import domain

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
    with pytest.raises(BadVmi, match=r"vmi\.json: expected a VirtualMachineInstance, found a Pod \(v1\)"):
        run([command, *arguments], {})
    assert capfdbinary.readouterr().out == b""
