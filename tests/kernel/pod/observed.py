"""What was seen in the machine, as it is told to the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab.guest.listing import Listing

_FILE = "observed.json"


class PodSeen(NamedTuple):
    """A launcher pod."""

    variables: dict[str, str]
    """Of its container, those of a device plugin."""
    nodes: list[str]
    """Its VFIO nodes: ``/dev/vfio/7``."""
    capabilities: int
    """The effective ones of its first process, as a mask of bits."""
    locked_memory: str
    """Its soft limit: KiB, or ``unlimited``."""
    listing: Listing
    """The guest's PCI bus."""
    log: str
    """All that the container said, to its end."""
    held: dict[str, str]
    """While it ran: device ID to pod, as the kubelet told."""


class PluginSeen(NamedTuple):
    """The plugin, and the members of the card's IOMMU group by address."""

    before: dict[str, str]
    """Their drivers before there was a plugin."""
    offered: dict[str, str]
    """The same while the card was on offer."""
    capabilities: dict[str, int]
    """Those that its processes may use, as masks of bits: of the ``daemon`` and its ``helper``."""
    filtered: list[int]
    """How each of its processes is confined by seccomp; 2: by a filter."""
    refused: dict[str, int]
    """System calls that its container tried, by name, with the error; 0: none."""
    root: str
    """What was said when a file was made in its root."""
    given_back: dict[str, str]
    """The drivers when nothing was wanted any more."""


class Observed(NamedTuple):
    """The whole run."""

    card: str
    """Address of the card's function 0 on the machine."""
    iommu_group: str
    plugin: PluginSeen
    first: PodSeen
    waiting: str
    """Why the second pod was not scheduled while the first had the card."""
    second: PodSeen
    held_afterwards: dict[str, str]


def write(observed: Observed, folder: Path) -> None:
    parts = {name: getattr(observed, name)._asdict() for name in ("plugin", "first", "second")}
    (folder / _FILE).write_text(json.dumps(observed._asdict() | parts, indent=1))


def read(folder: Path) -> Observed:
    data = json.loads((folder / _FILE).read_text())
    pods = {name: _pod(data[name]) for name in ("first", "second")}
    return Observed(**data | {"plugin": PluginSeen(**data["plugin"])} | pods)


def _pod(data: dict[str, object]) -> PodSeen:
    listing: Listing = {address: tuple(model) for address, model in data["listing"].items()}  # type: ignore[attr-defined]
    return PodSeen(**data | {"listing": listing})  # type: ignore[arg-type]
