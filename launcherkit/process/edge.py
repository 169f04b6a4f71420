"""The process edge: errors become messages and exit codes, and results are written completely or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest

from launcherkit.errors import BAD_SETTING, EX_CONFIG, EX_SOFTWARE, UNWRITABLE_FILE, LauncherkitError, one_line
from launcherkit.model.plan import Note

LOG_FORMAT = "LAUNCHERKIT_LOG_FORMAT"
LOG_FORMATS = ("text", "json")


def guarded(run: Callable[[], int], env: Mapping[str, str]) -> int:
    """Run a command and turn what it raises into messages on stderr and an exit code; never a traceback."""
    try:
        _check_log_format(env)
        return run()
    except LauncherkitError as error:
        print_errors([*error.leaves()], env)
        return error.exit_code
    except BrokenPipeError:
        # The reader has gone, as `| head` does; there is nothing to report, and nothing more to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EX_PIPE
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "lxml":
            return _report_bug(missing, env)
        print_message("error", "the Python module lxml is not installed", env)
        text = "Install launcherkit with what it depends on. The device plugin's image has only what the plugin needs."
        print_message("help", text, env)
        return EX_CONFIG
    except Exception as bug:
        return _report_bug(bug, env)
    finally:
        _discard_unwritable_stderr()


def _report_bug(bug: Exception, env: Mapping[str, str]) -> int:
    if env.get("LAUNCHERKIT_DEBUG"):
        raise bug
    print_message("error", f"internal error: {type(bug).__name__}: {bug}", env)
    print_message("help", "This is a bug in launcherkit. Set LAUNCHERKIT_DEBUG=1 for a traceback and report it.", env)
    return EX_SOFTWARE


def _discard_unwritable_stderr() -> None:
    """Without this, output that can't be written to stderr would change the exit code."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except ValueError:
        pass
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


EX_PIPE = 141
"""The status that a shell reports for a process killed by SIGPIPE."""


def _check_log_format(env: Mapping[str, str]) -> None:
    chosen = env.get(LOG_FORMAT) or LOG_FORMATS[0]
    if chosen not in LOG_FORMATS:
        raise BAD_SETTING(
            f"{LOG_FORMAT}={chosen!r} is none of {', '.join(LOG_FORMATS)}",
            f"Set {LOG_FORMAT} to one of them.",
            variable=LOG_FORMAT,
        )


def print_notes(notes: Iterable[Note], env: Mapping[str, str]) -> None:
    """Write notes to stderr, where KubeVirt's shim logs them line by line."""
    for note in notes:
        print_message("note", note.text, env, topic=note.topic)


def print_message(level: str, text: str, env: Mapping[str, str], **more: str | int) -> None:
    """Write one line to stderr, as text or as JSON (``LAUNCHERKIT_LOG_FORMAT=json``); only JSON has ``more``.

    Only ``help`` may have more lines: commands to be copied, one on each line.
    """
    if env.get(LOG_FORMAT) == "json":
        _line({"level": level, **more, "message": text})
    else:
        lines = text.split("\n") if level == "help" else [text]
        _print(f"{level}: " + "\n      ".join(map(one_line, lines)))


def print_errors(errors: Sequence[LauncherkitError], env: Mapping[str, str], *, about: str = "") -> None:
    """Errors, each with its help; what errors of one kind share is printed once.

    Args:
        errors: none of them a `SeveralErrors`.
        env: says whether as text or as JSON.
        about: precedes each message, in a log about several VMs; empty: nothing does.
    """
    prefix = f"{about}: " if about else ""
    for error, following in zip_longest(errors, errors[1:]):
        if env.get(LOG_FORMAT) == "json":
            facts = {"code": error.code, "message": prefix + error.message, "help": error.remedy, **error.facts}
            _line({"level": "error", **facts})
            continue
        _print(f"{_marked(f'error[{error.code}]', env)}: {one_line(prefix + error.message)}")
        if following is None or following.remedy != error.remedy:  # consecutive errors with one remedy share its help
            print_message("help", error.remedy, env)
        if following is None or following.code != error.code:
            print_message("help", f"`launcherkit explain {error.code}` says more.", env)


def _marked(text: str, env: Mapping[str, str]) -> str:
    """Red on a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return text
    from launcherkit.colour import colours_for  # a hook has no terminal

    return colours_for(True, env).bad(text)


def _line(entry: Mapping[str, object]) -> None:
    import json

    _print(json.dumps(entry))


def _print(text: str) -> None:
    """To stderr; if that is closed, nowhere, because stdout is only for the result."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def stdout_is_terminal() -> bool:
    """Whether standard output is a terminal; it may be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def write_stdout(data: bytes) -> None:
    """Write the whole result to standard output.

    Raises:
        BrokenPipeError: the reader has gone.
        UnwritableFile: it could not be written completely.
    """
    if sys.stdout is None:
        raise UNWRITABLE_FILE(
            "standard output is closed", "Give the program one, or a file with --output.", file="standard output"
        )
    try:
        sys.stdout.flush()
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as problem:
        raise UNWRITABLE_FILE(
            f"standard output can't be written: {getattr(problem, 'strerror', None) or problem}",
            "Make room, or give a file that can be written.",
            file="standard output",
        ) from problem
