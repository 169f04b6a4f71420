"""The configuration as values. `launcherkit_plugin.config` reads and checks the files."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from launcherkit.model.note import Note
from launcherkit.model.policy import Siblings

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
    """Selects the functions that match all criteria; an empty criterion, or None, matches every function."""

    vendors: frozenset[int] = frozenset()
    devices: frozenset[int] = frozenset()
    models: frozenset[tuple[int, int]] = frozenset()
    """vendor:device pairs."""
    classes: tuple[str, ...] = ()
    """Prefixes of the six hex digits of the class, lower case: ``03``, ``0302``."""
    subsystems: frozenset[tuple[int, int]] = frozenset()
    addresses: tuple[str, ...] = ()
    """Globs over the BDF in its full spelling, lower case: ``0000:e1:00.*``."""
    drivers: frozenset[str] = frozenset()
    numa_nodes: frozenset[int] = frozenset()
    virtual: bool | None = None
    """True: VFs only. False: no VFs."""


class OnDemand(NamedTuple):
    """Functions keep their drivers until a device is allocated, and are bound to vfio-pci then (K8)."""

    bind_seconds: float = 30.0
    """How long Allocate may wait for that. The kubelet gives up a claim after 45 s."""
    grace_seconds: float = 60.0
    """How long they must be unused before they are given back."""
    give_back: GiveBack = "always"


class ContainerUse(NamedTuple):
    """How containers get the cards of a rule."""

    by: ContainerBy | None = None
    """None: for NVIDIA's cards ``cdi``, or by DRA claim ``environment``; ``nodes`` for others."""
    nodes: tuple[str, ...] = ()
    """Device nodes that they get in addition to those of the card."""
    cdi_kind: str = "nvidia.com/gpu"
    cdi_names: CdiNames = "uuid"
    pass_nodes: bool = False
    """With ``environment``: they also get the device nodes of the card."""


class Sharing(NamedTuple):
    """Containers share each card, at most as many as it has replicas."""

    replicas: int
    rename: bool = False
    """The resource's name ends in ``.shared``."""
    one_a_request: bool = False
    """A container that requests more than one is refused."""
    policy: SharingPolicy = "distributed"
    """Which cards a container should preferably get: ``distributed``: those with the fewest users; ``packed``: those
    with the most, so that other cards stay free for VMs."""


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


class LayoutEntry(NamedTuple):
    """A number of vGPUs of a type on a parent (G5)."""

    parent: str
    """A glob over the names or BDFs of parents, or ``#N``: the Nth parent by address."""
    type: str
    count: int | None = None  # type: ignore[assignment]  # the name in the file; nobody calls tuple.count
    """None: as many as fit."""


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
    """CDI in the answer of Allocate, in addition to device nodes or instead of them."""

    folder: str = "/var/run/cdi"
    only: bool = False
    """No DeviceSpecs: the runtime takes the nodes from the CDI file alone."""
    annotations: bool = False
    """The names are also in an annotation of the container, for kubelets before 1.28."""
    kind: CdiKind = "launcherkit.io/vfio"
    environment: bool = True
    """Containers get the variables of E1."""


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
