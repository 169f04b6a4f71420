"""The files of an image, gathered from this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias


class Link(NamedTuple):
    """A symbolic link."""

    to: str


class Text(NamedTuple):
    """A file that no machine has."""

    content: str
    mode: int = 0o644


class Folder(NamedTuple):
    """A directory that is there though nothing may be in it."""

    mode: int = 0o755


Content: TypeAlias = Path | Link | Text | Folder
Files: TypeAlias = Mapping[str, Content]
"""Absolute path in the image to what is there; a `Path` is a file of this machine, with its mode and time."""

_LIBRARY = re.compile(r"(?:=> |^\s+)(/\S+) \(0x", re.MULTILINE)


def at_their_paths(*paths: str | Path) -> Iterator[tuple[str, Content]]:
    """Files of this machine, at the same paths; a link is followed, step by step, and all of its steps are there."""
    for path in map(str, paths):
        step = path
        while os.path.islink(step):
            yield step, Link(os.readlink(step))
            step = os.path.join(os.path.dirname(step), os.readlink(step))
        yield os.path.normpath(step), Path(step)


def tree(
    source: Path, target: str, wanted: Callable[[str], bool] = lambda relative: True
) -> Iterator[tuple[str, Content]]:
    """All files below a folder, less those whose path in it, or whose folder's, isn't wanted."""
    for folder, folders, names in os.walk(source):
        relative = {name: os.path.relpath(os.path.join(folder, name), source) for name in (*folders, *names)}
        folders[:] = [name for name in folders if wanted(relative[name])]
        for name in names:
            path = Path(folder, name)
            if wanted(relative[name]) and path.exists():
                yield os.path.join(target, relative[name]), Path(path.resolve())


def busybox() -> Iterator[tuple[str, Content]]:
    """A shell and its tools; Debian's is static."""
    program = shutil.which("busybox") or "busybox"
    yield "/bin/busybox", Path(program).resolve()
    for applet in subprocess.check_output([program, "--list"], text=True).split():
        if applet != "busybox":
            yield f"/bin/{applet}", Link("busybox")


def with_libraries(files: Files) -> Files:
    """The files, and every shared library that their programs and libraries are linked to, each at its own path."""
    binaries = [str(path) for path in files.values() if isinstance(path, Path) and _is_elf(path)]
    found = dict(files)
    for start in range(0, len(binaries), 100):
        # A static one, a kernel: ldd refuses it, and goes on with the next.
        listed = subprocess.run(["ldd", *binaries[start : start + 100]], capture_output=True, text=True).stdout
        for library in dict.fromkeys(_LIBRARY.findall(listed)):
            found.setdefault(library, Path(library).resolve())
    return found


def _is_elf(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def merged(*parts: Iterable[tuple[str, Content]]) -> Files:
    """Later ones over earlier ones."""
    return {path: content for part in parts for path, content in part}
