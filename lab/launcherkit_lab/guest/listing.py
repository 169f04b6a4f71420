"""What the guest says of its PCI bus."""

from __future__ import annotations

import re
from typing import TypeAlias

Listing: TypeAlias = dict[str, tuple[int, int]]
"""Guest address to vendor and device ID."""

FUNCTION = re.compile(r"^guest: pci (\S+) ([0-9a-f]{4}):([0-9a-f]{4}) 0x([0-9a-f]{6})$", re.MULTILINE)
"""A function: address, vendor and device ID, class code."""
LISTED = "guest: listed"
"""It has said everything."""


def read_listing(text: str) -> Listing:
    """The PCI bus of a guest, from what it said on the serial port."""
    assert "guest: hello" in text, f"the guest said: {text!r}"
    return {address: (int(vendor, 16), int(device, 16)) for address, vendor, device, _ in FUNCTION.findall(text)}
