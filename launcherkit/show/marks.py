"""Marks on functions: who holds them, and which a VM would get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcherkit.colour import Colours
from launcherkit.show.guest import GuestFunction
from launcherkit.show.layout import visible
from launcherkit.show.topology import HeldDevice, HostTopology


def marks_of(topology: HostTopology, colours: Colours) -> Mapping[str, str]:
    """By address or UUID: who holds it, for which request it is, or why it stays."""
    marks: dict[str, list[str]] = {}
    for device, text in (*_holders(topology, colours), *_goals(topology, colours)):
        marks.setdefault(device, []).append(text)
    return {device: "  ".join(texts) for device, texts in marks.items()}


def holder_text(held: HeldDevice) -> str:
    """``held by pod team/virt-launcher-vm-x2x8p (VM vm)``."""
    who = f"pod {held.pod}" if held.pod else f"ResourceClaim {held.claim}"
    return visible(f"held by {who}" + (f" (VM {held.vm})" if held.vm else ""))


def comes_along(function: GuestFunction) -> str:
    """The text after the request for a function that wasn't asked for."""
    return "" if function.role == "primary" else ", sibling"


def _holders(topology: HostTopology, colours: Colours) -> Iterator[tuple[str, str]]:
    for held in topology.held or ():
        yield held.device, colours.odd(holder_text(held))


def _goals(topology: HostTopology, colours: Colours) -> Iterator[tuple[str, str]]:
    if topology.guest is not None:
        for each in topology.guest.functions():
            yield each.source, colours.good(f"\u2192 {visible(each.request)}{comes_along(each)}")
        for stayed in topology.guest.stayed:
            yield str(stayed.address), colours.odd(f"stays: {visible(stayed.why)}")
