"""Writes files completely or not at all, also if the power fails: the only place of the project that does (T5)."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress

from launcherkit.errors import UNWRITABLE_FILE, UnwritableFile

_REMEDY = "Check that the directory exists and is writable."


def write_atomically(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` through a temporary file beside it: a reader sees the old file or the new one.

    For files that a user names: a link is followed, and what can't be replaced, such as ``/dev/stdout`` or a pipe, is
    written to directly.

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
        for folder in dict.fromkeys(os.path.dirname(os.path.realpath(path)) for path in files if not is_special(path)):
            path = folder
            _sync_folder(folder)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    finally:
        for beside in written:
            with suppress(OSError):
                os.unlink(beside)


class Disk:
    """Replaces and removes files that the next process must find, even after a power cut: the program's own state.

    Whatever has a file's name is replaced, and never written to: a link, a FIFO, an empty folder. When a call returns,
    its change is on the disk. Tests derive classes that fail.
    """

    def replace(self, path: str, data: bytes, mode: int = 0o644, folder_mode: int = 0o755) -> None:
        """Write a file, and create the folders in which it is.

        Raises:
            UnwritableFile: names the file and the reason; a reader sees the old file or the new one.
        """
        beside = self.prepare(path, data, mode, folder_mode)
        try:
            try:
                os.rename(beside, path)
            except IsADirectoryError:
                os.rmdir(path)
                os.rename(beside, path)
            beside = ""
            _sync_folder(os.path.dirname(path))
        except OSError as error:
            raise _unwritable(path, error) from error
        finally:
            if beside:
                with suppress(OSError):
                    os.unlink(beside)

    def prepare(self, path: str, data: bytes, mode: int = 0o644, folder_mode: int = 0o755) -> str:
        """Write what is to be a file to one beside it, and return its path: the caller renames or removes it.

        Raises:
            UnwritableFile: names the file and the reason.
        """
        try:
            make_folders(os.path.dirname(path), folder_mode)
            return _temporary(path, data, mode)
        except OSError as error:
            raise _unwritable(path, error) from error

    def remove(self, path: str) -> None:
        """Remove a file, or an empty folder, if there is one.

        Raises:
            UnwritableFile: names the file and the reason.
        """
        try:
            try:
                os.unlink(path)
            except IsADirectoryError:
                os.rmdir(path)
            except FileNotFoundError:
                pass  # maybe removed by a call that failed to sync
            _sync_folder(os.path.dirname(path))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise _unwritable(path, error) from error


def make_folders(path: str, mode: int = 0o755) -> None:
    """Create a folder and those above it, if they are missing, so that a power cut doesn't take them away again.

    Raises:
        OSError: one can't be created.
    """
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process has just created it; or it is a file, and what follows fails
            os.mkdir(folder, mode)
        _sync_folder(os.path.dirname(folder))


def _sync_folder(path: str) -> None:
    """Have the names in a folder on the disk. Without it, a power cut may undo what was created, renamed or removed.

    Raises:
        OSError: the disk failed.
    """
    try:
        folder = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # who may write to a folder but not read it can't sync it either
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems sync no folders
            raise
    finally:
        os.close(folder)


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
    """The path of a temporary file beside ``path``, with the data, on the disk."""
    import tempfile  # importing it takes 3 ms, which a daemon that writes nothing can save

    handle, beside = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:100]}.", dir=os.path.dirname(path) or ".")
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
            os.fchmod(handle, mode)
            os.fsync(handle)
        finally:
            os.close(handle)
    except BaseException:
        os.unlink(beside)
        raise
    return beside


def _unwritable(path: str, error: Exception) -> UnwritableFile:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UNWRITABLE_FILE(f"{path}: {reason}", _REMEDY, file=path)
