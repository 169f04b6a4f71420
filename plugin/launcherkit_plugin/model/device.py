"""What is advertised to the kubelet: resources and devices, why one is Unhealthy, and which pod holds which device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from launcherkit.model.address import PciAddress, UsbAddress
from launcherkit.model.policy import Siblings
from launcherkit_plugin.model.config import CardUse, NodeChoice, SameDevice

UsageSource: TypeAlias = Literal["pod-resources", "checkpoint", "none"]


Reason: TypeAlias = Literal[
    "gone",  # no longer on sysfs
    "driver",  # bound to a driver that isn't VFIO's, or to none
    "no-group",  # there is no IOMMU, or it is off
    "not-viable",  # a member of its group is in the kernel's way (V1)
    "node",  # the device node is missing (V2)
    "config-space",  # reads all ones (V3)
    "asleep",  # D3cold (V3)
    "group-in-use",  # a pod has another device of its groups (K3), or this one under an earlier resource name
    "other-use",  # it is in use for something else: by a VM, Kata, containers (K10) or the host (K14)
    "other-type",  # the parent has vGPUs of another type (G1)
    "no-room",  # the parent says that no more vGPUs can be created on it
    "kept",  # the VM that had it may have it again
    "usage",  # it isn't known yet which devices pods have
    "failed",  # creating or binding it failed
    "cleaning",  # it is being cleaned, or has to be, since a pod had it (K11)
    "quarantined",  # it came back wrong when it was cleaned (K11)
    "fabric",  # its fabric partition can't be activated, or isn't active though a pod has it (K13)
    "xid",  # NVIDIA's driver reported a critical error, or NVML that the card is lost (K15)
]
"""Why a device is Unhealthy. These are label values of metrics, so they are few and never change."""


class Problem(NamedTuple):
    """Why a device is Unhealthy."""

    reason: Reason
    text: str
    """One line for people, with BDF, group and driver."""


class Device(NamedTuple):
    """One device as the kubelet sees it (K1)."""

    id: str
    """The BDF of the primary; of an mdev its UUID, even before it exists (G2); of a USB device its port (K14)."""
    numa_node: int | None = None
    problem: Problem | None = None
    """None: Healthy."""
    groups: frozenset[int] = frozenset()
    """The IOMMU groups of all attached functions. Two devices that share one never go to two pods (K3)."""
    functions: tuple[PciAddress, ...] = ()
    """All attached functions: the primary first, then its siblings; empty for an mdev."""
    path: tuple[str, ...] = ()
    """The bridges above it, from the root complex down."""
    description: str = ""
    """For people: ``display controller 10de:2204``, ``GRID T4-1Q on 0000:01:00.0, slot 3``."""
    card: str = ""
    """Of a vGPU, the card that it is or would be created on; empty for other devices."""
    made: bool = True
    """False for a vGPU that doesn't exist yet; its card may have no type yet, either (G1)."""
    vgpu_types: tuple[str, ...] = ()
    """Of a vGPU, the name of its type, or of the types that it may get."""
    per_card: int = 0
    """Of a vGPU that is created on demand: how many of its type fit on an empty card; 0: unknown."""
    place: str = ""
    """Of a vGPU, a VF that has room for only one: devices with the same place are alternatives."""
    model: str = ""
    """Its name in pci.ids; looked up only for DRA."""
    kept_for: str = ""
    """For DRA: the VM that had it, ``namespace/name``, if it may have it again."""
    uuid: str = ""
    """Of a card for containers, NVIDIA's UUID, if known; the configuration decides whether it or the BDF is the ID."""
    module: int = 0
    """Of a card on an NVSwitch board, NVIDIA's module ID, from 1."""
    partitions: tuple[tuple[int, int], ...] = ()
    """The fabric partitions of that card: the number of cards and the ID of each (K13)."""
    usb: tuple[UsbAddress, ...] = ()
    """Of a USB device, its bus and device number; of several that go together, those of each (K14)."""
    traits: tuple[tuple[str, str | int], ...] = ()
    """Of a USB device, for DRA: its attributes."""

    @property
    def healthy(self) -> bool:
        return self.problem is None

    @property
    def card_ids(self) -> tuple[str, ...]:
        """The IDs of the card itself, of whichever form; they may have been allocated under another configuration."""
        primary = (str(self.functions[0]),) if self.functions else ()
        return tuple(dict.fromkeys((without_replica(self.id), *primary, *((self.uuid,) if self.uuid else ()))))


