"""The tree of a host with a VM: what goes where, what comes along, what is in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import ROOT

DEMO = ROOT / "launcherkit" / "demo_data"


def run(host: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    inputs = [
        "--domain",
        str(DEMO / "domain.xml"),
        "--vmi",
        str(DEMO / "vmi.json"),
        "--env-file",
        str(DEMO / "env.txt"),
    ]
    command = [sys.executable, "-m", "launcherkit", "topology", "--host", str(host), *inputs, *arguments]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    return with_audio_on_the_host(tmp_path)


def with_audio_on_the_host(directory: Path, **changes: object) -> Path:
    """The demo's host, one of its audio functions on the host's driver."""
    host = json.loads((DEMO / "host.json").read_text())
    del host["groups"]
    (audio,) = (each for each in host["functions"] if each["address"] == "0000:e1:00.1")
    audio |= {"driver": "snd_hda_intel", **changes}
    audio["detail"]["driver_module"] = "snd_hda_intel"
    path = directory / "host.json"
    path.write_text(json.dumps(host))
    return path


def test_each_function_says_which_request_it_goes_to_and_the_guest_where_it_is_from() -> None:
    text = run(DEMO / "host.json").stdout
    host, _, guest = text.partition("\nguest  ")
    arrows = {line.split()[1]: line.partition("\u2192 ")[2] for line in host.splitlines() if "\u2192" in line}
    assert arrows == {
        "0000:01:00.0": "gpu2",
        "0000:01:00.1": "gpu2, comes along",
        "0000:e1:00.0": "gpu1",
        "0000:e1:00.1": "gpu1, comes along",
    }
    assert "0000:05:00.0  \u2190 0000:e1:00.0  gpu1\n" in guest


def test_what_stays_on_the_host_says_why(tmp_path: Path) -> None:
    text = run(with_audio_on_the_host(tmp_path, iommu_group=45)).stdout
    assert "stays: in IOMMU group 45" in text
    assert text.count("comes along") == 2


def test_where_the_vm_could_not_start_the_picture_has_the_code_and_the_errors_follow(blocked: Path) -> None:
    done = run(blocked)
    assert done.returncode == 65
    assert "LK204 0000:e1:00.1 is bound to" in done.stdout
    assert "error[LK204]" in done.stderr
    assert "guest" not in done.stdout


def test_as_json_there_is_nothing_where_the_vm_could_not_start(blocked: Path) -> None:
    done = run(blocked, "--json")
    assert (done.returncode, done.stdout) == (65, "")


def test_the_json_has_the_guest() -> None:
    (root,) = json.loads(run(DEMO / "host.json", "--json").stdout)["guest"]["bridges"]
    first = root["bridges"][0]["functions"][0]
    assert (first["source"], first["request"], first["role"]) == ("0000:e1:00.0", "gpu1", "primary")
