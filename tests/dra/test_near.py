"""Claims for devices that are close together: the scheduler finds an allocation exactly if there is one, and what it
finds is close together on sysfs."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcherkit_plugin.cli.resources import look
from launcherkit_plugin.dra.claim_manifest import KINDS, BusLevel, manifests
from launcherkit_plugin.dra.inventory import inventory
from launcherkit_plugin.dra.slices import slices
from launcherkit_plugin.model.config import Config, PciRule, Selector
from tests.dra.api import Api, results_of
from tests.dra.node import DRIVER
from tests.dra.scheduler import Device, DeviceClass, Scheduler, Unschedulable
from tests.support.hosttree import HostTree
from tests.support.imports import ROOT
from tests.tiers import EXAMPLES

GPU, NIC, NVME = KINDS
CLASSES = {GPU: 0x030000, NIC: 0x020000, NVME: 0x010802}
CONFIG = Config(pci=(PciRule(select=(Selector(classes=("03", "02", "01")),), bind="on-demand", dra=True),))


def is_of(*prefixes: str) -> DeviceClass:
    return DeviceClass(DRIVER, lambda one: one["attributes"]["class"]["string"].startswith(prefixes))


SCHEDULED = {kind.device_class: is_of(*kind.classes) for kind in KINDS}


def publish(place: str) -> Api:
    """The API with the slices of a host."""
    offer = look(CONFIG, place, {})
    specs = slices(inventory(offer.resources, offer.facts), DRIVER)
    api = Api()
    pool = {"name": api.node, "generation": 1, "resourceSliceCount": len(specs)}
    api.replace_slices(DRIVER, [{**spec, "nodeName": api.node, "pool": pool} for spec in specs])
    return api


def allocate(
    api: Api, counts: Mapping[Any, int], near: BusLevel, together: BusLevel | None = None
) -> list[Device] | None:
    """The devices that a claim gets; None if the pod stays pending."""
    claim = manifests("near", counts, DRIVER, near=near, together=together)[-1]["spec"]["devices"]
    api.create_claim("near", claim["requests"], constraints=claim.get("constraints", []))
    devices = {one["name"]: one for spec in api.slices() for one in spec.get("devices", ())}
    try:
        found = Scheduler(api, SCHEDULED).reserve("near", "vm")
        return [devices[result["device"]] for result in results_of(found)]
    except Unschedulable:
        return None
    finally:
        api.delete_claim("near")


class Switch(NamedTuple):
    """A switch of the board, or a root port with nothing but devices at other ports beside it."""

    gpus: int
    nics: int
    nvmes: int
    node: int


SWITCHES = st.lists(st.builds(Switch, *[st.integers(0, 2)] * 3, st.integers(0, 1)), min_size=1, max_size=3)
WISH = st.tuples(*[st.integers(0, 3)] * 3).filter(any)


def build(root: Path, board: Sequence[Switch]) -> str:
    tree = HostTree(root)
    group = iter(range(10, 200))
    for number, switch in enumerate(board):
        first = 1 + number * 16
        path = (f"pci0000:{number:02x}", f"0000:{number:02x}:01.0", f"0000:{first:02x}:00.0")
        bus = first + 1
        for kind, count in zip(KINDS, (switch.gpus, switch.nics, switch.nvmes), strict=True):
            for _ in range(count):
                bus += 1
                tree.function(
                    f"0000:{bus + 0x60:02x}:00.0",
                    vendor=0x10DE,
                    class_code=CLASSES[kind],
                    driver="vfio-pci",
                    group=next(group),
                    numa=switch.node,
                    parents=(*path, f"0000:{first + 1:02x}:{bus - first:02x}.0"),
                )
    return str(root)


def brute_force(board: Sequence[Switch], wish: tuple[int, int, int], near: str, together: str | None) -> bool:
    """Whether there are enough devices: every way of giving each group of devices a switch, or a node, is tried."""
    asked = [count for count in wish if count]
    groups = min(asked) if len(asked) > 1 else 1
    places = list(range(len(board))) if near == "pcieSwitch" else sorted({switch.node for switch in board})
    shares = [[len(range(group, count, groups)) for count in wish] for group in range(groups)]
    for chosen in product(places, repeat=groups):
        nodes = {board[place].node if near == "pcieSwitch" else place for place in chosen}
        if together == "numaNode" and len(nodes) > 1:
            continue
        needed: Counter[tuple[int, int]] = Counter()
        for place, share in zip(chosen, shares, strict=True):
            needed.update({(place, kind): count for kind, count in enumerate(share)})
        if all(amount <= available(board, near, place, kind) for (place, kind), amount in needed.items()):
            return True
    return False


def available(board: Sequence[Switch], near: str, place: int, kind: int) -> int:
    return sum(
        switch[kind] for at, switch in enumerate(board) if (at if near == "pcieSwitch" else switch.node) == place
    )


@settings(max_examples=int(os.environ.get(EXAMPLES, "15")), deadline=None)
@given(SWITCHES, WISH, st.sampled_from(["pcieSwitch", "numaNode"]), st.sampled_from([None, "numaNode"]))
def test_a_claim_is_allocated_exactly_if_a_search_through_all_places_finds_some(
    board: list[Switch], wish: tuple[int, int, int], near: BusLevel, together: BusLevel | None
) -> None:
    with tempfile.TemporaryDirectory(prefix="board-") as folder:
        api = publish(build(Path(folder), board))
    found = allocate(api, dict(zip(KINDS, wish, strict=True)), near, together)
    assert (found is not None) == brute_force(board, wish, near, together)


HGX = str(ROOT / "tests/data/hosts/hgx.json")


def pairs(devices: Sequence[Device]) -> Iterator[tuple[Device, Device]]:
    yield from zip(devices[::2], devices[1::2], strict=True)


def test_on_a_recorded_hgx_four_gpus_get_the_network_card_of_their_switch() -> None:
    found = allocate(publish(HGX), {GPU: 4, NIC: 4}, "pcieSwitch")
    assert found is not None
    buses = [
        [one["attributes"]["resource.kubernetes.io/pciBusID"]["string"][5:7] for one in pair] for pair in pairs(found)
    ]
    below = {"04": {"07", "0f"}, "44": {"47", "4e"}, "84": {"87", "90"}, "a4": {"b7", "bd"}}
    assert {nic for _, nic in buses} == below.keys()
    assert all(gpu in below[nic] for gpu, nic in buses)


@pytest.mark.parametrize(("gpus", "nics"), [(5, 5), (6, 2), (8, 3)])
def test_what_a_recorded_hgx_has_below_no_switch_it_does_not_give(gpus: int, nics: int) -> None:
    assert allocate(publish(HGX), {GPU: gpus, NIC: nics}, "pcieSwitch") is None
