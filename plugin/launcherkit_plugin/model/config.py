"""The configuration as values. `launcherkit_plugin.config` reads and checks the files."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from launcherkit.model.note import Note
from launcherkit.model.policy import Siblings
from launcherkit.model.value import NamedTuple

Auto: TypeAlias = Literal["nvidia", "gpu", "all"]
"""What is advertised without a rule: NVIDIA's display and 3D controllers; every display controller and accelerator;
everything. Never what isn't bound to a VFIO driver."""

NodeChoice: TypeAlias = Literal["auto", "group", "cdev", "both"]
"""Which device nodes a container gets (V2): ``auto`` gives those of the groups where they are there, else VFIO's
character devices; ``both`` gives both where the node has iommufd, else those of the groups."""

Mode: TypeAlias = Literal["static", "dynamic"]
"""vGPU: what exists is advertised, or what could be made (G1)."""

CardUse: TypeAlias = Literal["vm", "kata", "container"]
"""Who gets a card: a VM whose launcher runs in the pod, Kata's VM around the pod, or a container of the pod."""

Use: TypeAlias = CardUse | Literal["any"]
"""``any``: whichever asks first (K10)."""

ContainerBy: TypeAlias = Literal["environment", "cdi", "nodes"]
"""How a container gets a card that has its host driver: NVIDIA's runtime reads a variable; the vendor's CDI files have
a name for it; or its device nodes are given."""

CdiNames: TypeAlias = Literal["uuid", "index"]
"""What the vendor's CDI files call cards."""

SharingPolicy: TypeAlias = Literal["distributed", "packed"]
"""Which cards' replicas a container should get: see `Sharing`."""

GiveBack: TypeAlias = Literal["always", "never"]
"""Whether what was bound on demand is given back to its driver once nobody needs it."""

PageChoice: TypeAlias = Literal["auto", "token", "off"]
"""Who gets the page of the node: where the metrics listen on loopback whoever is there and elsewhere nobody; who has a
token that the cluster finds good; nobody."""

PAGE: tuple[PageChoice, ...] = ("auto", "token", "off")

AUTO: tuple[Auto, ...] = ("nvidia", "gpu", "all")


class Selector(NamedTuple):
    """Selects functions: all criteria that are given must hold; one that is empty or None holds for every function."""

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
    """The functions stay with their drivers until a device is allocated, and are bound to vfio-pci then (K8)."""

    bind_seconds: float = 30.0
    """The longest that Allocate may wait for that; the kubelet gives up a claim after 45 s."""
    grace_seconds: float = 60.0
    """For how long nobody must hold them before they are given back."""
    give_back: GiveBack = "always"


class ContainerUse(NamedTuple):
    """How containers get the cards of a rule."""

    by: ContainerBy | None = None
    """None: ``environment`` for NVIDIA's cards, ``nodes`` for others."""
    nodes: tuple[str, ...] = ()
    """Device nodes that they get beside those of the card."""
    cdi_kind: str = "nvidia.com/gpu"
    cdi_names: CdiNames = "uuid"
    pass_nodes: bool = False
    """By ``environment``: the nodes of the card too."""


class Sharing(NamedTuple):
    """Containers share each card, as many as there are replicas of it."""

    replicas: int
    rename: bool = False
    """The resource's name ends in ``.shared``."""
    one_a_request: bool = False
    """A container that requests more than one is refused."""
    policy: SharingPolicy = "distributed"
    """``distributed``: a container should get replicas of the cards of which the fewest are taken; ``packed``: of which
    the most are, so that other cards stay whole for VMs."""


class PciRule(NamedTuple):
    """Functions that are advertised as one resource, or with ``name`` None as one resource a model (K6)."""

    select: tuple[Selector, ...]
    """Any of them."""
    exclude: tuple[Selector, ...] = ()
    name: str | None = None
    """``nvidia.com/GA102``."""
    siblings: Siblings = "slot"
    """Which siblings a device has (S1); must be the same for the reader in the pod."""
    list_siblings: bool = False
    """The siblings are listed in the variable too, for readers without sysfs (K2)."""
    prefix: str = "PCI_RESOURCE"
    """Of the variable (E1)."""
    bind: bool = False
    """The functions, with their groups, are bound to vfio-pci (K8)."""
    companion: bool = False
    """The devices are functions of other resources' cards, and are requested together with these, in one pod."""
    only_vfio: bool = False
    """What has never been bound to a VFIO driver isn't advertised: rules that nobody wrote (``auto``)."""
    dra: bool = False
    """The devices are published for Dynamic Resource Allocation, not advertised by the device plugin (D1)."""
    on_demand: OnDemand | None = None
    """Instead of ``bind``."""
    uses: tuple[CardUse, ...] = ("vm",)
    """Who can get the cards; of several whichever asks first (K10)."""
    names: Mapping[CardUse, str] = {}
    """Of several uses: what their resources are called, where that isn't made of ``name``."""
    container: ContainerUse = ContainerUse()
    sharing: Sharing | None = None
    void: bool = False
    """Containers that get NVIDIA's cards for VMs are told to NVIDIA's container runtime as having none."""


