"""Reads a recording of ``umockdev-record --all`` as a tree.

A recording is text with a paragraph for each device: ``P:`` its path below ``/sys``, ``E:`` a property, ``A:`` an
attribute with C escapes, ``H:`` one in hex, ``L:`` a link, ``N:`` a device node below ``/dev``, ``S:`` a link to it.
What the kernel derives from devices (``/sys/bus``, ``/sys/kernel/iommu_groups``) is not recorded, but derived here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from launcherkit.errors import BAD_RECORDING, shown
from launcherkit.host.functions import base_name, group_number
from launcherkit.host.tree import LARGE, PAGE
from launcherkit.model.address import PciAddress
from launcherkit.request.fields import DocumentErrors, read_text

Directory: TypeAlias = "dict[str, bytes | str | Directory]"
"""A directory in memory: file contents are bytes, link targets str."""

_MAX_LINKS = 40  # as the kernel


class MemoryTree:
    """A tree in memory; links are followed as by the kernel."""

    __slots__ = ("_base", "_root")

    def __init__(self, root: Directory, base: tuple[str, ...] = ()) -> None:
        self._root = root
        self._base = base

    def _find(self, path: str, *, follow: bool = True) -> bytes | str | Directory | None:
        """Walk to ``path``; a link at its end is followed or returned as it is."""
        todo = [*reversed(path.split("/")), *reversed(self._base)]
        trail: list[Directory] = [self._root]
        links = 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                trail = trail[:-1] or trail
                continue
            entry = trail[-1].get(name)
            if isinstance(entry, str) and (todo or follow):
                links += 1
                if links > _MAX_LINKS:
                    return None
                if entry.startswith("/"):
                    trail = trail[:1]
                todo.extend(reversed(entry.split("/")))
            elif isinstance(entry, dict):
                trail.append(entry)
            else:
                return None if todo else entry
        return trail[-1]

    def read(self, path: str, limit: int = PAGE, offset: int = 0) -> bytes | None:
        entry = self._find(path)
        return entry[offset : offset + limit] if isinstance(entry, bytes) else None

    def link(self, path: str) -> str | None:
        entry = self._find(path, follow=False)
        return entry if isinstance(entry, str) else None

    def names(self, path: str) -> list[str]:
        entry = self._find(path)
        return sorted(entry) if isinstance(entry, dict) else []

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def below(self, path: str) -> MemoryTree:
        return MemoryTree(self._root, (*self._base, *path.split("/")))

    def close(self) -> None:
        pass

    def __enter__(self) -> MemoryTree:
        return self

    def __exit__(self, *error: object) -> None:
        pass


_REMEDY = "Record the machine again with `umockdev-record --all`, or correct that line."
_MAX_LINES = _MAX_SLASHES = 250_000
"""A server with 47 functions has 1,263 lines and 695 slashes. Each part of a path may become a directory of its own."""
_MAX_ESCAPED = 4 * LARGE
"""Characters of an attribute with escapes that are decoded: nobody reads more of a file than these make."""
_MAX_PATH = 4096  # as the kernel
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|(.))?", re.DOTALL)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
"""Any other character after a backslash stands for itself."""


@dataclass(frozen=True, slots=True)
class _Device:
    path: str
    """``devices/pci0000:00/0000:00:01.0``, below ``sys``."""
    entries: Directory
    properties: dict[str, str]


def read_recording(path: str) -> MemoryTree:
    """The recorded machine as a tree.

    Raises:
        UnreadableFile: the file can't be read.
        BAD_RECORDING, SeveralErrors: everything that is wrong in it, by line.
    """
    problems = DocumentErrors(path, BAD_RECORDING, _REMEDY)
    return parse_recording(read_text(path, problems), path)


def parse_recording(text: str, path: str = "recording") -> MemoryTree:
    """As `read_recording`, from text; ``path`` is for messages."""
    problems = DocumentErrors(path, BAD_RECORDING, _REMEDY)
    if text.count("\n") > _MAX_LINES or text.count("/") > _MAX_SLASHES:
        problems.fail("", f"more than {_MAX_LINES} lines or parts of paths")
    root: Directory = {}
    devices: list[_Device] = []
    device: _Device | None = None
    for where, kind, value in _lines(text, problems):
        if kind == "P":
            device = _open_device(root, value, where, problems)
            if device is not None:
                devices.append(device)
        elif device is not None:
            _add_line(root, device, kind, value, where, problems)
        elif not devices and not problems.count:
            problems.add(where, "stands before the first device, which begins with P:")
    if not devices and not problems.count:
        problems.add("", "holds no device")
    problems.raise_if_any()
    for device in devices:
        _derive(root, device)
    return MemoryTree(root)


def _lines(text: str, problems: DocumentErrors) -> Iterator[tuple[str, str, str]]:
    """Where each line is, its letter and its value; comments and empty lines left out."""
    for number, written in enumerate(text.split("\n"), start=1):
        line = written.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        if line[1:3] == ": " and line[0] in "PEAHLNS":
            yield f"line {number}", line[0], line[3:]
        else:
            problems.add(f"line {number}", f"{shown(line)} is not one of P:, E:, A:, H:, L:, N:, S: with a value")


def _open_device(root: Directory, path: str, where: str, problems: DocumentErrors) -> _Device | None:
    parts = path.split("/")
    if (
        len(path) > _MAX_PATH
        or len(parts) < 3
        or parts[:2] != ["", "devices"]
        or not all(part not in ("", ".", "..") for part in parts[1:])
    ):
        problems.add(where, f"{shown(path)} is not a path below /devices")
        return None
    directory = _directory(root, ["sys", *parts[1:]])
    if directory is None:
        problems.add(where, f"{shown(path)} lies below an attribute, not a device")
        return None
    return _Device(path[1:], directory, {})


def _add_line(root: Directory, device: _Device, kind: str, rest: str, where: str, problems: DocumentErrors) -> None:
    if kind == "S":  # another name of a node
        return
    name, equals, value = rest.partition("=")
    if kind == "N":
        if name == "iommu" or name.startswith("vfio/"):  # only these make ``dev`` known
            _put(root, f"dev/{name}", b"", where, problems)
    elif not equals or not name:
        problems.add(where, f"{shown(rest)} is not of the form name=value")
    elif kind == "E":
        device.properties[name] = value
    elif kind == "L" and len(value) > _MAX_PATH:
        problems.add(where, f"the target of {shown(name)} is longer than a path can be")
    elif kind == "L":
        _put(device.entries, name, value, where, problems)
    elif kind == "A":
        _put(device.entries, name, _unescape(value), where, problems)
    else:
        try:
            _put(device.entries, name, bytes.fromhex(value), where, problems)
        except ValueError:
            problems.add(where, f"the value of {shown(name)} is not hex")


def _unescape(value: str) -> bytes:
    """Decode GLib's escapes: letters, and up to three octal digits."""
    if "\\" not in value:
        return value.encode(errors="replace")
    return _ESCAPE.sub(_unescaped, value[:_MAX_ESCAPED].encode(errors="replace"))


