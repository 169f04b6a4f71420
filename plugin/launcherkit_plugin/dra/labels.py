"""What devices and counter sets are called in a pool: DNS labels, the same for as long as the device is there (D2).

And how the values of their attributes are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias
from zlib import crc32

from launcherkit_plugin.model.device import Resource

LONGEST = 63
"""Characters of a DNS label."""
LONGEST_TEXT = 64
"""Bytes of an attribute's value that is text."""
Attributes: TypeAlias = Mapping[str, Mapping[str, int | bool | str]]
"""Of a device, as the API writes them, in slices and in metadata: ``{"functions": {"int": 2}}``."""
_NOT_IN_LABEL = re.compile("[^a-z0-9]+")


@lru_cache(maxsize=8192)
def label(prefix: str, text: str) -> str:
    """``pci-0000-e1-00-0`` of ``pci`` and ``0000:e1:00.0``; what would be too long ends with a checksum."""
    found = f"{prefix}-{_NOT_IN_LABEL.sub('-', text.lower())}".rstrip("-")
    return found if len(found) <= LONGEST else _with_checksum(found, text)


def device_name(resource: Resource, key: str) -> str:
    """The name of a device: of its ID, of its resource where a VF can be a device of several (G4), and of its use where
    that isn't a VM (K10)."""
    if resource.use == "container":  # its UUID is known only once its driver has told it
        return label("container", str(resource.devices[key].functions[0]))
    if not is_bdf(key):
        return label("mdev", key)
    name = label("pci", key)
    return (
        _with_checksum(label(name, resource.name.rpartition("/")[2]), resource.name) if resource.made_at_start else name
    )


@lru_cache(maxsize=8192, typed=True)
def attribute(value: int | bool | str) -> Mapping[str, int | bool | str]:
    """An attribute's value as the API writes it; a text that is too long is cut. Devices share it."""
    if isinstance(value, str):
        return {"string": value.encode()[:LONGEST_TEXT].decode(errors="ignore")}
    return {"bool" if isinstance(value, bool) else "int": value}


def is_bdf(key: str) -> bool:
    """Whether an ID is that of a function; else it is that of an mdev."""
    return ":" in key


def _with_checksum(text: str, whole: str) -> str:
    checksum = f"{crc32(whole.encode()):08x}"
    return f"{text[: LONGEST - len(checksum) - 1].rstrip('-')}-{checksum}"
