"""Machines as people write them, in YAML: what is plugged in where, and by which drivers it is bound at boot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from launcherkit_lab.driver.vgpus import DRIVER
from launcherkit_lab.validation import lines_of

FIRST = "first"
"""The root complex that every machine has; it belongs to no NUMA node."""
READY = Path(__file__).parent / "machines"
"""The ready ones, a file each."""
_MAX_BYTES = 64 * 1024


class DescriptionError(Exception):
    """A machine can't be as it is described; the text has a line for all that is wrong."""


class Kind(NamedTuple):
    """A device that QEMU emulates."""

    device: str
    """QEMU's name."""
    ids: tuple[str, ...]
    """Vendor and device IDs that QEMU's can have."""
    bar: str = ""
    """The option with the size of its BAR, if there is one."""


INTEL_NVME = "8086:5845"
"""The other IDs of QEMU's nvme."""
KINDS = {
    "display": Kind("secondary-vga", ("1234:1111",), "vgamem_mb"),
    "audio": Kind("ich9-intel-hda", ("8086:293e",)),
    "compute": Kind("pci-testdev", ("1b36:0005",), "membar"),
    "nvme": Kind("nvme", ("1b36:0010", INTEL_NVME)),
    "nic": Kind("igb", ("8086:10c9",)),
    "mdev-parent": Kind("edu", ("1234:11e8",)),
    "usb": Kind("qemu-xhci", ("1b36:000d",)),
}
_SIZE = re.compile(r"([1-9][0-9]*)(M|G)")
_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{4}$")]
_DriverName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, strict=True)


class RootComplex(_Part):
    """A root complex of its own on a NUMA node."""

    name: _Name
    node: Annotated[int, Field(ge=0, le=7)]


class Switch(_Part):
    """A PCIe switch. QEMU's has no ACS."""

    name: _Name
    at: _Name = FIRST


class Function(_Part):
    """A function of a card."""

    kind: str
    driver: _DriverName | None = None
    """Its driver at boot; without one it is left as the kernel does."""
    vendor: _Id | None = None
    device: _Id | None = None
    bar: str | None = None
    """Size of its largest BAR: ``256M``, ``64G``."""
    vfs: Annotated[int, Field(ge=0, le=16)] = 0
    """How many virtual functions it can have; at boot it has all."""
    vf_driver: _DriverName | None = None

    @property
    def ids(self) -> str:
        """Its vendor and device ID: those of QEMU's device as far as nothing else is said."""
        offered = [ids.split(":") for ids in KINDS[self.kind].ids]
        said = (self.vendor, self.device)
        fitting = [ids for ids in offered if all(one in (None, own) for one, own in zip(said, ids, strict=True))]
        vendor, device = (fitting or offered)[0]
        return f"{self.vendor or vendor}:{self.device or device}"

    @property
    def is_renamed(self) -> bool:
        """Whether QEMU's device can't have its IDs."""
        return self.ids not in KINDS[self.kind].ids

    @property
    def mebibytes(self) -> int:
        """The BAR's size; 0 where it isn't said, or isn't a size."""
        match = _SIZE.fullmatch(self.bar or "")
        return int(match[1]) * (1024 if match[2] == "G" else 1) if match else 0


class Card(_Part):
    """What is in one slot."""

    name: _Name
    at: _Name = FIRST
    """A root complex or a switch."""
    group: _Name | None = None
    """Cards of one name share an IOMMU group; else a card has one to itself."""
    functions: Annotated[list[Function], Field(min_length=1, max_length=8)]


class Description(_Part):
    """A machine."""

    about: str = ""
    memory: Annotated[int, Field(ge=1024, le=65536)] = 2048
    """MiB."""
    processors: Annotated[int, Field(ge=1, le=8)] = 2
    memory_nodes: Annotated[int, Field(ge=0, le=6)] = 0
    """NUMA nodes with memory and no processor, from node 2 on."""
    root_complexes: Annotated[list[RootComplex], Field(max_length=5)] = []
    switches: Annotated[list[Switch], Field(max_length=8)] = []
    cards: Annotated[list[Card], Field(max_length=32)] = []


