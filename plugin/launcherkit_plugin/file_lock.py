"""The lock of a file or folder, by which the processes of a node wait for each other (flock(2))."""

from __future__ import annotations

import fcntl
import os
import time

_PAUSE = 0.02


class FileLock:
    """An exclusive lock of a file, which is created, or of a folder.

    The file is opened at once. A process that inherits its descriptor has the lock too, until it has ended.

    Args:
        path: of the file or folder. A symbolic link isn't followed.
        folder: it is a folder, which must exist.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self, path: str, *, folder: bool = False) -> None:
        kind = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT
        self.file = os.open(path, kind | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def try_lock(self) -> bool:
        """Lock it unless another process has it; returns whether this one has it now."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self, seconds: float | None = None) -> bool:
        """Wait for the lock; blocks. Returns whether this process has it after ``seconds``; None: however long."""
        if seconds is None:
            fcntl.flock(self.file, fcntl.LOCK_EX)
            return True
        deadline = time.monotonic() + seconds
        while not self.try_lock():
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
        return True

    def unlock(self) -> None:
        """Release the lock; the file stays open."""
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file, which releases the lock unless another process has inherited it."""
        os.close(self.file)
