"""The device plugin as its user starts it: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import confined
from tests.support.waiting import PATIENCE


class Plugin:
    """A plugin that can be started, ended and killed, over and over."""

    def __init__(
        self,
        configuration: Mapping[str, Any],
        folder: Path,
        *options: str,
        module: str = "launcherkit_plugin",
        seccomp: bool = False,
    ) -> None:
        """``folder`` is where its files go, none to this machine's places; ``options`` are those of every start;
        ``module`` is the program; ``seccomp``: it is confined by the profile that is shipped."""
        self._module = module
        self._seccomp = seccomp
        self._config = folder / "plugin.yaml"
        self._config.write_text(json.dumps(configuration))  # which is YAML too
        features = folder / "features"  # apart from the configuration: what is written there wakes the daemon
        features.mkdir(exist_ok=True)
        self._options = [
            *options,
            "--ledger",
            str(folder / "ledger"),
            "--state",
            str(folder / "state"),
            "--features-dir",
            str(features),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str, env: Mapping[str, str] = {}) -> None:
        """Start it, with ``more`` options and variables. What it logs is shown where a test fails."""
        assert self._process is None
        command = [sys.executable, "-m", self._module, "serve", "--config", str(self._config)]
        command += [*self._options, *more]
        if self._seccomp:
            command = confined.command(command)
        self._process = subprocess.Popen(command, env={**os.environ, **env})

    def kill(self) -> None:
        """At once, whatever it is doing."""
        assert self._take(signal.SIGKILL) == -signal.SIGKILL

    def end(self) -> int:
        """In good order; gives the exit code."""
        return self._take(signal.SIGTERM)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _take(self, number: signal.Signals) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(number)
        return process.wait(PATIENCE)
