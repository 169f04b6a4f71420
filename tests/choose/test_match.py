"""Which physical device answers which request (C1-C5)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from launcherkit.choose.match import check_on_host, match_environment, match_hostdevs, match_requests
from launcherkit.errors import NOT_ON_HOST, TOO_FEW_DEVICES, Collector
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress, UsbAddress
from launcherkit.model.domain import ExistingHostdev
from launcherkit.model.host import NO_FACTS, HostFacts, MdevParent
from launcherkit.model.plan import Note
from launcherkit.model.policy import AliasPrefixes, Pairing
from launcherkit.model.request import Allocation, Kind, Request, Section
from tests.support.errors import raises_code
from tests.support.facts import AUDIO, BRIDGE, DISPLAY, NIC, NVME, USB, UUID, at, card, facts, function, mdev

TWO_CARDS = facts(*card("0000:e1:00", 44), *card("0000:01:00", 12))


def gpu(name: str, resource: str = "x") -> Request:
    return Request("gpus", 0, name, resource)


def hostdevice(name: str, resource: str = "x") -> Request:
    return Request("hostDevices", 0, name, resource)


def holds(*entries: str, variable: str = "PCI_RESOURCE_X") -> Allocation:
    return Allocation(variable, variable.removeprefix("PCI_RESOURCE_"), "pci", tuple(at(entry) for entry in entries))


def answers(
    requests: Sequence[Request],
    allocations: dict[str, Allocation],
    host: HostFacts = TWO_CARDS,
    *,
    pairing: Pairing = "class",
    of_claims: dict[Request, HostAddress] | None = None,
    wanted: dict[Request, HostAddress] | None = None,
    taken: Sequence[PciAddress] = (),
    notes: list[Note] | None = None,
) -> tuple[list[str], list[str]]:
    """What answers each request, and what is left alone."""
    found = match_requests(requests, allocations, host, pairing, of_claims or {}, wanted or {}, taken)
    if notes is not None:
        notes += found.notes
    Collector(found.errors).raise_if_any()
    return [str(match.primary) for match in found.matches], [str(primary) for _, primary in found.not_attached]


@pytest.mark.parametrize(
    "entries",
    [
        ("0000:e1:00.0", "0000:e1:00.1", "0000:01:00.0", "0000:01:00.1"),
        ("0000:e1:00.1", "0000:e1:00.0", "0000:01:00.1", "0000:01:00.0"),
        ("0000:e1:00.0", "0000:01:00.0", "0000:01:00.1", "0000:e1:00.1"),
        ("0000:e1:00.0", "0000:01:00.0"),
    ],
)
def test_gpus_answer_requests_and_audio_never_does_wherever_it_stands_in_the_list(entries: tuple[str, ...]) -> None:
    """C1, C2."""
    assert answers([gpu("a"), gpu("b")], {"x": holds(*entries)}) == (["0000:e1:00.0", "0000:01:00.0"], [])


def test_the_order_of_the_primaries_is_the_order_of_the_answers() -> None:
    """C1: as KubeVirt pops them."""
    assert answers([gpu("a"), gpu("b")], {"x": holds("0000:e1:00.0", "0000:01:00.0")})[0] == [
        "0000:e1:00.0",
        "0000:01:00.0",
    ]
    assert answers([gpu("a"), gpu("b")], {"x": holds("0000:01:00.0", "0000:e1:00.0")})[0] == [
        "0000:01:00.0",
        "0000:e1:00.0",
    ]


@pytest.mark.parametrize(
    "classes",
    [
        (DISPLAY, 0x120000, 0x0B4000, NIC, NVME, AUDIO),
        (0x120000, 0x0B4000, NIC, NVME, AUDIO),
        (0x0B4000, NIC, NVME, AUDIO),
        (NIC, NVME, AUDIO),
        (NVME, 0x0B3000, AUDIO),
    ],
)
def test_the_best_class_of_a_slot_is_the_primary_whatever_its_function_number(classes: tuple[int, ...]) -> None:
    """C2; the functions are numbered from the worst class to the best."""
    functions = [
        function(f"0000:01:00.{number}", code, device=0x1000 + number) for number, code in enumerate(reversed(classes))
    ]
    every = holds(*(str(each.address) for each in functions))
    assert answers([gpu("a")], {"x": every}, facts(*functions)) == ([f"0000:01:00.{len(classes) - 1}"], [])


def test_among_equals_of_other_models_the_lowest_function_is_the_primary() -> None:
    """C2."""
    host = facts(*(function(f"0000:01:00.{number}", AUDIO, device=number + 1) for number in (1, 2, 3)))
    assert answers([gpu("a")], {"x": holds("0000:01:00.3", "0000:01:00.2", "0000:01:00.1")}, host)[0] == [
        "0000:01:00.1"
    ]


def test_a_dual_port_nic_is_two_primaries() -> None:
    """C2: entries with the primary's own vendor:device."""
    host = facts(function("0000:01:00.0", NIC), function("0000:01:00.1", NIC), function("0000:01:00.2", AUDIO))
    every = holds("0000:01:00.0", "0000:01:00.1", "0000:01:00.2")
    assert answers([gpu("a"), gpu("b")], {"x": every}, host) == (["0000:01:00.0", "0000:01:00.1"], [])


