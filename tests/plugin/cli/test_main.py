"""The command ``launcherkit-plugin`` as a process; what it has in common with ``launcherkit`` is tested there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("variable", "value", "command", "problem"),
    [
        ("AUTO", "amd", "serve", "LAUNCHERKIT_PLUGIN_AUTO='amd' is none of nvidia, gpu, all"),
        ("AUTO", "amd", "discover", "LAUNCHERKIT_PLUGIN_AUTO='amd' is none of nvidia, gpu, all"),
        ("PAGE", "on", "web --web-socket w.sock", "LAUNCHERKIT_PLUGIN_PAGE='on' is none of auto, token, off"),
        ("OUTPUT", "yaml", "status", "LAUNCHERKIT_PLUGIN_OUTPUT='yaml' is none of table, json"),
        ("OUTPUT", "xml", "discover", "LAUNCHERKIT_PLUGIN_OUTPUT='xml' is none of table, wide, json, yaml"),
        ("DRIVER", "nvidia", "bind 0000:e1:00.0", "LAUNCHERKIT_PLUGIN_DRIVER: 'nvidia' is not a VFIO driver"),
        ("STEP_TIMEOUT", "30s", "bind 0000:e1:00.0", "LAUNCHERKIT_PLUGIN_STEP_TIMEOUT: '30s' is not a number of"),
        ("HTTPS_PORT", "70000", "webhook", "LAUNCHERKIT_PLUGIN_HTTPS_PORT: '70000' is not a number from 0"),
    ],
)
def test_a_variable_with_an_invalid_value_is_an_error_that_names_it(
    variable: str, value: str, command: str, problem: str
) -> None:
    env = {**os.environ, f"LAUNCHERKIT_PLUGIN_{variable}": value}
    done = forked.run([forked.PLUGIN, *command.split()], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith(f"error[LK402]: {problem}")
    assert f"help: Set LAUNCHERKIT_PLUGIN_{variable} to " in done.stderr


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("vgpu create --parent #0 --type A --count 0", "--count: '0' is not a number from 1 to 512"),
        ("bind --step-timeout nan 0000:e1:00.0", "--step-timeout: 'nan' is not a number of seconds, more than 0"),
        ("webhook --https-port https", "--https-port: 'https' is not a number from 0 to 65535"),
    ],
)
def test_an_option_with_an_invalid_value_is_a_usage_error_that_says_what_is_valid(command: str, problem: str) -> None:
    done = plugin(*command.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: argument {problem}" in done.stderr
