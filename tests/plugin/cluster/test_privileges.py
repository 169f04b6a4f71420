"""The process that talks to the cluster has no privilege that it could lose to whom it talks to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit_plugin.cluster.privileges import readable_by_all

PROGRAM = """
from launcherkit_plugin.cluster.privileges import drop_privileges
drop_privileges()
print(open("/proc/self/status").read())
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give up")


def status(*wrapper: str) -> dict[str, str]:
    """What /proc says of a process that has given up what it can."""
    done = subprocess.run([*wrapper, sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name: value.strip() for name, _, value in (line.partition(":") for line in done.stdout.splitlines())}


def test_nothing_can_be_got_back_by_a_program_that_is_run() -> None:
    found = status()
    assert found["NoNewPrivs"] == "1"
    assert {int(found[f"Cap{which}"], 16) for which in ("Eff", "Prm", "Inh")} == {0}


@as_root
def test_root_becomes_nobody_with_no_group_of_its_own() -> None:
    found = status()
    assert found["Uid"].split() == ["65534"] * 4
    assert found["Gid"].split() == ["65534"] * 4
    assert found["Groups"] == ""


@as_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is what makes such a root")
def test_root_that_may_not_change_users_loses_the_capabilities_that_it_has() -> None:
    caps = "-all,+dac_read_search,+sys_ptrace"
    found = status("setpriv", f"--bounding-set={caps}", f"--inh-caps={caps}")
    assert found["Uid"].split() == ["0"] * 4
    assert {int(found[f"Cap{which}"], 16) for which in ("Eff", "Prm", "Inh")} == {0}


def test_a_token_that_is_its_owners_alone_is_told_from_one_for_all(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    token.chmod(0o600)
    assert not readable_by_all(str(token))
    token.chmod(0o644)
    assert readable_by_all(str(token))
    assert not readable_by_all(str(tmp_path / "none"))
