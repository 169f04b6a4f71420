"""QEMU's monitor protocol, as far as a machine that runs is asked and ended by it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_SECONDS = 30.0


class NoMachine(Exception):
    """Nobody answers on the monitor's socket."""


def execute(monitor: Path, command: str, arguments: Mapping[str, str] | None = None) -> Any:
    """Give one command, and return its answer.

    Raises:
        NoMachine: no QEMU listens, or it ended before it answered.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        answer: dict[str, Any] = {}
        try:
            connection.connect(str(monitor))
            with connection.makefile("rw") as stream:
                stream.readline()  # its greeting
                for step, details in (("qmp_capabilities", {}), (command, arguments or {})):
                    stream.write(json.dumps({"execute": step, "arguments": details}) + "\n")
                    stream.flush()
                    answer = next(message for message in map(json.loads, stream) if "event" not in message)
        except (OSError, ValueError, StopIteration):
            raise NoMachine(f"no machine answers at {monitor}") from None
    if "error" in answer:
        raise NoMachine(f"{command}: {answer['error']['desc']}")
    return answer["return"]


def addresses(buses: list[Mapping[str, Any]]) -> dict[str, str]:
    """The PCI addresses of devices by their names, of what ``query-pci`` answers.

    The numbers of buses are those that the guest has given.
    """
    return {name: address for bus in buses for name, address in _addresses(bus["devices"])}


def _addresses(devices: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for device in devices:
        if name := device.get("qdev_id"):
            yield name, f"0000:{device['bus']:02x}:{device['slot']:02x}.{device['function']:x}"
        yield from _addresses(device.get("pci_bridge", {}).get("devices", []))