def test_vfs_are_devices_of_their_own_and_their_physical_function_is_not_their_mate() -> None:
    """C2."""
    host = facts(
        function("0000:01:00.0", NIC),
        function("0000:01:00.1", NVME, physfn="0000:01:00.0", group=2),
        function("0000:01:00.2", NIC, physfn="0000:01:00.0", group=3),
    )
    every = holds("0000:01:00.1", "0000:01:00.0", "0000:01:00.2")
    assert answers([gpu("a"), gpu("b"), gpu("c")], {"x": every}, host)[0] == [
        "0000:01:00.1",
        "0000:01:00.0",
        "0000:01:00.2",
    ]


def test_without_host_facts_the_lowest_function_of_a_slot_is_taken_and_a_note_says_that_it_is_a_guess() -> None:
    """C3."""
    notes: list[Note] = []
    every = holds("0000:e1:00.1", "0000:e1:00.0", "0000:01:00.1")
    assert answers([gpu("a")], {"x": every}, NO_FACTS, notes=notes) == (["0000:e1:00.0"], ["0000:01:00.1"])
    assert [note.topic for note in notes] == ["guess"]
    assert "0000:e1:00.0, 0000:01:00.1" in notes[0].text


def test_too_few_is_an_error_that_says_what_each_address_is() -> None:
    """C4: a list of two functions is one device."""
    with raises_code(TOO_FEW_DEVICES) as raised:
        answers([gpu("a"), gpu("b")], {"x": holds("0000:e1:00.0", "0000:e1:00.1")})
    message = raised.value.message
    for part in (
        "PCI_RESOURCE_X",
        "1 device for 2 requests",
        "gpus 'a', gpus 'b'",
        "0000:e1:00.1 audio device 10de:1aef",
    ):
        assert part in message


def test_too_few_in_two_variables_are_two_errors() -> None:
    """C4."""
    two = {"x": holds(), "y": holds("0000:e1:00.0", variable="PCI_RESOURCE_Y")}
    found = match_requests([gpu("a"), gpu("b", "y"), gpu("c", "y")], two, TWO_CARDS, "class", {}, {}, ())
    first, second = found.errors
    assert (first.variable, second.variable) == ("PCI_RESOURCE_X", "PCI_RESOURCE_Y")
    assert first.message.startswith("PCI_RESOURCE_X has ")
    assert first.message.endswith("holds: nothing")


def test_what_is_more_than_was_asked_for_is_left_alone() -> None:
    """C4."""
    every = holds("0000:e1:00.0", "0000:e1:00.1", "0000:01:00.0", "0000:01:00.1")
    assert answers([gpu("a")], {"x": every}) == (["0000:e1:00.0"], ["0000:01:00.0"])


def test_positional_pairing_takes_every_entry_as_kubevirt_does() -> None:
    """C4."""
    every = holds("0000:e1:00.0", "0000:e1:00.1", "0000:01:00.0")
    assert answers([gpu("a"), gpu("b")], {"x": every}, pairing="positional") == (
        ["0000:e1:00.0", "0000:e1:00.1"],
        ["0000:01:00.0"],
    )


