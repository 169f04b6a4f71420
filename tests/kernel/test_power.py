"""Whatever reaches a disk, in the order in which a real kernel's file system has it written (dm-log-writes): after a
power cut at each flush, claims and the records of binding are whole (T5)."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple, TypeVar

import pytest

from launcherkit_lab import sysfs
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.binding.ledger import Ledger
from launcherkit_plugin.host.processes import boot_id
from tests.plugin.dra.desk import REF
from tests.plugin.test_real_power import OTHER, check_boot, desk_of, done, mounted

pytestmark = pytest.mark.kernel

Found = TypeVar("Found")

NAME = "launcherkit-power"
MIB = 1 << 20
# Documentation/admin-guide/device-mapper/log-writes.rst, drivers/md/dm-log-writes.c
MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
_SUPER, _ENTRY = struct.Struct("<QQQI"), struct.Struct("<QQQQ")


class Logged(NamedTuple):
    """What was done to the disk, in order."""

    flags: int
    offset: int
    """In bytes."""
    data: bytes
    mark: str
    """What a test wrote into the log here."""


def test_a_power_cut_at_each_flush_takes_nothing_that_was_said_to_be_done(card: sysfs.Card, tmp_path: Path) -> None:
    sysfs.modprobe("loop", "dm-log-writes", "ext4")
    disk, log = (tmp_path / name for name in ("disk.img", "log.img"))
    for path, size in ((disk, 24 * MIB), (log, 256 * MIB)):
        with path.open("wb") as file:
            file.truncate(size)
    do("mkfs.ext4", "-q", disk)
    before = disk.read_bytes()
    (tmp_path / "first").mkdir()
    with looped(disk) as device, looped(log) as behind:
        do("dmsetup", "create", NAME, "--table", f"0 {len(before) // 512} log-writes {device} {behind}")
        try:
            (tmp_path / "mounted").mkdir()
            do("mount", f"/dev/mapper/{NAME}", tmp_path / "mounted")
            try:
                work(tmp_path / "first", tmp_path / "mounted", card)
            finally:
                do("umount", tmp_path / "mounted")
        finally:
            do("dmsetup", "remove", NAME)
    content, told, binding = bytearray(before), list[str](), list[str]()
    held: list[int] = []
    for entry in entries(log):
        content[entry.offset : entry.offset + len(entry.data)] = entry.data
        if entry.mark.startswith(("begin ", "end ")):  # the kernel has one of its own
            (told if entry.mark.endswith((REF.uid, OTHER.uid)) else binding).append(entry.mark)
        if not entry.flags & (FLUSH | FUA | MARK):
            continue
        if binding:
            booted(tmp_path, content, partial(check_ledger, last=binding[-1]))
        else:
            held.append(booted(tmp_path, content, partial(check_boot, prepared=done(told))))
    assert (len(told), len(binding)) == (8, 4)
    assert sum(map(bool, held)) > len(held) // 4 > 4, f"hardly a cut was while claims had devices: {held}"


def work(folder: Path, disk: Path, card: sysfs.Card) -> None:
    """Prepare and unprepare two claims, and bind and unbind a card; the log has a mark before and after each."""
    desk = desk_of(folder, disk, "boot-1")
    for call, ref in ((desk.prepare, REF), (desk.prepare, OTHER), (desk.unprepare, REF), (desk.unprepare, OTHER)):
        mark(f"begin {call.__name__} {ref.uid}")
        call(ref)
        mark(f"end {call.__name__} {ref.uid}")
    desk.lock.close()
    for command in ("bind", "unbind"):
        mark(f"begin {command}")
        places = "--ledger", str(disk / "ledger"), "--kubelet-dir", str(folder / "none")
        assert run([command, card.display, *places], {}) == 0
        mark(f"end {command}")


def booted(folder: Path, content: bytes | bytearray, check: Callable[[Path, Path], Found]) -> Found:
    """What a machine finds that starts with a disk. Each is a new file: the last one's device may still be closing."""
    handle, name = mkstemp(dir=folder)
    os.close(handle)
    Path(name).write_bytes(content)
    try:
        return check(folder, Path(name))
    finally:
        os.unlink(name)


def check_ledger(folder: Path, copy: Path, last: str) -> None:
    """The machine has booted with that disk: nothing is bound any more. If it hadn't, what was bound would be known."""
    with mounted(copy, folder / "after") as disk:
        ledger = Ledger(str(disk / "ledger"), "boot-2")
        assert (ledger.records(), ledger.unreadable()) == ([], {}), last
        same = Ledger(str(disk / "ledger"), boot_id("/proc"))
        if last.startswith("end"):
            assert [record.is_settled for record in same.records()] == ([True] if last == "end bind" else []), last
        ledger.remove_void()
        assert same.records() == [], last


def mark(text: str) -> None:
    """Write into the log; a message's words are arguments of their own."""
    do("dmsetup", "message", NAME, "0", "mark", text.replace(" ", "/"))


def entries(log: Path) -> Iterator[Logged]:
    """Read a log."""
    with log.open("rb") as file:
        magic, _, count, size = _SUPER.unpack(file.read(_SUPER.size))
        assert magic == MAGIC
        at = size
        for _ in range(count):
            file.seek(at)
            sector, sectors, flags, length = _ENTRY.unpack(file.read(_ENTRY.size))
            text = file.read(length).rstrip(b"\0").decode().replace("/", " ") if flags & MARK else ""
            at += size
            data = b""
            if not flags & (DISCARD | MARK):
                file.seek(at)
                data = file.read(sectors * size)
                at += len(data)
            yield Logged(flags, sector * size, data, text)


@contextmanager
def looped(image: Path) -> Iterator[str]:
    """A block device for a file."""
    device = do("losetup", "--find", "--show", image).strip()
    try:
        yield device
    finally:
        do("losetup", "--detach", device)


def do(*words: str | Path) -> str:
    """What a program prints; there is no udev in the machine that would make nodes."""
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=os.environ | {"DM_DISABLE_UDEV": "1"})
    return done.stdout
