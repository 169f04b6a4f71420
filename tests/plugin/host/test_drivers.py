"""Steps and writes that don't come back are left to a process of their own."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from launcherkit.model.address import PciAddress
from launcherkit_plugin.binding.ledger import Ledger
from launcherkit_plugin.cli.vgpu import TimedFiles
from launcherkit_plugin.host.drivers import Late, ProcessWorker, SpareProcess, Sysfs, Worker
from launcherkit_plugin.host.files import DiskFiles
from launcherkit_plugin.model.errors import STEP_FAILED, STEP_HANGS
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree

GPU = PciAddress.parse("0000:01:00.0")


def test_a_file_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "driver_override"
    path.write_text("(null)\n")
    with closing(ProcessWorker()) as worker:
        assert worker.read(str(path), 30) == b"(null)\n"
        worker.write(str(path), "vfio-pci", 30)
    assert path.read_text().startswith("vfio-pci")


def test_an_error_of_the_system_is_raised_here(tmp_path: Path) -> None:
    missing = str(tmp_path / "unbind")
    with closing(ProcessWorker()) as worker:
        for ask in (lambda: worker.read(missing, 30), lambda: worker.write(missing, "x", 30)):
            with pytest.raises(FileNotFoundError) as error:
                ask()
            assert (error.value.errno, error.value.filename) == (errno.ENOENT, missing)


def test_a_process_that_waits_for_ever_is_left_behind(tmp_path: Path) -> None:
    pipe = tmp_path / "unbind"
    os.mkfifo(pipe)  # opening it waits for somebody who reads
    with closing(ProcessWorker()) as worker:
        with pytest.raises(Late) as late:
            worker.write(str(pipe), "0000:01:00.0", 0.1)
        assert late.value.pid > 0
        (tmp_path / "driver_override").write_text("nvidia\n")
        assert worker.read(str(tmp_path / "driver_override"), 30) == b"nvidia\n", "another one does the next step"


def test_a_killed_process_is_an_error_and_the_next_step_gets_another(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with closing(ProcessWorker()) as worker:
        pid = pid_of(worker)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OSError, match=r"has ended|Broken pipe|Connection reset"):
            worker.read(str(tmp_path / "file"), 30)
        assert worker.read(str(tmp_path / "file"), 30) == b"x"


@pytest.mark.parametrize("first", ["", "with closing(made()) as worker: worker.read('/proc/self/stat', 30)\n"])
def test_a_process_that_is_left_behind_keeps_the_locks(tmp_path: Path, first: str) -> None:
    """So that nobody changes a device while a killed command's last step is on its way."""
    pipe, folder = tmp_path / "unbind", str(tmp_path / "ledger")
    os.mkfifo(pipe)
    code = (
        "import socket, sys\n"
        "from contextlib import closing\n"
        "from launcherkit.model.address import PciAddress\n"
        "from launcherkit_plugin.host.drivers import SpareProcess\n"
        "from launcherkit_plugin.binding.ledger import Ledger\n"
        "made = SpareProcess().worker\n"
        f"{first}"  # the process has stood by
        "wait = socket.socket.recv\n"
        "def announced(*arguments):\n"
        "    print(flush=True)\n"  # the step is on its way
        "    return wait(*arguments)\n"
        "with Ledger(sys.argv[1], '').locked([PciAddress.parse('0000:01:00.0')]) as locks:\n"
        "    worker = made(locks)\n"
        "    worker.read('/proc/self/stat', 30)\n"
        "    socket.socket.recv = announced\n"
        "    worker.write(sys.argv[2], '0000:01:00.0', 600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, folder, str(pipe)], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        command.stdout.readline()
        command.send_signal(signal.SIGKILL)
    with raises_code(STEP_HANGS, match="by another process"), Ledger(folder, "").locked([GPU], seconds=0):
        pass
    with pipe.open("rb") as reader:  # the step goes through
        reader.read()
    with Ledger(folder, "").locked([GPU], seconds=60):
        pass


def pid_of(worker: Worker) -> int:
    return int(worker.read("/proc/self/stat", 30).split()[0])


def test_a_process_stands_by_for_the_next_step_and_keeps_nothing_meanwhile(tmp_path: Path) -> None:
    ledger, spare = Ledger(str(tmp_path), ""), SpareProcess()
    seen = []
    with closing(spare):
        for _ in range(3):
            with ledger.locked([GPU], seconds=0) as locks, closing(spare.worker(locks)) as worker:
                seen.append(pid_of(worker))
                assert "0000:01:00.0.lock" in open_in(seen[-1])
            assert "0000:01:00.0.lock" not in open_in(seen[-1])
        assert len(set(seen)) == 1
        with closing(spare.worker()) as one, closing(spare.worker()) as other:
            assert pid_of(one) == seen[0] != pid_of(other)
    assert not Path(f"/proc/{seen[0]}").exists()


def open_in(pid: int) -> set[str]:
    """The names of the files that a process has open; it may import something, and close that meanwhile."""
    names = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            names.add(Path(os.readlink(each)).name)
    return names


def test_a_process_that_was_killed_or_left_behind_does_not_stand_by(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "unbind")
    with closing(SpareProcess()) as spare:
        with closing(spare.worker()) as worker:
            first = pid_of(worker)
            with pytest.raises(Late):
                worker.write(str(tmp_path / "unbind"), "x", 0.1)
        with closing(spare.worker()) as worker:
            second = pid_of(worker)
        os.kill(second, signal.SIGKILL)
        with closing(spare.worker()) as worker:
            assert pid_of(worker) not in (first, second)


def test_a_step_says_what_it_was_and_what_the_kernel_said(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function(str(GPU), driver="nvidia", group=44)
    sysfs = Sysfs(str(tmp_path))
    with sysfs.holding(()) as steps:
        steps.set_override(GPU, "vfio-pci")
        assert steps.override(GPU) == "vfio-pci"
    assert (sysfs.driver(GPU), sysfs.has_driver("nvidia"), sysfs.has_driver("vfio-pci")) == ("nvidia", True, False)
    with (
        raises_code(STEP_FAILED, match=r"writing 0000:01:00.0 to .*/nvidia/unbind: No such file or directory"),
        sysfs.holding(()) as steps,
    ):
        steps.unbind(GPU, "nvidia")


def test_a_step_that_hangs_says_which_process_waits(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.driver("nvidia")
    os.mkfifo(tmp_path / "sys/bus/pci/drivers/nvidia/unbind")
    sysfs = Sysfs(str(tmp_path), 0.1)
    with (
        raises_code(STEP_HANGS, match=r"unbind has not returned within 0.1 s; process \d+ still"),
        sysfs.holding(()) as steps,
    ):
        steps.unbind(GPU, "nvidia")


def test_what_is_written_is_there_and_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "create").write_text("")
    files = DiskFiles(str(tmp_path))
    files.write("create", "8a4c")
    with files.tree() as tree:
        assert tree.read("create") == b"8a4c"


@pytest.mark.parametrize(("path", "number"), [("missing/create", errno.ENOENT), ("folder", errno.EISDIR)])
def test_what_the_kernel_refuses_is_an_error_and_nothing_is_made(tmp_path: Path, path: str, number: int) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        DiskFiles(str(tmp_path)).write(path, "1")
    assert caught.value.errno == number
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_command_that_gives_up_a_write_can_end(tmp_path: Path) -> None:
    """A thread in the kernel would keep the whole process from ending: with a file system frozen by fsfreeze a command
    that had left a thread behind was still there 3 s after SIGKILL."""
    os.mkfifo(tmp_path / "remove")  # to open it hangs until somebody reads
    others = threading.enumerate()
    with pytest.raises(TimeoutError, match=r"no answer for 0\.05 s"):
        TimedFiles(str(tmp_path), patience=0.05).write("remove", "1")
    for thread in threading.enumerate():
        if thread not in others:
            thread.join(60)  # what waits for the process; one that was at the write would wait for ever
            assert not thread.is_alive()


def test_a_command_hears_what_the_kernel_refuses(tmp_path: Path) -> None:
    files = TimedFiles(str(tmp_path), patience=30)
    with pytest.raises(FileNotFoundError):
        files.write("create", "8a4c")
    (tmp_path / "create").write_text("")
    files.write("create", "8a4c")
    assert (tmp_path / "create").read_text() == "8a4c"
