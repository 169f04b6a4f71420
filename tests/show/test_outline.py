"""The outline of a host: what each form takes from it, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from launcherkit.colour import PLAIN, Colours
from launcherkit.model.address import PciAddress
from launcherkit.show.guest import GuestBridge, GuestFunction, TreeGuest
from launcherkit.show.item import Item
from launcherkit.show.outline import guest_item, outline
from launcherkit.show.text import draw
from launcherkit.show.topology import HeldDevice, HostTopology, MdevSlots, with_holders
from tests.show.machines import topology

CARD = "0000:61:00.0"
UUID = "b1af2c5a-0000-4000-8000-000000000001"


def held(device: str) -> HeldDevice:
    return HeldDevice(device, "x/y", "team/web", "c", "", None)


def items(shown: tuple[Item, ...]) -> Iterator[Item]:
    for item in shown:
        yield item
        yield from items(item.items)


def item_of(host: HostTopology, label: str) -> Item:
    return next(item for item in items(outline(host).nodes) if item.label == label)


def with_mdevs(host: HostTopology, *mdevs: MdevSlots) -> HostTopology:
    """The card has these mediated devices."""

    def changed(item: object) -> object:
        if getattr(item, "address", None) == PciAddress.parse(CARD):
            return replace(item, mdevs=mdevs)  # type: ignore[type-var]
        for name in ("nodes", "complexes", "bridges", "slots", "functions"):
            if inner := getattr(item, name, ()):
                item = replace(item, **{name: tuple(map(changed, inner))})  # type: ignore[type-var]
        return item

    made = changed(host)
    assert isinstance(made, HostTopology)
    return made


def test_a_drawing_says_of_a_function_who_holds_it_before_what_it_is() -> None:
    card = item_of(with_holders(topology("workstation"), [held(CARD)]), CARD)
    assert card.details[:2] == ("held by pod team/web", "vfio-pci")


def test_mediated_devices_share_a_line_of_text_with_their_holders_at_its_end() -> None:
    slots = MdevSlots("GRID T4-1Q", (UUID,), 14), MdevSlots("GRID T4-2Q", (), 7)
    host = with_holders(with_mdevs(topology("workstation"), *slots), [held(UUID)])
    expected = f"GRID T4-1Q: 1 made, 14 more possible  GRID T4-2Q: 0 made, 7 more possible  {UUID} held by pod team/web"
    assert [line for line in draw(outline(host), PLAIN, 300).splitlines() if line.endswith(expected)]
    assert item_of(host, "GRID T4-1Q: 1 made, 14 more possible").details == (f"{UUID} held by pod team/web",)


@pytest.mark.parametrize("number", [1, 10, 11])
def test_of_many_blockers_a_text_says_the_first_ten_and_how_many_there_are_more(number: int) -> None:
    shown = outline(topology("workstation"))
    many = replace(shown, blockers=shown.blockers[:1] * number)
    lines = draw(many, PLAIN, 300).splitlines()
    assert sum(line.startswith("in the way:") for line in lines) == min(number, 10)
    assert ("and 1 more" in lines) is (number == 11)


def test_marks_of_one_function_are_one_text_in_their_own_colours() -> None:
    host = with_holders(topology("workstation"), [held(CARD), replace(held(CARD), pod="team/other")])
    text = draw(outline(host), Colours(True), 300)
    assert "\x1b[33mheld by pod team/other\x1b[0m  \x1b[33mheld by pod team/web\x1b[0m" in text
    marked = draw(outline(host, {CARD: (("new", "odd"),)}), PLAIN, 300)
    (line,) = (line for line in marked.splitlines() if f" {CARD} " in line and not line.startswith("in the way:"))
    assert line.split()[3:5] == ["vfio-pci", "new"]


def test_of_a_guests_bridge_its_bus_and_numa_cell_are_said_where_it_has_them_and_what_is_below_it() -> None:
    function = GuestFunction(CARD, "gpu1", "primary", "asked for", "0000:e2:00.0")
    port = GuestBridge(5, "pcie-root-port", None, None, (), (function,))
    expander = GuestBridge(4, "pcie-expander-bus", 0xE0, 0, (port,), ())
    item = guest_item(TreeGuest("vm", (expander,), (), (), None))
    labels = ["guest", "expander 4, bus e0, NUMA cell 0", "root port 5", "0000:e2:00.0"]
    assert [each.label for each in items((item,))] == labels


def test_vfs_without_a_vgpu_type_are_marked_as_not_ready_in_a_drawing() -> None:
    vfs = item_of(topology("a2-vfs"), "12 of 16 VFs")
    assert (vfs.kind, vfs.badge, vfs.tone) == ("vfs", "no vGPU type", "odd")


def test_a_function_that_somebody_holds_is_not_called_ready() -> None:
    host = topology("workstation")
    free, other = (place.slot.functions[0].address for place in host.places())
    held_now = with_holders(host, [held(str(free)), held(str(other))])
    assert [(item_of(each, str(free)).badge, item_of(each, str(other)).badge) for each in (host, held_now)] == [
        ("ready", "LK204"),
        ("held", "LK204"),
    ]
