"""Writes to sysfs: the kernel's refusal comes back as it is, and one that hangs holds nobody up."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from launcherkit_plugin.host.kernel_files import DiskFiles, TimedFiles


def test_what_is_written_is_there_and_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "create").write_text("")
    files = DiskFiles(str(tmp_path))
    files.write("create", "8a4c")
    with files.tree() as tree:
        assert tree.read("create") == b"8a4c"


@pytest.mark.parametrize(("path", "number"), [("missing/create", errno.ENOENT), ("folder", errno.EISDIR)])
def test_what_the_kernel_refuses_is_told_and_nothing_is_made(tmp_path: Path, path: str, number: int) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        DiskFiles(str(tmp_path)).write(path, "1")
    assert caught.value.errno == number
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_command_leaves_a_write_that_hangs_to_itself(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "remove")  # to open it hangs until somebody reads
    files = TimedFiles(str(tmp_path), patience=0.05)
    with pytest.raises(TimeoutError, match=r"no answer for 0\.05 s"):
        files.write("remove", "1")
    (hanging,) = [thread for thread in threading.enumerate() if thread.name == "write remove"]
    with open(tmp_path / "remove", "rb") as reader:
        assert reader.read() == b"1"
    hanging.join(60)
    with pytest.raises(FileNotFoundError):
        files.write("create", "8a4c")