def test_one_resource_under_gpus_and_host_devices_gives_two_devices() -> None:
    """C5: one pool, whatever the section."""
    every = holds("0000:e1:00.0", "0000:01:00.0")
    assert answers([gpu("a"), hostdevice("b")], {"x": every})[0] == ["0000:e1:00.0", "0000:01:00.0"]


def test_an_address_that_stands_in_two_variables_answers_one_request() -> None:
    """C5."""
    both = {"x": holds("0000:e1:00.0"), "y": holds("0000:e1:00.0", "0000:01:00.0", variable="PCI_RESOURCE_Y")}
    assert answers([gpu("a"), gpu("b", "y")], both)[0] == ["0000:e1:00.0", "0000:01:00.0"]


def test_the_audio_of_a_gpu_that_is_used_answers_nothing_while_a_gpu_is_left() -> None:
    """C1, C5: two variables that list every function of the same cards."""
    entries = ("0000:e1:00.0", "0000:e1:00.1", "0000:01:00.0", "0000:01:00.1")
    both = {"x": holds(*entries), "y": holds(*entries, variable="PCI_RESOURCE_Y")}
    assert answers([gpu("a"), gpu("b", "y")], both) == (["0000:e1:00.0", "0000:01:00.0"], [])


def test_the_audio_of_a_gpu_that_is_used_answers_if_the_variable_has_no_other_gpu() -> None:
    """C1: asked for by its own name, from an old plugin, which lists the whole group in both variables."""
    entries = ("0000:e1:00.0", "0000:e1:00.1")
    both = {"x": holds(*entries), "y": holds(*entries, variable="PCI_RESOURCE_Y")}
    assert answers([gpu("a"), hostdevice("b", "y")], both) == (["0000:e1:00.0", "0000:e1:00.1"], [])


def test_the_audio_of_a_used_gpu_comes_after_the_gpus_that_are_left() -> None:
    """C1: a variable that lists two whole groups answers two requests; what it isn't asked for is not missed."""
    lists = {
        "x": holds("0000:e1:00.0", "0000:e1:00.1"),
        "y": holds("0000:e1:00.0", "0000:e1:00.1", "0000:01:00.0", "0000:01:00.1", variable="PCI_RESOURCE_Y"),
    }
    two = ["0000:e1:00.0", "0000:01:00.0"]
    assert answers([gpu("a"), hostdevice("b", "y")], lists) == (two, [])
    assert answers([gpu("a"), hostdevice("b", "y"), hostdevice("c", "y")], lists) == ([*two, "0000:e1:00.1"], [])
    with raises_code(TOO_FEW_DEVICES):
        answers([gpu("a"), *(hostdevice(name, "y") for name in "bcd")], lists)


def test_the_audio_of_a_gpu_that_the_document_uses_otherwise_answers_nothing() -> None:
    """C4: nobody has asked for it by its own name."""
    entries = ("0000:e1:00.0", "0000:e1:00.1", "0000:01:00.0", "0000:01:00.1")
    taken = [at("0000:e1:00.0")]
    with raises_code(TOO_FEW_DEVICES):
        answers([gpu("a"), gpu("b")], {"x": holds(*entries)}, taken=taken)
    found = match_environment([holds(*entries)], TWO_CARDS, "class", taken)
    assert [str(match.primary) for match in found.matches] == ["0000:01:00.0"]


def test_without_a_vmi_a_companion_is_a_device_only_of_a_variable_without_primaries_of_its_own() -> None:
    """C1, Q1."""
    one = holds("0000:e1:00.0", "0000:e1:00.1")
    both = holds("0000:e1:00.0", "0000:e1:00.1", "0000:01:00.0", "0000:01:00.1", variable="PCI_RESOURCE_Y")
    assert _found(one, both) == ["0000:e1:00.0", "0000:01:00.0"]
    same = holds("0000:e1:00.0", "0000:e1:00.1", variable="PCI_RESOURCE_Y")
    assert _found(one, same) == ["0000:e1:00.0", "0000:e1:00.1"]


def _found(*allocations: Allocation) -> list[str]:
    return [str(match.primary) for match in match_environment(allocations, TWO_CARDS, "class", ()).matches]


