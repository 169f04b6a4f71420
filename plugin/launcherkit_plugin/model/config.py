"""The configuration as values. `launcherkit_plugin.config` reads and checks the files."""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, TypeAlias

from launcherkit.model.plan import Note
from launcherkit.model.policy import Siblings
from launcherkit_plugin.model.keys import (
    AddressGlob,
    ClassPrefix,
    DeviceNode,
    Id,
    Key,
    Limits,
    Natural,
    NonEmpty,
    Pair,
)

Auto: TypeAlias = Literal["nvidia", "gpu", "all"]
"""What is advertised without a rule: ``nvidia``: NVIDIA's display and 3D controllers; ``gpu``: every display controller
and accelerator; ``all``: everything. Only functions that are bound to a VFIO driver."""

NodeChoice: TypeAlias = Literal["auto", "group", "cdev", "both"]
"""Which device nodes a container gets (V2): ``auto``: those of the groups if they exist, else VFIO's character devices;
``both``: both if the node has iommufd, else those of the groups."""

Mode: TypeAlias = Literal["static", "dynamic"]
"""Which vGPUs are advertised (G1): ``static``: those that exist; ``dynamic``: those that could be created."""

CardUse: TypeAlias = Literal["vm", "kata", "container"]
"""Who gets a card: a VM whose launcher runs in the pod, Kata's VM around the pod, or a container of the pod."""

Use: TypeAlias = Literal["vm", "kata", "container", "any"]
"""``any``: whichever asks first (K10)."""

ContainerBy: TypeAlias = Literal["environment", "cdi", "nodes"]
"""How a container gets a card with its host driver: by a variable that NVIDIA's runtime reads, by a name from the
vendor's CDI files, or by its device nodes."""

CdiNames: TypeAlias = Literal["uuid", "index"]
"""How the vendor's CDI files name cards."""

SharingPolicy: TypeAlias = Literal["distributed", "packed"]
"""Which cards' replicas a container should get: see `Sharing`."""

GiveBack: TypeAlias = Literal["always", "never"]
"""Whether functions that were bound on demand are given back to their drivers once nobody needs them."""

PageChoice: TypeAlias = Literal["auto", "token", "off"]
"""Who may see the page of the node: ``auto``: everybody on the node if metrics are served on loopback, else nobody;
``token``: who has a token that the cluster accepts; ``off``: nobody."""

PAGE: tuple[PageChoice, ...] = ("auto", "token", "off")

AUTO: tuple[Auto, ...] = ("nvidia", "gpu", "all")


class Selector(NamedTuple):
    """Which PCI functions. A function must match every key that is given, and one entry of each list."""

    vendors: Annotated[frozenset[Id], Key("Vendor IDs, hex.")] = frozenset()
    devices: Annotated[frozenset[Id], Key("Device IDs, hex.")] = frozenset()
    models: Annotated[frozenset[Pair], Key("Vendor and device ID, as lspci -n has them.")] = frozenset()
    classes: Annotated[
        tuple[ClassPrefix, ...], Key("Class codes or their first digits: 03 is every display controller.")
    ] = ()
    subsystems: Annotated[frozenset[Pair], Key("Vendor and device ID of the subsystem.")] = frozenset()
    addresses: Annotated[tuple[AddressGlob, ...], Key("Addresses (BDF), with * ? [...] as wildcards.")] = ()
    drivers: Annotated[frozenset[NonEmpty], Key("Drivers that functions are bound to.")] = frozenset()
    numa_nodes: Annotated[frozenset[Natural], Key("NUMA nodes.")] = frozenset()
    virtual: Annotated[bool | None, Key("true: only SR-IOV virtual functions; false: none of them. Default: both")] = (
        None
    )


class OnDemand(NamedTuple):
    """Functions keep their drivers until a device is allocated, and are bound to vfio-pci then (K8)."""

    bind_seconds: float = 30.0
    """How long Allocate may wait for that. The kubelet gives up a claim after 45 s."""
    grace_seconds: float = 60.0
    """How long they must be unused before they are given back."""
    give_back: GiveBack = "always"


