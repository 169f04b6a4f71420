"""The names of devices and counter sets in a pool: DNS labels, which never change while the device exists (D2).

Also the values of attributes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias
from zlib import crc32

from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.model.usb_device import USB_PREFIX, usb_id

LONGEST = 63
"""The most characters of a DNS label."""
LONGEST_TEXT = 64
"""The most bytes of an attribute's value that is a string."""
Attributes: TypeAlias = Mapping[str, Mapping[str, int | bool | str]]
"""The attributes of a device in the API's format, as in slices and metadata: ``{"functions": {"int": 2}}``."""
NO_ATTRIBUTES: Attributes = {}
_OF_ADDRESS = re.compile(r"(?:pci|container)-([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])(?:-.*)?$")
_OF_PORT = re.compile(r"usb-([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])-([23])-([0-9-]+)")
_OF_UUID = re.compile(r"mdev-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NOT_IN_LABEL = re.compile("[^a-z0-9]+")


@lru_cache(maxsize=8192)
def label(prefix: str, text: str) -> str:
    """``pci-0000-e1-00-0`` for ``pci`` and ``0000:e1:00.0``. A label that would be too long ends with a checksum."""
    candidate = f"{prefix}-{_NOT_IN_LABEL.sub('-', text.lower())}".rstrip("-")
    return candidate if len(candidate) <= LONGEST else _with_checksum(candidate, text)


def device_name(resource: Resource, key: str) -> str:
    """The name of a device, formed from its ID; also from its resource if a VF can be a device of several (G4), and
    from its use if that isn't a VM (K10)."""
    if resource.use == "container":  # not from its UUID, which is known only once its driver reports it
        return label("container", str(resource.devices[key].functions[0]))
    if resource.devices[key].usb:
        return label("usb", key.removeprefix(USB_PREFIX))
    if not is_bdf(key):
        return label("mdev", key)
    name = label("pci", key)
    return (
        _with_checksum(label(name, resource.name.rpartition("/")[2]), resource.name) if resource.made_at_start else name
    )


def device_id(name: str) -> str | None:
    """The ID of a device by its name; for a card that containers use, its address. None if it isn't `device_name`'s."""
    if match := _OF_ADDRESS.match(name):
        return "{}:{}:{}.{}".format(*match.groups())
    if match := _OF_PORT.fullmatch(name):
        *address, generation, ports = match.groups()
        return usb_id("{}:{}:{}.{}".format(*address), int(generation), ports.replace("-", "."))
    return name.removeprefix("mdev-") if _OF_UUID.fullmatch(name) else None


_SHARE = "_"
"""Between the name of a device and a share's ID: neither a DNS label nor a UID has it."""


def share_name(device: str, share: str) -> str:
    """The name of a share in a claim's files: ``container-0000-01-00-0_2a1e...``; without a share, the device's."""
    return f"{device}{_SHARE}{share}" if share else device


def device_and_share(name: str) -> tuple[str, str]:
    """The published name and the share's ID in a `share_name`."""
    device, _, share = name.partition(_SHARE)
    return device, share


@lru_cache(maxsize=8192, typed=True)
def attribute(value: int | bool | str) -> Mapping[str, int | bool | str]:
    """An attribute's value in the API's format; a string that is too long is truncated. Cached: devices share it."""
    if isinstance(value, str):
        return {"string": value.encode()[:LONGEST_TEXT].decode(errors="ignore")}
    return {"bool" if isinstance(value, bool) else "int": value}


def is_bdf(key: str) -> bool:
    """Whether an ID is the BDF of a function; otherwise it is the UUID of an mdev, or a USB device's."""
    return ":" in key and not key.startswith(USB_PREFIX)


def _with_checksum(text: str, whole: str) -> str:
    checksum = f"{crc32(whole.encode()):08x}"
    return f"{text[: LONGEST - len(checksum) - 1].rstrip('-')}-{checksum}"
