"""Calls back when folders have changed, or when the kernel sends uevents of devices, in a running event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from launcherkit_plugin.host.inotify import Inotify
from launcherkit_plugin.host.uevents import open_uevents, read_uevents


class Watching:
    """What is watched; see `watching`."""

    def __init__(self, inotify: Inotify | None) -> None:
        self._inotify = inotify
        self._folders: Mapping[str, Callable[[], None]] = {}
        self._at: dict[str, str] = {}
        """What is watched for each: itself, or while it isn't there the nearest folder above it that is."""

    def folders(self, wanted: Mapping[str, Callable[[], None]]) -> None:
        """Call back when entries of these folders change, and of no others; one that is not there is waited for."""
        self._folders = dict(wanted)
        self.renew()

    def renew(self) -> None:
        """Watch what has come since, and call back for it. For changes that made no event; cheap."""
        self._call(self._rearm())

    def read(self) -> None:
        """Something is there to be read."""
        assert self._inotify is not None
        changed = self._inotify.read()
        changed_folders = {folder for folder, at in self._at.items() if at in changed}
        self._call(changed_folders | self._rearm())

    def _rearm(self) -> set[str]:
        """The folders for which something else is watched now than before: what has come in between made no event."""
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
    """Watch in the running loop while the block runs; where the kernel tells nothing, nothing is called.

    Args:
        uevents: called when uevents of devices have come.
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