class ContainerUse(NamedTuple):
    """How containers get cards that keep the driver of the host."""

    by: Annotated[
        ContainerBy | None,
        Key(
            "environment: NVIDIA_VISIBLE_DEVICES; cdi: names of the vendor's CDI files; nodes: the card's "
            "device nodes. Default: cdi for NVIDIA's cards, environment for those with dra, nodes for others."
        ),
    ] = None
    nodes: Annotated[tuple[DeviceNode, ...], Key("Further device nodes, such as /dev/nvidiactl.")] = ()
    pass_nodes: Annotated[
        bool,
        Key(
            "By environment: the card's device nodes too, so that they stay in the container's device cgroup.",
            "passDeviceSpecs",
        ),
    ] = False
    cdi_kind: Annotated[
        str,
        Key("By cdi: the kind of the vendor's CDI files."),
        Limits(pattern=r"^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?$"),
    ] = "nvidia.com/gpu"
    cdi_names: Annotated[CdiNames, Key("By cdi: what these files call the cards.")] = "uuid"


class Sharing(NamedTuple):
    """Containers share each card; keys as NVIDIA's device plugin has them."""

    replicas: Annotated[int, Key("How often each card is advertised."), Limits(ge=2, le=1024)]
    rename: Annotated[bool, Key("The resource is called <name>.shared, so that pods know.", "renameByDefault")] = False
    one_a_request: Annotated[
        bool,
        Key(
            "Refuse a container that requests more than one: it doesn't get more of a card by that.",
            "failRequestsGreaterThanOne",
        ),
    ] = False
    policy: Annotated[
        SharingPolicy,
        Key(
            "distributed: replicas of the cards of which the fewest are taken; packed: of which the most are.",
            "allocationPolicy",
        ),
    ] = "distributed"


class PciRule(NamedTuple):
    """Functions that are advertised as one resource; if ``name`` is None, as one resource for each model (K6)."""

    select: tuple[Selector, ...]
    """A function must match any of these."""
    exclude: tuple[Selector, ...] = ()
    name: str | None = None
    """``nvidia.com/GA102``."""
    siblings: Siblings = "slot"
    """Which siblings a device has (S1). The reader in the pod must use the same policy."""
    list_siblings: bool = False
    """The siblings are listed in the variable too, for readers without sysfs (K2)."""
    prefix: str = "PCI_RESOURCE"
    """The beginning of the variable's name (E1)."""
    bind: bool = False
    """The functions, with their groups, are bound to vfio-pci (K8)."""
    companion: bool = False
    """The devices are functions of other resources' cards, and are requested together with those, in one pod."""
    only_vfio: bool = False
    """Functions that were never bound to a VFIO driver aren't advertised. So it is for the rules of ``auto``."""
    dra: bool = False
    """The devices are published for Dynamic Resource Allocation, not advertised by the device plugin (D1)."""
    on_demand: OnDemand | None = None
    """Instead of ``bind``."""
    uses: tuple[CardUse, ...] = ("vm",)
    """Who can get the cards; if there are several, whichever asks first (K10)."""
    names: Mapping[CardUse, str] = {}
    """The names of the resources of several uses, where they aren't derived from ``name``."""
    container: ContainerUse = ContainerUse()
    sharing: Sharing | None = None
    void: bool = False
    """The containers of VMs with NVIDIA's cards get ``NVIDIA_VISIBLE_DEVICES=void``, so that NVIDIA's container
    runtime leaves them alone."""


class VgpuRule(NamedTuple):
    """vGPUs of some types, mediated devices or VFs of SR-IOV vGPU cards (G4), that are advertised as one resource; if
    ``name`` is None, as one resource for each type.
    """

    types: tuple[str, ...]
    """Names, IDs or numbers: ``GRID T4-1Q``, ``nvidia-222``; or globs. As in KubeVirt, spaces and ``_`` are equal."""
    name: str | None = None
    mode: Mode = "static"
    parents: tuple[str, ...] = ()
    """Globs over the names of parents, or, for VFs, over the addresses of their physical functions; empty: any."""
    prefix: str = "MDEV_PCI_RESOURCE"
    dra: bool = False
    """See `PciRule`."""


_Count: TypeAlias = Annotated[Natural | None, Key("Default: as many as there is room for.")]


