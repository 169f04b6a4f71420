"""A tree out of which no link leads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcherkit.host.confined import ConfinedTree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("outside")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "own").write_text("inside")
    (root / "a" / "b").mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    "target", ["{outside}/secret", "../../secret", "../../../../../../../../{outside}/secret", "../../outside/secret"]
)
def test_a_link_out_of_the_root_leads_nowhere(root: Path, target: str) -> None:
    (root / "a" / "link").symlink_to(target.format(outside=root.parent / "outside"))
    with ConfinedTree(str(root)) as tree:
        assert tree.read("a/link") is None
        assert not tree.exists("a/link")


@pytest.mark.parametrize("target", ["{outside}", "../..", "../../outside"])
def test_a_directory_outside_is_neither_listed_nor_walked_through(root: Path, target: str) -> None:
    (root / "a" / "link").symlink_to(target.format(outside=root.parent / "outside"))
    with ConfinedTree(str(root)) as tree, tree.below("a/link") as below:
        assert "secret" not in tree.names("a/link")
        assert tree.read("a/link/secret") is None
        assert tree.read("a/link/outside/secret") is None
        assert below.read("secret") is None


def test_a_link_is_resolved_as_if_the_root_were_the_machines(root: Path) -> None:
    (root / "a" / "absolute").symlink_to("/etc/own")
    (root / "a" / "above").symlink_to("../../../../etc/own")
    (root / "a" / "b" / "folder").symlink_to("/etc")
    with ConfinedTree(str(root)) as tree, tree.below("a/b") as below:
        assert tree.read("a/absolute") == tree.read("a/above") == tree.read("a/b/folder/own") == b"inside"
        assert below.read("../absolute") == below.read("folder/own") == b"inside"
        assert below.read("../../../../../etc/own") == b"inside"
    with ConfinedTree(str(root)) as tree, tree.below("a/b/folder") as etc, etc.below("..") as again:
        assert etc.names("") == ["own"]
        assert again.names("") == ["a", "etc"]


def test_only_regular_files_are_read_and_nothing_else_is_opened(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with ConfinedTree(str(root)) as tree:
        assert tree.read("fifo") is None
        assert tree.read("a") is None


def test_no_handle_stays_open(root: Path) -> None:
    (root / "a" / "loop").symlink_to("loop")
    before = {*os.listdir("/proc/self/fd")}
    for _ in range(3):
        with ConfinedTree(str(root)) as tree, tree.below("a/b") as below, tree.below("etc/own") as none:
            for each in tree, below, none:
                each.read("etc/own")
                each.read("a/loop")
                each.names("a")
                each.link("a/loop")
                each.exists("../../etc")
    assert {*os.listdir("/proc/self/fd")} <= before  # others may be closed meanwhile, with what had them open


def test_a_closed_tree_and_one_that_is_not_there_are_empty(root: Path) -> None:
    tree = ConfinedTree(str(root))
    tree.close()
    tree.close()
    for each in tree, ConfinedTree(str(root / "none")), ConfinedTree("a\0b"):
        assert not each.exists("etc")
        assert each.names("") == []
