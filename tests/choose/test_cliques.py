"""Which GPUs are told that they reach each other's memory (P8)."""

from __future__ import annotations

import re
from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit.choose.cliques import CLIQUES, Cliques, cliques_of
from launcherkit.model.address import HostAddress
from launcherkit.model.host import NO_FACTS, HostFacts, PciDetail, PciFunction
from launcherkit.model.plan import Attachment, GuestDevice, Match
from tests.support.facts import at, function
from tests.support.imports import ROOT

TURING, VOLTA, AMPERE = 0x1E04, 0x1DB1, 0x20B0
DETAIL = PciDetail(None, 0, True, None, None, (), (), None, None, (), False, (), "D0", None, None)


class Gpu(NamedTuple):
    """A function, and the path above it."""

    address: str
    path: tuple[str, ...]
    device: int = AMPERE
    class_code: int = 0x030200
    vendor: int = 0x10DE
    physfn: str | None = None

    @property
    def of_host(self) -> PciFunction:
        return function(
            self.address, self.class_code, vendor=self.vendor, device=self.device, group=None, physfn=self.physfn
        )


def host(*gpus: Gpu) -> HostFacts:
    details = {at(gpu.address): DETAIL._replace(parents=gpu.path) for gpu in gpus}
    return NO_FACTS._replace(known=True, functions={at(gpu.address): gpu.of_host for gpu in gpus}, details=details)


def chosen(*gpus: Gpu, by_iommufd: frozenset[HostAddress] = frozenset(), is_old: bool = False) -> Cliques:
    devices = [GuestDevice("pci", (Attachment(at(gpu.address), "primary", "", None, None),)) for gpu in gpus]
    return cliques_of(devices, host(*gpus), by_iommufd, is_old=is_old)


def numbers(found: Cliques) -> dict[str, int | None]:
    return {str(gpu): clique for gpu, clique in found.numbers.items()}


def below_switch(address: str, switch: str = "0000:01:00.0", root: str = "pci0000:00") -> Gpu:
    return Gpu(address, (root, "0000:00:01.1", switch, f"0000:02:{address[5:7]}.0"))


def at_root(
    address: str,
    root: str = "pci0000:00",
    *,
    device: int = AMPERE,
    class_code: int = 0x030200,
    vendor: int = 0x10DE,
) -> Gpu:
    return Gpu(address, (root, f"0000:00:{address[5:7]}.1"), device, class_code, vendor)


def test_gpus_below_one_switch_are_one_clique_and_those_of_another_are_another() -> None:
    other = "0000:41:00.0"
    found = chosen(
        below_switch("0000:07:00.0"),
        below_switch("0000:47:00.0", other, "pci0000:40"),
        below_switch("0000:0f:00.0"),
        below_switch("0000:4e:00.0", other, "pci0000:40"),
    )
    assert numbers(found) == {"0000:07:00.0": 0, "0000:47:00.0": 1, "0000:0f:00.0": 0, "0000:4e:00.0": 1}
    assert [note.topic for note in found.notes] == ["p2p", "p2p"]
    assert found.notes[0].text == (
        "0000:07:00.0, 0000:0f:00.0 are told that they reach each other: they are below the switch 0000:01:00.0"
    )


def test_one_below_a_switch_and_one_beside_it_are_none() -> None:
    found = chosen(below_switch("0000:07:00.0"), at_root("0000:0f:00.0"), at_root("0000:10:00.0", "pci0000:80"))
    assert set(numbers(found).values()) == {None}
    assert found.notes == ()


def test_switches_below_one_switch_are_one_clique() -> None:
    """What goes from one to the other doesn't leave the outer switch."""
    path = ("pci0000:00", "0000:00:01.1", "0000:01:00.0", "0000:02:00.0")
    inner = [Gpu(f"0000:0{bus}:00.0", (*path, f"0000:0{bus - 2}:00.0", f"0000:0{bus - 1}:00.0")) for bus in (5, 8)]
    assert numbers(chosen(*inner)) == {"0000:05:00.0": 0, "0000:08:00.0": 0}


@pytest.mark.parametrize(
    "other",
    [
        at_root("0000:03:00.0", device=VOLTA),
        at_root("0000:03:00.0", vendor=0x1002),
        at_root("0000:03:00.0", class_code=0x120000),
        at_root("0000:03:00.0", class_code=0x040300),
        at_root("0000:03:00.0", class_code=0x068000),
        at_root("0000:03:00.0")._replace(physfn="0000:02:00.0"),
    ],
)
def test_only_whole_gpus_of_nvidia_s_from_turing_on_have_one(other: Gpu) -> None:
    found = chosen(at_root("0000:01:00.0", device=TURING), at_root("0000:02:00.0"), other)
    assert numbers(found) == {"0000:01:00.0": 0, "0000:02:00.0": 0}


def test_what_is_above_a_host_bridge_is_nothing_that_gpus_share() -> None:
    platform = [
        ("platform", f"{number}0000000.pcie", f"pci000{number}:00", f"000{number}:00:01.0") for number in (4, 5)
    ]
    gpus = [Gpu(f"000{number}:01:00.0", path) for number, path in zip((4, 5), platform, strict=True)]
    assert set(numbers(chosen(*gpus)).values()) == {None}
    beside = Gpu("0004:02:00.0", (*platform[0][:3], "0004:00:02.0"))
    assert numbers(chosen(gpus[0], beside)) == {"0004:01:00.0": 0, "0004:02:00.0": 0}