class VgpuRule(NamedTuple):
    """vGPUs of some types, mediated devices or VFs of SR-IOV vGPU cards (G4), as one resource, or with ``name`` None as
    one resource a type.
    """

    types: tuple[str, ...]
    """Names, IDs or numbers: ``GRID T4-1Q``, ``nvidia-222``; globs; compared as KubeVirt does, blanks and ``_`` alike.
    """
    name: str | None = None
    mode: Mode = "static"
    parents: tuple[str, ...] = ()
    """Globs over parents' names, of VFs the addresses of their physical functions; empty: any."""
    prefix: str = "MDEV_PCI_RESOURCE"
    dra: bool = False
    """As in `PciRule`."""


class LayoutEntry(NamedTuple):
    """A number of vGPUs of a type on a parent (G5)."""

    parent: str
    """Glob over parents' names or BDFs, or ``#N``: the Nth parent by address."""
    type: str
    count: int | None = None  # type: ignore[assignment]  # the name in the file; nobody calls tuple.count
    """None: as many as there is room for."""


class VgpuConfig(NamedTuple):
    """The settings for vGPUs."""

    mdevs: tuple[VgpuRule, ...] = ()
    vfs: tuple[VgpuRule, ...] = ()
    layout: tuple[LayoutEntry, ...] = ()
    """Applied at start and kept (G5)."""
    spread: tuple[str, ...] = ()
    """Types that the node's cards get in turn, as many on each as there is room for: what KubeVirt makes of its
    ``mediatedDevicesConfiguration``. Kept as the layout is, on cards that it doesn't name."""
    grace_seconds: float = 60.0
    """For how long no pod must hold a device before it is removed (G3)."""


CdiKind: TypeAlias = Literal["launcherkit.io/vfio", "resource"]
"""Of CDI files: one for all devices; ``resource`` stands for the names of the resources, each with its own file."""


class CdiConfig(NamedTuple):
    """CDI beside, or instead of, device nodes in the answer of Allocate."""

    folder: str = "/var/run/cdi"
    only: bool = False
    """No DeviceSpecs: the runtime takes the nodes from the CDI file alone."""
    annotations: bool = False
    """The names are in an annotation of the container too, for kubelets before 1.28."""
    kind: CdiKind = "launcherkit.io/vfio"
    environment: bool = True
    """Containers get the variables of E1."""


NODE = "NODE_NAME"
"""The variable with the node's name, by the downward API."""

DRA_DRIVER = "pci.launcherkit.io"
"""What the DRA driver is called where nobody says otherwise."""


class DraConfig(NamedTuple):
    """Dynamic Resource Allocation: how devices of rules with ``dra`` are published and handed out."""

    driver: str = DRA_DRIVER
    """The driver's name, and the domain of its attributes."""
    environment: bool = True
    """Containers get the variables of E1 by CDI, for launchers that know nothing of DRA."""
    all: bool = False  # the name in the file
    """Every rule is one with ``dra``."""
    evict: bool = False
    """Taints have the effect NoExecute: pods that have a device in trouble are evicted."""
    cdi_folder: str = "/var/run/cdi"
    """Where the CDI files of claims are written: the folder of `CdiConfig`, where there is one."""


class Config(NamedTuple):
    """The whole configuration of a node."""

    auto: Auto | None = None
    pci: tuple[PciRule, ...] = ()
    vgpu: VgpuConfig = VgpuConfig()
    aliases: Mapping[str, str] = {}
    """``10de:2204``, or the type of a vGPU, to the NAME in ``<domain>/<NAME>`` (K6)."""
    domains: Mapping[int, str] = {}
    """Vendor to the domain of automatic names, over those that are built in."""
    pci_ids: str | None = None
    """Path of the table of names; None: the installed one."""
    nodes: NodeChoice = "auto"
    cdi: CdiConfig | None = None
    rescan_seconds: float = 30.0
    """The longest time between two scans of the host."""
    dra: DraConfig | None = None
    """None: there is no DRA driver."""
    page: PageChoice = "auto"
    """What the command line says goes before it."""

    @property
    def rules(self) -> tuple[PciRule | VgpuRule, ...]:
        """All that say what the devices of resources are."""
        return (*self.pci, *self.vgpu.mdevs, *self.vgpu.vfs)


class Reading(NamedTuple):
    """A configuration and what belongs with it."""

    config: Config
    """With the rules of ``auto`` behind the others."""
    notes: tuple[Note, ...] = ()
    files: tuple[str, ...] = ()
    """What was read: when one of them changes it is time to read again."""
    cluster: bool = False
    """It asks for the cluster's KubeVirt settings: when these change it is time too."""
