"""The configuration in force, read again when its files or the cluster's settings have changed."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from launcherkit.errors import LauncherkitError
from launcherkit.model.value import NamedTuple
from launcherkit_plugin.model.config import Config, Reading


class FileVersion(NamedTuple):
    """Which file a path leads to now. Kubelets replace a link above a ConfigMap's files, editors rename."""

    real: str
    inode: int
    size: int
    changed_ns: int


def versions(paths: Iterable[str]) -> dict[str, FileVersion | None]:
    """The version of each file, None where there is none; to be compared with an earlier one."""
    return {path: _version(path) for path in paths}


def _version(path: str) -> FileVersion | None:
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError:
        return None
    return FileVersion(real, status.st_ino, status.st_size, status.st_mtime_ns)


def folders(paths: Iterable[str]) -> tuple[str, ...]:
    """The folders in which something changes when one of the files does: its own, and that of what it is a link to."""
    found: dict[str, None] = {}
    for path in paths:
        found[os.path.dirname(os.path.abspath(path))] = None
        found[os.path.dirname(os.path.realpath(path))] = None
    return tuple(found)


Read: TypeAlias = Callable[[Mapping[str, Any] | None, Mapping[str, str]], Awaitable[Reading]]
"""Reads it, with KubeVirt's settings in the cluster and the node's labels, as far as they are known."""


class ConfigSource:
    """A configuration that may change. `first` comes before all else."""

    def __init__(self, path: str | None, read: Read) -> None:
        """Make a source.

        Args:
            path: of the file; None where there is none, and nothing ever changes.
            read: see `Read`.
        """
        self._read = read
        self._files: tuple[str, ...] = () if path is None else (path,)
        self._settings: tuple[Mapping[str, Any] | None, Mapping[str, str]] = None, {}
        self._seen: tuple[object, dict[str, FileVersion | None]] | None = None
        self._config: Config | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders to watch for its changes."""
        return folders(self._files)

    async def first(self) -> Reading:
        """Read it.

        Raises:
            LauncherkitError: what is wrong with it.
        """
        return await self._take()

    def tell(self, kubevirt: Mapping[str, Any] | None, labels: Mapping[str, str]) -> None:
        """Set what the cluster's process has sent."""
        self._settings = kubevirt, labels

    async def again(self) -> Reading | None:
        """Read it if it may have changed; None where it hasn't. A wrong one is read each time.

        Raises:
            LauncherkitError: what is wrong with it; the old one stays in force.
        """
        if self._seen == self._fingerprint():
            return None
        before = self._config
        reading = await self._take()
        return None if reading.config == before else reading

    def forget(self) -> None:
        """What was read last did not come into force: read it again."""
        self._seen = self._config = None

    async def _take(self) -> Reading:
        self._seen = self._fingerprint()
        try:
            reading = await self._read(*self._settings)
        except LauncherkitError:
            self._seen = None  # the fault may be in a file that it refers to, whose changes aren't watched
            raise
        if reading.files != self._files and self._files:
            self._files = reading.files
            self._seen = self._fingerprint()
        self._config = reading.config
        return reading

    def _fingerprint(self) -> tuple[object, dict[str, FileVersion | None]]:
        return self._settings, versions(self._files)
