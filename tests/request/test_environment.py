"""What device plugins left in the environment (E1, E3, E4)."""

from __future__ import annotations

import pytest

from launcherkit.errors import (
    BAD_MDEV_UUID,
    BAD_PCI_ADDRESS,
    BAD_USB_ADDRESS,
    Code,
    Collector,
    LauncherkitError,
    SeveralErrors,
)
from launcherkit.model.plan import Note
from launcherkit.model.request import Allocation
from launcherkit.request.environment import Environment
from tests.support.errors import raises_code
from tests.support.facts import UUID

X = "PCI_RESOURCE_X"


def read(name: str, value: str, extra: tuple[str, ...] = ()) -> tuple[Allocation, tuple[Note, ...]]:
    allocation, notes, errors = Environment({name: value}, extra).read(name)
    Collector(errors).raise_if_any()
    return allocation, tuple(notes)


def entries(value: str) -> list[str]:
    return [str(entry) for entry in read(X, value)[0].entries]


@pytest.mark.parametrize(
    "value",
    [
        "0000:e1:00.0,0000:01:00.0",
        "0000:e1:00.0,0000:01:00.0,",
        ",0000:e1:00.0,,0000:01:00.0,,",
        " 0000:e1:00.0 ,\t0000:01:00.0\n",
        "0000:E1:00.0,0000:01:00.0",
        "e1:00.0,01:00.0",
    ],
)
def test_every_spelling_of_a_list_means_the_same(value: str) -> None:
    assert entries(value) == ["0000:e1:00.0", "0000:01:00.0"]


@pytest.mark.parametrize("value", ["", ",", " , ,"])
def test_a_variable_may_hold_nothing(value: str) -> None:
    assert entries(value) == []


def test_repeats_collapse_to_the_first_with_a_note() -> None:
    allocation, notes = read(X, "0000:e1:00.0,0000:01:00.0,0000:E1:00.0")
    assert [str(entry) for entry in allocation.entries] == ["0000:e1:00.0", "0000:01:00.0"]
    assert [(note.topic, note.text) for note in notes] == [("repeat", f"{X}: entry 3 repeats entry 1, 0000:e1:00.0")]


def test_an_entry_that_is_no_address_is_named_with_variable_position_and_value() -> None:
    with raises_code(BAD_PCI_ADDRESS) as raised:
        read(X, "0000:e1:00.0,,0000:e1:20.0")
    assert raised.value.message.startswith(f"{X}, entry 3: '0000:e1:20.0'")
    assert "device" in raised.value.message


def test_all_bad_entries_are_reported_at_once() -> None:
    with pytest.raises(SeveralErrors) as raised:
        read(X, "a,0000:e1:00.0,b")
    assert [leaf.message.partition(":")[0] for leaf in raised.value.leaves()] == [f"{X}, entry 1", f"{X}, entry 3"]


@pytest.mark.parametrize(
    "entry", ["9" * 100_000, "\0", "\ud800", "0000:e1:00.\u0661", "\N{RIGHT-TO-LEFT OVERRIDE}", "a\nb"]
)
def test_a_hostile_entry_is_an_error_of_one_short_line(entry: str) -> None:
    with raises_code(BAD_PCI_ADDRESS) as raised:
        read(X, entry)
    assert len(raised.value.message) < 200
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("PCI_RESOURCE_A", "0000:e1:00.0", "pci"),
        ("MDEV_PCI_RESOURCE_A", UUID.upper(), "mdev"),
        ("USB_RESOURCE_A", "001:004", "usb"),
        ("PCIDEVICE_A", "0000:e1:00.0", "pci"),
    ],
)
def test_the_prefix_tells_the_kind_of_address(name: str, value: str, kind: str) -> None:
    allocation, _ = read(name, value, ("PCIDEVICE",))
    assert (allocation.kind, allocation.suffix, len(allocation.entries)) == (kind, "A", 1)


@pytest.mark.parametrize(
    ("name", "error"),
    [("MDEV_PCI_RESOURCE_A", BAD_MDEV_UUID), ("USB_RESOURCE_A", BAD_USB_ADDRESS), (X, BAD_PCI_ADDRESS)],
)
def test_each_kind_has_an_error_of_its_own(name: str, error: Code[LauncherkitError]) -> None:
    with raises_code(error):
        read(name, "nonsense")


def test_other_variables_are_not_looked_at() -> None:
    environment = Environment(
        {"PATH": "/bin", "PCI_RESOURCEX": "a", "XPCI_RESOURCE_A": "a", "pci_resource_a": "a", "PCIDEVICE_A": "a"}
    )
    assert environment.variables == ()


def test_prefixes_of_other_plugins_count_only_where_the_policy_names_them() -> None:
    env = {"PCIDEVICE_INTEL_COM_VF": "0000:01:10.0", "PCIDEVICE_INTEL_COM_VF_INFO": '{"0000:01:10.0": {}}'}
    assert Environment(env).variables == ()
    assert Environment(env, ("PCIDEVICE",)).variables == ("PCIDEVICE_INTEL_COM_VF",)


def test_a_resource_whose_name_ends_in_info_is_still_a_resource() -> None:
    env = {"PCI_RESOURCE_X_COM_CARD_INFO": "0000:01:00.0"}
    assert Environment(env).variables == ("PCI_RESOURCE_X_COM_CARD_INFO",)


def test_mdev_comes_before_pci_and_dashes_stay() -> None:
    names = Environment({}).names_for("nvidia.com/GA102-A.B")
    assert names == [
        "MDEV_PCI_RESOURCE_NVIDIA_COM_GA102-A_B",
        "PCI_RESOURCE_NVIDIA_COM_GA102-A_B",
        "USB_RESOURCE_NVIDIA_COM_GA102-A_B",
    ]


def test_the_first_variable_that_holds_something_answers() -> None:
    both = {"MDEV_PCI_RESOURCE_X": UUID, "PCI_RESOURCE_X": "0000:01:00.0"}
    assert Environment(both).variable_for("x") == "MDEV_PCI_RESOURCE_X"
    assert Environment(both | {"MDEV_PCI_RESOURCE_X": " ,"}).variable_for("x") == "PCI_RESOURCE_X"
    assert Environment({"PCI_RESOURCE_X": ""}).variable_for("x") == "PCI_RESOURCE_X"
    assert Environment({}).variable_for("x") is None


def test_counts_are_of_entries_not_of_commas() -> None:
    assert Environment({X: ",a,, b ,", "USB_RESOURCE_Y": ""}).counts() == {X: 2, "USB_RESOURCE_Y": 0}
