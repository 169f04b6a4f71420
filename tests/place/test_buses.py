"""The buses and bridges that libvirt makes for what has no address (P2): ours are those that libvirt 9.0.0 made.

Each case was defined on it, and its controllers and the hostdev's address read back; the root port that libvirt adds as
a spare at the end is left out.
"""

from __future__ import annotations

import pytest
from lxml import etree

from launcherkit.domain.reader import read_facts
from launcherkit.place.room import Buses
from tests.support.domains import domain, pci_hostdev

CONVENTIONAL = "<interface type='user'><model type='e1000'/></interface>"
EXPRESS = "<interface type='user'><model type='virtio'/></interface>"
NOTHING_ADDED = "<memballoon model='none'/>", "<controller type='usb' model='none'/>"
PORT, TO_PCI, BRIDGE, DMI = "pcie-root-port", "pcie-to-pci-bridge", "pci-bridge", "dmi-to-pci-bridge"


def controllers(*models: str) -> list[str]:
    return [f"<controller type='pci' index='{index}' model='{model}'/>" for index, model in enumerate(models, start=1)]


def on_bus(bus: int, *slots: int) -> list[str]:
    there = "<address type='pci' domain='0x0000' bus='{}' slot='{}' function='0x0'/></interface>"
    return [CONVENTIONAL.replace("</interface>", there.format(bus, slot)) for slot in slots]


@pytest.mark.parametrize(
    ("devices", "made", "hostdev"),
    [
        ([CONVENTIONAL], [PORT, TO_PCI, PORT], 3),
        ([CONVENTIONAL] * 31, [PORT, TO_PCI, PORT], 3),
        ([CONVENTIONAL] * 32, [PORT, TO_PCI, BRIDGE, PORT], 4),
        ([CONVENTIONAL] * 34, [PORT, TO_PCI, BRIDGE, PORT], 4),
        ([*controllers(DMI), CONVENTIONAL], [DMI, BRIDGE, PORT], 3),
        ([*controllers(DMI, BRIDGE), CONVENTIONAL], [DMI, BRIDGE, PORT], 3),
        ([*controllers(PORT, TO_PCI), CONVENTIONAL], [PORT, TO_PCI, PORT], 3),
        ([*controllers(PORT, TO_PCI), *on_bus(2, 1, 3), CONVENTIONAL], [PORT, TO_PCI, PORT], 3),
        (
            [*controllers(PORT, TO_PCI), *on_bus(2, *range(3, 32)), *[CONVENTIONAL] * 3],
            [PORT, TO_PCI, BRIDGE, PORT],
            4,
        ),
        ([*controllers(PORT), EXPRESS, CONVENTIONAL], [PORT, PORT, TO_PCI, PORT], 4),
    ],
    ids=[
        *("one", "31-fill-a-bridge", "32", "34", "declared-dmi", "declared-dmi-and-bridge", "declared-bridge"),
        *("slots-taken", "slots-nearly-all-taken", "beside-express"),
    ],
)
def test_bridges_and_the_hostdev_are_where_libvirt_has_them(devices: list[str], made: list[str], hostdev: int) -> None:
    document = domain(*devices, pci_hostdev("0000:81:00.0"), *NOTHING_ADDED)
    buses = Buses(read_facts(etree.fromstring(document)))
    assert buses.models == ("pcie-root", *made)
    assert {index: (place.bus, place.slot) for index, place in buses.hostdevs.items()} == {0: (hostdev, 0)}
    declared = sum(device.startswith("<controller") for device in devices)
    new = [(number, model) for number, model in enumerate(buses.models) if number > declared and model != PORT]
    assert [(each.number, each.model) for each in buses.bridges] == new
