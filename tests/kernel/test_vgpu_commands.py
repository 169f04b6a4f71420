"""``launcherkit-plugin vgpu`` on a real mdev driver: what people do, and what is refused while a guest has it (G5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcherkit_lab import sysfs
from launcherkit_lab.driver.build import build
from launcherkit_lab.driver.vgpus import LARGE, LARGE_NAME, SMALL, SMALL_NAME, Parent, vgpus
from launcherkit_lab.packages import cache_folder, fetch
from tests.kernel.guests import Guests
from tests.support.imports import ROOT

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def all_parents() -> Iterator[list[Parent]]:
    cache = cache_folder(os.environ)
    with vgpus(build(fetch(cache).headers, cache)) as found:
        yield found


@pytest.fixture
def parent(all_parents: list[Parent]) -> Iterator[Parent]:
    yield all_parents[0]
    for each in all_parents:
        each.clear()


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    return tmp_path / "layout.yaml"


def vgpu(*words: str, code: int = 0) -> str:
    """What the command prints: standard output, or where it fails the error."""
    command = [sys.executable, "-m", "launcherkit_plugin", "vgpu", *words, "--kubelet-dir", "/nowhere"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "plugin")}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stderr if code > 1 else done.stdout


def listed(parent: Parent) -> dict[str, Any]:
    cards: list[dict[str, Any]] = json.loads(vgpu("list", "--output", "json"))["cards"]
    return next(card for card in cards if card["name"] == parent.address)


def test_a_layout_is_brought_about_asserted_and_changed(parent: Parent, layout: Path) -> None:
    layout.write_text(json.dumps({"layout": [{"parent": parent.address, "type": SMALL_NAME, "count": 3}]}))
    assert vgpu("assert", str(layout), code=1) == f"{parent.address}: {SMALL_NAME}: 3 wanted, 0 there\n"
    assert vgpu("apply", str(layout)).count("create") == 3
    assert (parent.available(SMALL), parent.available(LARGE)) == (1, 0)
    assert vgpu("assert", str(layout)) == ""
    made = parent.made()
    layout.write_text(json.dumps({"layout": [{"parent": parent.address, "type": LARGE}]}))
    assert vgpu("apply", str(layout), "--dry-run").count("remove") == 3
    assert parent.made() == made
    assert vgpu("apply", str(layout)).count("create") == 2
    assert (parent.available(SMALL), parent.available(LARGE)) == (0, 0)
    assert vgpu("assert", str(layout)) == ""


def test_no_more_are_made_than_there_is_room_for(parent: Parent) -> None:
    reported = vgpu("create", "--parent", parent.address, "--type", LARGE_NAME, "--count", "3", code=65)
    assert f"error[LK732]: {parent.address} has room for 2 of type {LARGE_NAME}, not for 3" in reported
    assert len(parent.made()) == 2


def test_one_that_a_guest_has_is_not_removed_until_it_lets_go(guests: Guests, parent: Parent, layout: Path) -> None:
    uuid = vgpu("create", "--parent", parent.address, "--type", SMALL_NAME).split()[-1]
    guests.start({"MDEV_PCI_RESOURCE_X": uuid}, does="wait")
    sysfs.until(lambda: "guest: waiting" in guests.serial("vm").read_text(), "the guest up")
    (there,) = listed(parent)["vgpus"]
    assert (there["device"], there["madeFor"], there["usersKnown"]) == (uuid, "layout", True)
    assert any("qemu" in user for user in there["users"])
    assert "error[LK734]" in vgpu("remove", uuid, code=65)
    layout.write_text(json.dumps({"layout": [{"parent": parent.address, "type": LARGE_NAME, "count": 1}]}))
    assert "error[LK734]" in vgpu("apply", str(layout), code=65)
    assert parent.made() == {uuid}
    guests.clear()
    vgpu("remove", uuid)
    assert parent.made() == set()
