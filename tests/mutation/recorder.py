"""Which test calls which function. It imports little, for it runs in every process that tests start.

Each test's calls of functions in the folders ``MUTATION_FOLDERS`` are written to the file ``MUTATION_CALLS``, one JSON
list a line: the test, whether it was being set up, and the function's file and first line. The test is empty for what
modules of tests call when they are imported.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from types import FrameType

CALLS, FOLDERS = "MUTATION_CALLS", "MUTATION_FOLDERS"
CURRENT = "PYTEST_CURRENT_TEST"


class Recorder:
    """Writes each function once a test, or as often as processes call it for that."""

    def __init__(self, output: str, folders: tuple[str, ...]) -> None:
        self._output = output
        self._folders = folders
        self._seen: set[tuple[int, bool]] = set()
        self._test = ""
        self._setup = False

    def start(self) -> None:
        os.register_at_fork(after_in_child=self._seen.clear)
        threading.settrace(self._called)
        sys.settrace(self._called)

    def begin(self, test: str) -> None:
        """Count calls for another test, where there are several in a process."""
        self._test = test
        self._seen.clear()

    def set_up(self, begins: bool) -> None:
        self._setup = begins
        sys.settrace(self._called)  # a test may have taken it away

    def write(self, line: list[object]) -> None:
        file = os.open(self._output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, json.dumps(line).encode() + b"\n")
        os.close(file)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if (id(code), self._setup) in self._seen:
            return
        self._seen.add((id(code), self._setup))
        if code.co_filename.startswith(self._folders):
            test, setup = self._test, self._setup
            if not test:  # a process of its own, to which pytest has told the test and its phase: "file::test (setup)"
                test, _, phase = os.environ.get(CURRENT, "").rpartition(" ")
                setup = phase == "(setup)"
            self.write([test, setup, code.co_filename, code.co_firstlineno])


@functools.cache
def started() -> Recorder:
    """The recorder of this process, at work."""
    recorder = Recorder(os.environ[CALLS], tuple(os.environ[FOLDERS].split(os.pathsep)))
    recorder.start()
    return recorder
