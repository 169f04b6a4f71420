"""Display and ramfb of mediated devices (X3)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from launcherkit.choose.display import decide_displays
from launcherkit.errors import Collector
from launcherkit.model.address import HostAddress, MdevAddress, UsbAddress
from launcherkit.model.domain import DomainFacts, ExistingHostdev
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import Attachment, GuestDevice, Match, Shown
from launcherkit.model.request import DisplayOptions, Kind, Section
from tests.support.facts import UUID, UUID2, at, facts, mdev

ON, OFF, SILENT = DisplayOptions(True, None), DisplayOptions(False, None), DisplayOptions(None, None)
A, B = MdevAddress(UUID), MdevAddress(UUID2)
BOTH = Shown("vfio-pci", "on", "on")
NEITHER = Shown("vfio-pci")
HOST = facts(mdevs=[mdev(UUID), mdev(UUID2)])


def device(source: HostAddress, name: str = "a", section: Section = "gpus", hostdev: int | None = None) -> GuestDevice:
    kind: Kind = "mdev" if isinstance(source, MdevAddress) else "usb" if isinstance(source, UsbAddress) else "pci"
    match = Match("vmi", section, name, "x", "V", source)
    return GuestDevice(kind, (Attachment(source, "primary", "asked for", match, hostdev),))


def domain(
    *, graphics: bool = True, video_ramfb: bool = False, hostdevs: tuple[ExistingHostdev, ...] = ()
) -> DomainFacts:
    return DomainFacts(
        "pcie", "x86_64/q35", (), frozenset(), graphics, video_ramfb, frozenset(), hostdevs, frozenset(), False
    )


def there(source: HostAddress, display: str | None, ramfb: str | None) -> ExistingHostdev:
    return ExistingHostdev("mdev", source, None, None, False, "no", display, ramfb)


def decide(
    devices: list[GuestDevice],
    options: Mapping[str, DisplayOptions | None],
    facts_of_domain: DomainFacts | None = None,
    host: HostFacts = HOST,
) -> tuple[Mapping[HostAddress, Shown], list[str]]:
    found = decide_displays(devices, options, facts_of_domain or domain(), host)
    Collector(found.errors).raise_if_any()
    return found.shown, [note.topic for note in found.notes]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (None, None, [BOTH, NEITHER]),
        (SILENT, None, [BOTH, NEITHER]),
        (None, SILENT, [NEITHER, BOTH]),
        (ON, ON, [BOTH, Shown("vfio-pci", "on")]),
        (OFF, None, [NEITHER, NEITHER]),
        (OFF, OFF, [NEITHER, NEITHER]),
        (OFF, ON, [NEITHER, BOTH]),
        (DisplayOptions(True, False), ON, [Shown("vfio-pci", "on"), BOTH]),
        (DisplayOptions(None, False), None, [Shown("vfio-pci", "on"), NEITHER]),
        (DisplayOptions(True, True), OFF, [BOTH, NEITHER]),
        (DisplayOptions(False, True), None, [NEITHER, NEITHER]),
    ],
)
def test_gpus_are_shown_as_kubevirt_decides_with_one_ramfb(
    a: DisplayOptions | None, b: DisplayOptions | None, expected: list[Shown]
) -> None:
    shown, _ = decide([device(A, "a"), device(B, "b")], {"a": a, "b": b})
    assert [shown[A], shown[B]] == expected


def test_an_mdev_under_host_devices_is_never_shown() -> None:
    assert decide([device(A, section="hostDevices")], {})[0] == {A: NEITHER}


def test_the_first_mediated_gpu_is_the_default_even_behind_a_pci_gpu_and_a_host_device() -> None:
    devices = [device(at("0000:e1:00.0"), "p"), device(B, "h", "hostDevices"), device(A, "a")]
    assert decide(devices, {"p": None, "a": None})[0] == {B: NEITHER, A: BOTH}


def test_a_pci_gpu_is_shown_only_where_enabled_is_true() -> None:
    gpu = at("0000:e1:00.0")
    assert decide([device(gpu)], {"a": ON})[0] == {gpu: Shown(None, "on", "on")}
    assert decide([device(gpu)], {"a": DisplayOptions(True, True)})[0] == {gpu: Shown(None, "on", "on")}
    assert decide([device(gpu)], {"a": DisplayOptions(True, False)})[0] == {gpu: Shown(None, "on")}
    for options in (None, OFF, SILENT):
        assert decide([device(gpu)], {"a": options})[0] == {}


def test_there_is_never_a_display_without_graphics_and_a_note_says_so() -> None:
    shown, topics = decide([device(A), device(B, "b")], {"a": ON, "b": ON}, domain(graphics=False))
    assert (shown, topics) == ({A: NEITHER, B: NEITHER}, ["no-display", "no-display"])


def test_a_video_device_of_model_ramfb_is_the_one() -> None:
    shown, topics = decide([device(A)], {"a": ON}, domain(video_ramfb=True))
    assert (shown, topics) == ({A: Shown("vfio-pci", "on")}, ["no-ramfb"])


def test_what_the_document_says_stays_but_for_a_second_ramfb() -> None:
    hostdevs = there(A, "on", "on"), there(B, "on", "on")
    shown, _ = decide(
        [device(A, hostdev=0), device(B, "b", hostdev=1)], {"a": OFF, "b": None}, domain(hostdevs=hostdevs)
    )
    assert shown == {A: BOTH, B: Shown("vfio-pci", "on", "off")}


def test_a_display_that_the_document_asks_for_is_turned_off_where_there_are_no_graphics() -> None:
    shown, _ = decide([device(A, hostdev=0)], {"a": None}, domain(graphics=False, hostdevs=(there(A, "on", "on"),)))
    assert shown == {A: Shown("vfio-pci", "off", "off")}
    shown, _ = decide([device(A, hostdev=0)], {"a": None}, domain(graphics=False, hostdevs=(there(A, "off", None),)))
    assert shown == {A: Shown("vfio-pci", "off", None)}


def test_the_display_of_a_sibling_is_turned_off_too_where_there_are_no_graphics() -> None:
    """X3: never `display` without a graphics device."""
    gpu, audio = at("0000:01:00.0"), at("0000:01:00.1")
    alone = device(gpu, hostdev=0)
    card = alone._replace(attachments=(alone.primary, Attachment(audio, "sibling", "same slot", None, 1)))
    hostdevs = there(gpu, None, None)._replace(kind="pci"), there(audio, "on", None)._replace(kind="pci")
    shown, topics = decide([card], {"a": None}, domain(graphics=False, hostdevs=hostdevs))
    assert (shown, topics) == ({audio: Shown(None, "off")}, ["no-display"])


@pytest.mark.parametrize("api", ["vfio-ap", "vfio-ccw"])
def test_the_model_is_the_types_device_api_and_only_pci_ones_have_a_display(api: str) -> None:
    host = facts(mdevs=[mdev(UUID, device_api=api)])
    assert decide([device(A)], {"a": ON}, host=host)[0] == {A: Shown(api)}


def test_a_type_without_device_api_and_an_unknown_mdev_are_pci() -> None:
    for host in (facts(mdevs=[mdev(UUID, device_api=None)]), facts()):
        assert decide([device(A, section="hostDevices")], {}, host=host)[0] == {A: NEITHER}


def test_usb_devices_have_no_display() -> None:
    assert decide([device(UsbAddress(1, 2))], {"a": ON})[0] == {}
