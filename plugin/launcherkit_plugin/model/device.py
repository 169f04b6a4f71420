"""What is advertised to the kubelet: resources, devices, why one isn't available; and which pod holds which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from launcherkit.model.address import PciAddress
from launcherkit.model.policy import Siblings
from launcherkit.model.value import NamedTuple
from launcherkit_plugin.model.config import CardUse, NodeChoice

UsageSource: TypeAlias = Literal["pod-resources", "checkpoint", "none"]


Reason: TypeAlias = Literal[
    "gone",  # no longer on sysfs
    "driver",  # bound to a driver that isn't VFIO's, or to none
    "no-group",  # no IOMMU, or not on
    "not-viable",  # a member of its group is in the kernel's way (V1)
    "node",  # the device node is missing (V2)
    "config-space",  # reads all ones (V3)
    "asleep",  # D3cold (V3)
    "mate-in-use",  # a pod has another device of its groups (K3), or has had this one since it was another resource's
    "other-use",  # it is in use in another use: by a VM, Kata or containers (K10)
    "other-type",  # the parent has vGPUs of another type (G1)
    "no-room",  # the parent says that nothing more can be made on it
    "usage",  # it isn't known yet what pods have, and so what must not be taken from them
    "failed",  # an attempt to make it or bind it failed
]
"""Why a device is Unhealthy: few and fixed, for they are label values of metrics."""


class Problem(NamedTuple):
    """Why a device is Unhealthy."""

    reason: Reason
    text: str
    """One line for people, with BDF, group and driver."""


class Device(NamedTuple):
    """One device as the kubelet sees it (K1)."""

    id: str
    """The BDF of the primary; of an mdev the UUID, whether it exists yet or not (G2)."""
    numa_node: int | None = None
    problem: Problem | None = None
    """None: Healthy."""
    groups: frozenset[int] = frozenset()
    """The IOMMU groups of all that is attached with it. Two devices that share one never go to two pods (K3)."""
    functions: tuple[PciAddress, ...] = ()
    """All functions that are attached: the primary first, then its siblings; empty for an mdev."""
    path: tuple[str, ...] = ()
    """The bridges above it, from the root complex down: neighbours share a beginning."""
    description: str = ""
    """For people: ``display controller 10de:2204``, ``GRID T4-1Q on 0000:01:00.0, slot 3``."""
    card: str = ""
    """Of a vGPU the card that it is, or would be made, on; empty for what is no part of a card."""
    made: bool = True
    """False for a vGPU that isn't there yet: its card may be of no type still (G1)."""
    vgpu_types: tuple[str, ...] = ()
    """Of a vGPU the name of its type, or of those that it may get."""
    most: int = 0
    """Of a vGPU that is made when it is needed: how many of its type an empty card has room for; 0: unknown."""
    place: str = ""
    """Of a vGPU a VF that has room for no other: devices of one place are alternatives."""
    model: str = ""
    """What pci.ids calls it; looked up only for DRA."""

    @property
    def healthy(self) -> bool:
        return self.problem is None


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
    """PreStartContainer makes what is missing of a device (G3); else it has nothing to do, and isn't asked for."""
    dra: bool = False
    """It is published in ResourceSlices, and the kubelet's device manager doesn't hear of it (D1)."""

    use: CardUse = "vm"
    """Containers may have devices of one IOMMU group, and replicas of one device, beside each other (K10)."""
    replicas: int = 0
    """How many IDs each card has, ``<ID>::0`` and so on; 0: its own alone."""
    packed: bool = False
    """Replicas of the cards of which the most are taken come first, not of which the fewest are."""
    lists_siblings: bool = False
    """Its variable lists what goes along, too."""

    @property
    def socket(self) -> str:
        """File name of its socket, as NVIDIA's plugin forms it: what comes after the domain."""
        return f"kubevirt-{self.name.rpartition('/')[2]}.sock"


def without_replica(device_id: str) -> str:
    """The ID of a card: ``GPU-5a0c...`` of ``GPU-5a0c...::3``."""
    return device_id.partition("::")[0]


class Wishes(NamedTuple):
    """How a claim wants its devices (D6); None where the configuration decides."""

    siblings: Siblings | None = None
    """Within what the rule says: what goes along is known when a device is published."""
    nodes: NodeChoice | None = None


NO_WISHES = Wishes()


class Wanted(NamedTuple):
    """Devices of one resource that a claim is given together."""

    resource: str
    ids: Sequence[str]
    wishes: Wishes = NO_WISHES


class Grant(NamedTuple):
    """What one container gets for its devices of one resource (K2)."""

    env: Mapping[str, str]
    nodes: tuple[str, ...]
    """Paths of device nodes on the host and in the container, each once."""
    cdi: tuple[str, ...] = ()
    """``vendor.com/class=name``."""
    annotations: Mapping[str, str] = {}
    """Of the container: the same names for a runtime whose kubelet can't hand them on."""
    each: Mapping[str, tuple[str, ...]] = {}
    """The nodes of each device, by ID; ``nodes`` may have more, which belong to all of them together."""
    along: Mapping[str, tuple[str, ...]] = {}
    """The addresses of what goes along with each device, by ID."""
    permissions: str = "mrw"
    """For the nodes in the container's device cgroup. libvirt gives QEMU a ``/dev`` of its own and makes the nodes in
    it, which takes ``m``; KubeVirt's and NVIDIA's plugins give the same."""


class ClaimRef(NamedTuple):
    """A ResourceClaim. One that was deleted and made again under its name has another UID."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Holder(NamedTuple):
    """A container that has a device. The checkpoint knows the pod by its UID alone."""

    pod: str
    """``namespace/name``, or ``uid:<UID>``, or empty for a pod that the kubelet has not named yet."""
    container: str = ""
    claim: ClaimRef | None = None
    """The ResourceClaim that it was prepared for, in place of a pod: several pods may share one."""

    def __str__(self) -> str:
        if self.claim is not None:
            return f"ResourceClaim {self.claim}"
        return f"pod {self.pod}" if self.pod else "a pod that is being started"


class Usage(NamedTuple):
    """Holders by resource and device ID, from one source; with ``none`` nothing is known, and nothing is taken away."""

    source: UsageSource
    held: Mapping[str, Mapping[str, Holder]]
    doubtful: Mapping[str, Mapping[str, Holder]] = {}
    """What pods may have of which nobody can tell whether they have ended: nothing of it is taken away (T2)."""

    @property
    def known(self) -> bool:
        return self.source != "none"

    def holder(self, resource: str, device: str) -> Holder | None:
        """Who has a device."""
        return self.held.get(resource, {}).get(device)

    @property
    def kept(self) -> Mapping[str, Mapping[str, Holder]]:
        """What must not be taken away, by resource and device ID."""
        if not self.doubtful:
            return self.held
        return {
            name: {**self.doubtful.get(name, {}), **self.held.get(name, {})} for name in {*self.held, *self.doubtful}
        }


NO_USAGE = Usage("none", {})