def read_description(place: str) -> Description:
    """The machine of a file, or the ready one of that name.

    Raises:
        DescriptionError: it can't be read, or is none, or QEMU can't make it.
    """
    path = READY / f"{place}.yaml" if place in ready() else Path(place)
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > _MAX_BYTES:
            raise DescriptionError(f"{place}: longer than {_MAX_BYTES} bytes")
        description = Description.model_validate(yaml.safe_load(text))
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(ready())
        raise DescriptionError(f"{place}: {error}\nGive a file, or one of the ready machines: {names}") from None
    except yaml.YAMLError as error:
        raise DescriptionError(f"{place}: no YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise DescriptionError(lines_of(error, place)) from None
    if problems := [f"{place}: {problem}" for problem in problems_of(description)]:
        raise DescriptionError("\n".join(problems))
    return description


def ready() -> list[str]:
    """The names of the ready machines."""
    return sorted(path.stem for path in READY.glob("*.yaml"))


def problems_of(description: Description) -> Iterator[str]:
    """What of a machine contradicts itself, or is beyond QEMU."""
    roots = {FIRST, *(root.name for root in description.root_complexes)}
    switches = {switch.name for switch in description.switches}
    parts = (description.root_complexes, description.switches, description.cards)
    for name, times in Counter([FIRST, *(each.name for part in parts for each in part)]).items():
        if times > 1:
            yield f"the name {name} is given {times} times; each root complex, switch and card has its own"
    yield from _problems_of_nodes(description)
    yield from _problems_of_vgpu_drivers(description)
    for number, switch in enumerate(description.switches):
        if switch.at not in roots:
            yield f"switches[{number}].at: {switch.at} is no root complex; there are {', '.join(sorted(roots))}"
    for number, card in enumerate(description.cards):
        place = f"cards[{number}]"
        if card.at not in roots | switches:
            yield f"{place}.at: {card.at} is no root complex or switch; there are {', '.join(sorted(roots | switches))}"
        if card.group and card.at in switches:
            yield (
                f"{place}.group: {card.at} is a switch, below which Linux gives each card a group of its own; "
                "put cards that share one at a root complex"
            )
        for index, function in enumerate(card.functions):
            yield from (f"{place}.functions[{index}].{problem}" for problem in _problems_of(function, index))
    yield from _crowded(description)


def _problems_of_nodes(description: Description) -> Iterator[str]:
    if (description.root_complexes or description.memory_nodes) and description.processors != 2:
        yield "processors: with root complexes or memoryNodes there are 2, one for each of the NUMA nodes 0 and 1"
    for number, root in enumerate(description.root_complexes):
        if root.node > (last := 1 + description.memory_nodes):
            yield f"rootComplexes[{number}].node: {root.node} is none; the last is {last}, and memoryNodes makes more"


def _problems_of_vgpu_drivers(description: Description) -> Iterator[str]:
    functions = [function for card in description.cards for function in card.functions]
    if any(one.kind == "mdev-parent" for one in functions) and any(one.vf_driver == DRIVER for one in functions):
        yield f"vfDriver: {DRIVER} is the name of the mdev-parents' driver, too; a machine has one of the two"


def _problems_of(function: Function, index: int) -> Iterator[str]:
    if function.kind not in KINDS:
        yield f"kind: {function.kind} is none; there are {', '.join(KINDS)}"
        return
    kind = KINDS[function.kind]
    if "ffff" in (function.vendor, function.device):
        yield "vendor, device: ffff is read where there is no function"
    if function.bar is not None:
        yield from _problems_of_bar(function, kind)
    yield from _problems_of_vfs(function, kind, index)


def _problems_of_bar(function: Function, kind: Kind) -> Iterator[str]:
    size = function.mebibytes
    if not kind.bar:
        yield f"bar: QEMU's {kind.device} has no option for the size of its BAR"
    elif not size or size & (size - 1):
        yield f"bar: {function.bar} is no power of two in M or G, such as 256M"
    elif kind.device == "secondary-vga" and not 16 <= size <= 256:
        yield "bar: that of QEMU's secondary-vga is from 16M to 256M"


def _problems_of_vfs(function: Function, kind: Kind, index: int) -> Iterator[str]:
    if function.vfs and function.kind not in ("nvme", "nic"):
        yield f"vfs: QEMU's {kind.device} has no SR-IOV; nvme and nic have"
    if function.vfs and index:
        yield "vfs: the function with virtual functions is the first of its card"
    if function.kind == "nic" and function.vfs > 7:
        yield "vfs: QEMU's igb has 7"
    if function.vf_driver and not function.vfs:
        yield "vfDriver: there are no vfs"


def _crowded(description: Description) -> Iterator[str]:
    slots = Counter(switch.at for switch in description.switches)
    slots.update(
        at
        for at, _ in {(card.at, card.group or card.name) for card in description.cards}
        if at not in {switch.name for switch in description.switches}
    )
    slots[FIRST] += len(description.root_complexes)
    for name, taken in slots.items():
        if taken > (room := 26 if name == FIRST else 31):
            yield f"{name}: a root complex has {room} slots, not {taken}"
    groups = Counter((card.at, card.group) for card in description.cards if card.group)
    for (_, group), members in groups.items():
        if members > 8:
            yield f"group {group}: at most 8 cards, for they are behind the functions of one slot"
    for group, places in Counter(group for _, group in groups).items():
        if places > 1:
            yield f"group {group}: its cards are at {places} root complexes; a group is at one"
