"""KubeVirt's ``permittedHostDevices`` and ``mediatedDevicesConfiguration``, translated to our configuration (K7); and
the other way, the entries that KubeVirt needs for the advertised resources, as a patch.

Entries that aren't for this plugin are not validated: they are left to KubeVirt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import Field

from launcherkit.errors import Collector, shown
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import Note
from launcherkit_plugin.config.fields import Schema
from launcherkit_plugin.model.config import PciRule, Selector, UsbRule, UsbSelector, VgpuRule
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.model.errors import BAD_PLUGIN_CONFIG
from launcherkit_plugin.model.texts import check_resource_name, parse_id, parse_pair, type_key

REMEDY = "Correct KubeVirt's setting. `kubectl explain kubevirt.spec.configuration.permittedHostDevices` describes it."


class _DeviceSchema(Schema):
    resource: str = Field(alias="resourceName")
    external: bool = Field(
        False, alias="externalResourceProvider", description="The plugin advertises only those where it is true."
    )


class PciDeviceSchema(_DeviceSchema):
    """A model of PCI devices."""

    selector: str = Field(alias="pciVendorSelector", examples=["10DE:1EB8"])


class MediatedDeviceSchema(_DeviceSchema):
    """A type of mediated devices."""

    selector: str = Field(alias="mdevNameSelector", examples=["GRID T4-1Q"])


class UsbModelSchema(Schema):
    """A model of USB devices."""

    vendor: str = Field(examples=["46f4"])
    product: str = Field(examples=["0001"])


class UsbDeviceSchema(_DeviceSchema):
    """USB devices that go to a VM together."""

    selectors: list[UsbModelSchema] = Field([])


class PermittedSchema(Schema):
    """As in the KubeVirt resource."""

    pci: list[PciDeviceSchema] = Field([], alias="pciHostDevices")
    mediated: list[MediatedDeviceSchema] = Field([], alias="mediatedDevices")
    usb: list[UsbDeviceSchema] = Field([])


class _TypesSchema(Schema):
    types: list[str] = Field([], alias="mediatedDeviceTypes")
    old_types: list[str] = Field([], alias="mediatedDevicesTypes", description="The old name of mediatedDeviceTypes.")

    @property
    def wanted(self) -> list[str]:
        return self.types or self.old_types


class NodeTypesSchema(_TypesSchema):
    """Types for the nodes that have all of these labels."""

    node_selector: dict[str, str] = Field(alias="nodeSelector")


class MediatedDevicesSchema(_TypesSchema):
    """As in the KubeVirt resource."""

    enabled: bool = Field(
        True, description="Whether KubeVirt creates them itself; ignored in the plugin's own configuration."
    )
    nodes: list[NodeTypesSchema] = Field([], alias="nodeMediatedDeviceTypes")


class DeveloperSchema(Schema):
    """As in the KubeVirt resource."""

    gates: list[str] = Field([], alias="featureGates")


class SettingsSchema(Schema):
    """What we read of the configuration of KubeVirt."""

    permitted: PermittedSchema | None = Field(None, alias="permittedHostDevices")
    mediated: MediatedDevicesSchema | None = Field(None, alias="mediatedDevicesConfiguration")
    developer: DeveloperSchema | None = Field(None, alias="developerConfiguration")

    @property
    def makes_vgpus(self) -> bool:
        """Whether a KubeVirt with these settings creates and removes mediated devices itself."""
        gates = self.developer.gates if self.developer else []
        return self.mediated is not None and self.mediated.enabled and DISABLE_GATE not in gates


DISABLE_GATE = "DisableMDEVConfiguration"
"""The feature gate that keeps KubeVirt from managing mediated devices; older than ``enabled: false``."""


_CREATED_THERE = (
    "KubeVirt creates these vGPUs itself; this plugin does so if KubeVirt has enabled: false, or the feature gate "
    + DISABLE_GATE
)


class KubevirtRules(NamedTuple):
    """The configuration that KubeVirt's settings contain for this plugin."""

    pci: tuple[PciRule, ...]
    mdevs: tuple[VgpuRule, ...]
    usb: tuple[UsbRule, ...]
    spread: tuple[str, ...]
    others: tuple[Selector, ...]
    """PCI devices that KubeVirt advertises itself."""
    other_types: bool
    """Whether KubeVirt advertises vGPU types itself, too."""
    notes: tuple[Note, ...]


