"""By DRA, too, a card is a VM's or a container's, and the scheduler knows that it can't be both (K10, D3)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from launcherkit_plugin.allocation.allocator import Offer
from launcherkit_plugin.devices.container import ContainerProvider
from launcherkit_plugin.devices.container_card import CardUuids, read_card
from launcherkit_plugin.devices.selectors import Selection
from launcherkit_plugin.dra.inventory import DraDevice, inventory
from launcherkit_plugin.dra.request_parts import ListedDevice
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import ContainerUse, ContainerVariable
from launcherkit_plugin.model.device import Desired, Holder
from launcherkit_plugin.model.errors import DEVICE_CONFIG_REFUSED
from tests.plugin.binding.test_uses import NAME, Node
from tests.plugin.binding.test_uses import RULE as ON_DEMAND
from tests.plugin.dra.desk import CARDS, DRIVER, REF, ClaimDesk
from tests.plugin.resources import RULE, rebind
from tests.support.errors import raises_code
from tests.support.waiting import PATIENCE

CARD, UUID = "0000:01:00.0", "GPU-5a0c0000-0000-4000-8000-000000000001"
RULES = RULE._replace(dra=True, use="any")
VM, CONTAINER = "pci-0000-01-00-0", "container-0000-01-00-0"


class Desk(ClaimDesk):
    """The first card has NVIDIA's driver, and both providers are there."""

    def look(self) -> None:
        root = str(self.tree.root)
        rebind(self.tree, CARD, "nvidia")
        information = self.tree.root / f"proc/driver/nvidia/gpus/{CARD}/information"
        information.parent.mkdir(parents=True, exist_ok=True)
        information.write_text(f"GPU UUID: {UUID}\nDevice Minor: 3\n")
        containers = ContainerProvider(
            Selection(self.node.rule_of, lambda _, rule: rule.name or ""),
            self.node.host,
            read=lambda address: read_card(root, f"{root}/proc", address),
            uuids=CardUuids(None, "boot"),
            queue=WorkQueue(stall=PATIENCE),
        )
        facts = self.node.facts()
        containers.look_at(facts)
        used = self.allocator.observe(self.usage, time.monotonic())
        offers = {
            found.name: Offer(found, provider)
            for provider in (self.node.provider, containers)
            for found in provider.resources(facts, used, 0.0)
        }
        resources = {name: offer.resource for name, offer in self.allocator.advertise(offers, facts).items()}
        self.published: dict[str, DraDevice] = {each.name: each for each in inventory(resources.values(), facts)}
        self.preparer.listed(
            {
                name: ListedDevice(each, resources[each.resource].devices[each.id])
                for name, each in self.published.items()
            }
        )

    def allocate_container(self, **config: object) -> None:
        self.allocate(REF, config=[_opaque(config)] if config else None)
        (result,) = self.claims[str(REF)]["status"]["allocation"]["devices"]["results"]
        result["device"] = CONTAINER


def _opaque(values: dict[str, object]) -> dict[str, object]:
    parameters = {"apiVersion": "launcherkit.io/v1", "kind": "DeviceConfig", **values}
    return {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": parameters}}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, {0x03: RULES})


def test_a_card_is_two_devices_with_one_counter(desk: Desk) -> None:
    vm, container = desk.published[VM], desk.published[CONTAINER]
    assert vm.counters == container.counters
    assert [(use.amount, use.total) for use in vm.counters] == [(1, 1)]
    assert container.attributes == {
        "resource": {"string": "nvidia.com/GPU-container"},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "type": {"string": "container"},
        "resource.kubernetes.io/pciBusID": {"string": CARD},
        "uuid": {"string": UUID},
        "class": {"string": "030000"},
        "vendorID": {"string": "10de"},
        "deviceID": {"string": "2204"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    }
    assert vm.attributes["type"] == {"string": "card"}
    assert [taint.key for taint in vm.taints] == ["launcherkit.io/driver"]
    assert container.taints == ()


def test_a_claim_for_a_container_has_its_variable_and_no_vfio(desk: Desk) -> None:
    desk.environment = False  # which is about the variables for launchers
    desk.allocate_container()
    desk.prepare()
    (device,) = desk.cdi(f"{DRIVER}_u-1.json")["devices"]
    assert device["containerEdits"]["env"] == [f"NVIDIA_VISIBLE_DEVICES={UUID}"]
    assert not device["containerEdits"].get("deviceNodes")


def test_by_nodes_a_claim_has_those_of_its_card(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {0x03: RULES._replace(container=ContainerUse("nodes", ("/dev/nvidiactl",)))})
    desk.allocate_container()
    desk.prepare()
    (device,) = desk.cdi(f"{DRIVER}_u-1.json")["devices"]
    assert [node["path"] for node in device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia3", "/dev/nvidiactl"]


def test_a_claim_for_a_vm_says_that_no_other_card_is_visible(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {0x03: RULES._replace(environment=ContainerVariable(void=True))})
    desk.environment = False
    desk.allocate(REF, *CARDS[1:])  # of one group
    desk.prepare()
    devices = desk.cdi(f"{DRIVER}_u-1.json")["devices"]
    assert [device["containerEdits"]["env"] for device in devices] == [["NVIDIA_VISIBLE_DEVICES=void"]] * 2


def test_what_one_use_has_is_tainted_for_the_other(tmp_path: Path) -> None:
    node = Node(tmp_path, ON_DEMAND._replace(dra=True, with_kata=False))
    node.turn()
    uuid, holder = next(iter(node.seen[NAME["container"]])), Holder("", claim=REF)

    def taints() -> dict[str, list[str]]:
        found = inventory(node.resources, node.look())
        return {each.name: [taint.key for taint in each.taints] for each in found}

    async def prepare() -> None:
        async with node.allocator.claiming(holder, [Desired(NAME["container"], [uuid])]):
            node.allocator.claimed(DRIVER, {NAME["container"]: {uuid: holder}})

    assert taints() == {VM: [], CONTAINER: []}
    asyncio.run(prepare())
    node.turn(1)
    assert taints() == {VM: ["launcherkit.io/other-use"], CONTAINER: []}
    node.allocator.claimed(DRIVER, {})
    node.turn(1)
    assert taints() == {VM: [], CONTAINER: []}


def test_parameters_of_vms_are_refused_for_containers(desk: Desk) -> None:
    desk.allocate_container(nodes="iommufd")
    with raises_code(DEVICE_CONFIG_REFUSED, match="nodes: iommufd: containers use it by the driver of the host"):
        desk.prepare()
