"""Which folders have changed (inotify), by the kernel's three calls: none of the libraries is smaller than that."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress

_IN_CLOSE_WRITE = 0x8
_IN_MOVED = 0xC0
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_ONLYDIR = 0x01000000
_IN_Q_OVERFLOW = 0x4000
_IN_IGNORED = 0x8000
_MASK = _IN_CLOSE_WRITE | _IN_MOVED | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ONLYDIR

_HEAD = struct.Struct("iIII")


class Inotify:
    """Watches folders. `fileno` is readable when there is something to `read`.

    Raises:
        OSError: the user has too many instances, or the kernel has no inotify.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._call(self._libc.inotify_init1, os.O_CLOEXEC | os.O_NONBLOCK)
        self._watched: dict[str, int] = {}

    def fileno(self) -> int:
        return self._fd

    def watch(self, folders: Iterable[str]) -> frozenset[str]:
        """Watch these folders and no others; gives those that are there and weren't watched before.

        A folder that isn't there is not an error: call again when it may be. One that was made again is new.
        """
        wanted = frozenset(folders)
        for folder in self._watched.keys() - wanted:
            self._forget(folder)
        return frozenset(folder for folder in wanted if self._add(folder))

    def read(self) -> frozenset[str]:
        """The folders that have changed since the last call; all of them where the kernel has lost count."""
        changed: set[str] = set()
        while data := self._take():
            names = {watch: folder for folder, watch in self._watched.items()}
            while data:
                watch, mask, _, length = _HEAD.unpack_from(data)
                data = data[_HEAD.size + length :]
                if mask & _IN_Q_OVERFLOW:
                    changed.update(self._watched)
                elif folder := names.get(watch):
                    changed.add(folder)
                    if mask & _IN_IGNORED:  # the folder has gone
                        self._watched.pop(folder, None)
                    elif mask & _IN_MOVE_SELF:  # what has its name now is another
                        self._forget(folder)
        return frozenset(changed)

    def close(self) -> None:
        os.close(self._fd)

    def _add(self, folder: str) -> bool:
        try:
            watch = self._call(self._libc.inotify_add_watch, self._fd, os.fsencode(folder), _MASK)
        except OSError:  # not there, not ours to read, or too many: the timer sees to it
            self._watched.pop(folder, None)
            return False
        new = self._watched.get(folder) != watch
        self._watched[folder] = watch
        return new

    def _forget(self, folder: str) -> None:
        watch = self._watched.pop(folder)
        if watch not in self._watched.values():  # two paths of one folder are one watch
            with suppress(OSError):
                self._call(self._libc.inotify_rm_watch, self._fd, watch)

    def _take(self) -> bytes:
        try:
            return os.read(self._fd, 65536)
        except BlockingIOError:
            return b""

    @staticmethod
    def _call(function: Callable[..., int], *arguments: object) -> int:
        result = function(*arguments)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