class Resource(NamedTuple):
    """A resource name with its devices, by ID."""

    name: str
    """``nvidia.com/GA102_GEFORCE_RTX_3090``."""
    variable: str
    """``PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090`` (E1)."""
    devices: Mapping[str, Device]
    companion: bool = False
    """See `launcherkit_plugin.model.config.PciRule`."""
    made_at_start: bool = False
    """PreStartContainer creates vGPUs that don't exist (G3). Otherwise the kubelet isn't asked to call it."""
    dra: bool = False
    """It is published in ResourceSlices, and not to the kubelet's device manager (D1)."""

    use: CardUse = "vm"
    """Several containers may have devices of one IOMMU group, and replicas of one device (K10)."""
    replicas: int = 0
    """How many containers may have each card; 0: one. The IDs are ``<ID>::0`` and so on; with DRA a card has only its
    own, and those of its shares are made when claims get them (`with_shares`)."""
    most_shares: int = 0
    """With DRA: how many shares of a card one request may take."""
    packed: bool = False
    """Cards with the most users are preferred, not those with the fewest."""
    lists_siblings: bool = False
    """Its variable lists the siblings, too."""
    same_device: SameDevice = False
    """Whether pods may ask for the device that their VM had; PreStartContainer records it."""
    keep_for: float = 0.0
    """How many seconds a device is kept for its VM."""
    sets: tuple[frozenset[str], ...] = ()
    """On an NVSwitch board, the IDs of the cards of each fabric partition: one container gets all of one (K13)."""
    failing_sets: frozenset[frozenset[str]] = frozenset()
    """Those of them that could not be had lately, and are preferred last."""
    card_of: Mapping[str, str] = {}
    """If the devices are VFs of these cards: the card of each, by the ID of the VF."""
    cards: int = 0
    """How many cards each device has, if it is a fabric partition."""

    @property
    def socket(self) -> str:
        """The file name of its socket, formed as by NVIDIA's plugin: from the part after the domain."""
        return f"kubevirt-{self.name.rpartition('/')[2]}.sock"


_SHARE = "::"
"""Between the ID of a card and that of a replica or share of it, as in NVIDIA's device plugin."""


def share_of(card: str, share: str) -> str:
    """The ID of a replica of a card, or of a share of it: ``GPU-5a0c...::3``; without a share, that of the card."""
    return f"{card}{_SHARE}{share}" if share else card


def without_replica(device_id: str) -> str:
    """The ID of a card: ``GPU-5a0c...`` of ``GPU-5a0c...::3``."""
    return device_id.partition(_SHARE)[0]


def is_share(device_id: str) -> bool:
    """Whether it is the ID of a replica or share, and not of a whole card."""
    return _SHARE in device_id


def with_shares(resource: Resource, ids: Iterable[str]) -> Resource:
    """The resource, in which those of the IDs that are shares of its cards are devices, too."""
    cards = resource.devices
    shares = {
        key: cards[without_replica(key)]._replace(id=key)
        for key in ids
        if key not in cards and without_replica(key) in cards
    }
    return resource._replace(devices={**cards, **shares}) if shares else resource


def holders_by_device(held: Mapping[str, Holder]) -> dict[str, list[Holder]]:
    """Who has each device of a resource, by its ID: of a card of which several have shares, all of these."""
    holders: dict[str, list[Holder]] = {}
    for key, holder in held.items():
        for device in dict.fromkeys((key, without_replica(key))):
            holders.setdefault(device, []).append(holder)
    return holders


CARD_SEPARATOR = "+"
"""Between the addresses in the ID of a fabric partition: ``0000:07:00.0+0000:0f:00.0``. The ID itself says which cards
a pod has, so that nothing has to be remembered for that."""


def cards_in(device_id: str) -> tuple[str, ...]:
    """The IDs of the cards of a device: several for a fabric partition, else its own."""
    return tuple(device_id.split(CARD_SEPARATOR))


class Preferences(NamedTuple):
    """How a claim wants its devices (D6); None where the configuration decides."""

    siblings: Siblings | None = None
    """Only within the rule's: the siblings are fixed when a device is published."""
    nodes: NodeChoice | None = None
    together: tuple[str, ...] = ()
    """The IDs of all devices of the claim, in the order in which they are allocated: they may be several requests."""


NO_PREFERENCES = Preferences()


class Desired(NamedTuple):
    """Devices of one resource that a claim gets together."""

    resource: str
    ids: Sequence[str]
    wishes: Preferences = NO_PREFERENCES


