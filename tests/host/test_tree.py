"""The disk and the memory are one kind of tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcherkit.host.confined import ConfinedTree
from launcherkit.host.tree import DiskTree
from launcherkit.host.umockdev import Directory, MemoryTree

if TYPE_CHECKING:
    from launcherkit.host.tree import Tree

CONTENT: Directory = {
    "a": {"file": b"0123456789", "up": "../b/file", "loop": "loop", "dangling": "nowhere", "dir": "../b"},
    "b": {"file": b"b", "deeper": {"x": b""}},
}


def _write(root: Path, directory: Directory) -> None:
    for name, entry in directory.items():
        if isinstance(entry, bytes):
            (root / name).write_bytes(entry)
        elif isinstance(entry, str):
            (root / name).symlink_to(entry)
        else:
            (root / name).mkdir()
            _write(root / name, entry)


def _tree(kind: str, root: str) -> Tree:
    if kind == "memory":
        return MemoryTree(CONTENT)
    return DiskTree(root) if kind == "disk" else ConfinedTree(root)


@pytest.fixture(params=["disk", "memory", "confined"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    _write(tmp_path, CONTENT)
    with _tree(request.param, str(tmp_path)) as tree:
        yield tree


def test_files_are_read_from_an_offset_up_to_a_limit(tree: Tree) -> None:
    assert tree.read("a/file") == b"0123456789"
    assert tree.read("a/file", 3, 4) == b"456"


@pytest.mark.parametrize("path", ["a/none", "a", "a/file/x", "a/loop", "a/dangling", "none/at/all", "a/\0", "a/loop/x"])
def test_what_can_not_be_read_is_none(tree: Tree, path: str) -> None:
    assert tree.read(path) is None


def test_links_are_given_as_written_and_followed_on_the_way(tree: Tree) -> None:
    assert tree.link("a/up") == "../b/file"
    assert tree.link("a/file") is None
    assert tree.link("a/none") is None
    assert tree.read("a/up") == b"b"
    assert tree.read("a/dir/file") == b"b"
    assert tree.read("a/dir/../a/file") == b"0123456789"


def test_names_are_sorted_and_empty_for_what_is_no_directory(tree: Tree) -> None:
    assert tree.names("a") == ["dangling", "dir", "file", "loop", "up"]
    assert tree.names("a/dir") == ["deeper", "file"]
    assert tree.names("a/file") == tree.names("none") == []


def test_existence_follows_links(tree: Tree) -> None:
    found = {path: tree.exists(path) for path in ("a/up", "a/file", "a/dangling", "a/loop", "none", "b/deeper/x")}
    assert found == {
        "a/up": True,
        "a/file": True,
        "a/dangling": False,
        "a/loop": False,
        "none": False,
        "b/deeper/x": True,
    }


def test_a_tree_below_has_its_own_root(tree: Tree) -> None:
    with tree.below("a/dir") as below:
        assert below.names("") == ["deeper", "file"]
        assert below.read("deeper/x") == b""
    with tree.below("none") as below:
        assert not below.exists("file")
        assert below.read("file") is None
        assert below.names("") == []
        assert below.link("x") is None
        assert not below.below("y").exists("z")


def test_a_fifo_does_not_hold_us(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with DiskTree(str(tmp_path)) as tree:
        assert tree.read("fifo") is None


def test_a_closed_tree_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    tree = DiskTree(str(tmp_path))
    tree.close()
    tree.close()
    assert tree.read("file") is None
