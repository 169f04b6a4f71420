"""pytest as a process of its own without its start: a fork of the one that runs the tests, which has imported it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest


def run_pytest(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of ``python -m pytest`` with these arguments; all that it prints is taken."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            pid = os.fork()  # beside threads of other tests, which Python warns of
        if pid == 0:
            _become_pytest(arguments, cwd, os.environ if env is None else env, [out.fileno(), err.fileno()])
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["pytest", *arguments], code, out.read(), err.read())


def _become_pytest(arguments: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Sequence[int]) -> NoReturn:
    code = 1
    try:
        gc.freeze()  # pytest looks for garbage in the end: only in what is its own
        warnings.resetwarnings()  # what is an error to our tests is none to others
        variables = dict(env)
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(cwd)
        sys.path.insert(0, str(cwd))
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        code = pytest.main([*arguments])
        sys.stdout.flush()
    except BaseException:  # none goes on with the tests that this is a fork of
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
