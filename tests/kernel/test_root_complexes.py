"""Devices of two root complexes on two NUMA nodes, passed through: a Linux in the guest says where it finds them.

What it says is held against the document that libvirt was given, and that against the host (P1, P4, P5).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from lxml import etree

from launcherkit.cli.main import run
from launcherkit.domain.reader import read_tree
from launcherkit.rehearse.rehearsal import NodeOutcome
from launcherkit.show.documents import guest_functions
from launcherkit_lab import sysfs
from launcherkit_lab.devices import TESTDEV
from launcherkit_lab.machine import SHARE
from launcherkit_lab.packages import cache_folder, fetch
from tests.kernel.guests import Guests
from tests.kernel.rehearsed import agreeing
from tests.kernel.tree.seen import KERNEL_LINE, Found, Planned, Spot, differences, first_file_system, node_of, read_seen
from tests.kernel.tree.seen import spot_of as spot
from tests.kernel.tree.stand_ins import placed
from tests.kernel.tree.vmlinux import vmlinux
from tests.tiers import find_program

pytestmark = pytest.mark.kernel

GIB = 1 << 30
SECONDS = 450
"""For a guest with a kernel of megabytes in a machine that is emulated itself."""

# Without a mapping of its own for the large BAR: VFIO would pin each of its 16 million pages, whenever it is moved.
OVERRIDE = """<qemu:override><qemu:device alias='{alias}'><qemu:frontend>
<qemu:property name='x-no-mmap' type='bool' value='true'/></qemu:frontend></qemu:device></qemu:override>"""


class Card(NamedTuple):
    """A card of a root complex, as the machine's own sysfs has it."""

    primary: str
    node: int
    root: str
    """``pci0000:40``."""
    bar: int
    """Bytes."""


def cards() -> list[Card]:
    """The cards with large BARs, by the size of these."""
    return sorted((card_at(address) for address in sysfs.having(TESTDEV)), key=lambda card: card.bar)


def card_at(address: str) -> Card:
    path = sysfs.DEVICES / address
    root = next(part for part in path.resolve().parts if part.startswith("pci0"))
    return Card(address, int((path / "numa_node").read_text()), root, max(bars_of(address)))


def bars_of(address: str) -> tuple[int, ...]:
    """The sizes of a function's memory BARs."""
    lines = [line.split() for line in (sysfs.DEVICES / address / "resource").read_text().splitlines()[:6]]
    return tuple(int(end, 16) - int(start, 16) + 1 for start, end, flags in lines if int(flags, 16) & 0x200)


@pytest.fixture
def all_cards(bound: Callable[..., None]) -> list[Card]:
    """Every function of all cards, bound to vfio-pci."""
    found = cards()
    bound(*(mate for card in found for mate in (card.primary, f"{card.primary[:-1]}1")))
    return found


def document(folder: Path, serial: Path, large: int) -> Path:
    """The domain of a guest with Linux: two cells, each bound to a node of the machine.

    Args:
        large: which device of the variable has the large BAR.
    """
    cache = cache_folder(os.environ)
    initrd = folder / "initrd"
    initrd.write_bytes(first_file_system(Path(find_program("busybox") or "busybox")))
    override = OVERRIDE.format(alias=f"ua-hostdevice-x-{large}")
    path = folder / "linux.xml"
    path.write_text(f"""
<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>linux</name><memory unit='MiB'>384</memory><vcpu>1</vcpu>
  <numatune>
    <memnode cellid='0' mode='strict' nodeset='0'/>
    <memnode cellid='1' mode='strict' nodeset='1'/>
  </numatune>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{vmlinux(fetch(cache), cache)}</kernel><initrd>{initrd}</initrd><cmdline>{KERNEL_LINE}</cmdline>
  </os>
  <features><acpi/></features>
  <cpu><numa>
    <cell id='0' cpus='0' memory='192' unit='MiB'/><cell id='1' memory='192' unit='MiB'/>
  </numa></cpu>
  <on_poweroff>destroy</on_poweroff>
  <devices>
    <controller type='usb' model='none'/><memballoon model='none'/>
    <serial type='file'><source path='{serial}'/></serial>
  </devices>
  {override}
</domain>""")
    return path


class Started(NamedTuple):
    """A guest, from its rehearsal on."""

    rehearsal: NodeOutcome
    domain_xml: bytes
    """The document that libvirt was given."""
    seen: dict[Spot, Found]
    """What the guest says."""


def started(guests: Guests, cards: Sequence[Card], folder: Path) -> Started:
    """Start a guest with these cards, in the order in which the rehearsal's device plugin lists them."""
    serial = SHARE / "linux.serial"  # where it can be read from outside too
    serial.unlink(missing_ok=True)
    primaries = [card.primary for card in cards]
    large = primaries.index(max(cards, key=lambda card: card.bar).primary)
    path, translated = document(folder, serial, large), folder / "translated.xml"
    env = {"PCI_RESOURCE_X": ",".join(primaries)}
    rehearsal = guests.rehearsed(env, path)
    assert run(["translate", "--domain", str(path), "--output", str(translated)], env) == 0
    with agreeing(rehearsal):
        assert run(["define", "--domain", str(path), "--connect", guests.pod.uri, "--start"], env) == 0
    sysfs.until(lambda: "guest: off" in serial.read_text(errors="replace"), "the end of the guest", SECONDS)
    return Started(rehearsal, translated.read_bytes(), read_seen(serial.read_text(errors="replace")))


def planned(domain_xml: bytes) -> dict[str, Planned]:
    """What the document and the host's own sysfs say of each function that is passed through."""
    tree = read_tree(etree.fromstring(domain_xml))
    found = {}
    for source, guest in placed(domain_xml).items():
        address = str(source)
        model = (sysfs.number(address, "vendor"), sysfs.number(address, "device"))
        found[address] = Planned(spot(guest, tree), node_of(guest, tree), model, bars_of(address))
    return found


def check_promised(rehearsal: NodeOutcome, seen: Mapping[Spot, Found], bars: Sequence[int]) -> None:
    """What the rehearsal has said of each function is what the guest finds: place, node, model; and of the window."""
    assert rehearsal.translation is not None
    promised = planned(rehearsal.translation.domain_xml)
    assert differences(promised, seen) == []
    for function in guest_functions(rehearsal):
        found = seen[promised[function["host"]].spot]
        assert (function["numaNode"], function["id"]) == (found.node, "{:04x}:{:04x}".format(*found.model))
    assert rehearsal.bars >= sum(bars)


def test_a_guest_says_the_same_as_the_plan(all_cards: list[Card], guests: Guests, tmp_path: Path) -> None:
    """Root complexes stay apart, each on its node; a card's functions share a slot; every BAR has an address."""
    assert [(card.node, card.bar // 2**20) for card in all_cards] == [(0, 16), (1, 32), (1, 64), (1, 65536)]
    rehearsal, domain_xml, seen = started(guests, sorted(all_cards), tmp_path)
    plan = planned(domain_xml)
    assert len(plan) == 2 * len(all_cards)
    assert differences(plan, seen) == []
    check_promised(rehearsal, seen, [card.bar for card in all_cards])
    swapped = {name: each._replace(node=1 - each.node) for name, each in plan.items()}
    assert len(differences(swapped, seen)) == len(plan)
    spots = {card: plan[card.primary].spot for card in all_cards}
    assert [seen[spots[card]].node for card in all_cards] == [card.node for card in all_cards]
    assert len({(card.root, spots[card].root) for card in all_cards}) == len({card.root for card in all_cards}) == 2
    assert len({spots[card].root for card in all_cards}) == 2
