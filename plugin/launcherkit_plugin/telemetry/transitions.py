"""What has changed about the devices from one look to the next, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from launcherkit_plugin.model.device import Device, Reason, Resource

NAMED = 5
"""So many devices are named in one line."""

USUAL: frozenset[Reason] = frozenset({"mate-in-use", "other-type", "no-room"})
"""Reasons that are nobody's fault: something else is in use."""


class Change(NamedTuple):
    """A line for the log and for the node's events."""

    type: Literal["Normal", "Warning"]
    reason: str
    """In CamelCase, as Kubernetes writes them."""
    text: str


def changes(before: Mapping[str, Resource], after: Mapping[str, Resource]) -> Iterator[Change]:
    """Devices that have become Unhealthy or Healthy, appeared or gone, a line for each kind of change of a resource."""
    for name in sorted(before.keys() | after.keys()):
        old = before[name].devices if name in before else {}
        new = after[name].devices if name in after else {}
        gone = sorted(old.keys() - new.keys())
        changed = [(key, _reason(old, key), _reason(new, key)) for key in sorted(new)]
        ill = [key for key, was, is_ in changed if is_ is not None and is_ not in USUAL and is_ != was]
        # What was away because something else was in use comes back without a word.
        well = [key for key, was, is_ in changed if is_ is None and (key not in old or was) and was not in USUAL]
        if ill:
            texts = [problem.text for key in ill if (problem := new[key].problem) is not None]
            yield Change("Warning", "DeviceUnhealthy", f"{name}: {_some(texts, '; ')}")
        if well:
            yield Change("Normal", "DeviceHealthy", f"{name}: {_some(well, ', ')} can be had")
        if gone:
            yield Change("Normal", "DeviceGone", f"{name}: {_some(gone, ', ')} is no longer listed")


def _reason(devices: Mapping[str, Device], key: str) -> Reason | None:
    """Why a device was Unhealthy; None where it was not, or was not there."""
    problem = devices[key].problem if key in devices else None
    return problem.reason if problem is not None else None


def _some(texts: list[str], between: str) -> str:
    more = len(texts) - NAMED
    return between.join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")
