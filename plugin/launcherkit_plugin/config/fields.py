"""Checks and parses the strings in a configuration: IDs, classes, addresses, names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from launcherkit.model.address import PciAddress
from launcherkit.model.policy_key import is_variable_prefix
from launcherkit_plugin.devices.names import check_domain, check_resource_name, check_short_name, type_key


class Schema(BaseModel):
    """A mapping in a configuration: no keys but its own; a key without a value counts as missing."""

    # Validators are built on first use: most models are used only as parts of others.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {key: value for key, value in values.items() if value is not None}
        return values


T = TypeVar("T")

_HEX = frozenset("0123456789abcdef")
_GLOB = _HEX | set(":.*?[]!-")
_WILD = frozenset("*?[")
_LONGEST_DRIVER = 63


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


def parse_alias_key(text: str) -> str:
    """The key of an alias: a model, ``10de:2204``, or a vGPU type, whose spaces become ``_``.

    Raises:
        ValueError: it has a colon and isn't a model.
    """
    if ":" in text:
        vendor, device = parse_pair(text)
        return f"{vendor:04x}:{device:04x}"
    return type_key(text)


def parse_prefix(text: str) -> str:
    """The prefix of a variable's name; an underscore at its end is removed.

    Raises:
        ValueError: a name can't begin with it.
    """
    prefix = text.rstrip("_")
    if not is_variable_prefix(prefix):
        raise ValueError("a prefix has upper case letters, digits and underscores, such as PCI_RESOURCE")
    return prefix


def parse_driver(text: str) -> str:
    """The name of a DRA driver.

    Raises:
        ValueError: Kubernetes wouldn't accept it.
    """
    if len(text) > _LONGEST_DRIVER:
        raise ValueError(f"the name of a DRA driver has at most {_LONGEST_DRIVER} characters")
    return check_domain(text)


def parse_device_node(text: str) -> str:
    """The path of a device node: absolute, below ``/dev``, without ``.`` and ``..``.

    Raises:
        ValueError: it isn't one.
    """
    parts = text.split("/")
    if parts[:2] != ["", "dev"] or len(parts) < 3 or not all(part not in ("", ".", "..") for part in parts[1:]):
        raise ValueError("a device node is a path below /dev, such as /dev/nvidiactl")
    return text


def _text(parse: Callable[[str], T]) -> BeforeValidator:
    """A validator that parses a string, and refuses any other value."""

    def parsed(value: object) -> T:
        if not isinstance(value, str):
            raise ValueError("it must be a string: put it in quotes")
        return parse(value)

    return BeforeValidator(parsed)


def _schema(pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples)})


_ID = "(0[xX])?[0-9a-fA-F]{4}"
Id = Annotated[int, _text(parse_id), _schema(f"^{_ID}$", "10de")]
Pair = Annotated[tuple[int, int], _text(parse_pair), _schema(f"^{_ID}:{_ID}$", "10de:2204")]
ClassPrefix = Annotated[str, _text(parse_class), _schema("^(0[xX])?([0-9a-fA-F]{2}){1,3}$", "03", "0302")]
AddressGlob = Annotated[str, _text(parse_address_glob), _schema("^[0-9a-fA-F:.*?!\\[\\]-]+$", "0000:e1:00.*")]
EnvironmentPrefix = Annotated[str, _text(parse_prefix), _schema("^[A-Z][A-Z0-9_]*$", "PCI_RESOURCE")]
ResourceName = Annotated[
    str, _text(check_resource_name), _schema("^[a-z0-9.-]+/[A-Za-z0-9._-]+$", "nvidia.com/GA102_GEFORCE_RTX_3090")
]
AliasKey = Annotated[str, _text(parse_alias_key), WithJsonSchema({"type": "string"})]
ShortName = Annotated[str, _text(check_short_name), _schema("^[A-Za-z0-9._-]+$", "RTX_3090")]
DeviceNode = Annotated[str, _text(parse_device_node), _schema("^/dev/.+$", "/dev/nvidiactl")]
DriverName = Annotated[str, _text(parse_driver), _schema("^[a-z0-9.-]{1,63}$", "pci.launcherkit.io")]
Domain = Annotated[str, _text(check_domain), _schema("^[a-z0-9.-]+$", "example.com")]
Glob = Annotated[str, Field(min_length=1)]
