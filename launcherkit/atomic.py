"""Writes a file whole or not at all."""

from __future__ import annotations

import os
import tempfile

from launcherkit.errors import UnwritableFile


def write_atomically(path: str, data: bytes, mode: int = 0o644) -> None:
    """Put ``data`` at ``path`` by way of a file beside it, so that a reader sees the old file or the new one.

    What can't be replaced, such as ``/dev/stdout`` or a pipe, is written to as it is.

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
        raise UnwritableFile(f"{path}: {reason}", "Check that the directory is there and may be written to.") from None


def _replace(path: str, data: bytes, mode: int) -> None:
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
