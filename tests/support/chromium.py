"""A headless Chromium, by the DevTools protocol over its pipe: JSON with a NUL behind each message."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

from tests.tiers import find_program

PATIENCE = 60.0
"""Seconds: the machine may have much to do."""


class Left(Exception):
    """The page went to another address while it was asked."""


class Browser:
    """One page of a browser.

    Args:
        commands: where messages to the browser are written.
        answers: where its own are read.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._read = bytearray()
        self._number = 0
        self._session: str | None = None
        self._seen: deque[dict[str, Any]] = deque()
        self.requests: list[str] = []
        """The addresses of all that was asked for."""
        self.complaints: list[str] = []
        """What the browser has complained of: errors of scripts, what the policy of a page forbids."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{part}.enable")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """What a method answers.

        Raises:
            Left: the page goes elsewhere in that moment.
        """
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        ends = time.monotonic() + PATIENCE
        while True:
            said = self._next(ends)
            if said.get("id") == number:
                if said.get("error", {}).get("message") == "Inspected target navigated or closed":
                    raise Left
                assert "error" not in said, f"{method}: {said['error']}"
                return dict(said["result"])

    def _next(self, ends: float) -> dict[str, Any]:
        while b"\0" not in self._read:
            ready, _, _ = select([self._answers], [], [], max(0.0, ends - time.monotonic()))
            assert ready, "the browser says nothing"
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser has ended"
            self._read += more
        line, _, rest = bytes(self._read).partition(b"\0")
        self._read[:] = rest
        said: dict[str, Any] = json.loads(line)
        self._note(said.get("method", ""), said.get("params", {}))
        return said

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])
        self._seen.append({"event": event, **params})

    def open(self, url: str) -> None:
        """Go to an address, until it is there."""
        self._seen.clear()
        self.call("Page.navigate", url=url)
        ends = time.monotonic() + PATIENCE
        while not any(each["event"] == "Page.loadEventFired" for each in self._seen):
            self._next(ends)

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = PATIENCE) -> Any:
        """The value of an expression, once it is true, be it of the page that this one leads to."""
        ends = time.monotonic() + seconds

        def value() -> Any:
            try:
                return self.value(script)
            except Left:
                return None

        while not (found := value()):
            assert time.monotonic() < ends, f"never so: {script}; {self.value('document.body.innerText')}"
            time.sleep(0.02)
        return found

    def size(self, across: int, high: int = 900) -> None:
        """Of the window, in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=across, height=high, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """``dark`` or ``light``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str, code: str = "") -> None:
        """A key; ``code`` is what it types, if it does."""
        for kind in ("keyDown", "keyUp"):
            named: dict[str, object] = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS.get(key, 0)}
            if code and kind == "keyDown":
                named["text"] = code
            self.call("Input.dispatchKeyEvent", type=kind, **named)

    def picture(self, file: Path) -> None:
        """All of the page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        file.write_bytes(base64.b64decode(shot["data"]))


_KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    " ": 32,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with nothing in it.

    Args:
        profile: an empty folder for what it keeps.
    """
    program = find_program("chromium")
    assert program, "chromium is not installed"
    theirs, commands = os.pipe()
    answers, reported = os.pipe()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    # Nothing of it may look for the network: only what a page asks for counts.
    flags += ["--disable-component-update", "--disable-default-apps", "--remote-debugging-pipe"]

    def place() -> None:
        for there, number in ((os.dup(theirs), 3), (os.dup(reported), 4)):
            os.dup2(there, number)

    process = subprocess.Popen(
        [program, *flags, f"--user-data-dir={profile}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=place,  # noqa: PLW1509  # there are no threads here
        pass_fds=(3, 4),
    )
    os.close(theirs)
    os.close(reported)
    try:
        yield Browser(commands, answers)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)
