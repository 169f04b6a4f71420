"""What a document costs grows with its size and no faster; what is too large is refused before it is parsed (X5)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, SupportsIndex

import pytest

from launcherkit import Host, Translation, translate
from launcherkit.domain.identity import with_owner
from launcherkit.domain.writer import write_plan
from launcherkit.domain.xml import (
    MAX_ATTRIBUTES,
    MAX_BYTES,
    MAX_HOSTDEVS,
    MAX_TAGS,
    Document,
    indentation_of,
    read_document,
)
from launcherkit.errors import DOMAIN_TOO_LARGE
from tests.support.errors import raises_code

ENV = {"PCI_RESOURCE_X": "0000:e1:00.0"}


def document(inside: str) -> bytes:
    return (
        "<domain type='kvm'><name>vm</name><os><type arch='x86_64' machine='q35'>hvm</type></os>"
        f"<devices>{inside}</devices></domain>"
    ).encode()


def hostdev(number: int, alias: str = "") -> str:
    return f"<hostdev type='pci'><source><address domain='{number}'/></source>{alias}</hostdev>"


KINDS: dict[str, Callable[[int], str]] = {
    "empty elements": lambda count: "<a/>" * count,
    "elements a line each": lambda count: "\n    <a/>" * count,
    "elements behind blanks": lambda count: "   <a/>" * count,
    "comments": lambda count: "<!-- a -->" * count,
    "text": lambda count: "a" * count,
    "blanks": lambda count: " " * count,
    "line breaks": lambda count: "\n" * count,
    "attributes": lambda count: "<a" + "".join(f" a{number}=''" for number in range(count)) + "/>",
    "attributes of a hostdev": lambda count: hostdev(1).replace(
        " type", "".join(f" a{number}=''" for number in range(count)) + " type"
    ),
    "namespaces": lambda count: "<a" + "".join(f" xmlns:a{number}='u'" for number in range(count)) + "/>",
    "hostdevs": lambda count: "".join(map(hostdev, range(count))),
    "hostdevs with aliases": lambda count: "".join(
        hostdev(number, f"<alias name='ua-gpu-{number}'/>") for number in range(count)
    ),
    "hostdevs of one alias": lambda count: "".join(
        hostdev(number, "<alias name='ua-gpu-a'/>") for number in range(count)
    ),
    "aliases of others": lambda count: "".join(f"<a><alias name='ua-gpu-x-0-{n}'/></a>" for n in range(count)),
    "guest addresses": lambda count: "<a><address type='pci' bus='1'/></a>" * count,
    "sources of a disk": lambda count: f"<disk>{'<source/>' * count}</disk>",
    "disks": lambda count: "<disk type='nvme'><source type='pci'><address bus='1'/></source></disk>" * count,
    "controllers": lambda count: "<controller type='pci' index='1'/>" * count,
}


class Counted(bytes):
    """Bytes that count how many of them are looked at."""

    looked_at = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Counted.looked_at += len(found) if isinstance(found, bytes) else 1
        return found

    def find(self, what: Any, start: Any = 0, end: Any = sys.maxsize) -> int:
        found = super().find(what, start, end)
        Counted.looked_at += (min(end, len(self)) if found < 0 else found) - start
        return found

    def rfind(self, what: Any, start: Any = 0, end: Any = sys.maxsize) -> int:
        found = super().rfind(what, start, end)
        Counted.looked_at += min(end, len(self)) - max(found, start)
        return found

    def index(self, what: Any, start: SupportsIndex | None = 0, end: SupportsIndex | None = sys.maxsize) -> int:
        return self.find(what, start, end)


def steps(action: Callable[[], object]) -> int:
    """How many lines of the package run while it is done, comprehensions line by line too."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if "launcherkit" not in frame.f_code.co_filename:
            return None
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def whole(inside: str) -> Translation:
    return translate(document(inside), env=ENV, host=Host.none())


@pytest.mark.parametrize("kind", KINDS)
def test_four_times_the_document_takes_four_times_the_steps(kind: str) -> None:
    small, large = (steps(lambda count=count: whole(KINDS[kind](count))) for count in (150, 600))  # type: ignore[misc]
    fixed = steps(lambda: whole(""))
    assert large - fixed <= 4.5 * max(small - fixed, fixed)


@pytest.mark.parametrize("kind", KINDS)
def test_four_times_the_document_has_four_times_the_bytes_looked_at(kind: str) -> None:
    looked_at = []
    for count in (150, 600):
        read = read_document(document(KINDS[kind](count)))
        plan = translate(read.data, env=ENV, host=Host.none()).plan
        Counted.looked_at = 0
        write_plan(Document(Counted(read.data), read.root), plan)
        with_owner(Document(Counted(read.data), read.root), "somebody")
        looked_at.append(Counted.looked_at)
    assert looked_at[1] <= 4.5 * max(looked_at[0], 2000)


def test_only_what_is_right_before_a_tag_is_its_indentation() -> None:
    data = b"<a>\n" + b"<b/>" * 1000 + b" " * 1000 + b"<c/>\r\n\t <d/>"
    assert indentation_of(data, data.index(b"<c/>")) is None
    assert indentation_of(data, data.index(b"<d/>")) == "\r\n\t "
    assert indentation_of(data, 4) == "\n"
    assert indentation_of(data, 0) is None


def too_large() -> Iterator[tuple[str, bytes]]:
    yield "bytes", document("a" * MAX_BYTES)
    yield "tags", document("<a/>" * MAX_TAGS)
    yield "attributes", document("<a b=''/>".replace("b", "=" * MAX_ATTRIBUTES))
    yield "hostdevs", document("<hostdev/>" * (MAX_HOSTDEVS + 1))


@pytest.mark.parametrize(("what", "data"), list(too_large()), ids=[what for what, _ in too_large()])
def test_what_is_too_large_is_refused_by_what_it_has_too_much_of(what: str, data: bytes) -> None:
    with raises_code(DOMAIN_TOO_LARGE, match=rf"^vm\.xml has more than \d+ {what}"):
        read_document(data, "vm.xml")


def test_a_document_that_would_be_too_large_with_what_is_added_is_refused() -> None:
    """What we write the next run of a hook must be able to read."""
    room = MAX_BYTES - len(document("")) - 100
    with raises_code(DOMAIN_TOO_LARGE, match="with the hostdevs that are added"):
        whole("a" * room)
    assert whole("a" * (room - 500)).plan.devices
