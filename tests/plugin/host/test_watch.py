"""Folders and devices are watched, and what can't be watched is lived without."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit_plugin.host import watch as watching_module
from launcherkit_plugin.host.watch import Inotify, open_uevents, read_uevents, subsystem_of, watching
from launcherkit_plugin.model.wakeups import Wakeup, WakeupQueue
from tests.support.looping import TimedLoop, run_timed, settled


def changed_by(folder: Path, change: Callable[[], object]) -> frozenset[str]:
    """What inotify tells of one change in a folder that is watched."""
    inotify = Inotify()
    try:
        inotify.watch([str(folder)])
        change()
        return inotify.read()
    finally:
        inotify.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "new").touch(),
        lambda folder: (folder / "old").unlink(),
        lambda folder: (folder / "old").rename(folder / "other"),
        lambda folder: (folder / "old").write_text("x"),
        lambda folder: (folder / "link").symlink_to("old"),
        lambda folder: (folder / "folder").mkdir(),
    ],
)
def test_a_change_in_a_folder_is_reported(tmp_path: Path, change: Callable[[Path], object]) -> None:
    (tmp_path / "old").touch()
    assert changed_by(tmp_path, lambda: change(tmp_path)) == {str(tmp_path)}


def test_a_socket_that_is_bound_is_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its path may be too long
    with socket.socket(socket.AF_UNIX) as made:
        assert changed_by(tmp_path, lambda: made.bind("s")) == {str(tmp_path)}


def test_reading_a_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    assert changed_by(tmp_path, (tmp_path / "old").read_text) == frozenset()


def test_only_what_is_there_and_new_is_returned_as_watched(tmp_path: Path) -> None:
    inotify = Inotify()
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    os.mkdir(one)
    assert inotify.watch([one, other]) == {one}
    os.mkdir(other)
    assert inotify.watch([one, other]) == {other}
    assert inotify.watch([one]) == frozenset()
    (tmp_path / "other" / "file").touch()
    assert inotify.read() == frozenset(), "it isn't watched any more"
    inotify.close()


def test_every_change_in_a_folder_is_reported_and_not_only_the_first(tmp_path: Path) -> None:
    inotify = Inotify()
    inotify.watch([str(tmp_path)])
    for name in ("one", "other"):
        (tmp_path / name).touch()
        assert inotify.read() == {str(tmp_path)}
    inotify.close()


def test_a_folder_that_was_made_again_is_a_new_one(tmp_path: Path) -> None:
    inotify = Inotify()
    folder = tmp_path / "folder"
    folder.mkdir()
    inotify.watch([str(folder)])
    folder.rmdir()
    assert inotify.read() == {str(folder)}
    folder.mkdir()
    assert inotify.watch([str(folder)]) == {str(folder)}
    inotify.close()


# In a loop


def reported_for(folders: Callable[[], list[str]], change: Callable[[], object], *, first: bool = True) -> list[str]:
    """The folders that are called back for after a change, up to the first call."""
    reported: list[str] = []

    async def run() -> None:
        called = asyncio.Event()

        def report(folder: str) -> None:
            reported.append(folder)
            called.set()

        with watching(lambda: None) as seen:
            seen.folders({folder: lambda folder=folder: report(folder) for folder in folders()})  # type: ignore[misc]
            reported.clear()
            called.clear()
            change()
            if first:
                await asyncio.wait_for(called.wait(), 60)
            else:
                await settled()

    asyncio.run(run())
    return reported


def test_who_watches_a_folder_is_called_back_and_nobody_else(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    folders = [str(tmp_path / "one"), str(tmp_path / "other")]
    assert reported_for(lambda: folders, (tmp_path / "one" / "file").touch) == folders[:1]


def test_a_folder_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    deep = tmp_path / "dev" / "vfio" / "devices"
    assert reported_for(lambda: [str(deep)], lambda: deep.mkdir(parents=True)) == [str(deep)]


def test_what_came_into_it_before_it_was_watched_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "made" / "vfio").mkdir(parents=True)
    (tmp_path / "made" / "vfio" / "44").touch()
    watched = str(tmp_path / "dev" / "vfio")
    assert reported_for(lambda: [watched], lambda: (tmp_path / "made").rename(tmp_path / "dev")) == [watched]


def test_one_that_goes_is_reported_too(tmp_path: Path) -> None:
    folder = tmp_path / "vfio"
    folder.mkdir()
    assert reported_for(lambda: [str(folder)], lambda: shutil.rmtree(folder))[0] == str(folder)


def test_without_inotify_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many() -> Inotify:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(watching_module, "Inotify", too_many)
    assert reported_for(lambda: [str(tmp_path)], (tmp_path / "file").touch, first=False) == []


# uevents


@pytest.mark.parametrize(
    ("data", "subsystem"),
    [
        (b"add@/devices/pci0000:00/0000:00:01.0\0ACTION=add\0SUBSYSTEM=pci\0PCI_ID=10DE:2204\0", "pci"),
        (b"bind@/devices/x\0SUBSYSTEM=vfio-dev\0", "vfio-dev"),
        (b"change@/devices/virtual/net\0SUBSYSTEM=net\0", "net"),
        (b"libudev\0\xfe\xed\xca\xfe", ""),
        (b"", ""),
    ],
)
def test_a_uevent_names_its_subsystem(data: bytes, subsystem: str) -> None:
    assert subsystem_of(data) == subsystem


class UeventSocket:
    """A socket with uevents to be received: (data, sender) each, or an error."""

    def __init__(self, *uevents: tuple[bytes, int] | OSError) -> None:
        self.uevents = list(uevents)

    def recvfrom(self, size: int) -> tuple[bytes, tuple[int, int]]:
        if not self.uevents:
            raise BlockingIOError
        first = self.uevents.pop(0)
        if isinstance(first, OSError):
            raise first
        return first[0], (first[1], 1)


@pytest.mark.parametrize(
    ("uevents", "ours"),
    [
        ([(b"SUBSYSTEM=pci\0", 0)], True),
        ([(b"SUBSYSTEM=net\0", 0)], False),
        ([(b"SUBSYSTEM=net\0", 0), (b"SUBSYSTEM=mdev\0", 0)], True),
        ([(b"SUBSYSTEM=pci\0", 4711)], False),  # of another process
        ([OSError(105, "No buffer space available")], True),
        ([OSError(105, "No buffer space available"), (b"SUBSYSTEM=net\0", 0)], True),
        ([OSError(9, "Bad file descriptor")], True),  # what came is not known
        ([], False),
    ],
)
def test_uevents_of_other_senders_and_subsystems_are_ignored(
    uevents: list[tuple[bytes, int] | OSError], ours: bool
) -> None:
    source = UeventSocket(*uevents)
    assert read_uevents(source) is ours  # type: ignore[arg-type]
    assert source.uevents == []


def test_who_watches_is_called_for_uevents_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    class FromTheKernel(socket.socket):
        """The end of a pair, at which all seems to be the kernel's."""

        def recvfrom(self, size: int, flags: int = 0) -> tuple[bytes, tuple[int, int]]:
            return self.recv(size), (0, 1)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    source = FromTheKernel(fileno=theirs.detach())
    source.setblocking(False)
    monkeypatch.setattr(watching_module, "open_uevents", lambda: source)

    async def scene() -> int:
        calls: list[int] = []
        with watching(lambda: calls.append(1)):
            for subsystem in (b"net", b"pci"):
                ours.send(b"SUBSYSTEM=" + subsystem + b"\0")
                await settled()
        return len(calls)

    with ours:
        assert asyncio.run(scene()) == 1
    assert source.fileno() == -1


