"""What a rehearsal promises is what the device plugin gives, on any host; and it promises nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcherkit import LauncherkitError, Policy, translate
from launcherkit.host.snapshot import dump, load
from launcherkit.host.source import Host
from launcherkit.model.address import UsbAddress
from launcherkit.model.host import HostFacts, Mdev, MdevParent, MdevType, VgpuVf
from launcherkit.pipeline import KnownHost
from launcherkit.rehearse.rehearsal import RehearsedVm, rehearse
from launcherkit.request.vmi import read_vmi
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.devices.pci import PciProvider
from launcherkit_plugin.devices.selectors import Selection
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.model.device import Device, Grant, Holder, Resource, Usage
from launcherkit_plugin.rehearsal.candidate_node import CandidateNode, with_allocated
from launcherkit_plugin.rehearsal.node_record import NodeOffer, read_record, record_of
from tests.plugin.resources import GPU, RULE, Node
from tests.support.facts import UUID, UUID2, at, detail, facts, function
from tests.support.hosttree import HostTree
from tests.tiers import EXAMPLES

DOMAIN = b"<domain type='kvm'><os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"
DRIVERS = ("vfio-pci", "vfio-pci", "vfio-pci", "nvidia", None)


def vm(count: int) -> RehearsedVm:
    gpus = [{"name": f"gpu{number}", "deviceName": GPU} for number in range(count)]
    return RehearsedVm("vm", DOMAIN, read_vmi({"spec": {"domain": {"devices": {"gpus": gpus}}}}), Policy())


def usage(held: Mapping[str, str]) -> Usage:
    return Usage("pod-resources", {GPU: {device: Holder(pod) for device, pod in held.items()}})


def build(tree: HostTree, cards: list[tuple[int, str | None, int]]) -> HostTree:
    """Cards with audio, each with its group, driver and NUMA node."""
    for number, (group, driver, numa) in enumerate(cards, start=1):
        tree.card(f"0000:{number:02x}:00", group=group, driver=driver, numa=numa)
    return tree


cards = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(DRIVERS), st.integers(0, 1)), max_size=6)
pods = st.dictionaries(st.integers(1, 6).map("0000:{:02x}:00.0".format), st.sampled_from(("a/a", "b/b")), max_size=3)


def seen(node: Node, used: Usage) -> tuple[HostFacts, tuple[Resource, ...]]:
    facts = node.facts()
    return facts, node.provider.resources(facts, used, 0.0)


async def allocated(
    resources: tuple[Resource, ...], node: Node, facts: HostFacts, used: Usage, count: int
) -> tuple[list[str], Grant] | None:
    """What the daemon gives when the kubelet asks it for as many, by its preference; None for too few."""
    allocator = Allocator(Reservations(), lambda: 0.0)
    allocator.observe(used, 0.0)
    offers = allocator.advertise({each.name: Offer(each, node.provider) for each in resources}, facts)
    devices = offers[GPU].resource.devices.values() if GPU in offers else ()
    free = [each.id for each in devices if each.healthy and used.holder(GPU, each.id) is None]
    ids = allocator.prefer(GPU, free, [], count)
    if len(ids) < count:
        return None
    (grant,) = await allocator.allocate(GPU, [ids])
    return ids, grant


@settings(max_examples=int(os.environ.get(EXAMPLES, "30")))
@given(cards, pods, st.integers(1, 3))
def test_a_rehearsal_promises_what_the_plugins_allocator_gives_on_that_host_and_splits_no_group(
    cards: list[tuple[int, str | None, int]], held: dict[str, str], count: int
) -> None:
    with TemporaryDirectory() as folder:
        node, used = Node(build(HostTree(Path(folder)), cards)), usage(held)
        facts, resources = seen(node, used)
        scan = Host.from_sysfs(folder).scan()
        (outcome,) = rehearse(vm(count), [CandidateNode(NodeOffer("node", load(dump(scan)), resources, used))])
        try:
            found = asyncio.run(allocated(resources, node, facts, used, count))
        except LauncherkitError:
            found = None
    if found is None:
        assert not outcome.starts
        assert outcome.errors
        return
    ids, grant = found
    assert outcome.allocation is not None
    # No group is split between the VM and another pod.
    taken = {group for device in outcome.allocation.devices for group in device.groups}
    assert taken.isdisjoint(each.iommu_group for each in facts.functions.values() if str(each.address) in held)
    assert [device.id for device in outcome.allocation.devices] == ids
    assert outcome.allocation.env == grant.env
    assert outcome.allocation.facts.nodes == frozenset(grant.nodes)
    # It starts where the translation of that very allocation succeeds, and nowhere else.
    in_pod = scan._replace(nodes=frozenset(grant.nodes), container_dev=True)
    try:
        document = translate(DOMAIN, env=grant.env, host=KnownHost(in_pod), vmi=vm(count).vmi).domain_xml
    except LauncherkitError:
        assert not outcome.starts
    else:
        assert outcome.translation is not None
        assert outcome.translation.domain_xml == document


def test_the_mediated_device_of_a_slot_is_there_after_its_allocation() -> None:
    """G2: with a group of its own; a type that has no name goes by its ID."""
    types = (MdevType("nvidia-222", "GRID T4-1Q", "vfio-pci", 8, None), MdevType("i915-2", None, "vfio-pci", 2, None))
    before = facts(parents=[MdevParent("0000:3b:00.0", at("0000:3b:00.0"), types)], nodes=[])
    slots = [
        Device(uuid, card="0000:3b:00.0", made=False, vgpu_types=(name,))
        for uuid, name in ((UUID, "GRID T4-1Q"), (UUID2, "i915-2"))
    ]
    after = with_allocated(before, slots)
    assert after.mdevs == {
        UUID: Mdev(UUID, "0000:3b:00.0", "nvidia-222", "GRID T4-1Q", "vfio-pci", 0),
        UUID2: Mdev(UUID2, "0000:3b:00.0", "i915-2", None, "vfio-pci", 1),
    }
    assert after.nodes == frozenset({"/dev/vfio/vfio", "/dev/vfio/0", "/dev/vfio/1"})
    assert with_allocated(after, slots) == after


@pytest.mark.parametrize("already", [0, 5])
def test_a_vf_has_the_type_of_its_resource_after_its_allocation(already: int) -> None:
    """G4."""
    vf = at("0000:3b:00.4")
    before = facts(function(str(vf)), details={str(vf): detail(vgpu=VgpuVf(already, ((4, "A40-2B"), (5, "A40-1B"))))})
    after = with_allocated(before, [Device(str(vf), functions=(vf,), vgpu_types=("A40-1B",))])
    assert after.details[vf].vgpu == VgpuVf(5, ((4, "A40-2B"), (5, "A40-1B")))


def test_a_document_that_is_none_is_an_error_of_the_vm_and_not_of_a_node() -> None:
    broken = RehearsedVm("vm.xml", b"<domain", vm(1).vmi, Policy())
    with pytest.raises(LauncherkitError, match=r"vm\.xml"):
        rehearse(broken, [])


def test_what_another_pod_has_and_its_group_are_not_to_be_had(tmp_path: Path) -> None:
    node = Node(build(HostTree(tmp_path), [(1, "vfio-pci", 0), (1, "vfio-pci", 0), (2, "vfio-pci", 0)]))
    used = usage({"0000:01:00.0": "a/a"})
    facts, resources = seen(node, used)
    one, two = (rehearse(vm(count), [CandidateNode(NodeOffer("n", facts, resources, used))])[0] for count in (1, 2))
    assert one.allocation is not None
    assert [device.id for device in one.allocation.devices] == ["0000:03:00.0"]
    assert [error.code for error in two.errors] == ["LK861"]
    assert "3 devices, 1 of them in use, 1 Unhealthy: 0000:02:00.0: pod a/a has 0000:01:00.0" in two.errors[0].message


def test_usb_devices_of_a_nodes_record_are_promised_as_they_are_given() -> None:
    both = Device("usb-0000:00:14.0-2-1+usb-0000:00:14.0-2-2", usb=(UsbAddress(1, 4), UsbAddress(1, 12)))
    resource = Resource(GPU, "USB_RESOURCE_NVIDIA_COM_GPU", {both.id: both})
    read = read_record(record_of(NodeOffer("node", facts(), [resource])), "node")
    (outcome,) = rehearse(vm(1), [CandidateNode(read)])
    assert outcome.allocation is not None, outcome.errors
    assert outcome.allocation.env == {"USB_RESOURCE_NVIDIA_COM_GPU": "1:4,1:12"}
    assert outcome.allocation.facts.nodes == frozenset({"/dev/bus/usb/001/004", "/dev/bus/usb/001/012"})


def test_what_is_for_containers_is_not_for_a_vm(tmp_path: Path) -> None:
    """It has its host driver, and stays with that (K10)."""
    node = Node(build(HostTree(tmp_path), [(1, "vfio-pci", 0)]))
    facts, resources = seen(node, usage({}))
    offered = [each._replace(use="container") for each in resources]
    (outcome,) = rehearse(vm(1), [CandidateNode(NodeOffer("node", facts, offered))])
    assert [error.message for error in outcome.errors] == [
        f"node has 0 of the 1 {GPU} that the VM asks for: it advertises nothing"
    ]


def test_what_is_for_dra_is_reported_as_such(tmp_path: Path) -> None:
    """A DeviceClass may serve that name, and then the scheduler allocates (D1)."""
    node = Node(build(HostTree(tmp_path), [(1, "vfio-pci", 0)]))
    facts, resources = seen(node, usage({}))
    offered = [each._replace(dra=True) for each in resources]
    (outcome,) = rehearse(vm(1), [CandidateNode(NodeOffer("node", facts, offered))])
    (error,) = outcome.errors
    assert error.message.endswith("it advertises nothing; its own are for DRA, and the scheduler chooses them")


def test_two_resources_of_one_group_are_refused_as_the_plugin_refuses_them(tmp_path: Path) -> None:
    """The kubelet asks for one resource after the other, and the plugin can't know that it is one pod (K3)."""
    tree = build(HostTree(tmp_path), [(1, "vfio-pci", 0), (1, "vfio-pci", 0)])
    facts = read_node(Host.from_sysfs(tree.root), lambda function: not function.is_bridge_by_class, vgpu=False)
    provider = PciProvider(
        Selection(
            lambda function: RULE if function.class_code >> 16 == 3 else None,
            lambda function, _: f"{GPU}{function.address.bus}",
        ),
        Host.none(),
    )
    node = CandidateNode(NodeOffer("node", facts, provider.resources(facts, usage({}), 0.0)))
    with pytest.raises(LauncherkitError) as raised:
        node.allocate({f"{GPU}1": 1, f"{GPU}2": 1})
    assert raised.value.code == "LK714"