def rules_of(settings: SettingsSchema, name: str, labels: Mapping[str, str], *, in_force: bool) -> KubevirtRules:
    """Translate KubeVirt's settings.

    Args:
        settings: as they were read.
        name: the name of their source in messages.
        labels: of this node.
        in_force: whether a KubeVirt uses them too. If so, only one of the two may create vGPUs.

    Raises:
        BAD_PLUGIN_CONFIG, SeveralErrors: an entry for this plugin is wrong.
    """
    permitted = settings.permitted or PermittedSchema.model_validate({})
    errors = Collector()
    models: dict[str, dict[tuple[int, int], None]] = {}
    types: dict[str, dict[str, None]] = {}
    path = f"{name}, permittedHostDevices"
    pci_devices, notes = _ours(permitted.pci, f"{path}.pciHostDevices")
    mediated_devices, more = _ours(permitted.mediated, f"{path}.mediatedDevices")
    usb_devices, of_usb = _ours(permitted.usb, f"{path}.usb")
    notes += more + of_usb
    for place, pci in pci_devices:
        model = None
        with errors:
            model = _checked(parse_pair, pci.selector, f"{place}.pciVendorSelector")
        with errors:
            resource = _checked(check_resource_name, pci.resource, f"{place}.resourceName")
            if model:
                models.setdefault(resource, {})[model] = None
    for place, mediated in mediated_devices:
        with errors:
            resource = _checked(check_resource_name, mediated.resource, f"{place}.resourceName")
            types.setdefault(resource, {})[mediated.selector] = None
    usb: tuple[UsbRule, ...] = ()
    with errors:
        usb = _usb_rules(usb_devices)
    errors.raise_if_any()

    spread = types_of_node(settings.mediated, labels)
    if spread and in_force and settings.makes_vgpus:
        spread = ()
        notes.append(Note("left-alone", f"{name}, mediatedDevicesConfiguration: {_CREATED_THERE}"))
    mdevs = tuple(VgpuRule(tuple(selectors), resource) for resource, selectors in types.items())
    if spread and not permitted.mediated:
        mdevs = (VgpuRule(spread),)
    return KubevirtRules(
        # As in KubeVirt, functions with a host driver aren't advertised.
        tuple(
            PciRule(select=(Selector(models=frozenset(pairs)),), name=resource, when_bound=True)
            for resource, pairs in models.items()
        ),
        mdevs,
        usb,
        spread if mdevs else (),
        tuple(_others(permitted)),
        any(not entry.external for entry in permitted.mediated),
        tuple(notes),
    )


def _usb_rules(entries: Iterable[tuple[str, UsbDeviceSchema]]) -> tuple[UsbRule, ...]:
    """The rules for USB devices, each of which comes with its path."""
    errors, rules = Collector(), []
    for path, entry in entries:
        with errors:
            rules.append(_usb_rule(entry, path))
    errors.raise_if_any()
    return tuple(rules)


def _usb_rule(entry: UsbDeviceSchema, path: str) -> UsbRule:
    resource = _checked(check_resource_name, entry.resource, f"{path}.resourceName")
    if not entry.selectors:
        raise BAD_PLUGIN_CONFIG(f"{path}.selectors: there are none", REMEDY, key=f"{path}.selectors")
    selectors = [
        UsbSelector(
            _checked(parse_id, selector.vendor, f"{path}.selectors.{number}.vendor"),
            _checked(parse_id, selector.product, f"{path}.selectors.{number}.product"),
        )
        for number, selector in enumerate(entry.selectors)
    ]
    return UsbRule(resource, tuple(selectors))


