"""Machines and the pictures that are expected of them: `python -m tests.show.machines` draws them anew."""

from __future__ import annotations

from launcherkit.choose.readiness import Blocker
from launcherkit.colour import PLAIN
from launcherkit.host.source import open_host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciLink
from launcherkit.show.contents import contents_of
from launcherkit.show.host import topology_of
from launcherkit.show.outline import outline
from launcherkit.show.picture import picture
from launcherkit.show.text import draw
from launcherkit.show.topology import (
    HeldDevice,
    HostTopology,
    RootComplex,
    TreeBridge,
    TreeFunction,
    TreeGroup,
    TreeNode,
    TreeSlot,
    VirtualFunctions,
    vm_of,
    with_holders,
)
from tests.support.imports import ROOT

DATA = ROOT / "tests" / "data"
PICTURES = ROOT / "tests" / "show" / "pictures"
HOSTS = {
    "rack-server": "rack-server.umockdev",
    "workstation": "hosts/workstation.json",
    "a2-vfs": "hosts/a2-vfs.json",
    "hgx": "hosts/hgx.json",
    "laptop": "hosts/laptop.json",
}
DRAWN = ROOT / "docs" / "images" / "topology.svg"
TABLES = (str(DATA / "hosts" / "pci.ids"),)
COLUMNS = 110


def topology(name: str, *, every: bool = False) -> HostTopology:
    """The tree of one of the machines."""
    return topology_of(open_host(str(DATA / HOSTS[name])).scan(), TABLES, every=every)


def large(cards: int = 64, vfs: int = 8) -> HostTopology:
    """A machine of two NUMA nodes, with four cards behind each switch, and as many VFs of each; VMs hold some."""
    switches = [_switch(first, min(4, cards - first), vfs) for first in range(0, cards, 4)]
    half = (len(switches) + 1) // 2
    nodes = tuple(
        TreeNode(numa, "", tuple(those)) for numa, those in enumerate((switches[:half], switches[half:])) if those
    )
    groups = tuple(
        TreeGroup(each.group, (each.address,), each.blockers)
        for root in switches
        for slot in root.bridges[0].bridges[0].bridges
        for each in slot.slots[0].functions
        if each.group is not None
    )
    host = HostTopology(nodes, groups, 0)
    addresses = [str(card.address) for card in cards_of(host) if card.state == "ready"][1::3]
    pods = (f"team/virt-launcher-train-{number}-x2x8p" for number in range(cards))
    held = (HeldDevice(card, "x/y", pod, "compute", "", vm_of(pod)) for card, pod in zip(addresses, pods, strict=False))
    return with_holders(host, held)


def cards_of(host: HostTopology) -> list[TreeFunction]:
    """The first function of each slot."""
    return [place.slot.functions[0] for place in host.places()]


def _switch(first: int, cards: int, vfs: int) -> RootComplex:
    bus = f"{first >> 6:04x}:{(first & 63) * 4:02x}"
    ports = tuple(
        TreeBridge(f"{bus}:03.{number}", "switch port", None, (), (_large_card(first + number, vfs),))
        for number in range(cards)
    )
    switch = TreeBridge(f"{bus}:02.0", "switch", None, ports, ())
    return RootComplex(f"pci{bus}", (TreeBridge(f"{bus}:01.0", "root port", None, (switch,), ()),), ())


def _large_card(number: int, vfs: int) -> TreeSlot:
    address = PciAddress(number >> 6, (number & 63) * 4 + 3, 0, 0)
    blockers = () if number % 8 else (Blocker("LK204", address, "bound to nouveau", True),)
    addresses = tuple(PciAddress(address.domain, address.bus, each + 1 >> 3, each + 1 & 7) for each in range(vfs))
    groups = tuple(range(1000 + number * vfs, 1000 + number * vfs + vfs))
    of_it = VirtualFunctions(addresses, "10de:20f1", "vfio-pci", "ready", None, groups, ())
    function = TreeFunction(
        address=address,
        ids="10de:20f1",
        kind="3D controller",
        name="NVIDIA Corporation GA100 [A100 PCIe 40GB]",
        driver="nouveau" if blockers else "vfio-pci",
        group=number,
        state="blocked" if blockers else "ready",
        blockers=blockers,
        link=PciLink(16000, 16, 16000, 16),
        wider=None,
        bars=(1 << 24, 1 << 36),
        vfs=(of_it,) if vfs else (),
        possible_vfs=vfs or None,
        mdevs=(),
    )
    return TreeSlot(address.slot, (function,))


def drawn() -> str:
    """The picture in README.md."""
    return picture(contents_of(topology("workstation")), "PCI devices of a workstation")


def pictures() -> dict[str, str]:
    """File names and what is to be in the files."""
    texts = {f"{name}.txt": draw(outline(topology(name)), PLAIN, COLUMNS) for name in HOSTS}
    return texts | {f"{name}.svg": picture(contents_of(topology(name)), f"PCI devices of {name}") for name in HOSTS}


if __name__ == "__main__":
    for file, text in pictures().items():
        (PICTURES / file).write_text(text, encoding="utf-8")
    DRAWN.write_text(drawn(), encoding="utf-8")
