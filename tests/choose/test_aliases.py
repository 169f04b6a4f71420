"""Aliases: valid, unique, the ones KubeVirt looks its devices up by (X1)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from launcherkit.choose.aliases import alias_of, assign_aliases, find_carried_siblings, name_matches
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress, UsbAddress
from launcherkit.model.domain import DomainFacts, ExistingHostdev
from launcherkit.model.plan import Attachment, GuestDevice, Match, Origin
from launcherkit.model.policy import AliasPrefixes
from launcherkit.model.request import Kind, Section
from tests.support.facts import UUID, at

GPU, SOUND = at("0000:e1:00.0"), at("0000:e1:00.1")


def match(source: HostAddress, name: str, section: Section = "gpus", origin: Origin = "vmi") -> Match:
    return Match(origin, section, name, "x", "V", source)


def part(source: HostAddress, asked: Match | None, hostdev: int | None = None) -> Attachment:
    return Attachment(source, "primary", "", asked, hostdev)


def domain(aliases: Iterable[str] = (), hostdevs: Iterable[tuple[HostAddress | None, str | None]] = ()) -> DomainFacts:
    present = tuple(ExistingHostdev("pci", source, alias, None, False, None, None, None) for source, alias in hostdevs)
    return DomainFacts(
        "pcie", "x86_64/q35", (), frozenset(), False, False, frozenset(aliases), present, frozenset(), False
    )


def assign(*devices: GuestDevice, there: DomainFacts | None = None, prefixes: AliasPrefixes | None = None) -> list[str]:
    document, chosen = there or domain(), prefixes or AliasPrefixes()
    matches = [each.match for device in devices for each in device.attachments if each.match is not None]
    given = assign_aliases(devices, name_matches(matches, document, chosen), document, chosen)
    return [given[attachment.source] for device in devices for attachment in device.attachments]


@pytest.mark.parametrize(
    ("section", "kind", "expected"),
    [
        ("gpus", "pci", "ua-gpu-a"),
        ("gpus", "mdev", "ua-gpu-a"),
        ("hostDevices", "pci", "ua-hostdevice-a"),
        ("hostDevices", "mdev", "ua-hostdevice-a"),
        ("hostDevices", "usb", "ua-usb-host-a"),
    ],
)
def test_an_alias_is_kubevirts(section: Section, kind: Kind, expected: str) -> None:
    assert alias_of(section, "a", kind, AliasPrefixes()) == expected


@pytest.mark.parametrize(("section", "expected"), [("gpus", "ua-dra-gpu-a"), ("hostDevices", "ua-dra-hostdevice-a")])
def test_what_a_claim_answers_has_kubevirts_own_prefix_whatever_the_policy_says(
    section: Section, expected: str
) -> None:
    assert alias_of(section, "a", "pci", AliasPrefixes("ua-x-", "ua-x-", "ua-x-"), by_claim=True) == expected


@pytest.mark.parametrize(
    "name", ["a b", "a.b", "a/b", "a'b", "a\u00e9", "a\0b", "a\ud800", "<a>", "a\N{ARABIC-INDIC DIGIT ONE}"]
)
def test_characters_that_an_alias_can_not_have_become_dashes(name: str) -> None:
    alias = alias_of("gpus", name, "pci", AliasPrefixes())
    assert set(alias) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert len(alias) == len("ua-gpu-") + len(name)


def test_the_policys_prefixes_are_used() -> None:
    prefixes = AliasPrefixes("ua-g-", "ua-h-", "ua-u-")
    assert assign(GuestDevice("pci", (part(GPU, match(GPU, "a")),)), prefixes=prefixes) == ["ua-g-a"]
    stick = UsbAddress(1, 2)
    assert assign(GuestDevice("usb", (part(stick, match(stick, "a", "hostDevices")),)), prefixes=prefixes) == ["ua-u-a"]


def test_a_sibling_is_named_after_its_primary_and_its_host_function() -> None:
    card = GuestDevice("pci", (part(GPU, match(GPU, "a")), part(PciAddress(0, 0xE1, 0, 3), None)))
    assert assign(card) == ["ua-gpu-a", "ua-gpu-a-fn3"]


def test_a_sibling_that_is_asked_for_by_name_has_that_name() -> None:
    """C5."""
    card = GuestDevice("pci", (part(GPU, match(GPU, "a")), part(SOUND, match(SOUND, "audio", "hostDevices"))))
    assert assign(card) == ["ua-gpu-a", "ua-hostdevice-audio"]


def test_names_that_become_alike_are_kept_apart() -> None:
    other = MdevAddress(UUID)
    assert assign(
        GuestDevice("pci", (part(GPU, match(GPU, "a.b")),)), GuestDevice("mdev", (part(other, match(other, "a-b")),))
    ) == [
        "ua-gpu-a-b",
        "ua-gpu-a-b-2",
    ]


def test_a_request_named_like_a_sibling_has_its_name_and_the_sibling_gives_way() -> None:
    other = at("0000:01:00.0")
    card = GuestDevice("pci", (part(GPU, match(GPU, "a")), part(SOUND, None)))
    assert assign(card, GuestDevice("pci", (part(other, match(other, "a-fn1")),))) == [
        "ua-gpu-a",
        "ua-gpu-a-fn1-2",
        "ua-gpu-a-fn1",
    ]


def test_aliases_of_other_devices_are_not_taken() -> None:
    assert assign(GuestDevice("pci", (part(GPU, match(GPU, "a")),)), there=domain(["ua-gpu-a", "ua-gpu-a-2"])) == [
        "ua-gpu-a-3"
    ]


def test_a_valid_alias_of_the_document_stays_where_nobody_names_the_device() -> None:
    """Q2, X2."""
    there = domain(hostdevs=[(GPU, "ua-mine"), (SOUND, "ua-mine-too")])
    card = GuestDevice("pci", (part(GPU, match(GPU, "x", origin="domain"), 0), part(SOUND, None, 1)))
    assert assign(card, there=there) == ["ua-mine", "ua-mine-too"]


@pytest.mark.parametrize("alias", ["hostdev0", "ua-", "ua-a b", "ua-\u00e9", "", None])
def test_an_alias_that_libvirt_would_drop_is_replaced(alias: str | None) -> None:
    there = domain(hostdevs=[(GPU, alias)])
    assert assign(GuestDevice("pci", (part(GPU, match(GPU, "x", origin="domain"), 0),)), there=there) == ["ua-gpu-x"]


def test_a_request_renames_the_hostdev_that_answers_it() -> None:
    there = domain(hostdevs=[(GPU, "ua-mine")])
    assert assign(GuestDevice("pci", (part(GPU, match(GPU, "a"), 0),)), there=there) == ["ua-gpu-a"]


def test_an_alias_that_stands_twice_in_the_document_is_kept_once() -> None:
    there = domain(hostdevs=[(GPU, "ua-mine"), (SOUND, "ua-mine")])
    aliases = assign(
        GuestDevice("pci", (part(GPU, match(GPU, "x", origin="domain"), 0),)),
        GuestDevice("pci", (part(SOUND, match(SOUND, "y", origin="domain"), 1),)),
        there=there,
    )
    assert aliases == ["ua-mine", "ua-gpu-y"]


def test_a_request_takes_its_name_from_a_hostdev_that_only_has_it_in_the_document() -> None:
    """The VMI's names come first, or KubeVirt would look up another device."""
    there = domain(hostdevs=[(SOUND, "ua-gpu-a")])
    aliases = assign(
        GuestDevice("pci", (part(GPU, match(GPU, "a")),)),
        GuestDevice("pci", (part(SOUND, match(SOUND, "a", origin="domain"), 0),)),
        there=there,
    )
    assert aliases == ["ua-gpu-a", "ua-gpu-a-2"]