def types_of_node(mediated: MediatedDevicesSchema | None, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The vGPU types of a node: those of all node selectors that match it, else those for every node."""
    if mediated is None:
        return ()
    fitting = [
        name
        for entry in mediated.nodes
        if all(labels.get(key) == value for key, value in entry.node_selector.items())
        for name in entry.wanted
    ]
    return tuple(dict.fromkeys(fitting or mediated.wanted))


_Device = TypeVar("_Device", bound=_DeviceSchema)
_Value = TypeVar("_Value")


def _ours(entries: list[_Device], path: str) -> tuple[list[tuple[str, _Device]], list[Note]]:
    """The entries for this plugin, each with its path; and notes about the others."""
    placed = [(f"{path}.{position}", entry) for position, entry in enumerate(entries)]
    reason = "is left to KubeVirt: it lacks externalResourceProvider: true"
    others = [
        Note("left-alone", f"{place}: {entry.resource} {reason}") for place, entry in placed if not entry.external
    ]
    return [(place, entry) for place, entry in placed if entry.external], others


def _checked(check: Callable[[str], _Value], text: str, path: str) -> _Value:
    try:
        return check(text)
    except ValueError as problem:
        raise BAD_PLUGIN_CONFIG(f"{path}: {problem}; found {shown(text)}", REMEDY, key=path) from problem


def _others(permitted: PermittedSchema) -> Iterator[Selector]:
    for entry in permitted.pci:
        if not entry.external:
            try:
                yield Selector(models=frozenset({parse_pair(entry.selector)}))
            except ValueError:
                continue


PermittedList: TypeAlias = Literal["pciHostDevices", "mediatedDevices"]

_SELECTORS: Mapping[PermittedList, str] = {
    "pciHostDevices": "pciVendorSelector",
    "mediatedDevices": "mdevNameSelector",
}
_EXTERNAL = "externalResourceProvider"


class Permit(NamedTuple):
    """An entry of ``permittedHostDevices``."""

    which: PermittedList
    resource: str
    selector: str
    """``10DE:2204``, or the name of a vGPU type."""


def permits(resources: Iterable[Resource], host: HostFacts) -> Iterator[Permit]:
    """The entries for resources of the device plugin; for DRA, KubeVirt needs none.

    Args:
        resources: with all their devices, including Unhealthy ones.
        host: facts about their functions.
    """
    for resource in resources:
        for device in () if resource.dra or resource.use != "vm" else resource.devices.values():
            if device.functions:  # to KubeVirt, a VF with a vGPU type is a PCI device, too (G4)
                vendor, model = host.functions[device.functions[0]].model
                yield Permit("pciHostDevices", resource.name, f"{vendor:04X}:{model:04X}")
            else:
                for name in device.vgpu_types:
                    yield Permit("mediatedDevices", resource.name, name)


def permitting_patch(
    permits: Iterable[Permit], current: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A JSON merge patch for the KubeVirt resource, and notes.

    A merge patch replaces whole lists, so each list begins with the current entries. These are unchanged, except that
    ``externalResourceProvider`` is set for our resources. A list that needs no new entry isn't in the patch.

    Args:
        permits: in any order; may contain duplicates.
        current: ``permittedHostDevices`` of the KubeVirt resource; None or empty if it has none.
    """
    needed = sorted(set(permits))
    notes: list[str] = []
    lists = {}
    for which in _SELECTORS:
        ours = [permit for permit in needed if permit.which == which]
        if ours:
            lists[which] = _merged(which, ours, (current or {}).get(which) or (), notes)
    return ({"spec": {"configuration": {"permittedHostDevices": lists}}} if lists else {}), tuple(notes)


def _merged(
    which: PermittedList, ours: Iterable[Permit], current: Iterable[Mapping[str, Any]], notes: list[str]
) -> list[dict[str, Any]]:
    key = _SELECTORS[which]
    compared = str.upper if which == "pciHostDevices" else type_key
    by_key = {(permit.resource, compared(permit.selector)): permit for permit in ours}
    names, selectors = ({at[part] for at in by_key} for part in (0, 1))
    merged = [dict(entry) for entry in current]
    permitted = set()
    for entry in merged:
        name, selector = entry["resourceName"], compared(entry[key])
        permitted.add((name, selector))
        if entry.get(_EXTERNAL):
            continue
        about = f"{which}: {name} ({entry[key]}) is advertised by KubeVirt itself"
        if (name, selector) in by_key:
            entry[_EXTERNAL] = True
            notes.append(f"{about}; the patch leaves it to this plugin")
        elif name in names or selector in selectors:
            notes.append(f"{about}, and by this plugin under the same name or for the same devices: remove the entry")
    new = (
        {key: permit.selector, "resourceName": permit.resource, _EXTERNAL: True}
        for at, permit in by_key.items()
        if at not in permitted
    )
    return [*merged, *new]
