"""The other end of the daemon's cluster socket, for an `Api`: what the container `cluster` would do, in a thread."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.dra.api import Api, Refused
from tests.support.waiting import PATIENCE

AGAIN_SECONDS = 0.05


class Cluster:
    """Connects to the daemon whenever it listens; a context manager.

    Args:
        path: of the daemon's socket.
        api: what it reads and writes.
    """

    def __init__(self, path: Path, api: Api) -> None:
        self._path = path
        self._api = api
        self._ending = threading.Event()
        self._change = threading.Condition()
        self._wanted: dict[str, list[dict[str, Any]]] = {}
        self._written: dict[str, list[dict[str, Any]]] = {}
        self._generation = 0
        self.away = False
        """Whether the API server can't be reached; see `set_away`."""
        self.silent = False
        """Whether it answers nothing that it is asked."""
        self.complaints: list[str] = []
        """What the API server has refused, and lines that are none."""
        self.events: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        """Every claim that was asked for."""
        self._thread = threading.Thread(target=self._run)
        api.watch(self._wiped)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(PATIENCE)

    def set_away(self, away: bool) -> None:
        """Let the API server go, or come back; what couldn't be written then is."""
        with self._change:
            self.away = away
            self._change.notify_all()
        if not away:
            self._write()

    def event(self, text: str) -> dict[str, Any]:
        """An Event whose message has a text, once it has come."""

        def found() -> dict[str, Any] | None:
            return next((event for event in self.events if text in event["message"]), None)

        with self._change:
            assert self._change.wait_for(found, PATIENCE), f"never an Event with {text!r}, but {self.events}"
        event = found()
        assert event is not None
        return event

    def _run(self) -> None:
        while not self._ending.is_set():
            with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
                connection.connect(str(self._path))
                connection.sendall(_line("hello", {"version": 1}))
                self._attend(connection)
            self._ending.wait(AGAIN_SECONDS)

    def _attend(self, connection: socket.socket) -> None:
        connection.settimeout(AGAIN_SECONDS)
        rest = b""
        while not self._ending.is_set():
            try:
                data = connection.recv(1 << 20)
            except TimeoutError:
                continue
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                ((name, value),) = json.loads(line).items()
                self._take(connection, name, value)

    def _take(self, connection: socket.socket, name: str, value: Any) -> None:
        match name:
            case "slices":
                with self._change:
                    self._wanted[value["driver"]] = value["slices"]
                self._write()
            case "get-claim" if not self.silent:
                self.asked.append(value)
                connection.sendall(_line("claim", {"id": value["id"], **self._claim(value)}))
            case "claim-status" if not self.away:
                try:
                    self._api.set_device_status(value)
                except Refused as refusal:
                    if "not found" not in str(refusal):
                        self.complaints.append(str(refusal))
                self._api.touch()
            case "event":
                with self._change:
                    self.events.append(value)
                    self._change.notify_all()
            case "want":
                connection.sendall(_line("kubevirt", None) + _line("labels", {}))

    def _claim(self, value: dict[str, Any]) -> dict[str, Any]:
        if self.away:
            return {"error": "the API server can't be reached"}
        try:
            claim = self._api.claim(value["namespace"], value["name"])
        except Refused as refusal:
            return {"error": str(refusal)}
        if claim["metadata"]["uid"] != value["uid"]:
            return {"error": "it was deleted, and another one has its name"}
        return {"object": claim}

    def _wiped(self) -> None:
        with self._change:
            self._written = {}
        self._write()

    def _write(self) -> None:
        """Fill in what the daemon leaves out, and write what has changed."""
        with self._change:
            if self.away:
                return
            for driver, specs in self._wanted.items():
                if self._written.get(driver) == specs:
                    continue
                self._generation += 1
                pool = {"name": self._api.node, "generation": self._generation, "resourceSliceCount": len(specs)}
                whole = [{"driver": driver, "nodeName": self._api.node, **spec, "pool": pool} for spec in specs]
                try:
                    self._api.replace_slices(driver, whole)
                except Refused as refusal:
                    self.complaints.append(f"{driver}: {refusal}")
                self._written[driver] = specs


def _line(name: str, value: object) -> bytes:
    return json.dumps({name: value}).encode() + b"\n"