class Grant(NamedTuple):
    """What one container gets for its devices of one resource (K2)."""

    env: Mapping[str, str]
    nodes: tuple[str, ...]
    """Paths of device nodes on the host and in the container, each once."""
    cdi: tuple[str, ...] = ()
    """``vendor.com/class=name``."""
    annotations: Mapping[str, str] = {}
    """Annotations of the container: the same CDI names, for kubelets that can't pass them on."""
    each: Mapping[str, tuple[str, ...]] = {}
    """The nodes of each device, by ID; ``nodes`` may have more, which all devices need."""
    along: Mapping[str, tuple[str, ...]] = {}
    """The addresses of each device's siblings, by device ID."""
    usb: Mapping[str, str] = {}
    """For a claim, the bus and device number of each USB device, by ID."""
    permissions: str = "mrw"
    """For the nodes in the container's device cgroup. ``m`` is needed because libvirt gives QEMU a private ``/dev``
    and creates the nodes in it; KubeVirt's and NVIDIA's plugins give the same."""


class ClaimRef(NamedTuple):
    """A ResourceClaim. One that was deleted and created again with the same name has another UID."""

    namespace: str
    name: str
    """Empty, as the namespace, if only the UID is known."""
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"with the UID {self.uid}"


class AwaitedDevice(NamedTuple):
    """A device that is allocated, and for which the scheduler waits."""

    driver: str
    request: str
    pool: str
    device: str
    share_id: str = ""


class AwaitingClaim(NamedTuple):
    """A ResourceClaim with such devices."""

    ref: ClaimRef
    devices: tuple[AwaitedDevice, ...]


class Holder(NamedTuple):
    """A container that has a device, or a ResourceClaim. The kubelet's checkpoint has only the UID of the pod."""

    pod: str
    """``namespace/name``, or ``uid:<UID>``, or empty for a pod that the kubelet has not named yet."""
    container: str = ""
    claim: ClaimRef | None = None
    """The ResourceClaim for which the device was prepared; then there is no pod, for several may share the claim."""

    def __str__(self) -> str:
        if self.claim is not None:
            return f"ResourceClaim {self.claim}"
        return f"pod {self.pod}" if self.pod else "a pod that is being started"


def without_names(text: str, own: str = "") -> str:
    """A text in which no `Holder` has a name, but for ``own``: for Events, which tenants of other namespaces read."""
    return re.sub(
        r"\b(pod|ResourceClaim|VM) (?:[a-z0-9-][a-z0-9.-]*/[a-z0-9.-]*[a-z0-9]|uid:[\w-]+|with the UID [\w-]+)",
        lambda kind: kind[0] if kind[0] == own else f"a {kind[1]}",
        text,
    )


class Usage(NamedTuple):
    """The holders of devices. With source ``none`` nothing is known, and no device is taken away."""

    source: UsageSource
    held: Mapping[str, Mapping[str, Holder]]
    """By resource and device ID."""
    doubtful: Mapping[str, Mapping[str, Holder]] = {}
    """Devices of pods that may have ended; this can't be determined. They are not taken away (T2)."""

    @property
    def known(self) -> bool:
        return self.source != "none"

    def holder(self, resource: str, device: str) -> Holder | None:
        """Who has a device."""
        return self.held.get(resource, {}).get(device)

    def is_held(self, resource: str, device: str) -> bool:
        """Whether somebody has a device, or a share of it."""
        held = self.held.get(resource, {})
        return device in held or any(without_replica(key) == device for key in held)

    @property
    def held_ids(self) -> frozenset[str]:
        """The IDs of devices that pods have, whatever the resource: its name may have changed since the allocation."""
        return frozenset(device for devices in self.held.values() for device in devices)

    @property
    def kept(self) -> Mapping[str, Mapping[str, Holder]]:
        """The holders of devices that must not be taken away, by resource and device ID."""
        if not self.doubtful:
            return self.held
        return {
            name: {**self.doubtful.get(name, {}), **self.held.get(name, {})} for name in {*self.held, *self.doubtful}
        }

    @property
    def kept_ids(self) -> frozenset[str]:
        """The IDs of devices that must not be taken away, whatever the resource."""
        return self.held_ids.union(device for devices in self.doubtful.values() for device in devices)


NO_USAGE = Usage("none", {})


def with_cards(usage: Usage) -> Usage:
    """Usage in which the holder of a fabric partition also holds each of its cards, under the same resource (K13)."""
    if not any(
        CARD_SEPARATOR in key for by_id in (usage.held, usage.doubtful) for ids in by_id.values() for key in ids
    ):
        return usage
    return usage._replace(held=_with_cards(usage.held), doubtful=_with_cards(usage.doubtful))


def _with_cards(held: Mapping[str, Mapping[str, Holder]]) -> Mapping[str, Mapping[str, Holder]]:
    return {
        name: {
            **devices,
            **{card: holder for key, holder in devices.items() if CARD_SEPARATOR in key for card in cards_in(key)},
        }
        for name, devices in held.items()
    }