def test_without_a_path_there_is_no_clique() -> None:
    found = chosen(Gpu("0000:01:00.0", ()), Gpu("0000:02:00.0", ()))
    assert set(numbers(found).values()) == {None}


def test_one_that_goes_through_iommufd_takes_the_clique_from_those_beside_it() -> None:
    gpus = [at_root("0000:01:00.0"), at_root("0000:02:00.0"), *(at_root(f"0000:8{n}:00.0", "pci0000:80") for n in "12")]
    found = chosen(*gpus, by_iommufd=frozenset({at("0000:02:00.0")}))
    assert numbers(found) == {"0000:01:00.0": None, "0000:02:00.0": None, "0000:81:00.0": 0, "0000:82:00.0": 0}
    assert "0000:01:00.0, 0000:02:00.0 get no clique" in found.notes[0].text
    assert "Linux 6.19" in found.notes[0].text


def test_an_old_libvirt_gets_none_and_a_note() -> None:
    found = chosen(at_root("0000:01:00.0"), at_root("0000:02:00.0"), is_old=True)
    assert (found.numbers, [note.text for note in found.notes]) == (
        {},
        ["no clique for peer-to-peer DMA is written: that needs libvirt 8.2 or later"],
    )
    assert chosen(at_root("0000:01:00.0"), is_old=True) == Cliques()


def test_more_groups_than_there_are_numbers() -> None:
    gpus = [at_root(f"0000:{bus:02x}:0{n}.0", f"pci0000:{bus:02x}") for bus in range(CLIQUES + 2) for n in (1, 2)]
    found = chosen(*gpus)
    assert {clique for clique in found.numbers.values() if clique is not None} == set(range(16))
    assert sum(clique is None for clique in found.numbers.values()) == 4
    assert sum("QEMU has 16 of them" in note.text for note in found.notes) == 2


def test_a_hostdev_that_nobody_asked_about_has_none() -> None:
    gpus = [at_root("0000:01:00.0"), at_root("0000:02:00.0")]
    asked = GuestDevice("pci", (Attachment(at("0000:01:00.0"), "primary", "", None, None),))
    left = GuestDevice("pci", (Attachment(at("0000:02:00.0"), "primary", "", None, 0),))
    match = Match("domain", "gpus", "a", None, None, at("0000:02:00.0"), asked=False)
    kept = left._replace(attachments=(left.primary._replace(match=match),))
    assert kept.kept
    assert numbers(cliques_of([asked, kept], host(*gpus), frozenset())) == {"0000:01:00.0": None}


# At random: two GPUs are in one clique exactly if a packet between them needn't pass a host bridge.

PLACES = st.tuples(st.sampled_from(["pci0000:00", "pci0000:80"]), st.sampled_from([None, "01", "11"]))


@given(st.lists(PLACES, min_size=1, max_size=10))
def test_two_gpus_are_in_one_clique_exactly_if_they_share_a_switch_or_have_none_and_share_the_root(
    places: list[tuple[str, str | None]],
) -> None:
    gpus = []
    for number, (root, switch) in enumerate(places):
        domain = root[3:7]
        address = f"{domain}:{0x20 + number:02x}:00.0" if root.endswith("00") else f"{domain}:{0xA0 + number:02x}:00.0"
        ports: tuple[str, ...] = (f"{domain}:00:{number:02x}.1",)
        if switch is not None:
            upstream = f"{domain}:{switch if root.endswith('00') else f'{int(switch, 16) + 0x80:02x}'}:00.0"
            ports = (f"{domain}:00:01.1", upstream, f"{domain}:{int(switch, 16) + 1:02x}:{number:02x}.0")
        gpus.append(Gpu(address, (root, *ports)))
    found = chosen(*gpus).numbers
    for (one, place), (other, beside) in combinations(zip(gpus, places, strict=True), 2):
        first, second = found[at(one.address)], found[at(other.address)]
        assert (first is not None and first == second) == (place == beside)


def test_the_lowest_id_of_turing_is_above_those_of_earlier_chips_and_below_those_of_later_ones() -> None:
    """By names of the PCI ID project, which begin with the chip; audio and other functions have IDs of their own."""
    chips: dict[str, list[int]] = {}
    vendor = ""
    for line in (ROOT / "launcherkit" / "host" / "pci.ids").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([0-9a-f]{4})  ", line):
            vendor = match[1]
        elif vendor == "10de" and (match := re.match(r"\t([0-9a-f]{4})  (NV|GF|GK|GM|GP|GV|TU|GA|GH|AD|GB)\d", line)):
            words = line.lower()
            if not any(word in words for word in ("audio", "usb", "ucsi", "switch", "bridge", "controller", "egm")):
                chips.setdefault(match[2], []).append(int(match[1], 16))
    assert {"GV", "TU", "GA", "GH", "AD", "GB"} <= chips.keys()
    later = {"TU", "GA", "GH", "AD", "GB"}
    for chip, ids in chips.items():
        one = [Gpu("0000:01:00.0", ("pci0000:00", "0000:00:01.0"), device=number) for number in ids]
        cliques = {gpu.device: bool(chosen(gpu).numbers) for gpu in one}
        assert set(cliques.values()) == {chip in later}, f"{chip}: {[f'{key:04x}' for key in cliques]}"
