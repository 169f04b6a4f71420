"""How a value declares the keys of the configuration that set it, beside the types and defaults of its fields.

`launcherkit_plugin.config.fields` makes the model that reads and checks them of this; nothing here imports pydantic.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeAlias

from launcherkit_plugin.model.texts import (
    check_domain,
    check_resource_name,
    check_short_name,
    parse_address,
    parse_address_glob,
    parse_alias_key,
    parse_class,
    parse_device_node,
    parse_driver,
    parse_id,
    parse_kernel_driver,
    parse_mac,
    parse_module,
    parse_pair,
    parse_prefix,
)


class Key(NamedTuple):
    """What is said of the key of a field. A field without this has none: what reads the configuration sets it."""

    help: str = ""
    """Empty for an object, which describes itself."""
    name: str | None = None
    """Of the key; None: that of the field, in camel case."""

    def of(self, field: str) -> str:
        """The name of the key of a field."""
        first, *others = field.split("_")
        return self.name or first + "".join(map(str.capitalize, others))


class TextForm(NamedTuple):
    """A value that is written as text."""

    parse: Callable[[str], Any]
    """Raises ValueError."""
    pattern: str | None = None
    """Of the texts that it accepts, for editors."""
    examples: tuple[str, ...] = ()


class Limits(NamedTuple):
    """Limits of a value; pydantic calls them the same. The key of a list with a least length is required."""

    ge: int | None = None
    le: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None


_ID = "(0[xX])?[0-9a-fA-F]{4}"
Id: TypeAlias = Annotated[int, TextForm(parse_id, f"^{_ID}$", ("10de",))]
Pair: TypeAlias = Annotated[tuple[int, int], TextForm(parse_pair, f"^{_ID}:{_ID}$", ("10de:2204",))]
ClassPrefix: TypeAlias = Annotated[str, TextForm(parse_class, "^(0[xX])?([0-9a-fA-F]{2}){1,3}$", ("03", "0302"))]
AddressGlob: TypeAlias = Annotated[str, TextForm(parse_address_glob, "^[0-9a-fA-F:.*?!\\[\\]-]+$", ("0000:e1:00.*",))]
Address: TypeAlias = Annotated[str, TextForm(parse_address, "^[0-9a-fA-F:.]+$", ("0000:1b:00.0",))]
Module: TypeAlias = Annotated[int, TextForm(parse_module, "^[1-9][0-9]?$", ("1",))]
DeviceNode: TypeAlias = Annotated[str, TextForm(parse_device_node, "^/dev/.+$", ("/dev/nvidiactl",))]
NonEmpty: TypeAlias = Annotated[str, Limits(min_length=1)]
Natural: TypeAlias = Annotated[int, Limits(ge=0)]
ResourceName: TypeAlias = Annotated[
    str,
    TextForm(check_resource_name, "^[a-z0-9.-]+/[A-Za-z0-9._-]+$", ("nvidia.com/GA102_GEFORCE_RTX_3090",)),
]
ShortName: TypeAlias = Annotated[str, TextForm(check_short_name, "^[A-Za-z0-9._-]+$", ("RTX_3090",))]
Domain: TypeAlias = Annotated[str, TextForm(check_domain, "^[a-z0-9.-]+$", ("example.com",))]
AliasKey: TypeAlias = Annotated[str, TextForm(parse_alias_key)]
EnvironmentPrefix: TypeAlias = Annotated[str, TextForm(parse_prefix, "^[A-Z][A-Z0-9_]*$", ("PCI_RESOURCE",))]
DriverName: TypeAlias = Annotated[str, TextForm(parse_driver, "^[a-z0-9.-]{1,63}$", ("pci.launcherkit.io",))]
KernelDriver: TypeAlias = Annotated[
    str, TextForm(parse_kernel_driver, "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", ("vfio-pci", "mlx5_vfio_pci"))
]
MacAddress: TypeAlias = Annotated[
    str, TextForm(parse_mac, "^(stable|[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5})$", ("stable", "02:00:00:00:10:00"))
]
