"""What the page says, and that it has a bound."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest

from launcherkit.errors import LauncherkitError
from launcherkit.host.source import Host
from launcherkit.show.host import topology_of
from launcherkit.show.topology import HostTopology
from launcherkit_plugin.model.device import ClaimRef, Device, Holder, Problem, Reason, Resource, Usage
from launcherkit_plugin.page.drawing import ADVICE, draw_page, drawn
from launcherkit_plugin.page.view import NodeChange, NodeView, dump_view, holders_of, load_view, unhealthy_of
from tests.support.hosttree import HostTree

GPU = "nvidia.com/GPU"
ODD = "<b>&\x1b"
NOON = 1_790_000_000.0


def view(*reasons: Reason | None, held: int = 0, pod: str = "team/virt-launcher-vm-x2x8p") -> NodeView:
    """A node with a card for each reason, None for a healthy one; the first so many are held."""
    ids = [f"0000:{number >> 5:02x}:{number & 31:02x}.0" for number in range(max(len(reasons), held))]
    devices = {
        device: Device(device, problem=Problem(reason, f"{device} is so") if reason else None)
        for device, reason in zip(ids, reasons, strict=False)
    }
    resource = Resource(GPU, "PCI_RESOURCE_X", devices)
    since = dict.fromkeys(((GPU, device) for device in devices), NOON)
    usage = Usage("pod-resources", {GPU: {device: Holder(pod, "compute") for device in ids[:held]}})
    unhealthy = unhealthy_of([resource], since)
    changes = (NodeChange(NOON, "Warning", "DeviceUnhealthy", "it is so"),)
    return NodeView(
        "node-1", "a-1", NOON, "/", {GPU: len(devices)}, unhealthy, usage.source, holders_of(usage), changes
    )


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[str] = []
        self.hidden = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self.hidden = tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        self.hidden = False

    def handle_data(self, data: str) -> None:
        if not self.hidden and data.strip():
            self.parts.append(data.strip())


def said(view: NodeView, topology: HostTopology | None = None) -> str:
    parser = _Text()
    parser.feed(draw_page(view, topology)[1])
    return " ".join(parser.parts)


def host(tmp_path: Path, cards: int) -> HostTopology:
    tree = HostTree(tmp_path)
    for number in range(cards):
        tree.card(f"{number >> 5:04x}:{(number & 31) + 1:02x}:00", group=number + 1)
    return topology_of(Host.from_sysfs(tmp_path).scan(), (), every=False)


def test_what_is_unhealthy_comes_with_its_reason_since_when_and_what_to_do() -> None:
    text = said(view(None, "config-space"))
    assert "LK208 config-space Reset the card" in text
    assert "0000:00:01.0 nvidia.com/GPU since 2026-09-21 14:13:20 UTC : 0000:00:01.0 is so" in text
    assert ADVICE["config-space"].text.partition(" `")[0] in text
    assert "launcherkit explain LK208 says more." in text
    assert "2 devices · 0 held · 1 Unhealthy" in text


def test_what_is_wrong_with_many_devices_is_said_once_with_all_of_their_names() -> None:
    page = said(view("driver", "driver", "driver", "gone"))
    assert page.count("LK204") == 2  # what it is, and how to read more
    assert "driver , 3 devices" in page
    assert [page.count(f"0000:00:0{number}.0 is so") for number in range(4)] == [1, 1, 1, 1]


def test_the_host_shows_what_is_unhealthy_and_what_is_kept_by_others(tmp_path: Path) -> None:
    topology = host(tmp_path, 3)
    addresses = [str(place.slot.functions[0].address) for place in topology.places()]
    before = view("failed", "group-in-use", None)
    bad = tuple(each._replace(device=device) for each, device in zip(before.unhealthy, addresses, strict=False))
    text = draw_page(before._replace(unhealthy=bad), topology)[1]
    assert [text.count(f'class="card {state}"') for state in ("unhealthy", "kept", "free")] == [1, 1, 1]
    unknown = draw_page(before._replace(unhealthy=bad, source="none"), topology)[1]
    assert [unknown.count(f'class="card {state}"') for state in ("unhealthy", "kept", "free")] == [1, 1, 0]


def test_what_is_to_be_typed_is_code_and_the_words_around_it_are_not() -> None:
    todo = (
        "Bind it to vfio-pci: <code>bind: true</code> in the rule, or <code>launcherkit-plugin bind</code>. "
        "<code>launcherkit explain LK204</code> says more.</p>"
    )
    assert f'<p class="todo">{todo}' in draw_page(view("driver"), None)[1]


def test_its_title_has_the_nodes_name() -> None:
    assert "<title>node-1: devices for guests</title>" in draw_page(view(), None)[1]


def test_what_others_use_is_no_trouble() -> None:
    text = said(view(None, "group-in-use", "no-room"))
    assert "Nothing is Unhealthy." in text
    assert "2 devices can't be allocated now, because others are in use" in text
    assert "LK" not in text


def test_a_card_that_a_vm_has_says_so_with_the_vms_name_and_in_the_tree_too(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:00:00", group=1)
    text = said(view(None, held=1), topology_of(Host.from_sysfs(tmp_path).scan(), (), every=False))
    assert "0000:00:00.0 vm team/virt-launcher-vm-x2x8p compute nvidia.com/GPU" in text
    assert "held by pod team/virt-launcher-vm-x2x8p (VM vm)" in text


def test_who_has_a_device_by_a_claim_or_is_only_being_started_is_reported() -> None:
    of_claim = Holder("", "", ClaimRef("team", "gpu", "u-1"))
    usage = Usage("pod-resources", {GPU: {"0000:01:00.0": of_claim, "0000:02:00.0": Holder("")}})
    text = said(view()._replace(held=holders_of(usage)))
    assert "ResourceClaim team/gpu" in text
    assert "a pod that is being started" in text


def test_where_nothing_is_known_it_does_not_say_that_there_is_nothing() -> None:
    text = said(view(None)._replace(source="none"))
    assert "It isn't known" in text
    assert "Nobody holds anything" not in text
    assert "It can't be read: the files of a device in sysfs hang, or are not there." in text


def test_nothing_that_others_chose_becomes_markup() -> None:
    bad = view("failed", held=1, pod=f"team/{ODD}")
    bad = bad._replace(
        node=ODD,
        counts={ODD: 1},
        unhealthy=tuple(each._replace(device=ODD, resource=ODD, text=ODD) for each in bad.unhealthy),
        changes=(NodeChange(NOON, "Normal", ODD, ODD),),
    )
    text = draw_page(bad, None)[1]
    parser = _Text()
    parser.feed(text)
    assert parser.tags.count("b") == 3  # how many there are, are held, are Unhealthy
    assert "\x1b" not in text
    assert "<b>&\\x1b" in " ".join(parser.parts)


def test_the_policy_allows_the_page_itself_and_nothing_else() -> None:
    policy, text = draw_page(view(None), None)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/)| on\w+=| style=", text)


@pytest.mark.slow
def test_of_a_node_with_4096_devices_the_page_has_a_bound(tmp_path: Path) -> None:
    most = view(*(["failed"] * 2000), *(["group-in-use"] * 2096), held=4096)  # type: ignore[arg-type]
    most = most._replace(changes=tuple(NodeChange(NOON, "Warning", "DeviceUnhealthy", "x" * 1024) for _ in range(30)))
    text = draw_page(most, host(tmp_path, 256))[1]
    assert len(text.encode()) < 300_000
    assert "And 1900 more." in text
    assert "And 3796 more." in text
    assert "It has too much to be drawn here" in text


@pytest.mark.slow
def test_256_cards_are_drawn_whole_in_less_than_300_kb(tmp_path: Path) -> None:
    topology = host(tmp_path, 256)
    text = draw_page(view(*[None] * 256, held=256), topology)[1]
    assert text.count('class="card ') == 256
    assert len(text.encode()) < 300_000


def test_a_view_is_the_same_on_the_other_side() -> None:
    before = view(None, "gone", held=2)
    assert load_view(dump_view(before)) == before


@pytest.mark.parametrize("reason", get_args(Reason))
def test_every_reason_has_something_to_do_and_a_code_that_exists(reason: Reason) -> None:
    advice = ADVICE[reason]
    assert advice.text.endswith(".")
    assert not advice.code or advice.code in LauncherkitError.codes()


def test_known_problems_of_the_kernel_and_the_devices_are_shown_with_what_to_do(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.function("0000:01:00.0", vendor=0x1002, device=0x75A3, class_code=0x120000, driver="vfio-pci", group=7)
    text = drawn(dump_view(view()._replace(host=str(tree.root)))).decode()
    assert "<h3>amd-instinct-reset</h3>" in text
    assert "Pass on VFs" in text
    tree = HostTree(tmp_path / "other")
    tree.function("0000:01:00.0", vendor=0x10DE, device=0x2204, class_code=0x030000, driver="vfio-pci", group=7)
    assert 'id="known-problems"' not in drawn(dump_view(view()._replace(host=str(tree.root)))).decode()


def test_a_problem_of_the_running_kernel_is_shown(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.function("0000:01:00.0", vendor=0x10DE, device=0x1B80, class_code=0x030000, driver="vfio-pci", group=7)
    release = tree.root / "proc/sys/kernel/osrelease"
    release.parent.mkdir(parents=True)
    release.write_text("6.14.2-zen1-1-zen\n")
    assert "Linux 6.14.2: an NVIDIA GPU hangs" in drawn(dump_view(view()._replace(host=str(tree.root)))).decode()
