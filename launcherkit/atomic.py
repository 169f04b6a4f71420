"""Writes a file completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping

from launcherkit.errors import UnwritableFile


def write_all_atomically(files: Mapping[str, bytes]) -> None:
    """Write several files, none of them if one can't be.

    Raises:
        UnwritableFile: names the file and the reason; nothing has been replaced.
    """
    for path in files:
        directory = os.path.dirname(os.path.realpath(path))
        if not os.path.isdir(directory) or os.path.isdir(path) or not os.access(directory, os.W_OK):
            raise UnwritableFile(f"{path}: {_reason(path)}", _REMEDY, file=path)
    for path, data in files.items():
        write_atomically(path, data)


_REMEDY = "Check that the directory is there and may be written to."


def _reason(path: str) -> str:
    if os.path.isdir(path):
        return "Is a directory"
    return (
        "Permission denied" if os.path.isdir(os.path.dirname(os.path.realpath(path))) else "No such file or directory"
    )


def write_atomically(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` through a temporary file beside it: a reader sees the old file or the new one.

    What can't be replaced, such as ``/dev/stdout`` or a pipe, is written to directly.

    Raises:
        UnwritableFile: names the file and the reason.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            with open(path, "wb") as file:
                file.write(data)
        else:
            _replace(os.path.realpath(path), data, mode)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnwritableFile(f"{path}: {reason}", _REMEDY, file=path) from None


def _replace(path: str, data: bytes, mode: int) -> None:
    import tempfile  # with its own imports 3 ms, which a daemon that writes nothing doesn't need

    handle, beside = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:100]}.", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(handle, mode)
            file.flush()
            os.fsync(handle)
        os.rename(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
