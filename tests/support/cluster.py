"""A cluster for the tests: a kubelet and an API server with all that belongs to it, by the program that the tier names.

One a machine: it is started once in a session of tests, whichever tier asks first. The tier `api` has its own, which
ends with the last test of that tier.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import API, CLUSTER, Tier

_START_SECONDS = 300
_CALL_SECONDS = 120


class Refused(Exception):
    """kubectl failed; the text is what it said."""


class Cluster:
    """kubectl on a cluster that runs, and its kubelet.

    Args:
        program: starts and ends it.
        what: of it, such as ``cluster``; the word after ``up``.
    """

    def __init__(self, program: Path, what: str) -> None:
        self._program = program
        self._what = what

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """Run kubectl as the cluster's admin and return what it printed.

        Raises:
            Refused: with what it said.
        """
        done = self._run(_CALL_SECONDS, "kubectl", *arguments, given=given)
        if done.returncode:
            raise Refused(done.stderr.strip())
        return done.stdout

    def get(self, *what: str) -> dict[str, Any]:
        """An object, or a list of them, as kubectl gets it.

        Raises:
            Refused: there is none.
        """
        found: dict[str, Any] = json.loads(self.kubectl("get", "--output=json", *what))
        return found

    def events(self, name: str) -> list[str]:
        """What was said of an object: reasons and messages."""
        found = self.get("events", "--all-namespaces", "--field-selector", f"involvedObject.name={name}")
        return [f"{event['reason']}: {event['message']}" for event in found["items"]]

    def taken(self, document: dict[str, Any]) -> dict[str, Any]:
        """What the API server would store of a document; nothing is stored.

        Raises:
            Refused: it would not store it.
        """
        answer = self.kubectl("create", "--dry-run=server", "--output=json", "-f", "-", given=json.dumps(document))
        stored: dict[str, Any] = json.loads(answer)
        return stored

    def all_taken(self, documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same of several, in one call.

        Raises:
            Refused: it would not store one of them.
        """
        given = "\n---\n".join(map(json.dumps, documents))
        answer = self.kubectl("create", "--dry-run=server", "--output=json", "-f", "-", given=given)
        decoder, at, stored = json.JSONDecoder(), 0, []
        while at < len(answer):  # one after the other, each with a line's end
            document, end = decoder.raw_decode(answer, at)
            stored.append(document)
            at = end + 1
        return stored

    def environment(self) -> dict[str, str]:
        """What the program says of itself: ``KUBECONFIG``, ``CLUSTER_KUBELET_DIR`` and more."""
        lines = self._done(_CALL_SECONDS, "env").splitlines()
        return dict(word.split("=", 1) for line in lines for word in shlex.split(line))

    @contextmanager
    def served_to(self, *as_whom: str) -> Iterator[str]:
        """The API at an address of this machine, where whoever asks is the one that kubectl's arguments say."""
        command = [str(self._program), "kubectl", "proxy", "--port=0", *as_whom]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as proxy:
            try:
                assert proxy.stdout is not None
                yield f"http://{proxy.stdout.readline().split()[-1]}"
            finally:
                os.killpg(proxy.pid, signal.SIGTERM)

    def restart_kubelet(self) -> None:
        """End the kubelet and start it again; containers live on."""
        self._done(_START_SECONDS, "restart-kubelet")

    def load_image(self, archive: Path) -> None:
        """Give the kubelet's runtime the images of an archive."""
        self._done(_START_SECONDS, "load-image", str(archive))

    def is_up(self) -> bool:
        return self._run(_CALL_SECONDS, "status").returncode == 0

    def up(self) -> None:
        self._done(_START_SECONDS, "up", self._what)

    def down(self) -> None:
        self._run(_START_SECONDS, "down")

    def _done(self, seconds: int, *arguments: str) -> str:
        done = self._run(seconds, *arguments)
        assert done.returncode == 0, f"{self._program} {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def _run(self, seconds: int, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(self._program), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=seconds)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster: the one that runs already, which is left as it is; else one that ends with the tests."""
    yield from _running(CLUSTER)


@pytest.fixture(scope="module")
def api() -> Iterator[Cluster]:
    """The API of a new Kubernetes, in the same way; it starts in seconds, and makes way for another tier's cluster."""
    yield from _running(API)


def _running(tier: Tier) -> Iterator[Cluster]:
    program = tier.program()
    assert program, "tests of this tier are skipped where there is no cluster"
    it = Cluster(program, tier.name)
    was_up = it.is_up()
    try:
        it.up()
        yield it
    finally:
        if not was_up:
            it.down()
