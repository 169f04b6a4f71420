"""Random hosts, claims and orders: the scheduler gives no two claims devices of one group, and none that is sick."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from launcherkit_plugin.dra.inventory import inventory
from launcherkit_plugin.dra.slices import slices
from launcherkit_plugin.model.device import Device
from tests.dra.api import Api, results_of
from tests.dra.node import DRIVER
from tests.dra.scheduler import DeviceClass, Scheduler, Unschedulable, requested
from tests.plugin.resources import RULE, Node
from tests.support.hosttree import HostTree
from tests.tiers import EXAMPLES


class Card(NamedTuple):
    """Two functions; their groups, and the driver of the second."""

    group: int
    beside: int
    driver: str


CARDS = st.lists(
    st.builds(
        Card, st.integers(10, 14), st.integers(10, 14), st.sampled_from(["vfio-pci", "vfio-pci", "snd_hda_intel"])
    ),
    min_size=1,
    max_size=8,
)


def published(root: Path, cards: list[Card]) -> tuple[Api, dict[str, Device]]:
    """The API with the slices of a host, and what its devices are."""
    tree = HostTree(root)
    for number, card in enumerate(cards, 1):
        slot = f"0000:{number:02x}:00"
        tree.function(f"{slot}.0", driver="vfio-pci", group=card.group)
        tree.function(f"{slot}.1", class_code=0x040300, device=0x1AEF, driver=card.driver, group=card.beside)
    node = Node(tree, {0x03: RULE._replace(dra=True)})
    found = inventory(node.look().values(), node.facts())
    specs = slices(found, DRIVER)
    api = Api()
    pool = {"name": api.node, "generation": 1, "resourceSliceCount": len(specs)}
    api.replace_slices(DRIVER, [{**spec, "nodeName": api.node, "pool": pool} for spec in specs])
    return api, {one.name: node.seen[one.resource].devices[one.id] for one in found}


def check(api: Api, devices: Mapping[str, Device]) -> None:
    users: Counter[int] = Counter()
    for claim in api.claims():
        given_ = [devices[result["device"]] for result in results_of(claim)]
        assert all(device.healthy for device in given_)
        users.update({group for device in given_ for group in device.groups})
    assert max(users.values(), default=1) == 1, users


@settings(max_examples=int(os.environ.get(EXAMPLES, "15")))
@given(CARDS, st.randoms(use_true_random=False))
def test_no_group_is_given_to_two_claims(cards: list[Card], chance: random.Random) -> None:
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        api, devices = published(Path(folder), cards)
    assert set(devices) == {f"pci-0000-{number:02x}-00-0" for number in range(1, len(cards) + 1)}
    scheduler = Scheduler(api, {"gpu": DeviceClass(DRIVER)}, chance)
    for number in range(3 * len(cards)):
        name = f"claim-{number}"
        api.create_claim(name, [requested("gpu", "gpu", chance.choice((1, 1, 2)))])
        try:
            scheduler.reserve(name, "vm")
        except Unschedulable:
            api.delete_claim(name)
            if api.claims() and chance.random() < 0.5:
                api.delete_claim(chance.choice(api.claims())["metadata"]["name"])
        check(api, devices)
    for claim in api.claims():
        api.delete_claim(claim["metadata"]["name"])
    for name, device in devices.items():  # apart from what others have, each that is well can be had
        api.create_claim(name, [requested("gpu", "gpu")])
        alone = Scheduler(api, {"gpu": DeviceClass(DRIVER, lambda one, name=name: one["name"] == name)})  # type: ignore[misc]
        if device.healthy:
            alone.reserve(name, "vm")
        api.delete_claim(name)
