"""The schema of the configuration as people write it, and its conversion to the values of `model.config`."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Literal

from pydantic import Field, model_validator

from launcherkit.model.policy import Siblings
from launcherkit_plugin.config.fields import (
    AliasKey,
    Declared,
    Domain,
    DriverName,
    EnvironmentPrefix,
    Glob,
    ResourceName,
    Schema,
    ShortName,
    VendorId,
)
from launcherkit_plugin.config.kubevirt import MediatedDevicesSchema, PermittedSchema
from launcherkit_plugin.config.uses import UseSchema
from launcherkit_plugin.model.config import (
    DRA_DRIVER,
    Auto,
    CdiConfig,
    ContainerUse,
    DraConfig,
    GiveBack,
    LayoutEntry,
    Mode,
    NodeChoice,
    OnDemand,
    PciRule,
    Selector,
    VgpuRule,
)


def _check_selector(selector: Selector, given: Set[str]) -> None:  # noqa: ARG001  # keys without entries select nothing
    if selector == Selector():
        raise ValueError("it selects every function: give at least one criterion")


def _check_layout(entry: LayoutEntry, given: Set[str]) -> None:  # noqa: ARG001  # its keys don't depend on each other
    number = entry.parent.removeprefix("#")
    if number != entry.parent and not (number.isascii() and number.isdigit()):
        raise ValueError("a card by number is #0, #1 and so on")


SELECTOR = Declared(Selector, _check_selector)
LAYOUT = Declared(LayoutEntry, _check_layout)
CDI = Declared(CdiConfig, title="CdiSchema")


class EnvironmentSchema(Schema):
    """The variable that a container gets."""

    prefix: EnvironmentPrefix = Field("PCI_RESOURCE", description="Prefix of the variable's name.")
    list_siblings: bool = Field(
        False, alias="listSiblings", description="List the siblings in it too, for readers without sysfs."
    )
    void: bool | None = Field(
        None,
        description="Set NVIDIA_VISIBLE_DEVICES=void for NVIDIA's cards, so that NVIDIA's container runtime adds no "
        "others. Default: where a rule of this configuration gives cards to containers.",
    )


class ResourceSchema(UseSchema):
    """PCI functions that are advertised under one name, or each model under its own."""

    name: ResourceName | None = Field(None, description="Default: a name for each model, from pci.ids.")
    select: list[Annotated[Selector, SELECTOR]] = Field(
        min_length=1, description="Functions that any of these selects."
    )
    exclude: list[Annotated[Selector, SELECTOR]] = Field([], description="Except these.")
    siblings: Siblings = Field(
        "slot", description="Which siblings are attached with a device; must match launcherkit's policy in the pod."
    )
    environment: EnvironmentSchema = Field(default_factory=lambda: EnvironmentSchema.model_validate({}))
    bind: bool | Literal["on-demand"] = Field(
        False,
        description="Bind them, with their IOMMU groups, to vfio-pci; on-demand: when one is allocated.",
    )
    bind_seconds: Annotated[float, Field(ge=1, le=40, allow_inf_nan=False)] = Field(
        30.0, alias="bindSeconds", description="On demand: the longest that an allocation waits for it."
    )
    grace_seconds: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = Field(
        60.0,
        alias="graceSeconds",
        description="On demand: how long they must be unused before they are given back.",
    )
    give_back: GiveBack = Field(
        "always", alias="giveBack", description="On demand: whether they are given back to their drivers."
    )
    when_bound: bool = Field(
        False,
        alias="whenBound",
        description="Advertise only what has been bound to a VFIO driver. Default: the rest too, as Unhealthy.",
    )
    companion: bool = Field(
        False, description="They are requested together with the card that they are part of, in the same pod."
    )
    dra: bool = Field(False, description="Publish them for Dynamic Resource Allocation instead.")

    @model_validator(mode="after")
    def _one_device_a_card(self) -> ResourceSchema:
        if self.companion and self.dra:
            raise ValueError("give only one of companion and dra: with DRA a card is one device with all its functions")
        return self

    @model_validator(mode="after")
    def _on_demand(self) -> ResourceSchema:
        if self.bind != "on-demand":
            fields = {"bind_seconds": "bindSeconds", "grace_seconds": "graceSeconds", "give_back": "giveBack"}
            for field, key in fields.items():
                if field in self.model_fields_set:
                    raise ValueError(f"{key} is for `bind: on-demand`")
            return self
        if self.when_bound:
            raise ValueError("with `bind: on-demand` they are bound when one is allocated: leave out whenBound")
        if any(selector.drivers for selector in (*self.select, *self.exclude)):
            raise ValueError("with `bind: on-demand` their driver changes: select them by something else than drivers")
        return self

    def value(self) -> PciRule:
        demand = OnDemand(self.bind_seconds, self.grace_seconds, self.give_back)
        return PciRule(
            tuple(self.select),
            tuple(self.exclude),
            self.name,
            self.siblings,
            self.environment.list_siblings,
            self.environment.prefix,
            self.bind is True,
            self.companion,
            self.when_bound,
            self.dra,
            on_demand=demand if self.bind == "on-demand" else None,
            uses=self.uses,
            names={} if self.names is None else self.names.value(),
            container=self.container or ContainerUse(),
            sharing=self.sharing,
            void=self.environment.void is True,
        )


class _VgpuResourceSchema(Schema):
    types: list[Glob] = Field(min_length=1, description="Names or IDs of vGPU types, with * ? [...] as wildcards.")
    name: ResourceName | None = Field(None, description="Default: each type under its own name.")
    mode: Mode = Field(
        "static",
        description="static: advertise what exists; dynamic: what could be created, created when needed.",
    )
    parents: list[Glob] = Field([], description="Only on these cards: globs of their addresses.")
    dra: bool = Field(False, description="Publish them for Dynamic Resource Allocation instead.")
    prefix: EnvironmentPrefix

    def value(self) -> VgpuRule:
        return VgpuRule(tuple(self.types), self.name, self.mode, tuple(self.parents), self.prefix, self.dra)


class MdevResourceSchema(_VgpuResourceSchema):
    """Mediated devices that are advertised under one name, or each type under its own."""

    prefix: EnvironmentPrefix = Field("MDEV_PCI_RESOURCE", description="Prefix of the variable's name.")


class VfResourceSchema(_VgpuResourceSchema):
    """Virtual functions of SR-IOV vGPU cards that are advertised under one name, or each type under its own."""

    prefix: EnvironmentPrefix = Field("PCI_RESOURCE", description="Prefix of the variable's name.")


class LayoutSchema(Schema):
    """Which vGPUs a node has."""

    layout: list[Annotated[LayoutEntry, LAYOUT]] = Field([], description="Which vGPUs the cards of this node have.")
    spread: list[Glob] = Field(
        [], description="Types for the other cards in turn; each card gets as many of its type as it has room for."
    )


class VgpuSchema(LayoutSchema):
    """The settings for vGPUs."""

    mediated_devices: list[MdevResourceSchema] = Field([], alias="mediatedDevices")
    virtual_functions: list[VfResourceSchema] = Field([], alias="virtualFunctions")
    grace_seconds: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = Field(
        60.0, alias="graceSeconds", description="How long a vGPU must be unused before it is removed."
    )


class DraSchema(Schema):
    """A driver of Dynamic Resource Allocation, for devices of the rules that say ``dra: true``."""

    driver: DriverName = Field(DRA_DRIVER, description="The name of the driver, as in DeviceClasses.")
    environment: bool = Field(True, description="Also give containers the variables of the device plugin.")
    all: bool = Field(False, description="Every rule has dra: true.")
    evict: bool = Field(False, description="Evict pods whose device becomes unhealthy: taints are NoExecute.")

    def value(self) -> DraConfig:
        return DraConfig(self.driver, self.environment, self.all, self.evict)


class KubevirtSchema(Schema):
    """KubeVirt's own settings: written here, in a file, or in the cluster; one of these."""

    file: str | None = Field(None, min_length=1, description="A KubeVirt resource as kubectl prints it.")
    cluster: bool = Field(False, description="Read and watch the cluster's KubeVirt resource.")
    permitted: PermittedSchema | None = Field(None, alias="permittedHostDevices")
    mediated: MediatedDevicesSchema | None = Field(None, alias="mediatedDevicesConfiguration")

    @model_validator(mode="after")
    def _from_one_place(self) -> KubevirtSchema:
        places = [self.file is not None, self.cluster, self.permitted is not None or self.mediated is not None]
        if sum(places) > 1:
            raise ValueError("give only one of file, cluster and the settings themselves")
        return self


