"""A file tree on disk that no link can leave, for roots of other machines or from untrusted sources."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from launcherkit.host.tree import PAGE

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_LINKS = 40  # as the kernel


@dataclass(frozen=True, slots=True)
class _Place:
    """The place to which a path leads."""

    trail: list[int]
    """Handles of the directories from the root down; the last one contains ``name``."""
    name: str
    """An entry that is not a link, unless links aren't followed; ``.`` for the directory itself."""


class ConfinedTree:
    """The files under a directory; links are resolved as if the directory were ``/``.

    It does the same as `DiskTree` with more system calls: each step of a path is taken by itself, relative to a handle
    of the previous directory and without following links, so nothing outside can be reached, whatever changes
    meanwhile. Only regular files are read.
    """

    __slots__ = ("_owned", "_trail")

    def __init__(self, root: str) -> None:
        self._owned = ExitStack()
        try:
            self._trail = [self._keep(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))]
        except (OSError, ValueError):
            self._trail = []  # no file is found below that

    def _keep(self, handle: int) -> int:
        self._owned.callback(os.close, handle)
        return handle

    def read(self, path: str, limit: int = PAGE, offset: int = 0) -> bytes | None:
        """See `Tree.read`."""
        with self._walk(path) as place:
            if place is None:
                return None
            try:
                # Checked before it is opened, because opening a device may have effects.
                if not stat.S_ISREG(os.stat(place.name, dir_fd=place.trail[-1], follow_symlinks=False).st_mode):
                    return None
                handle = os.open(place.name, _FILE, dir_fd=place.trail[-1])
            except OSError:
                return None
            try:
                return os.pread(handle, limit, offset)
            except OSError:
                return None
            finally:
                os.close(handle)

    def link(self, path: str) -> str | None:
        """See `Tree.link`."""
        with self._walk(path, follow=False) as place:
            return None if place is None else _target(place.name, place.trail[-1])

    def names(self, path: str) -> list[str]:
        """See `Tree.names`."""
        with self._walk(path) as place:
            if place is None:
                return []
            try:
                handle = os.open(place.name, _FILE | os.O_DIRECTORY, dir_fd=place.trail[-1])
            except OSError:
                return []
            try:
                return sorted(os.listdir(handle))
            except OSError:
                return []
            finally:
                os.close(handle)

    def exists(self, path: str) -> bool:
        """See `Tree.exists`."""
        with self._walk(path) as place:
            return place is not None

    def below(self, path: str) -> ConfinedTree:
        """See `Tree.below`; it uses handles of this tree, which must stay open."""
        tree = ConfinedTree.__new__(ConfinedTree)
        tree._owned, tree._trail = ExitStack(), []
        with self._walk(path) as place:
            if place is not None:
                trail = [handle if handle in self._trail else tree._keep(os.dup(handle)) for handle in place.trail]
                if place.name == ".":
                    tree._trail = trail
                    return tree
                with suppress(OSError):  # not a directory: nothing is found below it
                    tree._trail = [*trail, tree._keep(os.open(place.name, _DIRECTORY, dir_fd=trail[-1]))]
        return tree

    def close(self) -> None:
        """See `Tree.close`."""
        self._owned.close()
        self._trail = []

    def __enter__(self) -> ConfinedTree:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _walk(self, path: str, *, follow: bool = True) -> Iterator[_Place | None]:
        """The place to which ``path`` leads, None if there is nothing; its handles stay open while this context is."""
        with ExitStack() as opened:
            yield self._find(path, follow, opened) if self._trail else None

    def _find(self, path: str, follow: bool, opened: ExitStack) -> _Place | None:
        todo = path.split("/")[::-1]
        trail = list(self._trail)
        links = 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                trail = trail[:-1] or trail
                continue
            target = _target(name, trail[-1])
            if target is not None and (todo or follow):
                links += 1
                if links > _MAX_LINKS:
                    return None
                if target.startswith("/"):
                    trail = trail[:1]
                todo += target.split("/")[::-1]
            elif not todo:
                return _Place(trail, name) if _is_there(name, trail[-1]) else None
            else:
                try:
                    handle = os.open(name, _DIRECTORY, dir_fd=trail[-1])
                except (OSError, ValueError):
                    return None
                opened.callback(os.close, handle)
                trail.append(handle)
        return _Place(trail, ".")


def _target(name: str, directory: int) -> str | None:
    """The target of a link; None if it isn't one."""
    try:
        return os.readlink(name, dir_fd=directory)
    except (OSError, ValueError):
        return None


def _is_there(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (OSError, ValueError):
        return False
    return True
