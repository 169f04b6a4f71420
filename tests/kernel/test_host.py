"""Host facts of a real kernel, against what sysfs says when it is read another way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit.cli.main import run
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit_lab import sysfs

pytestmark = pytest.mark.kernel


def test_every_function_is_known_with_ids_class_driver_and_group(bound: Callable[..., None]) -> None:
    card = sysfs.cards()[0]
    bound(*card)
    facts = Host.from_sysfs("/").scan()
    assert [str(address) for address in sorted(facts.functions)] == sysfs.addresses()
    for address, function in facts.functions.items():
        name = str(address)
        assert function.model == (sysfs.number(name, "vendor"), sysfs.number(name, "device"))
        assert function.class_code == sysfs.number(name, "class")
        assert function.driver == sysfs.driver(name)
        assert str(function.iommu_group) == sysfs.group(name)
        assert [str(member) for member in facts.groups[function.iommu_group or 0]] == sysfs.members(name)
        assert facts.details[address].driver_override == sysfs.override(name)
    assert facts.functions[PciAddress.parse(card.display)].driver == "vfio-pci"


def test_a_virtual_function_knows_its_physical_function_and_the_other_way(vfs: list[str]) -> None:
    facts = Host.from_sysfs("/").scan()
    (physical,) = {str(facts.functions[PciAddress.parse(vf)].physfn) for vf in vfs}
    assert [str(vf) for vf in facts.details[PciAddress.parse(physical)].virtfns] == vfs
    assert facts.details[PciAddress.parse(physical)].sriov_numvfs == len(vfs)
    assert sysfs.number(physical, "device") == facts.functions[PciAddress.parse(physical)].device


def test_the_nodes_are_those_of_the_bound_groups(bound: Callable[..., None]) -> None:
    first, second, *_ = sysfs.cards()
    bound(*first, *second)
    nodes = Host.from_sysfs("/").scan().nodes or frozenset()
    assert nodes == {f"/dev/vfio/{path.name}" for path in Path("/dev/vfio").iterdir()}
    assert {f"/dev/vfio/{sysfs.group(card.display)}" for card in (first, second)} < nodes


def test_a_snapshot_of_this_machine_stands_for_it(bound: Callable[..., None], vfs: list[str], tmp_path: Path) -> None:
    bound(*sysfs.cards()[0])
    path = tmp_path / "host.json"
    assert run(["snapshot", "--output", str(path)], {}) == 0
    assert Host.from_snapshot(path) == Host.from_sysfs("/")


def test_what_is_read_by_need_is_what_a_scan_finds(bound: Callable[..., None]) -> None:
    card = sysfs.cards()[0]
    bound(*card)
    host = Host.from_sysfs("/")
    everything, needed = host.scan(), host.facts([PciAddress.parse(card.display)])
    assert [str(address) for address in sorted(needed.functions)] == sysfs.members(card.display)
    for address, function in needed.functions.items():
        # It spares the NUMA node, which no rule about a single function uses.
        assert function._replace(numa_node=None) == everything.functions[address]._replace(numa_node=None)
    assert needed.groups.items() <= everything.groups.items()
    assert (needed.nodes or frozenset()) <= (everything.nodes or frozenset())
