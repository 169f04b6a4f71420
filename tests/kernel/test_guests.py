"""Guests with real devices: what launcherkit writes is what QEMU plugs in and the guest finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit_lab import sysfs
from launcherkit_lab.devices import AUDIO, DISPLAY, NVME
from launcherkit_lab.guest.listing import read_listing
from tests.kernel.guests import Guests, slots_with
from tests.kernel.rehearsed import check_found
from tests.libvirt.pod import pod
from tests.support.domains import hostdevs, root_ports

pytestmark = pytest.mark.kernel


def test_a_card_is_in_one_slot_of_the_guest_with_both_functions(bound: Callable[..., None], guests: Guests) -> None:
    card = sysfs.cards()[0]
    bound(*card)
    listing = guests.listing({"PCI_RESOURCE_X": card.display})
    assert len(slots_with(listing, DISPLAY, AUDIO)) == 1, listing
    assert list(listing.values()).count(DISPLAY) == 1


def test_the_document_leaves_nothing_of_it_to_libvirt(bound: Callable[..., None], guests: Guests) -> None:
    """libvirt would switch multifunction on, and add root ports, where a document forgets them (P1, P2)."""
    card = sysfs.cards()[0]
    bound(*card)
    document = guests.translated({"PCI_RESOURCE_X": card.display})
    display, audio = hostdevs(document)
    assert (display.source, audio.source) == card
    assert (display.multifunction, audio.multifunction) == ("on", None)
    assert display.guest is not None
    assert audio.guest is not None
    assert (display.guest[-1], audio.guest[-1]) == ("0", "1")
    assert display.guest[:-1] == audio.guest[:-1]
    assert root_ports(document) == [int(display.guest.split(":")[1], 16)]
    assert {hostdev.attributes["managed"] for hostdev in (display, audio)} == {"no"}


def test_two_cards_are_in_two_slots_however_they_were_listed(bound: Callable[..., None], guests: Guests) -> None:
    first, second, *_ = sysfs.cards()
    bound(*first, *second)
    for listed in ([first.display, second.display], [*second, *first]):
        listing = guests.listing({"PCI_RESOURCE_X": ",".join(listed)})
        assert len(slots_with(listing, DISPLAY, AUDIO)) == 2, listing


def test_only_the_card_that_was_allocated_is_there(bound: Callable[..., None], guests: Guests) -> None:
    """Its twin is bound too, and free: nothing but the variable tells them apart."""
    first, second, *_ = sysfs.cards()
    bound(*first, *second)
    guests.start({"PCI_RESOURCE_X": second.display}, does="wait")
    group = f"/dev/vfio/{sysfs.group(second.display)}"
    assert sysfs.open_nodes() == {"/dev/vfio/vfio", group}


def test_libvirt_binds_and_gives_back_what_it_manages(card: sysfs.Card, kernel: Path, tmp_path: Path) -> None:
    """At a libvirt of its own: one that has seen a card bound to vfio-pci leaves it there ever after."""
    before = [sysfs.driver(address) for address in card]
    assert before == ["bochs-drm", "snd_hda_intel"]
    with pod() as fresh:
        fresh.libvirtd()
        listing = Guests(fresh, kernel, tmp_path).listing(
            *({"PCI_RESOURCE_X": card.display}, "--managed", "yes"),
            unrehearsed="a device plugin hands out no card that a driver of the host has",
        )
        assert len(slots_with(listing, DISPLAY, AUDIO)) == 1, listing
        sysfs.until(lambda: [sysfs.driver(address) for address in card] == before, "the drivers that were there before")


def test_what_libvirt_does_not_manage_stays_bound(sound: None, bound: Callable[..., None], guests: Guests) -> None:
    card = sysfs.cards()[0]
    bound(*card)
    guests.listing({"PCI_RESOURCE_X": card.display}, "--managed", "no")
    assert [sysfs.driver(address) for address in card] == ["vfio-pci", "vfio-pci"]


def test_a_virtual_function_is_a_device_of_its_own(vfs: list[str], bound: Callable[..., None], guests: Guests) -> None:
    bound(vfs[0])
    listing = guests.listing({"PCI_RESOURCE_X": vfs[0]})
    assert list(listing.values()).count(NVME) == 1, listing


def test_a_card_and_a_virtual_function_in_one_guest(vfs: list[str], bound: Callable[..., None], guests: Guests) -> None:
    card = sysfs.cards()[0]
    bound(*card, vfs[1])
    listing = guests.listing({"PCI_RESOURCE_X": card.display, "PCI_RESOURCE_Y": vfs[1]})
    assert len(slots_with(listing, DISPLAY, AUDIO)) == 1, listing
    assert list(listing.values()).count(NVME) == 1, listing


def test_a_usb_device_is_opened_by_qemu(tablet: str, guests: Guests) -> None:
    guests.start({"USB_RESOURCE_X": tablet}, does="wait", unrehearsed="KubeVirt's own device plugin hands these out")
    assert "QEMU USB Tablet" in guests.pod.libvirt("qemu-monitor-command", "vm", "--hmp", "info usb")


def test_run_takes_a_guest_with_a_card_from_its_start_to_its_end(
    bound: Callable[..., None], guests: Guests, tmp_path: Path
) -> None:
    card = sysfs.cards()[0]
    bound(*card)
    rehearsal = guests.rehearsed({"PCI_RESOURCE_X": card.display}, guests.document("run", "off"))
    variables = tmp_path / "env"
    variables.write_text(f"PCI_RESOURCE_X={card.display}\n")
    settings = {"name": "run", "type": "qemu", "memory_mib": "64", "vcpus": "1", "cmdline": "pci off"}
    values = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = guests.pod.outside(
        *("run", "--template", "q35", *values, "--set", f"kernel={guests.kernel}"),
        *("--env-file", str(variables), "--connect", guests.pod.uri, "--console"),
    )
    assert process.ends() == 0, process.reported
    listing = read_listing(process.printed)
    check_found(rehearsal, listing)
    assert len(slots_with(listing, DISPLAY, AUDIO)) == 1, process.printed
    assert sysfs.open_nodes() == set()
