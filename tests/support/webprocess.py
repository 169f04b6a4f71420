"""A running `launcherkit-plugin web`."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.forked import PLUGIN
from tests.support.hooks import PATIENCE, ROOT, ServerProcess

HERE = "127.0.0.1:0"


class WebProcess(ServerProcess):
    """The process that serves a daemon's metrics and page; ended with the block.

    Args:
        path: of the daemon's socket.
        address: where it listens.
        arguments: further ones.
        python: runs it, instead of a fork.
    """

    def __init__(self, path: Path | str, *arguments: str | Path, address: str = HERE, python: str = "") -> None:
        env = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugin'}", "PATH": os.defpath}
        command = [python, "-m", "launcherkit_plugin"] if python else [PLUGIN]
        given = ["--web-socket", str(path), "--metrics-address", address, *map(str, arguments)]
        super().__init__([*command, "web", *given], env)

    @property
    def where(self) -> str:
        """``HOST:PORT``, once it listens."""
        return self.wait_for("metrics are served on").split()[-1].replace("[::]", "127.0.0.1")

    def get(self, path: str = "/", **headers: str) -> http.client.HTTPResponse:
        """An answer."""
        connection = http.client.HTTPConnection(self.where, timeout=PATIENCE)
        connection.request("GET", path, headers=headers)
        return connection.getresponse()

    def text(self, path: str = "/") -> str:
        """What is served there."""
        with closing(self.get(path)) as answer:
            text = answer.read().decode()
            assert answer.status == 200, text
            return text

    @contextmanager
    def events(self) -> Iterator[Iterator[str]]:
        """The versions that the stream tells of."""
        with closing(self.get("/events")) as answer:
            assert answer.getheader("Content-Type") == "text/event-stream"
            yield (line[6:].decode().strip() for line in iter(answer.readline, b"") if line.startswith(b"data: "))
