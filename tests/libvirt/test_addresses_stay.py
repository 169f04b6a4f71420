"""Everything that libvirt places by itself is where it would be without us (P2), on domains mixed at random."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest
from lxml import etree

from launcherkit import translate
from launcherkit.model.host import PciFunction
from tests import tiers
from tests.libvirt.capabilities import Guests, made_definable
from tests.libvirt.daemon import Libvirt
from tests.libvirt.mixes import mixed_devices
from tests.libvirt.test_golden_domains import skip_unless_supported
from tests.support.domains import domain, pci_hostdev
from tests.support.facts import FixedHost, card, function

pytestmark = pytest.mark.libvirt

EXAMPLES = int(os.environ.get(tiers.EXAMPLES, "12"))
MACHINES = (("x86_64", "q35"), ("aarch64", "virt"))
every_machine = pytest.mark.parametrize(("arch", "machine"), MACHINES)
CARDS = [f"0000:{bus:02x}:00" for bus in range(0x81, 0x8A)]
VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA102"


def host(cards: int, functions: int) -> FixedHost:
    """Cards of two functions, or of one."""
    if functions == 2:
        return FixedHost(*(each for slot in CARDS[:cards] for each in card(slot, int(slot[5:7], 16))))
    return FixedHost(*(function(f"{slot}.0", group=int(slot[5:7], 16)) for slot in CARDS[:cards]))


@every_machine
@pytest.mark.parametrize("functions", [1, 2])
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_what_is_added_moves_nothing(
    libvirt: Libvirt, capabilities: dict[str, Guests], seed: int, functions: int, arch: str, machine: str
) -> None:
    """Devices of the environment's, as in a launcher pod."""
    random = Random(f"{seed} {arch}")
    cards = (1, 2, 8)[seed % 3]
    document = named(domain(*mixed_devices(random, arch), arch=arch, machine=machine))
    value = ",".join(f"{slot}.0" for slot in CARDS[:cards])
    ours = translate(document, env={VARIABLE: value}, host=host(cards, functions))
    check(document.encode(), ours.domain_xml, libvirt, capabilities)


@every_machine
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_what_is_completed_moves_nothing(
    libvirt: Libvirt, capabilities: dict[str, Guests], seed: int, arch: str, machine: str
) -> None:
    """Hostdevs of the document's, as in a sidecar of KubeVirt: cards, and a function that has no siblings."""
    random = Random(f"{seed} {arch} hostdevs")
    cards = (1, 2, 8)[seed % 3]
    sources = [f"{slot}.0" for slot in CARDS[:cards]]
    devices = [*mixed_devices(random, arch), *map(pci_hostdev, [*sources, "0000:99:00.0"])]
    random.shuffle(devices)
    document = named(domain(*devices, arch=arch, machine=machine))
    found = translate(document, env={}, host=FixedHost(*_functions(cards), function("0000:99:00.0", group=99)))
    check(document.encode(), found.domain_xml, libvirt, capabilities)


def _functions(cards: int) -> Iterator[PciFunction]:
    return (each for slot in CARDS[:cards] for each in card(slot, int(slot[5:7], 16)))


