"""What a guest of 2 KB says of its PCI bus, as the files of sysfs that Linux would have there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from launcherkit.host.umockdev import Directory, MemoryTree
from launcherkit_lab.guest.listing import FUNCTION, read_listing

_BAR = re.compile(r"^guest: bar (\S+) (\w\w) (\w{8}) (\w{8})$", re.MULTILINE)
_CAPABILITY = re.compile(r"^guest: capability (\S+) (\w+)$", re.MULTILINE)
_BRIDGE = re.compile(r"^guest: bridge (\S+) (\w\w)$", re.MULTILINE)
_PCI_EXPRESS, _VENDORS = 0x10, 0x09
_SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
PORTS = {4: "root port", 5: "upstream port", 6: "downstream port"}
"""The types of PCI Express's capability that are bridges."""
_IO, _MEMORY, _PREFETCHABLE, _64, _UNSET = 0x100, 0x200, 0x2000, 0x100000, 0x20000000  # linux/ioport.h


def capabilities(text: str, number: int) -> dict[str, list[bytes]]:
    """The capabilities with a number, by function."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for address, words in _CAPABILITY.findall(text):
        content = b"".join(int(words[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(words), 8))
        if content[0] == number:
            found[address].append(content)
    return found


def cliques(text: str) -> dict[str, int]:
    """The clique of each function with a vendor's capability that says P2P.

    Bytes 3 to 5 are ``P2P``, the clique is bits 3 to 6 of the next one: NVIDIA's GPUDirect P2P on virtual machines.
    """
    said = capabilities(text, _VENDORS).items()
    return {address: each[6] >> 3 & 15 for address, found in said for each in found if each[3:6] == b"P2P"}


def above(text: str) -> dict[str, list[tuple[str, str]]]:
    """The bridges above each function from the root bus on, each with the type of its port, as ``lspci -t`` draws."""
    behind = {bus: bridge for bridge, bus in _BRIDGE.findall(text)}
    types = {
        address: PORTS.get(found[0][2] >> 4 & 15, "") for address, found in capabilities(text, _PCI_EXPRESS).items()
    }

    def bridges(address: str) -> Iterator[tuple[str, str]]:
        bridge = behind.get(address[5:7])
        if bridge is not None:
            yield from bridges(bridge)
            yield bridge, types.get(bridge, "")

    return {address: list(bridges(address)) for address in read_listing(text)}


def as_sysfs(text: str) -> MemoryTree:
    """The files that `launcherkit verify` reads of a guest; no driver and no NUMA node is in it."""
    bars: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    for address, offset, value, mask in _BAR.findall(text):
        bars[address][(int(offset, 16) - 0x10) // 4] = int(value, 16), int(mask, 16)
    links = {address: found[0] for address, found in capabilities(text, _PCI_EXPRESS).items()}
    behind = {bridge: int(bus, 16) for bridge, bus in _BRIDGE.findall(text)}
    devices: Directory = {}
    for address, vendor, device, code in FUNCTION.findall(text):
        files = {"vendor": vendor, "device": device, "class": code}
        status = int.from_bytes(links.get(address, b"")[18:20], "little")
        if status:
            files["current_link_speed"] = f"{_SPEEDS[status & 15]} GT/s PCIe"
            files["current_link_width"] = str(status >> 4 & 63)
        files["resource"] = "".join(_lines(bars[address]))
        config = bytes(0x19) + bytes([behind.get(address, 0)])
        devices[address] = {"config": config} | {name: content.encode() for name, content in files.items()}
    return MemoryTree({"sys": {"bus": {"pci": {"devices": devices}}}})


def _lines(registers: dict[int, tuple[int, int]]) -> Iterator[str]:
    """The lines of the file ``resource`` for the six BARs; the upper half of one with 64 bits has none."""
    at = 0
    while at < 6:
        value, mask = registers.get(at, (0, 0))
        is_io, wide = mask & 1, not mask & 1 and mask & 6 == 4
        low = 3 if is_io else 15
        start, reach, flags = value & ~low, mask & ~low, _IO if is_io else _MEMORY
        if wide:
            upper, upper_mask = registers.get(at + 1, (0, 0))
            start, reach, flags = start | upper << 32, reach | upper_mask << 32, flags | _64
        if mask & 8 and not is_io:
            flags |= _PREFETCHABLE
        if not mask:
            start = end = flags = 0
        else:
            end = start + (reach & -reach) - 1
            flags |= 0 if start else _UNSET
        yield f"{start:#018x} {end:#018x} {flags:#018x}\n"
        if wide:
            yield f"{0:#018x} {0:#018x} {0:#018x}\n"
        at += 1 + wide
