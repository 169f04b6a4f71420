"""The rows of a guest in a picture: its controllers, and the slots that they lead to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap

from launcherkit.errors import LauncherkitError
from launcherkit.show.guest import GuestBridge, GuestFunction, TreeGuest
from launcherkit.show.layout import short_address, size, visible
from launcherkit.show.outline import bridge_label, request_label, subject


@dataclass(frozen=True, slots=True)
class GuestSlot:
    """A slot of the guest, or an error on the way to one."""

    rows: tuple[str, ...]
    sources: tuple[str, ...]
    """The addresses and UUIDs of what is in it."""
    error: bool = False


@dataclass(frozen=True, slots=True)
class Bridge:
    """A controller of the guest."""

    label: str
    depth: int


@dataclass(frozen=True, slots=True)
class GuestBox:
    """A VM's guest."""

    name: str
    rows: tuple[Bridge | GuestSlot, ...]


def guest_of_tree(guest: TreeGuest) -> GuestBox:
    """A VM's guest: its controllers, each followed by the slots that it leads to."""
    rows = [row for bridge in guest.bridges for row in _bridge(bridge, 0)]
    if guest.unplaced:
        rows += [Bridge("where libvirt puts it", 0), *_guest_slots(guest.unplaced)]
    if guest.window is not None:
        rows.append(Bridge(f"64-bit window: the BARs need {size(guest.window.need)}", 0))
    return GuestBox(visible(guest.name), tuple(rows))


def _bridge(bridge: GuestBridge, depth: int) -> Iterator[Bridge | GuestSlot]:
    yield Bridge(bridge_label(bridge), depth)
    yield from _guest_slots(bridge.functions)
    for inner in bridge.bridges:
        yield from _bridge(inner, depth + 1)


def _guest_slots(functions: Iterable[GuestFunction]) -> Iterator[GuestSlot]:
    for _, inside in groupby(functions, lambda one: one.guest.rpartition(".")[0] if one.guest else one.request):
        them = tuple(inside)
        yield GuestSlot(tuple(map(_guest_row, them)), tuple(each.source for each in them))


def _guest_row(function: GuestFunction) -> str:
    where = "not shown" if function.role == "reserved" else short_address(function.guest or "address by libvirt")
    return f"{where} {request_label(function)} \u2190 {short_address(function.source)}"


def refused_guest(name: str, errors: Collection[LauncherkitError]) -> GuestBox:
    """A guest that can't have its devices: the code and subject of each error."""
    texts = ((error, wrap(f"{error.code} {visible(subject(error))}", _ERROR_LETTERS)) for error in errors)
    rows = (GuestSlot(tuple(lines), (error.device or "",), error=True) for error, lines in texts)
    return GuestBox(visible(name), (Bridge("can't start", 0), *rows))


_ERROR_LETTERS = 40
