"""Opaque parameters of claims and classes reach the container, or are refused by name; nothing is ignored (T1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.dra.node import DRIVER, Node, running_node
from tests.dra.scheduler import DeviceClass, requested
from tests.support.hosttree import HostTree

OURS = {"apiVersion": "launcherkit.io/v1", "kind": "DeviceConfig"}


def config(**values: object) -> dict[str, Any]:
    """An entry of a class."""
    return {"opaque": {"driver": DRIVER, "parameters": {**OURS, **values}}}


CLASSES = {
    "gpu": DeviceClass(DRIVER),
    "alone": DeviceClass(DRIVER, config=[config(siblings="none")]),
    "iommufd": DeviceClass(DRIVER, config=[config(nodes="iommufd")]),
}


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    tree.function("0000:01:00.0", driver="vfio-pci", group=10)
    tree.function("0000:01:00.1", driver="vfio-pci", group=11, class_code=0x040300, device=0x1AEF)
    with running_node(tree.root, classes=CLASSES) as node:
        node.start()
        yield node


@pytest.fixture
def node(lasting: Node) -> Iterator[Node]:
    """A driver for a card whose two functions are in two groups."""
    yield lasting
    lasting.clear()


def answer(node: Node, device_class: str, *entries: dict[str, Any]) -> Any:
    """What the driver says to a claim of a class with parameters of its own."""
    uid = node.claim("one", requested("gpu", device_class), config=entries)
    node.pod("vm", "one")
    return node.answer("one", uid)


def nodes(node: Node, found: Any) -> set[str]:
    """What a container with the devices of an answer has."""
    assert found.error == ""
    return set(node.runtime.create(name for device in found.devices for name in device.cdi_device_ids).nodes)


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"apiVersion": "launcherkit.io/v2"}, "apiVersion"),
        ({"kind": "None"}, "kind"),
        ({"nonsense": 1}, "nonsense"),
        ({"siblings": "all"}, "siblings"),
        ({"siblings": "group"}, "siblings"),
        ({"rom": True}, "rom"),
        ({"vgpuType": "GRID T4-1Q"}, "vgpuType"),
        ({"nodes": "iommufd"}, "iommufd"),
    ],
)
def test_what_makes_no_sense_or_can_not_be_had_is_refused(node: Node, entry: dict[str, object], wrong: str) -> None:
    error = answer(node, "gpu", config(**entry)).error
    assert "LK" in error
    assert wrong in error


def test_parameters_that_are_no_object_are_refused(node: Node) -> None:
    assert "LK" in answer(node, "gpu", {"opaque": {"driver": DRIVER, "parameters": []}}).error


def test_siblings_come_along_or_stay_as_the_claim_says(node: Node) -> None:
    both, one = {"/dev/vfio/vfio", "/dev/vfio/10", "/dev/vfio/11"}, {"/dev/vfio/vfio", "/dev/vfio/10"}
    assert nodes(node, answer(node, "gpu")) == both
    node.clear()
    assert nodes(node, answer(node, "gpu", config(siblings="none"))) == one
    node.clear()
    assert nodes(node, answer(node, "alone")) == one


def test_a_claim_can_only_narrow_what_its_class_says(node: Node) -> None:
    assert "siblings" in answer(node, "alone", config(siblings="slot")).error


def test_what_the_class_says_comes_first_wherever_it_stands(node: Node) -> None:
    assert "nodes" in answer(node, "iommufd", config(nodes="group")).error


def test_parameters_of_one_request_are_not_those_of_another(node: Node) -> None:
    elsewhere = {**config(siblings="none"), "requests": ["other"]}
    assert "/dev/vfio/11" in nodes(node, answer(node, "gpu", elsewhere))
