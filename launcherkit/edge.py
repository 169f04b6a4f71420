"""The process edge: where errors become messages and exit codes, and results go out whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from launcherkit.errors import EX_SOFTWARE, LauncherkitError, UnwritableFile
from launcherkit.model.note import Note

LOG_FORMAT = "LAUNCHERKIT_LOG_FORMAT"


def guarded(run: Callable[[], int], env: Mapping[str, str]) -> int:
    """Run a command and turn what it raises into messages on stderr and an exit code; never a traceback."""
    try:
        return run()
    except LauncherkitError as error:
        for leaf in error.leaves():
            _report(leaf, env)
        return error.exit_code
    except BrokenPipeError:
        # The reader has gone, as `| head` does; nothing to tell, and nothing more to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EX_SOFTWARE
    except KeyboardInterrupt:
        return 130
    except Exception as bug:
        if env.get("LAUNCHERKIT_DEBUG"):
            raise
        tell("error", f"internal error: {type(bug).__name__}: {bug}", env)
        tell("help", "This is a bug in launcherkit. Set LAUNCHERKIT_DEBUG=1 for a traceback and report it.", env)
        return EX_SOFTWARE


def tell_notes(notes: Iterable[Note], env: Mapping[str, str]) -> None:
    """Notes go to stderr, where KubeVirt's shim logs them line by line."""
    for note in notes:
        tell("note", note.text, env)


def tell(level: str, text: str, env: Mapping[str, str]) -> None:
    """One line on stderr, as text or as JSON (``LAUNCHERKIT_LOG_FORMAT=json``)."""
    if env.get(LOG_FORMAT) == "json":
        _line({"level": level, "message": text})
    else:
        _print(f"{level}: {_one_line(text)}")


def _report(error: LauncherkitError, env: Mapping[str, str]) -> None:
    if env.get(LOG_FORMAT) == "json":
        _line({"level": "error", "code": error.code, "message": error.message, "help": error.remedy})
    else:
        _print(f"error[{error.code}]: {_one_line(error.message)}\nhelp: {_one_line(error.remedy)}")


def _one_line(text: str) -> str:
    """A message on one line, with nothing in it that a terminal would act upon: parts of it are other people's text."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)


def _line(entry: Mapping[str, str]) -> None:
    import json

    _print(json.dumps(entry))


def _print(text: str) -> None:
    """To stderr; where that is closed, nowhere: stdout is for the result alone."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def write_stdout(data: bytes) -> None:
    """Write the result to standard output, all of it.

    Raises:
        BrokenPipeError: the reader has gone.
        UnwritableFile: it could not be written to the end.
    """
    if sys.stdout is None:
        raise UnwritableFile("standard output is closed", "Give one, or name a file with --output.")
    try:
        sys.stdout.flush()
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as problem:
        raise UnwritableFile(
            f"standard output can't be written: {problem}", "Make room, or give a file that can be written."
        ) from problem
