"""The domain of every golden case, moved to a host whose devices have other addresses: only sources change (X2).

The oracle knows no rule and no XML but the form of addresses. Every bus of the case's host gets another number, every
mediated and USB device another name, and so do the sources in the text of the domain.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from launcherkit.errors import CANT_REPLACE, LauncherkitError
from launcherkit.golden.case import read_case
from launcherkit.golden.invoke import Scratch, translate_case

GOLDEN = Path(__file__).parent
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.xml"))
REFUSED = {
    "window-too-small": "whether the window was too small before is not known",
    "guest-address-unassigned": "the card's other hostdev has an alias of the author's, and another place",
    "guest-addresses-apart": "the card's other hostdev has an alias of the author's, and another place",
}
"""Cases whose domain can't be moved, and why."""
IN_ORDER = "pairing-of-the-document-kept"
"""Which of two new cards is whose no variable says: the first request gets the first."""

Buses: TypeAlias = Mapping[tuple[int, int], int]
"""The new number of each bus, by PCI domain and bus."""

ADDRESS = re.compile(r"(?<![0-9a-fA-F:])((?:[0-9a-fA-F]{4,8}:)?)([0-9a-fA-F]{2})(:[01][0-9a-fA-F]\.[0-7])(?!\w)")
ROOT_COMPLEX = re.compile(r"(?<=pci)([0-9a-f]{4,8}:)([0-9a-f]{2})()(?![:\w])")
UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
USB = re.compile(r"(?<=USB_RESOURCE_)(\w+: \")([^\"]*)")
HOSTDEV = re.compile(rb"(<hostdev\b.*?</hostdev>)", re.DOTALL)
SOURCE = re.compile(rb"<((?:\w+:)?source)\b(?:[^>/]|/(?!>))*>.*?</\1\s*>", re.DOTALL)
ATTRIBUTE = re.compile(rb"""\b(domain|bus|device|uuid)=["']([^"']*)["']""")


@pytest.mark.parametrize("name", sorted({*CASES} - {*REFUSED, IN_ORDER}))
def test_only_the_sources_of_a_moved_domain_change(name: str, tmp_path: Path) -> None:
    before, second, expected = moved(name, tmp_path)
    if before == expected:
        pytest.skip("no device of this domain is moved")
    assert second == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_domain_does_not_say_can_be_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(LauncherkitError) as raised:
        moved(name, tmp_path)
    assert raised.value.code == CANT_REPLACE.code


def test_devices_of_one_variable_are_paired_in_its_order(tmp_path: Path) -> None:
    _, second, expected = moved(IN_ORDER, tmp_path)
    assert re.sub(rb"0x0[1-9]", b"", second) == re.sub(rb"0x0[1-9]", b"", expected)
    assert second != expected


def moved(name: str, folder: Path) -> tuple[bytes, bytes, bytes]:
    """The domain of a case on another host: as it comes there, as it is translated, and as it should be.

    The author of a domain moves its disks, interfaces and hostdevs of its own himself.
    """
    case, there = GOLDEN / name, folder / name
    shutil.copytree(case, there)
    allocation = [there / "case.yaml", there / "container.env", there / "network-status.json"]
    allocation = [*(file for file in allocation if file.exists()), *there.rglob("*-metadata.json")]
    held = "".join(file.read_text() for file in allocation)
    if not re.search(r"_RESOURCE_|PCIDEVICE_|metadata/v1|pci-address", held):
        pytest.skip("nothing is allocated: the domain's hostdevs are what there is (Q2)")
    files = [*allocation, *there.glob("host.json")]
    buses = other_buses(file.read_text() for file in files)
    first, author = (case / "expected.xml").read_bytes(), case / "domain.xml"
    own = {name_of(hostdev) for hostdev in HOSTDEV.findall(author.read_bytes())} if author.exists() else set()
    own -= {*buses_in(held), *UUID.findall(held), None}
    expected = with_other_sources(first, buses, lambda _: True)
    before = with_other_sources(first, buses, lambda hostdev: name_of(hostdev) in own)
    for file in files:
        file.write_text(with_other_addresses(file.read_text(), buses))
    (folder / "scratch").mkdir()
    second, _ = translate_case(read_case(str(there)), Scratch(str(folder / "scratch")), domain=before)
    return before, second, expected


def buses_in(text: str) -> list[tuple[int, int]]:
    found = [*ADDRESS.findall(text), *ROOT_COMPLEX.findall(text)]
    return [(int(domain[:-1] or "0", 16), int(bus, 16)) for domain, bus, _ in found]


def other_buses(texts: Iterable[str]) -> Buses:
    """For each bus a number that none has, in the same order: with ``siblings: group`` cards come in theirs."""
    found = sorted({bus for text in texts for bus in buses_in(text)})
    unused = [number for number in range(1, 256) if number not in {bus for _, bus in found}]
    return dict(zip(found, unused, strict=False))


def with_other_addresses(text: str, buses: Buses) -> str:
    def other_bus(found: re.Match[str]) -> str:
        return f"{found[1]}{buses[int(found[1][:-1] or '0', 16), int(found[2], 16)]:02x}{found[3]}"

    def other_usb(found: re.Match[str]) -> str:
        return found[1] + re.sub(r"(?<=:)\d+", lambda device: str(int(device[0]) + 40), found[2])

    text = ROOT_COMPLEX.sub(other_bus, ADDRESS.sub(other_bus, text))
    return USB.sub(other_usb, UUID.sub(lambda found: other_uuid(found[0]), text))


def other_uuid(uuid: str) -> str:
    return f"{int(uuid[0], 16) ^ 8:x}{uuid[1:]}"


def name_of(hostdev: bytes) -> tuple[int, int] | str | None:
    """The bus of a hostdev's source, or its UUID; None if it has neither."""
    source = SOURCE.search(hostdev)
    values = {found[1]: found[2].decode() for found in ATTRIBUTE.finditer(source[0])} if source else {}
    if b"bus" not in values or b"device" in values:
        return values.get(b"uuid")
    return int(values.get(b"domain", "0"), 0), int(values[b"bus"], 0)


def with_other_sources(document: bytes, buses: Buses, chosen: Callable[[bytes], bool]) -> bytes:
    """The document with other sources of the chosen hostdevs, and of all that isn't a hostdev."""
    parts = HOSTDEV.split(document)
    return b"".join(
        part
        if part.startswith(b"<hostdev") and not chosen(part)
        else SOURCE.sub(lambda at: other_source(at[0], buses), part)
        for part in parts
    )


def other_source(source: bytes, buses: Buses) -> bytes:
    values = {found[1]: found[2].decode() for found in ATTRIBUTE.finditer(source)}
    if b"uuid" in values:
        return source.replace(values[b"uuid"].encode(), other_uuid(values[b"uuid"]).encode())
    if b"device" in values:
        return re.sub(rb"(device=.)(\d+)", lambda at: at[1] + b"%d" % (int(at[2]) + 40), source)
    bus = buses.get((int(values.get(b"domain", "0"), 0), int(values[b"bus"], 0))) if b"bus" in values else None
    return source if bus is None else re.sub(rb"(\bbus=.)\w+", lambda at: at[1] + b"0x%02x" % bus, source)
