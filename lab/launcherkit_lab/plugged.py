"""A described machine as QEMU's ``-device`` options: each card behind a port of its own, functions with names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from launcherkit_lab.description import FIRST, INTEL_NVME, KINDS, Card, Description, Function
from launcherkit_lab.devices import nvme_vfs, root_complex

_FIRST_SLOT, _FIRST_BUS, _BUSES = 5, 0x40, 0x20


def function_id(card: Card, index: int) -> str:
    """The name of a function: ``gpu0.1``."""
    return f"{card.name}.{index}"


def port_id(card: str) -> str:
    """The name of the port that a card is behind."""
    return f"{card}-port"


def device_options(description: Description) -> Iterator[str]:
    """The options, parents first."""
    slots: defaultdict[str, Iterator[int]] = defaultdict(lambda: iter(range(32)))
    slots[FIRST] = iter(range(_FIRST_SLOT, 32))
    buses = {FIRST: "pcie.0"}
    chassis = iter(range(1, 256))
    for number, root in enumerate(description.root_complexes):
        bus = _FIRST_BUS + _BUSES * number
        buses[root.name] = f"root{bus}"
        yield root_complex(bus, root.node, next(slots[FIRST]))
    switches = {switch.name for switch in description.switches}
    for switch in description.switches:
        place = f"bus={buses[switch.at]},addr={next(slots[switch.at]):#x}"
        yield f"pcie-root-port,id={switch.name}-port,{_slot(next(chassis))},{place}"
        yield f"x3130-upstream,id={switch.name},bus={switch.name}-port,addr=0x0"
    shared: dict[str, Iterator[str]] = {}
    for card in description.cards:
        if card.at in switches:
            port, parent, at = "xio3130-downstream", card.at, f"addr={next(slots[card.at]):#x}"
        else:
            port, parent = "pcie-root-port", buses[card.at]
            if card.group is None:
                at = f"addr={next(slots[card.at]):#x}"
            else:
                if card.group not in shared:
                    shared[card.group] = _functions_of(next(slots[card.at]))
                # Linux puts the functions of a slot without ACS into one group, and with them what is behind them.
                at = f"{next(shared[card.group])},disable-acs=on"
        yield f"{port},id={port_id(card.name)},{_slot(next(chassis))},bus={parent},{at}"
        for index, function in enumerate(card.functions):
            yield from _function(card, index, function)


def _slot(number: int) -> str:
    return f"chassis={number},slot={number}"


def _functions_of(slot: int) -> Iterator[str]:
    return (f"addr={slot:#x}.{number},multifunction=on" for number in range(8))


def _function(card: Card, index: int, function: Function) -> Iterator[str]:
    name, kind = function_id(card, index), KINDS[function.kind]
    words = [kind.device, f"id={name}", f"bus={port_id(card.name)}", f"addr=0x0.{index}"]
    if len(card.functions) > 1:
        # Of every function: Linux gives those that it finds after boot a common group only where each says so.
        words.append("multifunction=on")
    if size := function.mebibytes:
        words.append(f"{kind.bar}={size}" if kind.bar == "vgamem_mb" else f"{kind.bar}={size}M")
    if function.kind == "nvme":
        yield f"nvme-subsys,id={name}-subsys"
        words += [f"serial={name}", f"subsys={name}-subsys"]
        if function.vfs:
            words.append(nvme_vfs(function.vfs))
        if function.ids == INTEL_NVME:
            words.append("use-intel-id=on")
    yield ",".join(words)
    if function.kind == "audio":
        yield f"hda-output,bus={name}.0,audiodev=silence"  # a codec, so that the sound driver takes it
