"""Reads policies, from files and from annotations of VMIs."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from launcherkit.errors import BadAnnotation, BadPolicy, Collector, LauncherkitError, OperatorsKey
from launcherkit.model.address import PciAddress
from launcherkit.model.policy import (
    ALIAS_PREFIX_RULE,
    DRIVER_RULE,
    FUNCTION_RULE,
    ROM_RULE,
    Iommufd,
    NodeCheck,
    Pairing,
    Siblings,
    Topology,
    is_alias_prefix,
    is_driver,
    is_function,
    is_rom,
    is_variable_prefix,
)
from launcherkit.sources.files import read_file
from launcherkit.sources.layer import ANNOTATION, Layer
from launcherkit.sources.schema import parse_document, validate_document
from launcherkit.sources.tenant import TENANT_KEYS


def _checked_alias_prefix(text: str) -> str:
    if not is_alias_prefix(text):
        raise ValueError(ALIAS_PREFIX_RULE)
    return text


def _checked_variable_prefix(text: str) -> str:
    if not is_variable_prefix(text.rstrip("_")):
        raise ValueError("a prefix is of upper case letters, digits and underscores, such as PCIDEVICE")
    return text.rstrip("_")


def _checked_function(text: str) -> str:
    text = text.lower()
    with suppress(ValueError):
        text = str(PciAddress.parse(text))  # with its domain
    if not is_function(text):
        raise ValueError(FUNCTION_RULE)
    return text


def _checked_rom(value: object) -> object:
    value = {True: "on", False: "off"}[value] if isinstance(value, bool) else value  # YAML reads both as booleans
    if not isinstance(value, str) or not is_rom(value):
        raise ValueError(ROM_RULE)
    return value


def _checked_driver(text: str) -> str:
    if not is_driver(text):
        raise ValueError(DRIVER_RULE)
    return text


def _yes_or_no(value: object) -> object:
    """YAML reads ``yes`` and ``no`` as true and false."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


AliasPrefix = Annotated[str, AfterValidator(_checked_alias_prefix)]
VariablePrefix = Annotated[str, AfterValidator(_checked_variable_prefix)]
Function = Annotated[str, AfterValidator(_checked_function)]
Rom = Annotated[str, BeforeValidator(_checked_rom)]
Driver = Annotated[str, AfterValidator(_checked_driver)]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AliasPrefixesSchema(_Schema):
    """What comes before a request's name in its alias; each begins with `ua-`."""

    gpu: AliasPrefix | None = Field(None, description="For requests under gpus. Default: ua-gpu-")
    hostdevice: AliasPrefix | None = Field(None, description="For requests under hostDevices. Default: ua-hostdevice-")
    usb: AliasPrefix | None = Field(None, description="For USB devices under hostDevices. Default: ua-usb-host-")


class PolicySchema(_Schema):
    """The policy of launcherkit. Every key may be left out."""

    siblings: Siblings | None = Field(
        None,
        description="Which sibling functions are attached: all of the card's slot, all of the IOMMU group, those that "
        "the environment lists, or none; reserve attaches the slot's and doesn't show them to the guest. Default: slot",
    )
    pairing: Pairing | None = Field(
        None, description="How addresses answer requests: by PCI class, or by position as KubeVirt does. Default: class"
    )
    managed: bool | None = Field(
        None, description="Whether libvirt binds the devices to vfio-pci and gives them back. Default: no"
    )
    alias_prefixes: AliasPrefixesSchema | None = Field(None, alias="aliasPrefixes")
    extra_prefixes: tuple[VariablePrefix, ...] | None = Field(
        None,
        alias="extraPrefixes",
        description="Further prefixes of variables with PCI addresses: PCIDEVICE for the SR-IOV network device plugin.",
    )
    sysfs_root: str | None = Field(
        None, alias="sysfsRoot", min_length=1, description="Where the host's sys/ and dev/ are. Default: /"
    )
    node_check: NodeCheck | None = Field(
        None,
        alias="nodeCheck",
        description="Whether the VFIO device nodes must be there; auto where the environment holds the devices, for "
        "there the VM runs. Default: auto",
    )
    topology: Topology | None = Field(
        None,
        description="How the guest's PCIe tree follows the host's: by NUMA cell where the domain binds several, not at "
        "all, wherever it can, or not without; or by NUMA cell and host switch. Default: auto",
    )
    iommufd: Annotated[Iommufd | None, BeforeValidator(_yes_or_no)] = Field(
        None,
        description="Whether functions go to VFIO through iommufd where the domain doesn't say; auto by the nodes that "
        "there are. Default: auto",
    )
    annotations: bool | None = Field(
        None, description="Whether the annotation launcherkit.io/policy of a VMI may narrow this policy. Default: yes"
    )
    rom: dict[Function, Rom] | None = Field(
        None,
        description="The ROM of single functions, by address or by vendor:device: off, on or the path of a file. "
        "Default: the card's own",
    )
    driver: dict[Function, Driver] | None = Field(
        None,
        description="The VFIO driver that libvirt is to use for single functions, by address or by vendor:device. "
        "Default: libvirt's choice",
    )

    generic_initiators: bool | None = Field(
        None,
        alias="genericInitiators",
        description="Whether each GPU of a Grace host gets eight cells of the guest for its memory, and a "
        "pcie-expander-bus of its own. Default: no",
    )

    def layer(self) -> Layer:
        """Only the decisions that are set."""
        decisions: dict[str, Any] = self.model_dump(exclude_none=True)
        decisions |= decisions.pop("alias_prefixes", {})
        return cast("Layer", decisions)  # the model has the same fields


_REMEDY = "`launcherkit explain policy` lists all keys."
_ANNOTATION_REMEDY = f"Correct the annotation {ANNOTATION}; it takes {' and '.join(TENANT_KEYS)}."
_OPERATORS_REMEDY = (
    f"Remove it from the annotation, which takes {' and '.join(TENANT_KEYS)}; or ask the operator to set it."
)
_OPERATORS_KEYS = {field.alias or name for name, field in PolicySchema.model_fields.items()} - set(TENANT_KEYS)


def read_policy_file(path: str) -> Layer:
    """Read a policy file.

    Raises:
        UnreadableFile: the file can't be read.
        BadPolicy, SeveralErrors: everything that is wrong in it.
    """
    values = parse_document(read_file(path), path, BadPolicy, _REMEDY)
    return _validated(values, path, BadPolicy, _REMEDY)


def read_policy_annotation(text: str) -> Layer:
    """Read the annotation of a VMI. Authors of VMs may only set the keys `TENANT_KEYS` (T1).

    Raises:
        BadAnnotation, SeveralErrors: everything that is wrong in it.
        OperatorsKey: it has another key, whatever the value.
    """
    name = f"annotation {ANNOTATION}"
    values = parse_document(text, name, BadAnnotation, _ANNOTATION_REMEDY)
    errors = Collector()
    for key in sorted(_OPERATORS_KEYS.intersection(values if isinstance(values, dict) else ())):
        errors.add(OperatorsKey(f"{name}, {key}: only the operator can set it", _OPERATORS_REMEDY, key=key))
    errors.raise_if_any()
    return _validated(values, name, BadAnnotation, _ANNOTATION_REMEDY)


def _validated(values: object, name: str, error: type[LauncherkitError], remedy: str) -> Layer:
    return validate_document(PolicySchema, values, name, error, remedy).layer()