def _unescaped(escape: re.Match[bytes]) -> bytes:
    octal, other = escape.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    return _LETTERS.get(other, other) if other else b"\\"


def _directory(start: Directory, parts: list[str]) -> Directory | None:
    """The directory at ``parts``, created if it is missing; None if a file or a link is in the way."""
    here = start
    for part in parts:
        entry = here.setdefault(part, {})
        if not isinstance(entry, dict):
            return None
        here = entry
    return here


def _put(start: Directory, path: str, content: bytes | str, where: str, problems: DocumentErrors) -> None:
    *parts, name = path.split("/")
    plain = len(path) <= _MAX_PATH and all(part not in ("", ".", "..") for part in (*parts, name))
    directory = _directory(start, parts) if plain else None
    if directory is None or isinstance(directory.get(name), dict):
        problems.add(where, f"{shown(path)} can't be a file: something else is there, or it is not a plain path")
    else:
        directory[name] = content


def _derive(root: Directory, device: _Device) -> None:
    """Add the links by which the kernel shows a device elsewhere."""
    subsystem = device.properties.get("SUBSYSTEM") or base_name(_link(device, "subsystem"))
    name = device.path.rpartition("/")[2]
    if subsystem == "pci":
        uevent = "".join(f"{key}={value}\n" for key, value in device.properties.items())
        device.entries.setdefault("uevent", uevent.encode(errors="replace"))
        _link_at(root, ["sys", "bus", "pci", "devices"], name, f"../../../{device.path}")
        group = group_number(_link(device, "iommu_group"))
        if group is not None and _is_address(name):
            here = ["sys", "kernel", "iommu_groups", str(group), "devices"]
            _link_at(root, here, name, f"../../../../{device.path}")
    elif subsystem == "mdev":
        _link_at(root, ["sys", "bus", "mdev", "devices"], name, f"../../../{device.path}")
    if isinstance(device.entries.get("mdev_supported_types"), dict):
        _link_at(root, ["sys", "class", "mdev_bus"], name, f"../../{device.path}")


def _link(device: _Device, name: str) -> str | None:
    entry = device.entries.get(name)
    return entry if isinstance(entry, str) else None


def _link_at(root: Directory, parts: list[str], name: str, target: str) -> None:
    directory = _directory(root, parts)
    if directory is not None:
        directory[name] = target


def _is_address(name: str) -> bool:
    try:
        PciAddress.parse(name)
    except ValueError:
        return False
    return True