class ConfigSchema(Schema):
    """The configuration of the device plugin of launcherkit. Every key may be left out."""

    auto: Auto | None = Field(
        None,
        description="Advertise what is bound to a VFIO driver without further rules: NVIDIA's GPUs, every GPU and "
        "accelerator, or everything; vGPUs that exist too.",
    )
    resources: list[ResourceSchema] = Field(
        [], description="PCI functions. The first rule that selects a function applies."
    )
    vgpu: VgpuSchema = Field(default_factory=lambda: VgpuSchema.model_validate({}))
    kubevirt: KubevirtSchema | None = None
    aliases: dict[AliasKey, ShortName] = Field(
        {}, description="Names for models (10de:2204) and vGPU types (GRID T4-1Q), without the domain."
    )
    domains: dict[VendorId, Domain] = Field({}, description="Vendor ID to the domain of automatic names.")
    pci_ids: str | None = Field(
        None, alias="pciIds", min_length=1, description="A file pci.ids to use instead of the installed one."
    )
    nodes: NodeChoice = Field(
        "auto", description="Which device nodes a container gets: those of groups, VFIO's character devices, or both."
    )
    cdi: Annotated[CdiConfig, CDI] | None = None
    dra: DraSchema | None = None
    rescan_seconds: Annotated[float, Field(ge=1, le=3600, allow_inf_nan=False)] = Field(
        30.0, alias="rescanSeconds", description="The longest time between two scans of the host."
    )

    @model_validator(mode="after")
    def _each_device_once(self) -> ConfigSchema:
        if self.nodes == "both" and self.cdi is not None and self.cdi.kind == "resource":
            raise ValueError("cdi: {kind: resource} names each device once: nodes is auto, group or cdev")
        return self
