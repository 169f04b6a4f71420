"""The DRA driver on a real kernel: from a claim to the guest, and back, whoever is killed when."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcherkit.host.source import Host
from launcherkit.rehearse.rehearsal import NodeOutcome
from launcherkit.request.template import find_template
from launcherkit_lab import sysfs
from launcherkit_lab.conformance.dra import DRA
from launcherkit_lab.conformance.expectation import Status
from launcherkit_lab.conformance.machine import Machine
from launcherkit_lab.devices import AUDIO, DISPLAY
from launcherkit_lab.driver.vgpus import SMALL_NAME, VGPU, Parent
from launcherkit_lab.guest.listing import read_listing
from tests.dra.kills import kill_and_see
from tests.dra.manager import FAST
from tests.dra.node import DRIVER, GPU, Node, running_node
from tests.dra.scheduler import DeviceClass, requested
from tests.kernel.containers import guest_in_container
from tests.kernel.guests import slots_with
from tests.kernel.rehearsed import check_found, rehearsed_with
from tests.lab.dra_driver import dra_results
from tests.libvirt.pod import Pod as Container
from tests.libvirt.pod import pod as container
from tests.support.apiserver import NODES, ApiServer
from tests.tiers import KILLS as KILLS_VARIABLE

pytestmark = pytest.mark.kernel

VGPUS = "example.com/VGPU"
CLASSES = {
    "gpu": DeviceClass(DRIVER, lambda device: device["name"].startswith("pci-")),
    "vgpu": DeviceClass(DRIVER, lambda device: device["name"].startswith("mdev-")),
}
EMULATED = FAST.scaled(8)
"""Everything takes ten times as long here."""
KILLS = int(os.environ.get(KILLS_VARIABLE, "20")) // 3
"""A third of what others do: a life of the driver takes the emulated machine half a minute."""


@pytest.fixture
def empty() -> Iterator[Container]:
    with container() as made:
        yield made


def configuration(card: sysfs.Card, *, dra: bool) -> dict[str, Any]:
    """A card of the host and vGPUs, both there once somebody has them: by claims, or by the device plugin."""
    rule = {"name": GPU, "select": [{"addresses": [card.display]}], "bind": "on-demand", "graceSeconds": 0, "dra": dra}
    mdevs = {"name": VGPUS, "types": [SMALL_NAME], "mode": "dynamic", "dra": dra}
    return {"resources": [rule], "vgpu": {"mediatedDevices": [mdevs], "graceSeconds": 0}}


@pytest.fixture
def node(card: sysfs.Card, parents: list[Parent]) -> Iterator[Node]:
    """A driver for a graphics card with audio, which the host has, and for vGPUs that it makes."""
    with running_node(Path("/"), classes=CLASSES, pace=EMULATED) as node:
        node.configure(**configuration(card, dra=True))
        yield node


def rehearsed_by_names(card: sysfs.Card, folder: Path) -> NodeOutcome:
    """A rehearsal of a VM that asks for the same by name: it refuses claims, which the scheduler answers (LK862)."""
    domain, facts = find_template("q35").render({"name": "vm"}), Host.from_sysfs("/").scan()
    return rehearsed_with(configuration(card, dra=False), [GPU, VGPUS], domain, facts, folder)


def drivers(card: sysfs.Card) -> list[str | None]:
    return [sysfs.driver(address) for address in card]


def test_a_claim_of_a_card_and_a_vgpu_is_all_that_a_guest_needs(
    node: Node, card: sysfs.Card, parents: list[Parent], empty: Container, kernel: Path, tmp_path: Path
) -> None:
    before = drivers(card)
    rehearsal = rehearsed_by_names(card, tmp_path)
    node.start()
    node.claim("card", requested("gpu", "gpu"))
    node.claim("slot", requested("vgpu", "vgpu"))
    pod = node.pod("vm", "card", "slot")
    given = node.run(pod)
    assert drivers(card) == ["vfio-pci", "vfio-pci"]
    assert sorted(len(parent.made()) for parent in parents) == [0, 1]
    listing = read_listing(guest_in_container(empty, given.env, given.nodes, kernel, tmp_path))
    assert len(slots_with(listing, DISPLAY, AUDIO)) == 1, listing
    assert list(listing.values()).count(VGPU) == 1, listing
    check_found(rehearsal, listing)
    node.delete(pod)
    assert node.left() == set()
    sysfs.until(lambda: not any(parent.made() for parent in parents), "the vGPU removed")
    sysfs.until(lambda: drivers(card) == before, "the card back with the host")


def test_kills_lose_nothing_and_leave_nothing(node: Node, card: sysfs.Card, parents: list[Parent]) -> None:
    before = drivers(card)
    kill_and_see(node, KILLS, "gpu", "vgpu", host=["/sys"])
    sysfs.until(lambda: not any(parent.made() for parent in parents), "all vGPUs removed")
    sysfs.until(lambda: drivers(card) == before, "the card back with the host")


def test_the_lab_finds_nothing_wrong(sound: None, bound: Callable[..., None]) -> None:
    """Its guest has the claim's function by the claim's nodes, which the kernel decides about."""
    cards = sysfs.cards()
    bound(*(address for card in cards for address in card))
    rule = {"name": GPU, "select": [{"addresses": [card.display for card in cards]}], "dra": True}
    server = ApiServer()
    server.put(NODES, {"metadata": {"name": "node-1"}})
    with tempfile.TemporaryDirectory(prefix="dra-") as name, server.running(Path(name)) as kubeconfig:
        results = dra_results(Path(name), kubeconfig, "node-1", "vms", Machine(), rule)
    wrong = [f"{one.number}: {one.seen}\n{one.log}" for one in results if one.status is not Status.PASSED]
    assert wrong == []
    assert len(results) == len(DRA)
