"""vGPUs of a real kernel for pods of a kubelet, while the plugin is killed as it changes something (G1-G3)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from launcherkit_lab.devices import port
from launcherkit_lab.driver.build import CannotBuild, build
from launcherkit_lab.machine import Machine
from launcherkit_lab.packages import CannotFetch, cache_folder, fetch
from tests.kernel.inside import cannot_be_made
from tests.kernel.pod.run import binaries_of
from tests.support.imports import ROOT
from tests.tiers import CLUSTER
from tests.tiers import KILLS as KILLS_VARIABLE

pytestmark = pytest.mark.kernel

KILLS = int(os.environ.get(KILLS_VARIABLE, "20")) // 3
"""A third of what others do: beside CI's other tests 20 took twelve minutes."""

_SECONDS = 2400


def test_kills_lose_no_pods_vgpu_and_leave_none_behind(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    program, cache = CLUSTER.program(), cache_folder(os.environ)
    seed = int(os.environ.get("LAUNCHERKIT_TEST_SEED", "1"))
    try:
        build(fetch(cache).headers, cache)  # in the machine it takes ten times as long
        machine = Machine(cache, ROOT, memory_mib=3072, devices=[*port(1, {0: "edu"}), *port(2, {0: "edu"})])
        places = [str(program.resolve()), str(binaries_of(program))] if program else []  # else the tests' own double
        command = [sys.executable, "-m", "tests.kernel.pod.vgpu_inside", str(KILLS), str(seed), *places]
        outcome = machine.run(command, tmp_path, _SECONDS, print, {"PYTHONPATH": "plugin"})
    except (CannotFetch, CannotBuild) as error:
        cannot_be_made(request.config, error)
    assert outcome.code == 0, outcome.end()
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["kills"] >= KILLS
    assert min(seen["starts"], seen["pods"]) > KILLS / 10
    assert seen["removed"] > 0
