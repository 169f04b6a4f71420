"""Cards that containers use by the driver of the host: what they get, and how they share a card (K10)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.devices.container import ContainerProvider, GivesBack
from launcherkit_plugin.devices.container_card import CardAccess, CardUuids, read_card, why_unusable
from launcherkit_plugin.devices.selectors import Selection
from launcherkit_plugin.host.driver_nodes import nvidia_uuids
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import ContainerUse, PciRule, Selector, Sharing
from launcherkit_plugin.model.device import Grant, Problem, Resource
from launcherkit_plugin.model.errors import DEVICE_UNHEALTHY, SHARED_REQUEST_TOO_LARGE
from tests.plugin.resources import rebind, usage
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.pages import ROOT
from tests.support.provoked import provoked
from tests.support.waiting import PATIENCE

GPU = "nvidia.com/gpu"
CARD, CARD2 = "0000:01:00.0", "0000:e1:00.0"
UUID, UUID2 = "GPU-5a0c0000-0000-4000-8000-000000000001", "GPU-5a0c0000-0000-4000-8000-000000000002"
RULE = PciRule(select=(Selector(),), name=GPU, use="container")
NODES = ContainerUse("nodes")


def information(root: Path, address: str, uuid: str, minor: int) -> None:
    """What NVIDIA's driver says of a card in proc."""
    file = root / f"proc/driver/nvidia/gpus/{address}/information"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"Model: \t\t NVIDIA A40\nIRQ:   \t\t 35\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")


def drm(tree: HostTree, address: str, *names: str) -> None:
    for minor, name in enumerate(names):
        folder = tree.path(address) / "drm" / name
        folder.mkdir(parents=True)
        (folder / "dev").write_text(f"226:{minor}\n")
        (folder / "uevent").write_text(f"DEVNAME=dri/{name}\n")


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """Two cards of NVIDIA on its driver, their audio in groups with them."""
    tree = HostTree(tmp_path)
    for slot, group, numa, uuid, minor in (("0000:01:00", 12, 0, UUID, 1), ("0000:e1:00", 44, 1, UUID2, 0)):
        tree.card(slot, group=group, driver="nvidia", numa=numa)
        information(tmp_path, f"{slot}.0", uuid, minor)
    return tree


class Node:
    """A provider on a tree, and the allocator."""

    def __init__(
        self, tree: HostTree, rule: PciRule = RULE, *, annotate: bool = False, gives_back: GivesBack | None = None
    ) -> None:
        root = str(tree.root)
        self.host = node_host(root)
        self.rule = rule
        self.provider = ContainerProvider(
            Selection(self._match, lambda _, rule: rule.name or ""),
            self.host,
            read=lambda address: read_card(root, f"{root}/proc", address),
            uuids=CardUuids(None, "boot"),
            queue=WorkQueue(stall=PATIENCE),
            gives_back=gives_back,
            annotate=annotate,
        )
        self.allocator = Allocator(Reservations(), lambda: 1000.0)
        asyncio.run(self.turn())

    def _match(self, function: PciFunction) -> PciRule | None:
        return self.rule if function.class_code >> 16 == 0x03 else None

    async def turn(self) -> None:
        facts = read_node(self.host, self.provider.wants, vgpu=False)
        await asyncio.gather(*self.provider.reconcile(facts, usage({}), 1000.0))
        (self.resource,) = self.provider.resources(facts, usage({}), 1000.0)
        offered = self.allocator.advertise({self.resource.name: Offer(self.resource, self.provider)}, facts)
        self.resource = offered[self.resource.name].resource

    def look(self) -> Resource:
        asyncio.run(self.turn())
        return self.resource

    def grant(self, *ids: str) -> Grant:
        (grant,) = asyncio.run(self.allocator.allocate(self.resource.name, [ids]))
        return grant

    def problems(self) -> dict[str, str]:
        return {key: each.problem.text for key, each in self.look().devices.items() if each.problem}


