"""The states of a picture: each word is true, and each is told from all others without its colour."""

from __future__ import annotations

import pytest

from launcherkit.show.contents import Contents, Frame, HostCard, cards_in, contents_of
from launcherkit.show.state import LOOKS, CardState, Report
from launcherkit.show.topology import HeldDevice, with_holders
from tests.show.machines import large, topology

CARD = "0000:01:00.0"


def cards(what: Contents) -> list[HostCard]:
    return [card for node in what.nodes for lane in node.lanes for card in cards_in(lane)]


def states(name: str, *held: str, reports: dict[str, Report] | None = None) -> dict[str, list[CardState]]:
    """The states of each card's functions; nobody was asked if nothing is held."""
    host = topology(name)
    if held:
        host = with_holders(host, [HeldDevice(each, "x/y", "team/web", "c", "", None) for each in held])
    return {str(card.slot): [each.state for each in card.functions] for card in cards(contents_of(host, reports or {}))}


def test_each_state_has_a_mark_of_its_own() -> None:
    assert len({look.mark for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.word for look in LOOKS.values()}) == len(LOOKS)


def test_nothing_is_called_free_where_nobody_was_asked_who_holds_what() -> None:
    assert states("workstation") == {"0000:01:00": ["ready", "ready"], "0000:61:00": ["blocked", "blocked"]}
    assert states("workstation", "0000:aa:00.0")["0000:01:00"] == ["free", "free"]


def test_what_a_pod_holds_is_not_free_and_neither_is_what_goes_with_it() -> None:
    assert states("workstation", CARD)["0000:01:00"] == ["held", "held"]


def test_what_the_device_plugin_says_counts_unless_somebody_holds_the_device() -> None:
    reports = {CARD: Report("unhealthy", "it fell off the bus")}
    assert states("workstation", "0000:aa:00.0", reports=reports)["0000:01:00"] == ["unhealthy", "free"]
    assert states("workstation", CARD, reports=reports)["0000:01:00"] == ["held", "held"]
    (card, _) = cards(contents_of(topology("workstation"), reports))
    assert "it fell off the bus" in card.details


def test_of_vfs_those_that_are_held_are_told_from_the_others() -> None:
    host = topology("a2-vfs")
    (card,) = cards(contents_of(with_holders(host, [HeldDevice("0000:ae:00.5", "x/y", "team/web", "c", "", "vm")])))
    ((_, *_),) = [shares.states for shares in card.shares]
    assert card.shares[0].states[:4] == ("free", "held", "free", "free")
    assert set(card.shares[0].states[4:]) == {"idle"}
    assert (card.state, card.owners) == ("shared", ("VM vm",))


def test_cards_of_one_group_are_in_one_frame_and_kept_while_another_one_is_held() -> None:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from launcherkit.host.source import Host
    from launcherkit.show.host import topology_of
    from tests.support.hosttree import HostTree

    with TemporaryDirectory() as folder:
        tree = HostTree(Path(folder))
        for bus, root in (1, "00"), (2, "00"), (3, "20"):
            parents = (f"pci0000:{root}", f"0000:{root}:0{bus}.0")
            tree.function(f"0000:0{bus}:00.0", driver="vfio-pci", group=7, parents=parents)
        host = topology_of(Host.from_sysfs(folder).scan(), (), every=False)
    what = contents_of(with_holders(host, [HeldDevice("0000:01:00.0", "x/y", "team/web", "c", "", "vm")]))
    assert [card.state for card in cards(what)] == ["held", "kept", "kept"]
    first, second = (lane.units[0] for lane in what.nodes[0].lanes)
    assert isinstance(first, Frame)
    assert isinstance(second, Frame)
    assert [len(frame.cards) for frame in (first, second)] == [2, 1]
    assert [str(slot) for slot in second.elsewhere] == ["0000:01:00", "0000:02:00"]


def test_what_keeps_many_cards_from_guests_is_one_finding() -> None:
    (finding,) = contents_of(large(16, 0)).findings
    assert (finding.code, len(finding.slots)) == ("LK204", 2)
    assert finding.text.startswith("2 functions bound to nouveau, keep IOMMU groups 0, 8 from guests: ")


@pytest.mark.parametrize(("name", "number"), [("workstation", 1), ("hgx", 1), ("laptop", 2), ("a2-vfs", 0)])
def test_every_reason_is_a_finding(name: str, number: int) -> None:
    assert len(contents_of(topology(name)).findings) == number