def test_hundreds_of_equal_names_are_kept_apart() -> None:
    devices = [
        GuestDevice("pci", (part(address, match(address, "a")),))
        for address in (PciAddress(number >> 13, number >> 5 & 0xFF, number & 0x1F, 0) for number in range(500))
    ]
    assert len(set(assign(*devices))) == 500


def test_a_request_does_not_take_the_alias_of_a_hostdev_that_names_no_one_device() -> None:
    """A USB hostdev by vendor and product stays as it is, so its alias is taken."""
    there = domain(hostdevs=[(None, "ua-gpu-a"), (None, "ua-gpu-a-fn1")])
    device = GuestDevice("pci", (part(GPU, match(GPU, "a")), Attachment(SOUND, "sibling", "", None, None)), ())
    given = assign(device, there=there)
    assert not {"ua-gpu-a", "ua-gpu-a-fn1"} & set(given)
    assert len(set(given)) == 2


def test_a_siblings_alias_is_none_that_the_document_has_already() -> None:
    card = GuestDevice("pci", (part(GPU, match(GPU, "a")), part(SOUND, None)))
    stick = domain(hostdevs=[(None, "ua-gpu-a-fn1")])
    assert assign(card, there=stick) == ["ua-gpu-a", "ua-gpu-a-fn1-2"]
    other = at("0000:01:00.0")
    unasked = match(other, "x", origin="domain")._replace(asked=False)
    kept = GuestDevice("pci", (part(other, unasked, 0),))
    aliases = assign(card, kept, there=domain(hostdevs=[(other, "ua-gpu-a-fn1")]))
    assert aliases == ["ua-gpu-a", "ua-gpu-a-fn1-2", "ua-gpu-a-fn1"]


def test_a_hostdev_without_an_alias_is_nobodys_sibling_and_nobodys_primary() -> None:
    """X2: beside one that an earlier run has attached."""
    other, unnamed, named = at("0000:01:00.0"), at("0000:41:00.0"), at("0000:c1:00.0")
    there = domain(hostdevs=[(GPU, "ua-gpu-a"), (SOUND, "ua-gpu-a-fn1"), (other, None), (unnamed, ""), (named, "x")])
    matches = [match(source, "", origin="domain") for source in (GPU, SOUND, other, unnamed, named)]
    assert find_carried_siblings(matches, {}, there) == {SOUND: GPU}
