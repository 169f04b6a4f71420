"""The host of these tests: a tree of sysfs with device nodes that a kubelet can hand over, and cards for each test.

VFIO's nodes are stood in for by real character devices, each to be told by its numbers: a group's has the group as its
minor, of a major that is for local use and has no driver. Opening one fails with ENXIO then, and with EPERM where the
container's device cgroup doesn't know it. ``/dev/vfio/vfio`` is the kernel's log, which every kernel has, and which no
container may open unless it was given.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.hosttree import HostTree

GROUP_MAJOR = 240
CONTAINER_NODE = (1, 11)
"""Numbers of what stands in for ``/dev/vfio/vfio``."""


class Card(NamedTuple):
    """A graphics card: display at function 0, audio at function 1, both bound to vfio-pci."""

    slot: str
    group: int
    audio_group: int | None = None
    """Where it isn't the same."""
    numa: int = -1

    @property
    def gpu(self) -> str:
        return f"{self.slot}.0"

    @property
    def audio(self) -> str:
        return f"{self.slot}.1"


VM_GPU = "nvidia.com/RTX_3090"
"""Named by its model, with an alias; the others are named in the configuration."""
AUDIO = "gpus.test/WITH_AUDIO_ITS_AUDIO"
"""Functions of cards that are asked for beside these."""

CARDS: dict[str, tuple[Card, ...]] = {
    # No two tests give away devices of one resource.
    "gpus.test/PLAIN": (Card("0000:01:00", 1), Card("0000:02:00", 2)),
    "gpus.test/AUDIO_APART": (Card("0000:03:00", 3, audio_group=103),),
    "gpus.test/TWO": (Card("0000:04:00", 4), Card("0000:05:00", 5)),
    "gpus.test/BOTH": (Card("0000:06:00", 6), Card("0000:07:00", 7)),
    "gpus.test/TOLD": (Card("0000:08:00", 8),),
    VM_GPU: (Card("0000:09:00", 9),),
    "gpus.test/ONE_GROUP": (Card("0000:0a:00", 10), Card("0000:0b:00", 10)),
    "gpus.test/AT_ONCE": (Card("0000:0c:00", 12), Card("0000:0d:00", 12)),
    "gpus.test/PAIRS": tuple(Card(f"0000:1{n}:00", 16 + n % 3) for n in range(6)),
    "gpus.test/NUMA": tuple(Card(f"0000:2{n}:00", 32 + n, numa=n % 2) for n in range(4)),
    "gpus.test/SICK": (Card("0000:30:00", 48), Card("0000:31:00", 49)),
    "gpus.test/HELD": (Card("0000:40:00", 64), Card("0000:41:00", 65), Card("0000:42:00", 66)),
    "gpus.test/HELD_ONE_GROUP": (Card("0000:43:00", 67), Card("0000:44:00", 67)),
    "gpus.test/AGAIN": (Card("0000:45:00", 69), Card("0000:46:00", 70)),
    "gpus.test/SPARE": (Card("0000:50:00", 80),),
    "gpus.test/WITH_AUDIO": (Card("0000:51:00", 81), Card("0000:52:00", 82), Card("0000:53:00", 83)),
    "gpus.test/STALE": (Card("0000:60:00", 96), Card("0000:61:00", 97)),
    "gpus.test/BY_CDI": (Card("0000:62:00", 98), Card("0000:63:00", 99)),
    "gpus.test/SAME": tuple(Card(f"0000:8{n}:00", 128 + n) for n in range(3)),
}

DEVICES = {
    **{resource: {card.gpu for card in cards} for resource, cards in CARDS.items()},
    AUDIO: {card.audio for card in CARDS["gpus.test/WITH_AUDIO"]},
}
"""IDs of all devices by resource."""


class StandInHost(HostTree):
    """A host whose device nodes are real ones."""

    def node(self, name: str) -> None:
        """Add a device node; one that is there stays."""
        path = self.root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            group = name.removeprefix("vfio/")
            numbers = (GROUP_MAJOR, int(group)) if group.isdigit() else CONTAINER_NODE
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(*numbers))

    def lose_node(self, name: str) -> None:
        (self.root / "dev" / name).unlink()

    def blink(self) -> None:
        """Take a node away that no test has need of just now, or give it back."""
        (card,) = CARDS["gpus.test/SPARE"]
        name = f"vfio/{card.group}"
        if (self.root / "dev" / name).exists():
            self.lose_node(name)
        else:
            self.node(name)


SWITCHED, SWITCHED_GROUP, SWITCHED_MODEL = "0000:70:00.0", 112, (0x1002, 0x73BF)
HOST_DRIVER = "amdgpu"
"""A card that has a driver of the host, and that driver."""

VENDORS, VENDORS_UUID = "0000:71:00.0", "GPU-5a0c1e2d-0000-4000-8000-000000000071"
"""A card with NVIDIA's driver, and what that driver says of it."""


def build_host(root: Path) -> StandInHost:
    """A host with all of these cards."""
    host = StandInHost(root)
    for card in (card for cards in CARDS.values() for card in cards):
        audio_group = card.group if card.audio_group is None else card.audio_group
        host.function(card.gpu, driver="vfio-pci", group=card.group, numa=card.numa)
        host.function(
            card.audio,
            device=0x1AEF,
            class_code=0x040300,
            driver="vfio-pci",
            group=audio_group,
            numa=card.numa,
        )
    vendor, model = SWITCHED_MODEL
    host.function(SWITCHED, vendor=vendor, device=model, driver=HOST_DRIVER, group=SWITCHED_GROUP)
    screen = host.path(SWITCHED) / "drm/card1"
    screen.mkdir(parents=True)
    (screen / "dev").write_text("226:1\n")
    (screen / "uevent").write_text("DEVNAME=dri/card1\n")
    host.node("dri/card1")
    host.function(VENDORS, driver="nvidia", group=113)
    information = root / f"proc/driver/nvidia/gpus/{VENDORS}/information"
    information.parent.mkdir(parents=True)
    information.write_text(f"GPU UUID: {VENDORS_UUID}\nDevice Minor: 0\n")
    host.node("nvidia0")
    return host


def configuration(*resources: str, rescan_seconds: int) -> dict[str, Any]:
    """The plugin's configuration for some of these resources."""
    return {
        "rescanSeconds": rescan_seconds,
        "aliases": {"10de:2204": VM_GPU.partition("/")[2]},
        "resources": [_rule(name) for name in sorted(resources, key=lambda name: name != AUDIO)],
    }


def _rule(resource: str) -> dict[str, Any]:
    """The first rule that selects a function has it: that of `AUDIO` comes before that of the cards."""
    if resource == AUDIO:
        return {"name": AUDIO, "companion": True, "select": [{"addresses": sorted(DEVICES[AUDIO])}]}
    select = [{"addresses": [f"{card.slot}.*" for card in CARDS[resource]]}]
    return {"select": select} if resource == VM_GPU else {"name": resource, "select": select}


def nodes_of(*groups: int) -> dict[str, tuple[int, int]]:
    """What a container should have below ``/dev/vfio`` for devices of these groups: paths with their numbers."""
    return {"/dev/vfio/vfio": CONTAINER_NODE, **{f"/dev/vfio/{group}": (GROUP_MAJOR, group) for group in groups}}