def test_where_the_kernel_sends_no_uevents_there_is_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> socket.socket:
        raise PermissionError

    monkeypatch.setattr(socket, "socket", refused)
    assert open_uevents() is None


# wakeups


def test_wakeups_that_come_together_are_returned_together_and_once() -> None:
    async def run(loop: TimedLoop) -> tuple[frozenset[Wakeup], frozenset[Wakeup]]:
        wakeups = WakeupQueue(settle=60)
        waiting = asyncio.create_task(wakeups.wait(600))
        for wakeup in (Wakeup.HOST, Wakeup.HOST, Wakeup.PODS):
            await settled()
            assert not waiting.done()
            wakeups.notify(wakeup)
        await settled()
        loop.skip(60)
        return await waiting, await wakeups.wait(0)

    assert run_timed(run) == (frozenset({Wakeup.HOST, Wakeup.PODS}), frozenset())


def test_a_wakeup_that_came_while_nobody_waited_is_not_lost() -> None:
    async def run() -> frozenset[Wakeup]:
        wakeups = WakeupQueue(settle=0)
        wakeups.notify(Wakeup.CONFIG)
        return await wakeups.wait(60)

    assert asyncio.run(run()) == {Wakeup.CONFIG}


def test_a_wakeup_that_came_to_a_waiter_that_gave_up_is_not_lost_either() -> None:
    async def run(loop: TimedLoop) -> frozenset[Wakeup]:
        wakeups = WakeupQueue(settle=60)
        wakeups.notify(Wakeup.CONFIG)
        waiting = asyncio.create_task(wakeups.wait(600))
        await settled()
        waiting.cancel()
        waiting = asyncio.create_task(wakeups.wait(600))
        await settled()
        loop.skip(60)
        return await waiting

    assert run_timed(run) == {Wakeup.CONFIG}