def test_gpu_and_audio_that_are_resources_of_their_own_answer_a_request_each() -> None:
    """C5: NVIDIA's plugin from 1.6 on."""
    both = {"x": holds("0000:e1:00.0"), "y": holds("0000:e1:00.1", variable="PCI_RESOURCE_Y")}
    assert answers([gpu("a"), hostdevice("b", "y")], both)[0] == ["0000:e1:00.0", "0000:e1:00.1"]


def test_what_another_device_of_the_document_uses_answers_nothing() -> None:
    """C5."""
    every = holds("0000:e1:00.0", "0000:01:00.0")
    notes: list[Note] = []
    assert answers([gpu("a")], {"x": every}, taken=[at("0000:e1:00.0")], notes=notes) == (["0000:01:00.0"], [])
    (note,) = notes
    assert (note.topic, "0000:e1:00.0 is skipped" in note.text) == ("taken", True)


def test_a_request_keeps_the_device_that_stands_under_its_alias() -> None:
    """X2, against another order of the environment on the second run."""
    a, b = gpu("a"), gpu("b")
    every = holds("0000:01:00.0", "0000:e1:00.0")
    wanted: dict[Request, HostAddress] = {a: at("0000:e1:00.0"), b: at("0000:01:00.0")}
    assert answers([a, b], {"x": every}, wanted=wanted)[0] == ["0000:e1:00.0", "0000:01:00.0"]
    assert answers([a, b], {"x": every}, wanted={b: at("0000:01:00.0")})[0] == ["0000:e1:00.0", "0000:01:00.0"]


def test_an_alias_on_something_that_was_not_allocated_decides_nothing() -> None:
    a = gpu("a")
    assert answers([a], {"x": holds("0000:e1:00.0")}, wanted={a: at("0000:01:00.0")})[0] == ["0000:e1:00.0"]


def test_with_no_vmi_every_device_is_a_request_numbered_after_its_resource() -> None:
    """Q1."""
    host = facts(*card("0000:e1:00", 44), *card("0000:01:00", 12), function("0000:02:00.0", NIC, group=3))
    everything = [
        holds("0000:e1:00.1", "0000:e1:00.0", "0000:01:00.0", variable="PCI_RESOURCE_X_COM_GPU"),
        holds("0000:02:00.0", variable="PCI_RESOURCE_NIC"),
        Allocation("USB_RESOURCE_STICK", "STICK", "usb", (UsbAddress(1, 2), UsbAddress(1, 3))),
    ]
    matches = match_environment(everything, host, "class", ()).matches
    assert [(match.section, match.name, str(match.primary)) for match in matches] == [
        ("gpus", "x_com_gpu-0", "0000:e1:00.0"),
        ("gpus", "x_com_gpu-1", "0000:01:00.0"),
        ("hostDevices", "nic-0", "0000:02:00.0"),
        ("hostDevices", "stick-0", "1:2"),
        ("hostDevices", "stick-1", "1:3"),
    ]


def test_with_no_vmi_an_mdev_of_a_gpu_is_a_gpu() -> None:
    """Q1."""
    parent = MdevParent("0000:3b:00.0", at("0000:3b:00.0"), ())
    host = facts(function("0000:3b:00.0", driver="nvidia"), mdevs=[mdev()], parents=[parent])
    allocation = Allocation("MDEV_PCI_RESOURCE_V", "V", "mdev", (MdevAddress(UUID),))
    assert [each.section for each in match_environment([allocation], host, "class", ()).matches] == ["gpus"]
    elsewhere = facts(mdevs=[mdev()], parents=[parent._replace(address=None)])
    assert [each.section for each in match_environment([allocation], elsewhere, "class", ()).matches] == ["hostDevices"]


