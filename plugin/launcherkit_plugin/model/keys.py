"""How a value declares the keys of the configuration that set it, beside the types and defaults of its fields.

`launcherkit_plugin.config.fields` makes the model that reads and checks them of this; nothing here imports pydantic.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeAlias

from launcherkit.model.address import PciAddress

_HEX = frozenset("0123456789abcdef")
_GLOB = _HEX | set(":.*?[]!-")
_WILD = frozenset("*?[")


class Key(NamedTuple):
    """What is said of a field's key."""

    help: str
    name: str | None = None
    """Of the key; None: that of the field, in camel case."""


class TextForm(NamedTuple):
    """A value that is written as text."""

    parse: Callable[[str], Any]
    """Raises ValueError."""
    pattern: str
    """Of the texts that it accepts, for editors."""
    examples: tuple[str, ...]


class Limits(NamedTuple):
    """Limits of a value; pydantic calls them the same."""

    ge: int | None = None
    le: int | None = None
    min_length: int | None = None
    pattern: str | None = None


def parse_id(text: str) -> int:
    """A vendor, device or subsystem ID: ``10de``, ``0x10DE``.

    Raises:
        ValueError: it isn't an ID.
    """
    digits = text.strip().lower().removeprefix("0x")
    if len(digits) != 4 or not _HEX.issuperset(digits):
        raise ValueError("an ID is four hex digits, such as 10de")
    return int(digits, 16)


def parse_pair(text: str) -> tuple[int, int]:
    """Two IDs with a colon: ``10de:2204``.

    Raises:
        ValueError: it isn't a pair of IDs.
    """
    first, colon, second = text.partition(":")
    if not colon:
        raise ValueError("a pair of IDs is two IDs with a colon between them, such as 10de:2204")
    return parse_id(first), parse_id(second)


def parse_class(text: str) -> str:
    """The beginning of a class code, two, four or six digits: ``03``, ``0x0302``.

    Raises:
        ValueError: it isn't one.
    """
    digits = text.strip().lower().removeprefix("0x")
    if len(digits) not in (2, 4, 6) or not _HEX.issuperset(digits):
        raise ValueError("a class is two, four or six hex digits, such as 03 or 0302")
    return digits


def parse_address_glob(text: str) -> str:
    """An address or a glob over addresses, with its domain and in lower case: ``e1:00.*`` becomes ``0000:e1:00.*``.

    Raises:
        ValueError: it is neither.
    """
    glob = text.strip().lower()
    if _WILD.isdisjoint(glob):
        return str(PciAddress.parse(glob))
    if not _GLOB.issuperset(glob):
        raise ValueError("an address has hex digits, ':' and '.', with * ? and [...] as wildcards: 0000:e1:00.*")
    return f"0000:{glob}" if glob.count(":") == 1 else glob


def parse_device_node(text: str) -> str:
    """The path of a device node: absolute, below ``/dev``, without ``.`` and ``..``.

    Raises:
        ValueError: it isn't one.
    """
    parts = text.split("/")
    if parts[:2] != ["", "dev"] or len(parts) < 3 or not all(part not in ("", ".", "..") for part in parts[1:]):
        raise ValueError("a device node is a path below /dev, such as /dev/nvidiactl")
    return text


_ID = "(0[xX])?[0-9a-fA-F]{4}"
Id: TypeAlias = Annotated[int, TextForm(parse_id, f"^{_ID}$", ("10de",))]
Pair: TypeAlias = Annotated[tuple[int, int], TextForm(parse_pair, f"^{_ID}:{_ID}$", ("10de:2204",))]
ClassPrefix: TypeAlias = Annotated[str, TextForm(parse_class, "^(0[xX])?([0-9a-fA-F]{2}){1,3}$", ("03", "0302"))]
AddressGlob: TypeAlias = Annotated[str, TextForm(parse_address_glob, "^[0-9a-fA-F:.*?!\\[\\]-]+$", ("0000:e1:00.*",))]
DeviceNode: TypeAlias = Annotated[str, TextForm(parse_device_node, "^/dev/.+$", ("/dev/nvidiactl",))]
NonEmpty: TypeAlias = Annotated[str, Limits(min_length=1)]
Natural: TypeAlias = Annotated[int, Limits(ge=0)]
