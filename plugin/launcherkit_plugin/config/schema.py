"""What reads the configuration as people write it: models of the values of `model.config`, and which keys go together.

A key is declared where its value is; here is only what depends on several of them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from pydantic import Field, model_validator

from launcherkit_plugin.config.fields import Declared, Schema
from launcherkit_plugin.config.kubevirt import MediatedDevicesSchema, PermittedSchema
from launcherkit_plugin.model.config import (
    CardHealth,
    CdiConfig,
    Config,
    ContainerUse,
    ContainerVariable,
    DraConfig,
    FabricConfig,
    GpuInstances,
    Layout,
    LayoutEntry,
    Names,
    PciRule,
    ReleaseProgram,
    Selector,
    Sharing,
    UsbRule,
    UsbSelector,
    VfSettings,
    VgpuConfig,
    VgpuRule,
)


def _check_selector(selector: Selector, set_fields: Set[str]) -> None:  # noqa: ARG001  # keys without entries select nothing
    if selector == Selector():
        raise ValueError("it selects every function: give at least one criterion")


def _check_release(program: ReleaseProgram, set_fields: Set[str]) -> None:  # noqa: ARG001  # its keys don't depend on each other
    if not program.command[0].startswith("/"):
        raise ValueError("command begins with the path of a program, such as /opt/clean/nvme")


_OF_MAKING = {"virtual_functions", "select", "exclude"}


def _check_virtual_functions(making: VfSettings, set_fields: Set[str]) -> None:  # noqa: ARG001  # as above
    if making.autoprobe and (making.driver, making.mac, making.program) != (None, None, None):
        raise ValueError("with `autoprobe: yes` the kernel binds them at once: leave out driver, mac and program")


def _check_making(rule: PciRule, set_fields: Set[str]) -> None:
    """Refuse keys that are for those who advertise."""
    if rule.virtual_functions is not None and not set_fields <= _OF_MAKING:
        raise ValueError(
            "a rule with virtualFunctions makes them, and has only select and exclude beside it: another rule, "
            "behind it, advertises them, such as one with `select: [{virtual: yes, addresses: [...]}]`"
        )


def _check_rule(rule: PciRule, set_fields: Set[str]) -> None:
    _check_making(rule, set_fields)
    _check_use(rule, set_fields)
    if rule.release is not None and rule.sharing is not None:
        raise ValueError("give only one of release and sharing: a shared card goes from container to container")
    if rule.companion and rule.dra:
        raise ValueError("give only one of companion and dra: with DRA a card is one device with all its functions")
    if "keep_for" in set_fields and not rule.same_device:
        raise ValueError("keepFor is for `sameDevice`")
    if rule.same_device and (rule.companion or "container" in rule.uses):
        raise ValueError("sameDevice is for cards that no container can have, and not for companions")
    _check_bind(rule, set_fields)


def _check_bind(rule: PciRule, set_fields: Set[str]) -> None:
    """Refuse keys about binding that aren't for the rule's ``bind``."""
    if "driver" in set_fields and not rule.bind:
        raise ValueError("driver is for `bind: yes` and `bind: on-demand`")
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


def _check_health(health: CardHealth, set_fields: Set[str]) -> None:
    if not health.xid and "ignored" in set_fields:
        raise ValueError("ignoredXids is for `xid: yes`")


def _check_layout(entry: LayoutEntry, set_fields: Set[str]) -> None:
    if entry.type is None and ("count" in set_fields or not entry.gpu_instances):
        raise ValueError("type is missing: give the type of vGPUs, or gpuInstances, or both")
    profiles = [each.profile for each in entry.gpu_instances]
    if len({*profiles}) < len(profiles):
        raise ValueError("gpuInstances: a profile is there twice")
    number = entry.parent.removeprefix("#")
    if number != entry.parent and not (number.isascii() and number.isdigit()):
        raise ValueError("a card by number is #0, #1 and so on")


def _check_usb(rule: UsbRule, set_fields: Set[str]) -> None:  # noqa: ARG001  # keys count as what they say
    if rule.dra and len(rule.selectors) > 1:
        raise ValueError(
            "with DRA each device is one of its own, which a claim can request beside others: one selector"
        )


def _check_fabric(fabric: FabricConfig, set_fields: Set[str]) -> None:
    if {"socket", "address"} <= set_fields:
        raise ValueError("give only one of socket and address")
    if len(set(fabric.modules.values())) < len(fabric.modules):
        raise ValueError("modules: two of them have one address")


def _check_config(config: Config, set_fields: Set[str]) -> None:  # noqa: ARG001  # keys count as what they say
    if config.nodes == "both" and config.cdi is not None and config.cdi.kind == "resource":
        raise ValueError("cdi: {kind: resource} names each device once: nodes is auto, group or cdev")
    for rule in config.usb:
        if any(other.name == rule.name and other.dra != rule.dra for other in config.usb):
            raise ValueError(f"usb: rules of {rule.name} say different things for dra")


# Keys of a rule that say who gets its cards: VMs, Kata, containers (K10).


def _check_container(container: ContainerUse, set_fields: Set[str]) -> None:
    """Refuse keys of ``container`` that are for another ``by``. For these functions see `config.fields.Check`."""
    keys = {"cdi_kind": "cdiKind", "cdi_names": "cdiNames"}
    wrong = [key for field, key in keys.items() if field in set_fields]
    if container.by != "cdi" and wrong:
        raise ValueError(f"{_are(wrong)} for `by: cdi`")
    if container.pass_nodes and container.by != "environment":
        raise ValueError("passDeviceSpecs is for `by: environment`")


def _check_use(rule: PciRule, set_fields: Set[str]) -> None:
    """Refuse keys of a rule that aren't for its ``use``."""
    if rule.use not in ("container", "any"):
        if rule.sharing is not None:
            raise ValueError(
                f"sharing is not for `use: {rule.use}`: a VM doesn't share its cards; it is for `use: container` and "
                "`use: any`"
            )
        if rule.container is not None:
            raise ValueError("container is for `use: container` and `use: any`")
    if rule.use == "any" and rule.container is not None and rule.container.cdi_names == "index":
        raise ValueError(
            "cdiNames: index is for `use: container`: when a card is bound for a VM the numbers of the others change, "
            "and the vendor's CDI files then name another card"
        )
    if rule.health is not None and (rule.use != "container" or rule.release is not None):
        raise ValueError(
            "health is for `use: container`, without release: waiting for Xids keeps a card open, and its driver "
            "neither lets go of such a card nor resets it"
        )
    if rule.use != "any" and rule.names is not None:
        raise ValueError("names is for `use: any`: give `name`")
    if rule.names is not None and len(rule.names.uses) < 2:
        raise ValueError("names has those that get the cards, two at least: else say `use: vm`, `kata` or `container`")
    if rule.use != "vm":
        _check_passthrough(rule, set_fields)
    if rule.dra:
        _check_claims(rule)


