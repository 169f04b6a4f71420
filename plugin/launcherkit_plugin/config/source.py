"""The source of the configuration, which is read again when its files or the cluster's settings have changed."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from launcherkit.errors import LauncherkitError
from launcherkit_plugin.model.config import Config, Reading


class FileVersion(NamedTuple):
    """Identifies the file at a path. Kubelets replace a symbolic link above a ConfigMap's files, and editors rename."""

    real: str
    inode: int
    size: int
    changed_ns: int


def versions(paths: Iterable[str]) -> dict[str, FileVersion | None]:
    """The version of each file, to be compared with an earlier one; None if there is no such file."""
    return {path: _version(path) for path in paths}


def _version(path: str) -> FileVersion | None:
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError:
        return None
    return FileVersion(real, status.st_ino, status.st_size, status.st_mtime_ns)


def folders(paths: Iterable[str]) -> tuple[str, ...]:
    """The folders to watch for changes of some files: that of each path, and that of the file to which it links."""
    parents: dict[str, None] = {}
    for path in paths:
        parents[os.path.dirname(os.path.abspath(path))] = None
        parents[os.path.dirname(os.path.realpath(path))] = None
    return tuple(parents)


Read: TypeAlias = Callable[[Mapping[str, Any] | None, Mapping[str, str]], Awaitable[Reading]]
"""Reads the configuration, given KubeVirt's settings in the cluster (None: not known yet) and the node's labels."""


class ConfigSource:
    """A configuration that may change. Call `first` first."""

    def __init__(self, path: str | None, read: Read) -> None:
        """Make a source.

        Args:
            path: of the file; None: there is none, and nothing ever changes.
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
            LauncherkitError: it is wrong.
        """
        return await self._take()

    def set_cluster(self, kubevirt: Mapping[str, Any] | None, labels: Mapping[str, str]) -> None:
        """Set the cluster's settings, which the cluster container has sent."""
        self._settings = kubevirt, labels

    async def again(self) -> Reading | None:
        """Read it if it may have changed; None if it hasn't. A wrong one is read again each time.

        Raises:
            LauncherkitError: it is wrong; the old one stays in force.
        """
        if self._seen == self._fingerprint():
            return None
        before = self._config
        reading = await self._take()
        return None if reading.config == before else reading

    def forget(self) -> None:
        """Forget the last reading, which did not come into force, so that `again` reads it again."""
        self._seen = self._config = None

    async def _take(self) -> Reading:
        self._seen = self._fingerprint()
        try:
            reading = await self._read(*self._settings)
        except LauncherkitError:
            self._seen = None  # the mistake may be in a file to which it refers, which isn't watched
            raise
        if reading.files != self._files and self._files:
            self._files = reading.files
            self._seen = self._fingerprint()
        self._config = reading.config
        return reading

    def _fingerprint(self) -> tuple[object, dict[str, FileVersion | None]]:
        return self._settings, versions(self._files)