class LayoutEntry(NamedTuple):
    """A number of vGPUs of a type on a card."""

    parent: Annotated[NonEmpty, Key("A card: a glob of addresses, or #0 for the first by address.")]
    type: Annotated[NonEmpty, Key("Name or ID of a vGPU type.")]
    count: _Count = None  # type: ignore[assignment]  # the name in the file; nobody calls tuple.count


class VgpuConfig(NamedTuple):
    """The settings for vGPUs."""

    mdevs: tuple[VgpuRule, ...] = ()
    vfs: tuple[VgpuRule, ...] = ()
    layout: tuple[LayoutEntry, ...] = ()
    """Applied at start and maintained (G5)."""
    spread: tuple[str, ...] = ()
    """Types that are assigned to the node's cards in turn, as many on each as fit: KubeVirt's
    ``mediatedDevicesConfiguration``. Maintained like the layout, on cards that the layout doesn't name."""
    grace_seconds: float = 60.0
    """How long a device must be unused before it is removed (G3)."""


CdiKind: TypeAlias = Literal["launcherkit.io/vfio", "resource"]
"""The kind of CDI devices: one for all; or, with ``resource``, the name of each resource, which then has its own file.
"""


class CdiConfig(NamedTuple):
    """Devices by the Container Device Interface."""

    folder: Annotated[str, Key("Where the spec files are written."), Limits(pattern="^/")] = "/var/run/cdi"
    only: Annotated[bool, Key("Return no device nodes: the container runtime must support CDI.")] = False
    annotations: Annotated[
        bool, Key("Also give the names in an annotation of the container, for kubelets before 1.28.")
    ] = False
    kind: Annotated[
        CdiKind, Key("The kind of the devices: one for all, or the name of the resource, which Kata needs.")
    ] = "launcherkit.io/vfio"
    environment: Annotated[bool, Key("Give containers the variables that list their devices.")] = True


NODE = "NODE_NAME"
"""The variable with the node's name, from the downward API."""

DRA_DRIVER = "pci.launcherkit.io"
"""The default name of the DRA driver."""


class DraConfig(NamedTuple):
    """Dynamic Resource Allocation: how devices of rules with ``dra`` are published and handed out."""

    driver: str = DRA_DRIVER
    """The driver's name, and the domain of its attributes."""
    environment: bool = True
    """Containers get the variables of E1 by CDI, for launchers that know nothing of DRA."""
    all: bool = False  # the name in the file
    """Every rule has ``dra``."""
    evict: bool = False
    """Taints have the effect NoExecute: pods with an unhealthy device are evicted."""
    cdi_folder: str = "/var/run/cdi"
    """Where the CDI files of claims are written: the folder of `CdiConfig`, if there is one."""


class Config(NamedTuple):
    """The whole configuration of a node."""

    auto: Auto | None = None
    pci: tuple[PciRule, ...] = ()
    vgpu: VgpuConfig = VgpuConfig()
    aliases: Mapping[str, str] = {}
    """From ``10de:2204``, or the type of a vGPU, to NAME in ``<domain>/<NAME>`` (K6)."""
    domains: Mapping[int, str] = {}
    """From vendor ID to the domain of automatic names; overrides the built-in ones."""
    pci_ids: str | None = None
    """The path of ``pci.ids``; None: the installed one."""
    nodes: NodeChoice = "auto"
    cdi: CdiConfig | None = None
    rescan_seconds: float = 30.0
    """The longest time between two scans of the host."""
    dra: DraConfig | None = None
    """None: there is no DRA driver."""

    @property
    def rules(self) -> tuple[PciRule | VgpuRule, ...]:
        """The rules of all resources."""
        return (*self.pci, *self.vgpu.mdevs, *self.vgpu.vfs)


class Reading(NamedTuple):
    """A configuration and how it was read."""

    config: Config
    """With the rules of ``auto`` after the others."""
    notes: tuple[Note, ...] = ()
    files: tuple[str, ...] = ()
    """The files that were read. When one of them changes, the configuration is read again."""
    cluster: bool = False
    """It uses KubeVirt's settings from the cluster. When these change, it is read again, too."""
