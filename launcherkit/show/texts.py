"""Texts for parts of a host, the same in every picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from launcherkit.colour import Colours
from launcherkit.errors import counted
from launcherkit.model.cpuset import format_cpuset
from launcherkit.model.function import PciLink
from launcherkit.model.readiness import Blocker, ReadyState
from launcherkit.show.layout import visible
from launcherkit.show.topology import MdevSlots, VirtualFunctions

_TEXTS: Mapping[ReadyState, str] = {"idle": "no driver", "parent": "shared", "unused": "no driver"}
"""Texts for states whose own name isn't used."""


def state_text(state: ReadyState, blockers: Iterable[Blocker], colours: Colours) -> str:
    """One word: the code of what is in the way, else the state."""
    codes = dict.fromkeys(blocker.code for blocker in blockers)
    if codes:
        return colours.bad(",".join(codes))
    word = _TEXTS.get(state, state)
    return colours.good(word) if state in ("ready", "parent") else colours.odd(word) if state == "idle" else word


def blocker_texts(blocker: Blocker, group: int | None) -> tuple[str, str, str]:
    """The device, the code, and why: ``0000:61:00.1``, ``LK204``, ``bound to snd_hda_intel, keeps IOMMU group 14``."""
    why = visible(blocker.why) + ("" if group is None else f", keeps IOMMU group {group} from guests")
    return str(blocker.device), blocker.code, why


def vfs_texts(vfs: VirtualFunctions, possible: int | None, colours: Colours) -> Iterator[str]:
    """Their number, state, driver, IDs, vGPU type and IOMMU groups, and the first address."""
    number = len(vfs.addresses)
    yield counted(number, "VF") if possible in (None, number) else f"{number} of {possible} VFs"
    yield "no vGPU type" if vfs.state == "idle" and vfs.driver else state_text(vfs.state, vfs.blockers, colours)
    yield visible(vfs.driver or "no driver")
    yield f"[{vfs.ids}]"
    if vfs.type:
        yield visible(vfs.type)
    if vfs.groups:
        yield f"IOMMU {'group' if len(vfs.groups) == 1 else 'groups'} {format_cpuset(frozenset(vfs.groups))}"
    yield f"from {vfs.addresses[0]} on" if len(vfs.addresses) > 1 else str(vfs.addresses[0])


def mdevs_text(slots: MdevSlots) -> str:
    """``GRID T4-1Q: 2 made, 14 more possible``."""
    more = "" if slots.possible is None else f", {slots.possible} more possible"
    return f"{visible(slots.type)}: {len(slots.uuids)} made{more}"


def link_texts(link: PciLink | None, wider: int | None, colours: Colours) -> tuple[str, ...]:
    """``16 GT/s x8``; idle devices usually run below their own speed, but not with fewer lanes."""
    if link is None or link.width is None:
        return ()
    speed = f"{_gigatransfers(link.speed)} " if link.speed else ""
    if link.speed and link.max_speed and link.speed < link.max_speed:
        speed = f"{_gigatransfers(link.speed)} of {_gigatransfers(link.max_speed)} "
    text = f"PCIe {speed}x{link.width}"
    return (text,) if wider is None else (text, colours.odd(f"could have x{wider}"))


def _gigatransfers(speed: int) -> str:
    return f"{speed / 1000:g} GT/s"
