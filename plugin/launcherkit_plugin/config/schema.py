"""What reads the configuration as people write it: models of the values of `model.config`, and which keys go together.

A key is declared where its value is; here is only what depends on several of them.
"""

from __future__ import annotations

from collections.abc import Set

from pydantic import Field, model_validator

from launcherkit_plugin.config.fields import Declared, Schema
from launcherkit_plugin.config.kubevirt import MediatedDevicesSchema, PermittedSchema
from launcherkit_plugin.config.uses import check_container, check_use
from launcherkit_plugin.model.config import (
    CdiConfig,
    Config,
    ContainerUse,
    ContainerVariable,
    DraConfig,
    Layout,
    LayoutEntry,
    Names,
    PciRule,
    ReleaseProgram,
    Selector,
    Sharing,
    VgpuConfig,
    VgpuRule,
)


def _check_selector(selector: Selector, set_fields: Set[str]) -> None:  # noqa: ARG001  # keys without entries select nothing
    if selector == Selector():
        raise ValueError("it selects every function: give at least one criterion")


def _check_release(program: ReleaseProgram, set_fields: Set[str]) -> None:  # noqa: ARG001  # its keys don't depend on each other
    if not program.command[0].startswith("/"):
        raise ValueError("command begins with the path of a program, such as /opt/clean/nvme")


def _check_rule(rule: PciRule, set_fields: Set[str]) -> None:
    check_use(rule, set_fields)
    if rule.release is not None and rule.sharing is not None:
        raise ValueError("give only one of release and sharing: a shared card goes from container to container")
    if rule.companion and rule.dra:
        raise ValueError("give only one of companion and dra: with DRA a card is one device with all its functions")
    if "keep_for" in set_fields and not rule.same_device:
        raise ValueError("keepFor is for `sameDevice`")
    if rule.same_device and (rule.companion or "container" in rule.uses):
        raise ValueError("sameDevice is for cards that no container can have, and not for companions")
    if not rule.on_demand:
        fields = {"bind_seconds": "bindSeconds", "grace_seconds": "graceSeconds", "give_back": "giveBack"}
        for field, key in fields.items():
            if field in set_fields:
                raise ValueError(f"{key} is for `bind: on-demand`")
        return
    if rule.when_bound:
        raise ValueError("with `bind: on-demand` they are bound when one is allocated: leave out whenBound")
    if any(selector.drivers for selector in (*rule.select, *rule.exclude)):
        raise ValueError("with `bind: on-demand` their driver changes: select them by something else than drivers")


def _check_layout(entry: LayoutEntry, set_fields: Set[str]) -> None:  # noqa: ARG001  # its keys don't depend on each other
    number = entry.parent.removeprefix("#")
    if number != entry.parent and not (number.isascii() and number.isdigit()):
        raise ValueError("a card by number is #0, #1 and so on")


def _check_config(config: Config, set_fields: Set[str]) -> None:  # noqa: ARG001  # keys count as what they say
    if config.nodes == "both" and config.cdi is not None and config.cdi.kind == "resource":
        raise ValueError("cdi: {kind: resource} names each device once: nodes is auto, group or cdev")


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


SELECTOR = Declared(Selector, _check_selector)
ENVIRONMENT = Declared(ContainerVariable)
NAMES = Declared(Names)
CONTAINER = Declared(ContainerUse, check_container, title="ContainerSchema")
SHARING = Declared(Sharing)
RELEASE = Declared(ReleaseProgram, _check_release, title="ReleaseSchema")
RESOURCE = Declared(
    PciRule,
    _check_rule,
    title="ResourceSchema",
    parts={
        "select": SELECTOR,
        "exclude": SELECTOR,
        "environment": ENVIRONMENT,
        "names": NAMES,
        "container": CONTAINER,
        "sharing": SHARING,
        "release": RELEASE,
    },
)
MDEVS = Declared(
    VgpuRule,
    title="MdevResourceSchema",
    about="Mediated devices that are advertised under one name, or each type under its own.",
)
VFS = Declared(
    VgpuRule,
    title="VfResourceSchema",
    about="Virtual functions of SR-IOV vGPU cards that are advertised under one name, or each type under its own.",
    defaults={"prefix": ContainerVariable().prefix},
)
LAYOUT_ENTRY = Declared(LayoutEntry, _check_layout)
LAYOUT = Declared(Layout, parts={"layout": LAYOUT_ENTRY})
VGPU = Declared(VgpuConfig, title="VgpuSchema", parts={"layout": LAYOUT_ENTRY, "mdevs": MDEVS, "vfs": VFS})
CDI = Declared(CdiConfig, title="CdiSchema")
DRA = Declared(DraConfig, title="DraSchema")
CONFIG = Declared(
    Config,
    _check_config,
    parts={"pci": RESOURCE, "vgpu": VGPU, "cdi": CDI, "dra": DRA},
    beside=("vgpu", {"kubevirt": (KubevirtSchema | None, None)}),
)