def test_a_hostdev_of_the_document_is_a_request_named_after_its_alias_else_after_its_address() -> None:
    """Q2."""

    def there(source: HostAddress | None, alias: str | None, kind: Kind = "pci") -> ExistingHostdev:
        return ExistingHostdev(kind, source, alias, None, False, None, None, None)

    matches = match_hostdevs(
        [
            there(at("0000:e1:00.0"), "ua-gpu-a"),
            there(at("0000:01:00.0"), "ua-hostdevice-b"),
            there(UsbAddress(1, 2), "ua-usb-host-c", "usb"),
            there(at("0000:01:00.1"), "ua-gpu-"),
            there(at("0000:01:00.1"), "twice"),
            there(None, "ua-gpu-d", "usb"),
            there(at("0000:e1:00.1"), "hostdev0"),
        ],
        {at("0000:e1:00.1")},
        AliasPrefixes(),
        TWO_CARDS,
    )
    expected: list[tuple[Section, str]] = [
        ("gpus", "a"),
        ("hostDevices", "b"),
        ("hostDevices", "c"),
        ("hostDevices", "pci-0000:01:00.1"),
    ]
    assert [(match.section, match.name) for match in matches] == expected


def test_what_was_allocated_but_is_not_on_the_host_is_an_error_each() -> None:
    gone = Allocation("MDEV_PCI_RESOURCE_V", "V", "mdev", (MdevAddress(UUID),))
    errors = list(check_on_host([holds("0000:e1:00.0", "0000:99:00.0"), gone], TWO_CARDS))
    assert all(error.code == NOT_ON_HOST.code for error in errors)
    assert [error.device for error in errors] == ["0000:99:00.0", UUID]


def test_with_no_host_facts_nothing_is_missing_from_the_host() -> None:
    """C3."""
    assert list(check_on_host([holds("0000:99:00.0")], NO_FACTS)) == []


def test_a_bridge_that_was_allocated_answers_nothing() -> None:
    """C1, S1: an old plugin lists the whole group, and libvirt refuses what isn't an endpoint."""
    port, here = "0000:00:01.0", facts(function("0000:00:01.0", BRIDGE), function("0000:01:00.0"))
    notes: list[Note] = []
    assert answers([gpu("a")], {"x": holds(port, "0000:01:00.0")}, here, notes=notes) == (["0000:01:00.0"], [])
    (note,) = notes
    assert (note.topic, f"{port} is skipped" in note.text) == ("bridge", True)
    with raises_code(TOO_FEW_DEVICES, match=f"{port} PCI bridge"):
        answers([gpu("a")], {"x": holds(port)}, here)
    found = match_environment([holds(port)], here, "class", ())
    assert (found.matches, [note.topic for note in found.notes]) == ((), ["bridge"])
    assert answers([gpu("a")], {"x": holds(port)}, here, pairing="positional")[0] == [port]


def test_a_bridge_that_was_allocated_is_no_better_than_any_other_class() -> None:
    """C2: `rest`."""
    host = facts(function("0000:01:00.0", BRIDGE), function("0000:01:00.1", USB), function("0000:01:00.2", NIC))
    assert answers([gpu("a")], {"x": holds("0000:01:00.0", "0000:01:00.1", "0000:01:00.2")}, host)[0] == [
        "0000:01:00.2"
    ]


@pytest.mark.slow
def test_ten_thousand_entries_are_matched_without_walking_the_list_for_each() -> None:
    """Twenty thousand steps each would not end within this test's patience; see E3: a value has no longest length."""
    entries = tuple(PciAddress(number >> 13, number >> 5 & 0xFF, number & 0x1F, 0) for number in range(60_000))
    matches = match_environment([Allocation("PCI_RESOURCE_X", "X", "pci", entries)], NO_FACTS, "class", ()).matches
    assert [match.primary for match in matches] == list(entries)


def test_the_device_of_a_claim_answers_no_other_request_even_if_nothing_else_is_left() -> None:
    """C5. That of an alias does: it is the document's, and nobody else's."""
    first, second = gpu("a", "claimed"), gpu("b", "x")
    card, other = at("0000:e1:00.0"), at("0000:01:00.0")
    lists = {"claimed": holds("0000:e1:00.0", variable="a.json"), "x": holds("0000:e1:00.0", "0000:e1:00.1")}
    with raises_code(TOO_FEW_DEVICES, match="PCI_RESOURCE_X has 0 device"):
        answers([second, first], lists, of_claims={first: card})
    both = lists | {"x": holds("0000:e1:00.0", "0000:01:00.0")}
    assert answers([second, first], both, of_claims={first: card})[0] == [str(other), str(card)]
