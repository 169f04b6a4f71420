"""Unknown is not absent (T2): what can't be read is as it was, and is never given away or taken."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from launcherkit.errors import UNREADABLE_FILE
from launcherkit_plugin.model.errors import DEVICE_UNHEALTHY
from tests.plugin.resources import GPU, Node, rebind
from tests.support.errors import raises_code
from tests.support.faults import failing, no_more_files
from tests.support.hosttree import HostTree

CARD, AUDIO, CARD2 = "0000:01:00.0", "0000:01:00.1", "0000:e1:00.0"
ERRORS = [errno.EIO, errno.EACCES, errno.ESTALE, errno.ENOTCONN]
WELL = {CARD: None, CARD2: None}


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=12)
    tree.card("0000:e1:00", group=44)
    return tree


@pytest.fixture
def node(tree: HostTree) -> Node:
    node = Node(tree)
    assert node.reasons() == WELL
    return node


@pytest.mark.parametrize("function", [CARD, AUDIO])
@pytest.mark.parametrize("number", ERRORS)
def test_a_function_that_can_not_be_read_leaves_its_card_as_it_was(
    tree: HostTree, node: Node, function: str, number: int
) -> None:
    with failing(tree.root / "sys/bus/pci/devices" / function, number):
        rebind(tree, CARD2, "nouveau")
        assert node.reasons() == {CARD: None, CARD2: "driver"}, "the other card is still looked at"


@pytest.mark.parametrize("number", ERRORS)
def test_an_unhealthy_card_that_can_not_be_read_does_not_become_healthy(
    tree: HostTree, node: Node, number: int
) -> None:
    rebind(tree, CARD, "nouveau")
    assert node.reasons() == {CARD: "driver", CARD2: None}
    with failing(tree.root / "sys/bus/pci/devices" / CARD, number):
        assert node.reasons() == {CARD: "driver", CARD2: None}


@pytest.mark.parametrize("number", ERRORS)
def test_a_card_that_was_never_read_whole_is_not_healthy(tree: HostTree, number: int) -> None:
    with failing(tree.root / "sys/bus/pci/devices" / AUDIO, number):
        assert Node(tree).reasons() == {CARD: "not-viable", CARD2: None}


@pytest.mark.parametrize("number", ERRORS)
def test_what_can_not_be_read_is_not_given_away(tree: HostTree, node: Node, number: int) -> None:
    with (
        failing(tree.root / "sys/bus/pci/devices" / AUDIO, number),
        failing(tree.root / "sys/bus/pci/drivers/vfio-pci" / AUDIO, number),
        raises_code(DEVICE_UNHEALTHY, match=f"{AUDIO}.* can't be read"),
    ):
        node.grant(CARD)
    node.grant(CARD)


@pytest.mark.parametrize("path", ["sys/bus/pci/devices", "sys/kernel/iommu_groups", "dev/vfio"])
@pytest.mark.parametrize("number", ERRORS)
def test_a_look_at_folders_that_can_not_be_listed_is_none(tree: HostTree, node: Node, path: str, number: int) -> None:
    """What is advertised stays then: the daemon takes no facts from such a look."""
    with failing(tree.root / path, number), raises_code(UNREADABLE_FILE, match=path):
        node.look()


def test_without_file_descriptors_no_look_is_one(node: Node) -> None:
    with no_more_files(), raises_code(UNREADABLE_FILE, match="Too many open files"):
        node.look()
    assert node.reasons() == WELL


def test_without_file_descriptors_nothing_that_has_changed_is_given_away(tree: HostTree, node: Node) -> None:
    rebind(tree, AUDIO, "snd_hda_intel")

    async def allocate() -> None:
        await asyncio.to_thread(int)  # threads have been used before
        with no_more_files():
            await node.provider.allocate(node.seen[GPU], [CARD])

    with raises_code(UNREADABLE_FILE, match="Too many open files"):
        asyncio.run(allocate())