def test_cards_of_nvidia_are_called_and_given_as_its_own_plugin_does(tree: HostTree) -> None:
    node = Node(tree)
    assert {key: (each.numa_node, each.healthy) for key, each in node.resource.devices.items()} == {
        UUID: (0, True),
        UUID2: (1, True),
    }
    grant = node.grant(UUID2, UUID)
    assert (grant.env, grant.nodes) == ({}, ())
    assert grant.cdi == (f"nvidia.com/gpu={UUID2}", f"nvidia.com/gpu={UUID}")


def test_cards_of_nvidia_are_given_by_its_variable_only_where_the_rule_says_so_or_by_claim(tree: HostTree) -> None:
    """Any pod can set the variable; a claim has no other way."""
    for rule in (RULE._replace(container=ContainerUse("environment")), RULE._replace(dra=True)):
        grant = Node(tree, rule).grant(UUID2, UUID)
        assert (grant.env, grant.nodes, grant.cdi) == ({"NVIDIA_VISIBLE_DEVICES": f"{UUID2},{UUID}"}, (), ())


def test_other_cards_are_given_by_their_device_nodes(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function(CARD, vendor=0x1002, driver="amdgpu", group=12)
    drm(tree, CARD, "card1", "renderD129")
    node = Node(tree)
    assert list(node.resource.devices) == [CARD]
    grant = node.grant(CARD)
    assert (grant.env, grant.nodes, grant.permissions) == ({}, ("/dev/dri/card1", "/dev/dri/renderD129"), "rw")


def test_further_nodes_are_a_list_in_the_configuration(tree: HostTree) -> None:
    node = Node(tree, RULE._replace(container=ContainerUse("nodes", ("/dev/nvidiactl",))))
    assert node.grant(CARD).nodes == ("/dev/nvidia1", "/dev/nvidiactl")
    node = Node(tree, RULE._replace(container=ContainerUse(None, ("/dev/nvidiactl",))))
    assert node.grant(UUID).nodes == ("/dev/nvidiactl",)


def test_the_nodes_of_nvidias_cards_can_be_passed_beside_the_variable(tree: HostTree) -> None:
    use = ContainerUse("environment", nodes=("/dev/nvidiactl",), pass_nodes=True)
    grant = Node(tree, RULE._replace(container=use)).grant(UUID2, UUID)
    assert grant.env == {"NVIDIA_VISIBLE_DEVICES": f"{UUID2},{UUID}"}
    assert grant.nodes == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
    shared = Node(tree, SHARED._replace(container=use)).grant(f"{UUID}::1", f"{UUID}::2")
    assert shared.nodes == ("/dev/nvidia1", "/dev/nvidiactl")


def test_a_driver_that_has_no_node_for_containers_makes_the_card_unhealthy(tree: HostTree) -> None:
    rebind(tree, CARD, "snd_hda_intel")
    (tree.root / f"proc/driver/nvidia/gpus/{CARD}/information").unlink()
    node = Node(tree, RULE._replace(container=NODES))
    text = "display controller 10de:2204: its driver has no device node for containers"
    assert node.problems() == {CARD: f"{CARD} {text}"}


@pytest.mark.parametrize(("names", "given"), [("uuid", UUID2), ("index", "1")])
def test_by_cdi_the_names_are_those_of_the_vendors_files(tree: HostTree, names: str, given: str) -> None:
    use = ContainerUse("cdi", cdi_names=names)  # type: ignore[arg-type]
    grant = Node(tree, RULE._replace(container=use), annotate=True).grant(UUID2)
    assert (grant.env, grant.cdi) == ({}, (f"nvidia.com/gpu={given}",))
    assert list(grant.annotations.values()) == [f"nvidia.com/gpu={given}"]


def test_a_card_that_has_no_driver_or_vfios_is_unhealthy_until_it_has_one(tree: HostTree) -> None:
    node = Node(tree)
    rebind(tree, CARD, "vfio-pci")
    rebind(tree, CARD2, None)
    what = "display controller 10de:2204"
    assert node.problems() == {
        UUID: f"{CARD} {what} is bound to vfio-pci; containers need the driver of the host",
        UUID2: f"{CARD2} {what} has no driver; containers need that of the host",
    }
    with raises_code(DEVICE_UNHEALTHY):
        node.grant(UUID)
    rebind(tree, CARD, "nvidia")
    rebind(tree, CARD2, "nvidia")
    assert node.problems() == {}


def test_a_card_whose_uuid_the_driver_does_not_know_yet_is_unhealthy_and_has_one_id_later(tree: HostTree) -> None:
    information(tree.root, CARD, "GPU-????????-????-????-????-????????????", 1)
    node = Node(tree)
    assert node.problems() == {
        CARD: f"{CARD} display controller 10de:2204: NVIDIA's driver doesn't say its UUID: run nvidia-smi once, or "
        "nvidia-persistenced"
    }
    information(tree.root, CARD, UUID, 1)
    assert list(node.look().devices) == [UUID, UUID2]
    assert node.problems() == {}


def test_what_has_changed_since_the_look_is_seen(tree: HostTree) -> None:
    node = Node(tree)
    rebind(tree, CARD, "vfio-pci")
    with raises_code(DEVICE_UNHEALTHY, match="is no longer available"):
        node.grant(UUID)


class Regretted:
    """Gives a card back, which a VM of another program then gets at once: see `GivesBack`."""

    def __init__(self, tree: HostTree) -> None:
        self._tree = tree
        self.given: list[str] = []

    def stays(self, address: PciAddress) -> Problem | None:
        return None

    def goes_with(self, address: PciAddress) -> Collection[PciAddress]:
        return (address,)

    async def give_back(
        self, resource: str, ids: Sequence[str], addresses: Sequence[PciAddress], seconds: float
    ) -> None:
        self.given += map(str, addresses)
        for driver in ("nvidia", "vfio-pci"):
            rebind(self._tree, CARD, driver)


def test_a_card_that_is_with_vfio_again_when_the_container_would_get_it_is_refused(tree: HostTree) -> None:
    gives_back = Regretted(tree)
    node = Node(tree, RULE._replace(container=NODES), gives_back=gives_back)
    rebind(tree, CARD, "vfio-pci")
    node.look()
    with raises_code(DEVICE_UNHEALTHY, match="is bound to vfio-pci again"):
        node.grant(CARD)
    assert gives_back.given == [CARD]
    with raises_code(DEVICE_UNHEALTHY, match="is bound to vfio-pci again"):
        asyncio.run(node.allocator.check(node.resource.name, [CARD]))


def test_uuids_are_kept_for_the_next_process_until_the_next_boot(tmp_path: Path) -> None:
    folder = str(tmp_path / "binding")
    CardUuids(folder, "a").update(CARD, UUID)
    assert CardUuids(folder, "a").get(CARD) == UUID
    assert CardUuids(folder, "b").get(CARD) is None
    (tmp_path / "binding/gpu-uuids").write_text("{")
    assert CardUuids(folder, "a").get(CARD) is None
    CardUuids(folder, "a").update(CARD2, UUID)
    moved = CardUuids(folder, "a")
    moved.update(CARD, UUID)
    assert [CardUuids(folder, "a").get(card) for card in (CARD, CARD2)] == [UUID, None]


def test_uuids_of_before_checksums_are_read(tmp_path: Path) -> None:
    (tmp_path / "gpu-uuids").write_text(json.dumps({"boot": "a", "uuids": {CARD: UUID}}, indent=1) + "\n")
    assert CardUuids(str(tmp_path), "a").get(CARD) == UUID


def test_the_cards_of_the_driver_are_found_by_their_uuids(tree: HostTree) -> None:
    assert nvidia_uuids(f"{tree.root}/proc") == {UUID: CARD, UUID2: CARD2}
    assert nvidia_uuids(f"{tree.root}/nowhere") == {}


# Replicas, as NVIDIA's device plugin has them

SHARED = RULE._replace(sharing=Sharing(4))


def test_each_card_has_as_many_ids_as_replicas_and_containers_get_it_once(tree: HostTree) -> None:
    node = Node(tree, SHARED)
    assert list(node.resource.devices) == [f"{uuid}::{number}" for uuid in (UUID, UUID2) for number in range(4)]
    grant = node.grant(f"{UUID}::3", f"{UUID2}::0", f"{UUID}::1")
    assert grant.cdi == (f"nvidia.com/gpu={UUID}", f"nvidia.com/gpu={UUID2}")


def test_several_pods_share_a_card(tree: HostTree) -> None:
    node = Node(tree, SHARED)
    for number in range(4):
        assert node.grant(f"{UUID}::{number}").cdi == (f"nvidia.com/gpu={UUID}",)
    assert node.problems() == {}


def test_requests_are_spread_over_the_cards(tree: HostTree) -> None:
    node = Node(tree, SHARED)
    everything = list(node.resource.devices)
    prefer = node.allocator.prefer
    assert prefer(GPU, everything, [], 3) == [f"{UUID}::0", f"{UUID2}::0", f"{UUID}::1"]
    free = [key for key in everything if key not in (f"{UUID}::0", f"{UUID}::1", f"{UUID2}::0")]
    assert prefer(GPU, free, [], 1) == [f"{UUID2}::1"]
    assert prefer(GPU, free, [f"{UUID}::2"], 3) == [f"{UUID}::2", f"{UUID2}::1", f"{UUID2}::2"]
    assert prefer(GPU, free[:1], [], 2) == free[:1]


def test_requests_can_fill_one_card_after_the_other(tree: HostTree) -> None:
    node = Node(tree, RULE._replace(sharing=Sharing(4, policy="packed")))
    everything = list(node.resource.devices)
    prefer = node.allocator.prefer
    assert prefer(GPU, everything, [], 5) == [*(f"{UUID}::{number}" for number in range(4)), f"{UUID2}::0"]
    free = [key for key in everything if key != f"{UUID2}::0"]
    assert prefer(GPU, free, [], 1) == [f"{UUID2}::1"]
    assert prefer(GPU, free, [f"{UUID}::0"], 4) == [f"{UUID}::0", f"{UUID}::1", f"{UUID}::2", f"{UUID}::3"]


def test_requests_for_more_than_one_can_be_refused(tree: HostTree) -> None:
    node = Node(tree, RULE._replace(sharing=Sharing(4, one_a_request=True)))
    assert node.grant(f"{UUID}::0")
    with raises_code(SHARED_REQUEST_TOO_LARGE) as raised:
        node.grant(f"{UUID}::1", f"{UUID2}::1")
    assert [f"LK842: {raised.value.message}"] == provoked("allocator", "LK842")
    assert raised.value.message in (ROOT / "docs/errors/LK842.md").read_text()


def test_a_shared_resource_can_say_so_in_its_name(tree: HostTree) -> None:
    assert Node(tree, RULE._replace(sharing=Sharing(2, rename=True))).resource.name == "nvidia.com/gpu.shared"


def test_all_replicas_of_a_card_are_ill_with_it_and_well_again_by_themselves(tree: HostTree) -> None:
    node = Node(tree, SHARED)
    rebind(tree, CARD, None)
    assert list(node.problems()) == [f"{UUID}::{number}" for number in range(4)]
    rebind(tree, CARD, "nvidia")
    assert node.problems() == {}


def test_a_held_replica_is_that_of_its_card() -> None:
    from launcherkit_plugin.binding.in_use import address_in, by_address

    found = by_address(usage({GPU: {f"{UUID}::2": "a/b", f"{UUID}::0": "a/c"}}), {UUID: CARD})
    assert {address_in(device): holder.pod for device, holder in found.held[GPU].items()} == {
        PciAddress.parse(CARD): "a/c"
    }
    assert [holder.pod for holder in found.held[GPU].values()] == ["a/b", "a/c"], "none hides another"


def test_a_card_whose_number_is_unknown_is_not_given_by_its_number() -> None:
    access = CardAccess((), "GPU-1", None)
    why = why_unusable(ContainerUse(cdi_names="index"), "cdi", access)
    assert why == "NVIDIA's driver doesn't have it, so its number isn't known"
    assert why_unusable(ContainerUse(cdi_names="uuid"), "cdi", access) is None
    assert why_unusable(ContainerUse(cdi_names="index"), "cdi", access._replace(number=0)) is None
