"""What the kernel does not let QEMU have: launcherkit says so first, by name, and it is so."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from launcherkit.errors import (
    DEVICE_BUSY,
    GROUP_NOT_VIABLE,
    GUEST_NOT_STARTED,
    NODE_MISSING,
    NOT_ON_HOST,
    LauncherkitError,
    SeveralErrors,
)
from launcherkit_lab import sysfs
from launcherkit_lab.devices import AUDIO, DISPLAY
from tests.kernel.guests import Guests, slots_with
from tests.support.errors import raises_code

pytestmark = pytest.mark.kernel


@pytest.fixture
def halves(sound: None, bound: Callable[..., None]) -> sysfs.Card:
    """A card of which only the display function is bound to vfio-pci, and audio is the host's."""
    card = sysfs.cards()[0]
    bound(card.display)
    assert sysfs.driver(card.audio) == "snd_hda_intel"
    return card


def refusals(guests: Guests, env: dict[str, str], *flags: str, unrehearsed: str = "") -> list[LauncherkitError]:
    """The errors with which a guest is refused, and nothing is defined; a rehearsal refuses it by the same codes."""
    with pytest.raises(LauncherkitError) as raised:
        guests.start(env, *flags, unrehearsed=unrehearsed)
    assert guests.pod.libvirt("list", "--all", "--name").split() == []
    return list(raised.value.errors) if isinstance(raised.value, SeveralErrors) else [raised.value]


def test_a_sibling_on_a_host_driver_is_refused_before_libvirt_is_asked(halves: sysfs.Card, guests: Guests) -> None:
    (error,) = refusals(guests, {"PCI_RESOURCE_X": halves.display})
    assert error.code == GROUP_NOT_VIABLE.code
    for word in (f"group {sysfs.group(halves.audio)} ", halves.audio, "snd_hda_intel"):
        assert word in error.message


def test_libvirt_refuses_the_same_when_it_is_told_to_go_on(halves: sysfs.Card, guests: Guests) -> None:
    """Without facts of the host nothing is checked."""
    (error,) = refusals(guests, {"PCI_RESOURCE_X": halves.display}, "--host", "none", unrehearsed="it knows the host")
    assert error.code == GUEST_NOT_STARTED.code
    assert "is not viable" in error.message
    assert "LK204" in error.remedy


def test_the_remedy_frees_the_group(halves: sysfs.Card, bound: Callable[..., None], guests: Guests) -> None:
    (error,) = refusals(guests, {"PCI_RESOURCE_X": halves.display})
    command = error.remedy.partition("by hand, as root:\n")[2]
    subprocess.run(["sh", "-ec", command], check=True)
    listing = guests.listing({"PCI_RESOURCE_X": halves.display})
    assert len(slots_with(listing, DISPLAY, AUDIO)) == 1


def test_a_card_that_nobody_has_bound_lacks_its_node(guests: Guests) -> None:
    card = sysfs.cards()[0]
    sysfs.unbind(card.display)
    sysfs.unbind(card.audio)
    (error,) = refusals(guests, {"PCI_RESOURCE_X": card.display})
    assert error.code == NODE_MISSING.code
    assert f"/dev/vfio/{sysfs.group(card.display)}" in error.message


def test_a_card_that_goes_between_allocation_and_definition_is_missed(
    bound: Callable[..., None], guests: Guests
) -> None:
    card = sysfs.cards()[0]
    bound(*card)
    env = {"PCI_RESOURCE_X": card.display}
    for address in card:
        (sysfs.DEVICES / address / "remove").write_text("1")
    try:
        (error,) = refusals(guests, env, unrehearsed="it allocates from what there is")
        assert error.code == NOT_ON_HOST.code
        assert card.display in error.message
    finally:
        (sysfs.PCI / "rescan").write_text("1")
    sysfs.until(lambda: card in sysfs.cards(), "the card back after a rescan")
    bound(*card)
    # After a rescan each function may have a group of its own: audio comes where the variable lists it (S2).
    listing = guests.listing({"PCI_RESOURCE_X": ",".join(card)})
    assert len(slots_with(listing, DISPLAY, AUDIO)) == 1


def test_a_card_that_another_guest_has_is_busy(bound: Callable[..., None], guests: Guests) -> None:
    card = sysfs.cards()[0]
    bound(*card)
    env = {"PCI_RESOURCE_X": card.display}
    guests.start(env, name="first", does="wait")
    with raises_code(DEVICE_BUSY, match=card.display[5:]):
        guests.start(env, name="second", unrehearsed="a snapshot doesn't say who has what")
    assert guests.pod.libvirt("list", "--all", "--name").split() == ["first"]
