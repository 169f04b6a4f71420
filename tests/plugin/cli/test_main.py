"""The command ``launcherkit-plugin`` as a process; what it has in common with ``launcherkit`` is tested there."""

from __future__ import annotations

import subprocess
from pathlib import Path

from launcherkit_plugin import __version__
from tests.support import forked


def plugin(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run([forked.PLUGIN, *arguments], capture_output=True, text=True)


def test_the_package_is_the_command() -> None:
    done = plugin("--version")
    assert (done.returncode, done.stdout) == (0, f"launcherkit-plugin {__version__}\n")


def test_errors_are_reported_as_json_where_that_is_wanted(tmp_path: Path) -> None:
    done = plugin("--log-format", "json", "check-config", str(tmp_path / "no"))
    assert done.returncode == 65
    assert done.stderr.startswith('{"level": "error", "code": "LK131"')