def _check_passthrough(rule: PciRule, set_fields: Set[str]) -> None:
    """Refuse keys that are only for cards of VMs."""
    fields = {"companion": "companion", "when_bound": "whenBound"}
    if rule.use == "container":
        fields |= {"bind": "bind", "environment": "environment", "siblings": "siblings"}
    if rule.use == "kata":
        fields |= {"environment": "environment"}
    wrong = [key for field, key in fields.items() if field in set_fields and getattr(rule, field) is not False]
    if wrong:
        raise ValueError(f"{_are(wrong)} not for `use: {rule.use}`")
    if rule.use == "any" and rule.bind is True:
        raise ValueError("with `bind: yes` no container could ever have them: say `bind: on-demand`")


def _check_claims(rule: PciRule) -> None:
    """Refuse keys that only the device plugin supports (D1)."""
    have = {
        "`use: kata`": rule.use == "kata",
        "`names.kata`": rule.names is not None and rule.names.kata is not None,
        "`sharing: {allocationPolicy: packed}`": rule.sharing is not None and rule.sharing.policy == "packed",
        "`container: {by: cdi}`": rule.container is not None and rule.container.by == "cdi",
    }
    alone = [key for key, is_so in have.items() if is_so]
    if alone:
        raise ValueError(f"dra is not for {', '.join(alone)}: leave out `dra`, and the device plugin gives the cards")


def _are(keys: Sequence[str]) -> str:
    """``bind is``, ``bind and siblings are``, of one key or more."""
    *others, last = keys
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


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
CONTAINER = Declared(ContainerUse, _check_container, title="ContainerSchema")
SHARING = Declared(Sharing)
HEALTH = Declared(CardHealth, _check_health, title="HealthSchema")
RELEASE = Declared(ReleaseProgram, _check_release, title="ReleaseSchema")
VIRTUAL_FUNCTIONS = Declared(VfSettings, _check_virtual_functions, parts={"program": RELEASE})
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
        "health": HEALTH,
        "release": RELEASE,
        "virtual_functions": VIRTUAL_FUNCTIONS,
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
GPU_INSTANCES = Declared(GpuInstances)
LAYOUT_ENTRY = Declared(LayoutEntry, _check_layout, parts={"gpu_instances": GPU_INSTANCES})
LAYOUT = Declared(Layout, parts={"layout": LAYOUT_ENTRY})
VGPU = Declared(VgpuConfig, title="VgpuSchema", parts={"layout": LAYOUT_ENTRY, "mdevs": MDEVS, "vfs": VFS})
USB_SELECTOR = Declared(UsbSelector)
USB = Declared(UsbRule, _check_usb, parts={"selectors": USB_SELECTOR})
CDI = Declared(CdiConfig, title="CdiSchema")
DRA = Declared(DraConfig, title="DraSchema")
FABRIC = Declared(FabricConfig, _check_fabric, title="FabricSchema")
CONFIG = Declared(
    Config,
    _check_config,
    parts={"pci": RESOURCE, "vgpu": VGPU, "cdi": CDI, "dra": DRA, "fabric": FABRIC, "usb": USB},
    beside=("vgpu", {"kubevirt": (KubevirtSchema | None, None)}),
)
