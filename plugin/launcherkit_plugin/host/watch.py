"""Wakes the daemon when folders change (inotify) and when devices send uevents."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

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
    """Watches folders. When `fileno` is readable, call `read`.

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
        """Watch exactly these folders; returns those that exist and weren't watched before.

        A missing folder is not an error: call again when it may exist. A folder that was created again counts as new.
        """
        names = frozenset(folders)
        for folder in self._watched.keys() - names:
            self._forget(folder)
        return frozenset(folder for folder in names if self._add(folder))

    def read(self) -> frozenset[str]:
        """The folders that have changed since the last call; all of them if the kernel's queue overflowed."""
        changed: set[str] = set()
        while data := self._read():
            names = {watch: folder for folder, watch in self._watched.items()}
            while data:
                watch, mask, _, length = _HEAD.unpack_from(data)
                data = data[_HEAD.size + length :]
                if mask & _IN_Q_OVERFLOW:
                    changed.update(self._watched)
                elif folder := names.get(watch):
                    changed.add(folder)
                    if mask & _IN_IGNORED:  # the folder was removed
                        self._watched.pop(folder, None)
                    elif mask & _IN_MOVE_SELF:  # another folder may have its name now
                        self._forget(folder)
        return frozenset(changed)

    def close(self) -> None:
        os.close(self._fd)

    def _add(self, folder: str) -> bool:
        try:
            watch = self._call(self._libc.inotify_add_watch, self._fd, os.fsencode(folder), _MASK)
        except OSError:  # missing, unreadable, or too many watches: then the timer has to suffice
            self._watched.pop(folder, None)
            return False
        new = self._watched.get(folder) != watch
        self._watched[folder] = watch
        return new

    def _forget(self, folder: str) -> None:
        watch = self._watched.pop(folder)
        if watch not in self._watched.values():  # two paths of one folder share a watch
            with suppress(OSError):
                self._call(self._libc.inotify_rm_watch, self._fd, watch)

    def _read(self) -> bytes:
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


_KOBJECT_UEVENT = 15
_KERNELS_GROUP = 1

SUBSYSTEMS = frozenset({"pci", "usb", "vfio", "vfio-dev", "mdev", "iommu", "drivers"})
"""The subsystems whose uevents say that a device, its driver or its node has appeared or disappeared."""


def open_uevents() -> socket.socket | None:
    """A socket that is readable when uevents have come; None if the kernel sends none, as in some sandboxes."""
    try:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _KOBJECT_UEVENT)
    except OSError:
        return None
    try:
        made.setblocking(False)
        made.bind((0, _KERNELS_GROUP))
    except OSError:
        made.close()
        return None
    return made


def read_uevents(source: socket.socket) -> bool:
    """Read all uevents that have come; whether any is of `SUBSYSTEMS`. Lost ones count as such."""
    concerns_us = False
    while True:
        try:
            data, (sender, _) = source.recvfrom(65536)
        except BlockingIOError:
            return concerns_us
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                return True
            concerns_us = True  # the buffer overflowed: some were lost
            continue
        if sender == 0:  # the kernel; processes can send them, too
            concerns_us = concerns_us or subsystem_of(data) in SUBSYSTEMS


def subsystem_of(data: bytes) -> str:
    """``pci`` for ``add@/devices/pci0000:00/...\\0ACTION=add\\0SUBSYSTEM=pci\\0``; empty if there is none."""
    for field in data.split(b"\0"):
        name, _, value = field.partition(b"=")
        if name == b"SUBSYSTEM":
            return os.fsdecode(value)
    return ""


class Watching:
    """The folders that are watched, with their callbacks; see `watching`."""

    def __init__(self, inotify: Inotify | None) -> None:
        self._inotify = inotify
        self._folders: Mapping[str, Callable[[], None]] = {}
        self._at: dict[str, str] = {}
        """What is watched for each folder: itself, or, while it doesn't exist, its nearest existing parent."""

    def folders(self, callbacks: Mapping[str, Callable[[], None]]) -> None:
        """Call back when entries of these folders change; others are no longer watched. A missing folder is waited for.

        The first call makes no callbacks: nobody has read the folders before, so no change can have been missed.
        """
        first, self._folders = not self._folders, dict(callbacks)
        if first:
            self._rearm()
        else:
            self.renew()

    def renew(self) -> None:
        """Watch folders that exist by now, and call back for them. Cheap; for changes that caused no event."""
        self._call(self._rearm())

    def read(self) -> None:
        """Read inotify's events and call back."""
        assert self._inotify is not None
        changed = self._inotify.read()
        changed_folders = {folder for folder, at in self._at.items() if at in changed}
        self._call(changed_folders | self._rearm())

    def _rearm(self) -> set[str]:
        """The folders for which another folder is watched than before. Changes in between caused no event."""
        new: set[str] = set()
        while self._inotify is not None:
            self._at = {folder: _nearest(folder) for folder in self._folders}
            fresh = self._inotify.watch(self._at.values())
            if not fresh:
                break
            new |= {folder for folder, at in self._at.items() if at in fresh}
        return new

    def _call(self, folders: set[str]) -> None:
        for callback in dict.fromkeys(self._folders[folder] for folder in sorted(folders) if folder in self._folders):
            callback()


def _nearest(folder: str) -> str:
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder or "."


@contextmanager
def watching(uevents: Callable[[], None]) -> Iterator[Watching]:
    """Watch, in the running event loop, until the block ends. If the kernel reports nothing, nothing is called.

    Args:
        uevents: called when devices have sent uevents.
    """
    loop = asyncio.get_running_loop()
    try:
        inotify: Inotify | None = Inotify()
    except OSError:  # the user has too many of them
        inotify = None
    source = open_uevents()
    made = Watching(inotify)
    if inotify is not None:
        loop.add_reader(inotify.fileno(), made.read)
    if source is not None:
        loop.add_reader(source, lambda: uevents() if read_uevents(source) else None)
    try:
        yield made
    finally:
        if inotify is not None:
            loop.remove_reader(inotify.fileno())
            inotify.close()
        if source is not None:
            loop.remove_reader(source)
            source.close()