GOLDEN = Path(__file__).parents[1] / "golden"
MOVES = {
    "alias-invalid-replaced": "hostdevs of one card, in a slot each before, share one",
    "driver-of-the-document-kept": "hostdevs of one card, in a slot each before, share one",
    "guest-address-joined-by-a-hostdev": "hostdevs of one card, in a slot each before, share one",
    "kubevirt-own-output-old-plugin": "hostdevs of one card, in a slot each before, share one",
    "sibling-already-there": "hostdevs of one card, in a slot each before, share one",
    "topology-kubevirt-without-placement": "hostdevs are behind expanders, and what libvirt places after them moves up",
    "siblings-reserve-second-pass": "a reserved function has no place in the guest",
    "guest-address-unassigned": "siblings of what is nowhere in the guest are placed by libvirt",
    "hostdev-of-another-model": "its hostdevs get other sources, in the same places",
    "hostdev-of-another-node": "its hostdevs get other sources, in the same places",
    "hostdev-of-another-node-another-cell": "its hostdevs are placed anew, by the policy's replace",
    "hostdev-of-another-node-fewer-functions": "its hostdevs get other sources, in the same places",
    "hostdev-of-another-node-larger-window": "its hostdevs get other sources, in the same places",
    "hostdev-of-another-node-more-functions": "its hostdevs get other sources, in the same places",
    "hostdevs-that-change-places": "its hostdevs get each other's sources, in the same places",
    "hostdev-without-type": "libvirt doesn't take the domain as it came",
    "mdev-existing-display-without-graphics": "libvirt doesn't take the domain as it came",
    "mdev-two-existing-ramfb": "libvirt doesn't take the domain as it came",
}


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/expected.xml")))
def test_what_a_golden_case_adds_moves_nothing(libvirt: Libvirt, capabilities: dict[str, Guests], name: str) -> None:
    if name in MOVES:
        pytest.skip(MOVES[name])
    skip_unless_supported(GOLDEN / name, libvirt)
    before, after = ((GOLDEN / name / file).read_bytes() for file in ("domain.xml", "expected.xml"))
    if not any(machine in before for machine in (b"q35", b"virt'", b'virt"')):
        pytest.skip("not a PCIe machine")
    check(before, after, libvirt, capabilities)


def named(document: str) -> str:
    return document.replace("<os>", "<name>mixed</name><memory>65536</memory><os>")


def check(document: bytes, ours: bytes, libvirt: Libvirt, capabilities: dict[str, Guests]) -> None:
    """Define the document as it came, and with our devices, and compare what libvirt made of it."""
    without = keep(document, libvirt, capabilities)
    within = keep(ours, libvirt, capabilities)
    said = {index(each) for each in etree.fromstring(document).iterfind(PORTS)}
    spare, unused = free_ports(without) - said, free_ports(within) - said
    before, after = addresses(without), addresses(within)
    for port in spare:
        before.pop(f"controller pci {port}")
    assert {name: after.get(name) for name in before} == before
    assert len(unused) <= len(spare)


def keep(document: bytes, libvirt: Libvirt, capabilities: dict[str, Guests]) -> etree._Element:
    definable, _ = made_definable(document, capabilities)
    return etree.fromstring(libvirt.keep(definable, validate=False))


PORTS = "devices/controller[@type='pci'][@model='pcie-root-port']"


def index(controller: etree._Element) -> int:
    return int(controller.get("index", "-1"))


def free_ports(root: etree._Element) -> set[int]:
    """Root ports with nothing behind them."""
    buses = {int(address.get("bus", "-1"), 0) for address in root.iterfind("devices/*/address[@type='pci']")}
    return {index(port) for port in root.iterfind(PORTS)} - buses


def addresses(root: etree._Element) -> dict[str, str]:
    """The PCI address of every device: controllers by type and index, hostdevs by source, the others by number."""
    numbers: dict[str, Iterator[int]] = {}
    found: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for device in root.iterfind("devices/*"):
        address = device.find("address[@type='pci']")
        name = str(device.tag)
        if name == "controller":
            name = f"controller {device.get('type')} {device.get('index')}"
        elif name == "hostdev" and device.get("type") == "pci":
            name = f"hostdev {pci(device.find('source/address'))}"
        else:
            name = f"{name} {next(numbers.setdefault(name, count()))}"
        seen[name] += 1
        if address is not None:
            found[f"{name}{'' if seen[name] == 1 else f' {seen[name]}'}"] = pci(address)
    return found


def pci(address: etree._Element | None) -> str:
    assert address is not None
    return ":".join(address.get(part, "0x0") for part in ("bus", "slot", "function"))
