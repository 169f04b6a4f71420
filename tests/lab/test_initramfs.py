"""The machine's first file system, which is made here and not by a tool."""

from __future__ import annotations

import gzip
import lzma
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit_lab.initramfs import Entry, archive, in_order, unpacked
from launcherkit_lab.packages import CACHE, CannotFetch, cache_folder

NAMES = st.text("abcdefgh/._-", min_size=1, max_size=20)


def read_back(data: bytes) -> list[Entry]:
    """What the kernel would unpack: fields of eight hexadecimal digits, names and contents at multiples of four."""
    found: list[Entry] = []
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * index : at + 14 + 8 * index], 16) for index in range(13)]
        mode, size, length = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 110 + length]
        assert name.endswith(b"\0")
        start = -(-(at + 110 + length) // 4) * 4
        if name == b"TRAILER!!!\0":
            assert start == len(data)
            return found
        found.append(Entry(name[:-1].decode(), mode, data[start : start + size]))
        at = -(-(start + size) // 4) * 4


@given(st.lists(st.builds(Entry, NAMES, st.sampled_from([stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755]), st.binary())))
def test_an_archive_holds_what_was_put_in(entries: list[Entry]) -> None:
    assert read_back(archive(entries)) == entries


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """depmod's files: 9p needs netfs, which needs fscache; ext4 is built in."""
    (tmp_path / "modules.dep").write_text(
        "kernel/9p.ko: kernel/netfs.ko kernel/fscache.ko\nkernel/netfs.ko: kernel/fscache.ko\nkernel/fscache.ko:\n"
        "kernel/virtio-pci.ko.xz:\n"
    )
    (tmp_path / "modules.builtin").write_text("kernel/fs/ext4.ko\n")
    return tmp_path


def test_a_module_comes_after_those_that_it_needs(modules: Path) -> None:
    found = in_order(modules, ["netfs", "9p", "ext4", "virtio_pci"])
    assert [path.name for path in found] == ["fscache.ko", "netfs.ko", "9p.ko", "virtio-pci.ko.xz"]


def test_a_module_that_is_nowhere_is_reported(modules: Path) -> None:
    with pytest.raises(CannotFetch, match="no module overlay"):
        in_order(modules, ["overlay"])


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)])
def test_modules_are_unpacked_however_the_distribution_packs_them(tmp_path: Path, suffix: str, pack: type) -> None:
    path = tmp_path / f"9p.ko{suffix}"
    path.write_bytes(pack(b"\x7fELF"))
    assert unpacked(path) == b"\x7fELF"


def test_a_module_in_an_unknown_packing_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "9p.ko.lzo"
    path.touch()
    with pytest.raises(CannotFetch, match=r"9p\.ko\.lzo can't be unpacked here"):
        unpacked(path)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({CACHE: "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/launcherkit/kernel"),
        ({}, str(Path.home() / ".cache/launcherkit/kernel")),
    ],
)
def test_the_cache_can_be_moved(env: dict[str, str], expected: str) -> None:
    assert str(cache_folder(env)) == expected
