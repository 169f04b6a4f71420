"""A cluster for the tests: an API server with all that belongs to it, started by the program that the tier names."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import CLUSTER

_START_SECONDS = 300
_CALL_SECONDS = 120


class Refused(Exception):
    """kubectl failed; the text is what it said."""


class Cluster:
    """kubectl on a cluster that runs."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """Run kubectl as the cluster's admin and return what it printed.

        Raises:
            Refused: with what it said.
        """
        done = self._run(_CALL_SECONDS, "kubectl", *arguments, given=given)
        if done.returncode:
            raise Refused(done.stderr.strip())
        return done.stdout

    def taken(self, document: dict[str, Any]) -> dict[str, Any]:
        """What the API server would store of a document; nothing is stored.

        Raises:
            Refused: it would not store it.
        """
        answer = self.kubectl("create", "--dry-run=server", "--output=json", "-f", "-", given=json.dumps(document))
        stored: dict[str, Any] = json.loads(answer)
        return stored

    def is_up(self) -> bool:
        return self._run(_CALL_SECONDS, "status").returncode == 0

    def up(self) -> None:
        done = self._run(_START_SECONDS, "up", "cluster")
        assert done.returncode == 0, f"the cluster does not start:\n{done.stdout}{done.stderr}"

    def down(self) -> None:
        self._run(_START_SECONDS, "down")

    def _run(self, seconds: int, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(self._program), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=seconds)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster: the one that runs already, which is left as it is; else one that ends with the tests."""
    program = CLUSTER.program()
    assert program, "tests of this tier are skipped where there is no cluster"
    it = Cluster(program)
    if it.is_up():
        yield it
        return
    try:
        it.up()
        yield it
    finally:
        it.down()
