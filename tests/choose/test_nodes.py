"""The device nodes by which QEMU opens devices (V2)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from launcherkit.choose.nodes import (
    VfioDevice,
    check_node_set,
    check_nodes,
    needed_nodes,
    node_set,
    nodes_to_come,
    own_nodes,
)
from launcherkit.choose.viability import touched_groups
from launcherkit.model.address import MdevAddress
from launcherkit.model.host import NO_FACTS, HostFacts
from tests.support.facts import UUID, at, card, detail, facts, function, mdev

GPU = "0000:e1:00.0"
MATE = "0000:e1:00.1"


def nodes_of(host: HostFacts, *attached: VfioDevice, iommufd: bool = False) -> tuple[str, ...]:
    return needed_nodes(attached, host, iommufd).nodes


def test_the_old_nodes_are_the_container_and_every_group_once() -> None:
    """V2."""
    host = facts(*card("0000:e1:00", 44), function("0000:01:00.0", group=12), mdevs=[mdev(group=90)])
    attached = at(GPU), at(MATE), at("0000:01:00.0"), MdevAddress(UUID)
    assert nodes_of(host, *attached) == ("/dev/vfio/vfio", "/dev/vfio/44", "/dev/vfio/12", "/dev/vfio/90")


def test_nothing_needs_nothing() -> None:
    assert nodes_of(NO_FACTS) == ()


def cdev_host(nodes: Iterable[str] | None, *, mdevs: bool = False) -> HostFacts:
    return facts(
        function(GPU, group=44),
        details={GPU: detail(vfio_dev="vfio3")},
        nodes=nodes,
        mdevs=[mdev(group=90)] if mdevs else [],
    )


OLD = {"/dev/vfio/vfio", "/dev/vfio/44"}
NEW = {"/dev/iommu", "/dev/vfio/devices/vfio3"}


def test_a_domain_that_goes_through_iommufd_needs_the_character_devices() -> None:
    """V2."""
    needed = needed_nodes([at(GPU)], cdev_host(OLD | NEW), iommufd=True)
    assert (set(needed.nodes), needed.iommufd) == (NEW, True)


def test_where_only_the_character_devices_are_complete_the_domain_goes_through_iommufd() -> None:
    """V2."""
    needed = needed_nodes([at(GPU)], cdev_host(NEW | {"/dev/vfio/vfio"}), iommufd=False)
    assert (set(needed.nodes), needed.iommufd) == (NEW, True)


def test_where_neither_set_is_complete_the_old_one_is_asked_for() -> None:
    """V2."""
    needed = needed_nodes([at(GPU)], cdev_host(["/dev/iommu", "/dev/vfio/vfio"]), iommufd=False)
    assert (set(needed.nodes), needed.iommufd) == (OLD, False)


def test_with_both_sets_the_old_one_is_taken() -> None:
    """V2."""
    needed = needed_nodes([at(GPU)], cdev_host(OLD | NEW), iommufd=False)
    assert (set(needed.nodes), needed.iommufd) == (OLD, False)


def test_an_mdev_forces_the_old_set() -> None:
    """V2: never a mix in one domain."""
    for iommufd in (False, True):
        needed = needed_nodes([at(GPU), MdevAddress(UUID)], cdev_host(NEW, mdevs=True), iommufd)
        assert (set(needed.nodes), needed.iommufd) == (OLD | {"/dev/vfio/90"}, False)


def missing(nodes: Iterable[str], host: HostFacts) -> list[str]:
    """The nodes that an error names."""
    return [error.message.split()[3] for error in check_nodes(nodes, host)]


def test_every_node_that_is_not_here_is_an_error() -> None:
    """V2."""
    assert {error.file for error in check_nodes(OLD, cdev_host([]))} == OLD
    assert missing(sorted(OLD), cdev_host(["/dev/vfio/44"])) == ["/dev/vfio/vfio"]
    assert missing(sorted(OLD), cdev_host([])) == ["/dev/vfio/44", "/dev/vfio/vfio"]
    assert missing(sorted(OLD), cdev_host(OLD)) == []


def test_where_nodes_are_not_known_none_is_missing_and_usb_nodes_are_not_looked_for() -> None:
    assert missing(OLD, cdev_host(None)) == []
    assert missing(["/dev/bus/usb/001/004"], cdev_host([])) == []


@pytest.mark.parametrize(
    ("driver", "managed", "expected"),
    [("nvidia", {GPU, MATE}, ["/dev/vfio/44"]), ("nvidia", set(), []), ("vfio-pci", {GPU, MATE}, [])],
)
def test_the_node_of_what_libvirt_binds_itself_is_not_missed(
    driver: str, managed: set[str], expected: list[str]
) -> None:
    """V2."""
    host = facts(*card("0000:e1:00", 44, driver=driver))
    groups = touched_groups([at(GPU), at(MATE)], host)
    assert nodes_to_come(groups, {at(address) for address in managed}, host) == frozenset(expected)


def test_a_set_is_complete_if_every_device_has_a_node_and_all_exist() -> None:
    """V2."""
    for iommufd, own in ((False, OLD), (True, NEW)):
        assert node_set([at(GPU)], cdev_host(own), iommufd=iommufd).is_complete(cdev_host(own))
        for missing_one in own:
            host = cdev_host(own - {missing_one})
            assert not node_set([at(GPU)], host, iommufd=iommufd).is_complete(host)


def test_a_device_without_a_node_of_its_own_makes_a_set_incomplete_even_where_nodes_are_not_known() -> None:
    host = cdev_host(None)._replace(details={})
    assert node_set([at(GPU)], host, iommufd=False).is_complete(host)
    through = node_set([at(GPU)], host, iommufd=True)
    assert (through.nodes, through.is_complete(host)) == (("/dev/iommu",), False)


def test_a_mediated_device_can_only_be_opened_by_its_group() -> None:
    """V2."""
    host = cdev_host(OLD | NEW | {"/dev/vfio/90"}, mdevs=True)
    assert node_set([MdevAddress(UUID)], host, iommufd=False).nodes == ("/dev/vfio/vfio", "/dev/vfio/90")
    assert not node_set([MdevAddress(UUID)], host, iommufd=True).is_complete(host)


def test_whoever_has_a_node_of_a_device_open_has_the_device_either_way() -> None:
    assert own_nodes(at(GPU), cdev_host(None)) == ["/dev/vfio/44", "/dev/vfio/devices/vfio3"]
    assert own_nodes(MdevAddress(UUID), cdev_host(None, mdevs=True)) == ["/dev/vfio/90"]


def test_a_set_without_a_node_of_a_device_has_one_missing() -> None:
    host = facts(function(GPU, group=7), details={GPU: detail()}, nodes=["/dev/iommu"])
    (error,) = check_node_set(node_set([at(GPU)], host, iommufd=True), host)
    assert error.device == GPU
    unseen = host._replace(nodes=None)
    assert not [*check_node_set(node_set([at(GPU)], unseen, iommufd=True), unseen)]
