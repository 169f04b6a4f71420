"""The machine's first file system: busybox, a script and the modules that reach the real root, as a cpio archive."""

from __future__ import annotations

import lzma
import shutil
import stat
import subprocess
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab.packages import CannotFetch, Kernel

INIT = Path(__file__).parent / "init"
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")


class Entry(NamedTuple):
    """A file or folder of an archive. ``mode`` has the type's bits too."""

    name: str
    mode: int
    content: bytes = b""


def initramfs(kernel: Kernel, busybox: Path) -> bytes:
    """All that the machine needs before it has its root: `init` loads the modules in the order of ``/modules``.

    Raises:
        CannotFetch: a module is not in the kernel's packages, or can't be unpacked.
    """
    paths = in_order(kernel.modules, MODULES)
    names = [f"lib/{path.name.partition('.ko')[0]}.ko" for path in paths]
    folders = ("bin", "dev", "lib", "proc", "sys", "root")
    return archive(
        [
            *(Entry(name, stat.S_IFDIR | 0o755) for name in folders),
            Entry("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes()),
            Entry("init", stat.S_IFREG | 0o755, INIT.read_bytes()),
            Entry("modules", stat.S_IFREG | 0o644, "".join(f"/{name}\n" for name in names).encode()),
            *(Entry(name, stat.S_IFREG | 0o644, unpacked(path)) for name, path in zip(names, paths, strict=True)),
        ]
    )


def archive(entries: Iterable[Entry]) -> bytes:
    """A cpio archive in the one format that the kernel reads: newc (Documentation/driver-api/early-userspace)."""
    out = bytearray()
    for number, (name, mode, content) in enumerate([*entries, Entry("TRAILER!!!", 0)], start=1):
        encoded = name.encode() + b"\0"
        # Inode, mode, uid, gid, links, mtime, size, two numbers each for the device and what it stands for, the name's
        # length, and a checksum that nobody looks at.
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        out += b"\0" * (-len(out) % 4)
        out += content + b"\0" * (-len(content) % 4)
    return bytes(out)


def in_order(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of modules, each after those it needs; what is built into the kernel has none.

    Raises:
        CannotFetch: a module is neither there nor built in.
    """
    needed: dict[str, list[str]] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needed[_module(path)] = [path, *others.split()]
    built_in = {_module(line) for line in (folder / "modules.builtin").read_text().splitlines()}
    ordered: dict[str, None] = {}
    for name in names:
        if name in needed:
            # depmod writes a module's whole closure, the deepest last.
            ordered |= dict.fromkeys(reversed(needed[name]))
        elif name not in built_in:
            raise CannotFetch(f"the kernel in {folder} has no module {name}")
    return [folder / path for path in ordered]


def _module(path: str) -> str:
    return path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")


def unpacked(path: Path) -> bytes:
    """A module's content; distributions compress them in one way or another."""
    content = path.read_bytes()
    match path.suffix:
        case ".ko":
            return content
        case ".xz":
            return lzma.decompress(content)
        case ".gz":
            return zlib.decompress(content, wbits=31)
        case ".zst" if zstd := shutil.which("zstd"):
            return subprocess.run([zstd, "--decompress"], input=content, stdout=subprocess.PIPE, check=True).stdout
    raise CannotFetch(f"{path} can't be unpacked here" + (": install zstd" if path.suffix == ".zst" else ""))
