"""PCI functions through iommufd: a character device each, and the group's node stays closed (V2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcherkit.errors import MIXED_BACKENDS, NODE_MISSING
from launcherkit.host.source import Host
from launcherkit_lab import sysfs
from launcherkit_lab.devices import AUDIO, DISPLAY
from tests.kernel.guests import Guests, slots_with
from tests.support.domains import pci_hostdev
from tests.support.errors import raises_code

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("iommufd")]


@pytest.fixture
def card(bound: Callable[..., None]) -> sysfs.Card:
    """A card that is bound to vfio-pci. It has the nodes of both kinds."""
    found = sysfs.cards()[0]
    bound(*found)
    return found


@pytest.fixture
def cdevs_alone(card: sysfs.Card) -> Iterator[sysfs.Card]:
    """The same without its group's node, as for a container that was given those of iommufd."""
    with sysfs.without(f"/dev/vfio/{sysfs.group(card.display)}"):
        yield card


def opened(card: sysfs.Card) -> bool:
    """Whether the card's character devices are all that is open of VFIO."""
    return sysfs.open_nodes() == {sysfs.cdev(address) for address in card}


def test_the_character_devices_of_a_card_are_known(card: sysfs.Card) -> None:
    facts = Host.from_sysfs("/").scan()
    names = {str(address): details.vfio_dev for address, details in facts.details.items() if details.vfio_dev}
    assert [f"/dev/vfio/devices/{names[address]}" for address in card] == [sysfs.cdev(address) for address in card]
    assert {"/dev/iommu", *map(sysfs.cdev, card)} <= (facts.nodes or frozenset())


def test_a_guest_lists_a_card_of_which_only_iommufds_nodes_are_there(cdevs_alone: sysfs.Card, guests: Guests) -> None:
    listing = guests.listing({"PCI_RESOURCE_X": cdevs_alone.display})
    assert len(slots_with(listing, DISPLAY, AUDIO)) == 1, listing


def test_qemu_opens_the_character_devices_alone(cdevs_alone: sysfs.Card, guests: Guests) -> None:
    guests.start({"PCI_RESOURCE_X": cdevs_alone.display}, does="wait")
    assert opened(cdevs_alone), sysfs.open_nodes()


def test_a_domain_that_asks_for_iommufd_gets_it_though_there_are_both(card: sysfs.Card, guests: Guests) -> None:
    guests.start({"PCI_RESOURCE_X": card.display}, does="wait", head="<iommufd enabled='yes'/>", nodes="both")
    assert opened(card), sysfs.open_nodes()


def test_a_card_goes_through_its_group_where_nothing_asks_for_iommufd(card: sysfs.Card, guests: Guests) -> None:
    guests.start({"PCI_RESOURCE_X": card.display}, does="wait")
    assert sysfs.open_nodes() == {"/dev/vfio/vfio", f"/dev/vfio/{sysfs.group(card.display)}"}


def test_a_function_whose_character_device_is_gone_is_named(cdevs_alone: sysfs.Card, guests: Guests) -> None:
    gone = sysfs.cdev(cdevs_alone.audio)
    with sysfs.without(gone), raises_code(NODE_MISSING, match=gone):
        guests.start({"PCI_RESOURCE_X": cdevs_alone.display}, head="<iommufd enabled='yes'/>")


def test_a_group_is_not_opened_both_ways(card: sysfs.Card, guests: Guests) -> None:
    """launcherkit says so before libvirt is asked; and it is so."""
    display, audio = (pci_hostdev(address).replace("type=", "mode='subsystem' type=", 1) for address in card)
    devices = display.replace("<source>", "<driver iommufd='yes'/><source>") + audio.replace(
        "<source>", "<driver iommufd='no'/><source>"
    )
    with raises_code(MIXED_BACKENDS, match=f"group {sysfs.group(card.display)} "):
        guests.start({}, devices=devices, unrehearsed="the devices are the document's, and were not allocated here")
    document: Path = guests.document("vm", "wait", devices=devices)
    with pytest.raises(AssertionError, match="Device or resource busy"):
        guests.pod.libvirt("create", str(document))
