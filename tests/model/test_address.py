"""Addresses are parsed once into values that can't be wrong (E3)."""

from __future__ import annotations

import pytest

from launcherkit.model.address import GuestAddress, MdevAddress, PciAddress, PciSlot, UsbAddress, UsbModel, card_of

UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:e1:00.0", (0, 0xE1, 0, 0)),
        ("0000:E1:1F.7", (0, 0xE1, 0x1F, 7)),
        ("e1:00.1", (0, 0xE1, 0, 1)),
        ("10000:e1:00.0", (0x10000, 0xE1, 0, 0)),
        ("ffffffff:ff:1f.7", (0xFFFFFFFF, 0xFF, 0x1F, 7)),
        ("00000000:00:00.0", (0, 0, 0, 0)),
        ("FFFF:FF:1f.7", (0xFFFF, 0xFF, 0x1F, 7)),
    ],
)
def test_a_pci_address_is_read_in_every_spelling(text: str, expected: tuple[int, int, int, int]) -> None:
    assert PciAddress.parse(text) == PciAddress(*expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "form"),
        (".", "form"),
        ("0000:e1:00", "form"),
        ("0000:e1:00.", "function"),
        ("0000:0000:e1:00.0", "form"),
        ("e1.0", "form"),
        ("000:e1:00.0", "domain"),
        ("123456789:e1:00.0", "domain"),
        ("0x00:e1:00.0", "domain"),
        ("+000:e1:00.0", "domain"),
        ("0_00:e1:00.0", "domain"),
        (":e1:00.0", "domain"),
        ("0000:e:00.0", "bus"),
        ("0000:0e1:00.0", "bus"),
        ("0000:g1:00.0", "bus"),
        ("0000:e1:0.0", "device"),
        ("0000:e1:20.0", "device"),
        ("0000:e1:ff.0", "device"),
        ("0000:e1:00.8", "function"),
        ("0000:e1:00.a", "function"),
        ("0000:e1:00.00", "function"),
        ("0000:e1:00.-1", "function"),
        ("0000:e1:00.\u0661", "function"),  # ARABIC-INDIC DIGIT ONE, which int() would take
        ("\uff10000:e1:00.0", "domain"),  # FULLWIDTH DIGIT ZERO
        ("0000:e1:0\u0661.0", "device"),
        ("0000:e1:00.0\0", "function"),
        ("0000:e1:00.0\n", "function"),
        (" 0000:e1:00.0", "domain"),
        ("0000:\ud800\ud800:00.0", "bus"),
        ("9" * 100_000 + ":e1:00.0", "domain"),
    ],
)
def test_what_is_no_pci_address_is_refused_and_the_reason_names_the_part(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        PciAddress.parse(text)
    assert len(str(raised.value)) < 60, "the reason doesn't repeat the text"


def test_parse_and_str_are_inverse_at_the_edges() -> None:
    for domain in (0, 1, 0xFFFF, 0x10000, 0xFFFFFFFF):
        for bus, device, function in ((0, 0, 0), (0xFF, 0x1F, 7)):
            address = PciAddress(domain, bus, device, function)
            assert PciAddress.parse(str(address)) == address


def test_functions_of_one_card_share_a_slot() -> None:
    first, second = PciAddress.parse("10000:e1:00.0"), PciAddress.parse("10000:e1:00.3")
    assert first.slot == second.slot == PciSlot(0x10000, 0xE1, 0)
    assert str(first.slot) == "10000:e1:00"
    assert first.slot != PciAddress.parse("0000:e1:00.0").slot


def test_an_mdev_is_a_uuid_in_lower_case() -> None:
    assert MdevAddress.parse(UUID.upper()) == MdevAddress(UUID)
    assert str(MdevAddress.parse(UUID)) == UUID


@pytest.mark.parametrize(
    "text",
    [
        "",
        UUID[:-1],
        UUID + "0",
        UUID.replace("-", ""),
        "{" + UUID + "}",
        UUID.replace("8", "g", 1),
        UUID.replace("8", "\u0668"),
    ],
)
def test_what_is_no_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a UUID"):
        MdevAddress.parse(text)


def test_a_usb_address_is_decimal_and_leading_zeros_mean_nothing() -> None:
    assert UsbAddress.parse("001:010") == UsbAddress(1, 10)
    assert str(UsbAddress(1, 10)) == "1:10"
    assert UsbAddress(1, 10).node == "/dev/bus/usb/001/010"


@pytest.mark.parametrize(
    "text",
    ["", ":", "1", "1:", ":1", "1:2:3", "0x1:2", "a:1", "1:1000", "-1:2", "+1:2", "1: 2", "\u00b2:1", "\u0661:1"],
)
def test_what_is_no_usb_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bus:device"):
        UsbAddress.parse(text)


def test_a_guest_address_is_spelled_like_a_host_one() -> None:
    assert str(GuestAddress(0, 0xFF, 0x1F, 7)) == "0000:ff:1f.7"


def test_addresses_of_two_types_are_never_equal() -> None:
    host: tuple[object, ...] = PciAddress(0, 1, 0, 0)
    guest: tuple[object, ...] = GuestAddress(0, 1, 0, 0)
    assert host != guest
    assert not host == guest  # noqa: SIM201  # both operators are our own
    assert len({host, guest}) == 2
    mdev: tuple[object, ...] = MdevAddress(UUID)
    assert mdev != UsbModel(UUID)
    assert host != (0, 1, 0, 0)


def test_equal_addresses_are_one_key() -> None:
    assert PciAddress.parse("01:00.0") == PciAddress(0, 1, 0, 0)
    assert {PciAddress(0, 1, 0, 0): "it"}[PciAddress.parse("0000:01:00.0")] == "it"
    assert len({GuestAddress(0, 1, 0, 0), GuestAddress(0, 1, 0, 0)}) == 1


def test_functions_of_a_slot_are_one_card_and_any_other_device_is_one_of_its_own() -> None:
    assert card_of(PciAddress(0, 1, 0, 0)) == card_of(PciAddress(0, 1, 0, 1)) == PciSlot(0, 1, 0)
    assert card_of(MdevAddress(UUID)) == MdevAddress(UUID)
    assert GuestAddress(0, 1, 0, 3).function_0 == GuestAddress(0, 1, 0, 0)
