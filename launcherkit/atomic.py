"""Writes files completely or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress

from launcherkit.errors import UnwritableFile

_REMEDY = "Check that the directory exists and is writable."


def write_atomically(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` through a temporary file beside it: a reader sees the old file or the new one.

    What can't be replaced, such as ``/dev/stdout`` or a pipe, is written to directly.

    Raises:
        UnwritableFile: names the file and the reason.
    """
    write_all_atomically({path: data}, mode)


def write_all_atomically(files: Mapping[str, bytes], mode: int = 0o644) -> None:
    """Write several files, each as `write_atomically` does. Files are replaced only after everything is written.

    Raises:
        UnwritableFile: names the file and the reason; no file has been replaced, unless it can't be renamed either.
    """
    written: dict[str, str] = {}
    """By the path of a temporary file, the path that it gets."""
    path = ""
    try:
        for path, data in files.items():
            if not is_special(path):
                _check_name(path)
                written[_temporary(os.path.realpath(path), data, mode)] = path
        for path, data in files.items():
            if is_special(path):
                with open(path, "wb") as file:
                    file.write(data)
        for beside in tuple(written):
            path = written[beside]
            os.rename(beside, os.path.realpath(path))
            del written[beside]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnwritableFile(f"{path}: {reason}", _REMEDY, file=path) from None
    finally:
        for beside in written:
            with suppress(OSError):
                os.unlink(beside)


def _check_name(path: str) -> None:
    """Raise the OSError that renaming a file to ``path`` would raise."""
    with suppress(FileNotFoundError):
        os.lstat(path)  # the name may be too long
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def is_special(path: str) -> bool:
    """Whether it exists and can't be replaced: a pipe, a device, a socket."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _temporary(path: str, data: bytes, mode: int) -> str:
    """The path of a temporary file beside ``path``, with the data."""
    import tempfile  # importing it takes 3 ms, which a daemon that writes nothing can save

    handle, beside = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:100]}.", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(handle, mode)
            file.flush()
            os.fsync(handle)
    except BaseException:
        os.unlink(beside)
        raise
    return beside
