"""The configuration as values, which declare its keys. `launcherkit_plugin.config` reads and checks the files."""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, TypeAlias

from launcherkit.model.plan import Note
from launcherkit.model.policy import Siblings
from launcherkit_plugin.model.keys import (
    Address,
    AddressGlob,
    AliasKey,
    ClassPrefix,
    DeviceNode,
    Domain,
    DriverName,
    EnvironmentPrefix,
    Id,
    KernelDriver,
    Key,
    Limits,
    MacAddress,
    Module,
    Natural,
    NonEmpty,
    Pair,
    ResourceName,
    ShortName,
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

CARD_USES: tuple[CardUse, ...] = ("vm", "kata", "container")

Use: TypeAlias = Literal["vm", "kata", "container", "any"]
"""``any``: whichever asks first (K10)."""

ContainerBy: TypeAlias = Literal["environment", "cdi", "nodes"]
"""How a container gets a card with its host driver: by a variable that NVIDIA's runtime reads, by a name from the
vendor's CDI files, or by its device nodes."""

CdiNames: TypeAlias = Literal["uuid", "index"]
"""How the vendor's CDI files name cards."""

SharingPolicy: TypeAlias = Literal["distributed", "packed"]
"""Which cards' replicas a container should get: see `Sharing`."""

Bind: TypeAlias = bool | Literal["on-demand"]
"""Whether functions are bound to vfio-pci: at once, or when one is allocated."""

BindDriver: TypeAlias = Literal["vfio-pci", "auto"]
"""The VFIO driver to which functions are bound; ``auto``: what `launcherkit_plugin.host.vfio_variants` finds."""

GiveBack: TypeAlias = Literal["always", "never"]
"""Whether functions that were bound on demand are given back to their drivers once nobody needs them."""

SameDevice: TypeAlias = Literal[False, "preferred", "required"]
"""What a pod may ask for of the device that its VM had; see `launcherkit_plugin.model.same_device.Wish`."""

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


class CardHealth(NamedTuple):
    """What makes a container's card Unhealthy, beside what is read of it."""

    xid: Annotated[
        bool, Key("A critical error (Xid) that NVIDIA's driver reports. Needs nvidia-ml-py, and keeps the cards open.")
    ] = False
    ignored: Annotated[frozenset[Natural], Key("The Xids that don't: errors of applications.", "ignoredXids")] = (
        frozenset({13, 31, 43, 45, 68, 109})
    )
    """By default those of NVIDIA's device plugin."""


class Sharing(NamedTuple):
    """Containers share each card; keys as NVIDIA's device plugin has them."""

    replicas: Annotated[
        int, Key("How often each card is advertised; with dra, how many shares it has."), Limits(ge=2, le=1024)
    ]
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


class ContainerVariable(NamedTuple):
    """The variable that a container gets."""

    prefix: Annotated[EnvironmentPrefix, Key("Prefix of the variable's name.")] = "PCI_RESOURCE"
    """The beginning of the variable's name (E1)."""
    list_siblings: Annotated[bool, Key("List the siblings in it too, for readers without sysfs.")] = False
    """See K2."""
    void: Annotated[
        bool | None,
        Key(
            "Set NVIDIA_VISIBLE_DEVICES=void for NVIDIA's cards, so that NVIDIA's container runtime adds no others. "
            "Default: where a rule of this configuration gives cards to containers."
        ),
    ] = None


_NameOfUse: TypeAlias = Annotated[ResourceName | None, Key()]


class Names(NamedTuple):
    """What the resources of `use: any` are called; uses that aren't named get none."""

    vm: _NameOfUse = None
    kata: _NameOfUse = None
    container: _NameOfUse = None

    def of(self, use: CardUse) -> str | None:
        """The name of the resource for a use."""
        return {"vm": self.vm, "kata": self.kata, "container": self.container}[use]

    @property
    def uses(self) -> tuple[CardUse, ...]:
        """The uses that have a name."""
        return tuple(use for use in CARD_USES if self.of(use) is not None)


class ReleaseProgram(NamedTuple):
    """A program that cleans a device after a pod had it. It has the rights of the plugin."""

    command: Annotated[
        tuple[NonEmpty, ...],
        Key("The path of the program, and its arguments; there is no shell."),
        Limits(min_length=1),
    ]
    timeout: Annotated[
        float, Key("After how many seconds it is killed, with all that it has started."), Limits(ge=1, le=86400)
    ] = 300.0


Release: TypeAlias = Literal["reset"] | ReleaseProgram
"""How a device is cleaned between two pods: it is reset by the kernel, or a program does it (K11)."""


class VfSettings(NamedTuple):
    """Virtual functions that physical functions get (K12). Other rules advertise them."""

    number: Annotated[
        int | None,
        Key("How many each gets. Default: as many as the vGPU layout needs, or as it can have.", "count"),
        Limits(ge=1, le=65535),
    ] = None
    driver: Annotated[
        KernelDriver | None,
        Key("The driver that they are bound to, such as vfio-pci. Default: they are bound to none."),
    ] = None
    autoprobe: Annotated[bool, Key("Whether the kernel offers them to drivers itself.")] = False
    mac: Annotated[
        MacAddress | None,
        Key(
            "Their MAC addresses, which are set before they are bound. stable: derived from that of the physical "
            "function; an address: of the first, the others count on. Default: their driver chooses."
        ),
    ] = None
    trust: Annotated[bool | None, Key("Whether the NIC trusts them. Default: as its driver has it.")] = None
    spoofcheck: Annotated[
        bool | None, Key("Whether the NIC checks their source addresses. Default: as its driver has it.")
    ] = None
    program: Annotated[ReleaseProgram | None, Key("A program that prepares them before they are bound.")] = None

    @property
    def sets_network(self) -> bool:
        """Whether something of them is set through the network interface of their physical function."""
        return (self.mac, self.trust, self.spoofcheck) != (None, None, None)


_Dra: TypeAlias = Annotated[bool, Key("Publish them for Dynamic Resource Allocation instead.")]
_ForSeconds: TypeAlias = Annotated[float, Limits(ge=0, le=86400)]


class PciRule(NamedTuple):
    """PCI functions that are advertised under one name, or each model under its own."""

    use: Annotated[
        Use,
        Key(
            "vm: launchers of VMs; kata: Kata Containers; container: containers, through the host's driver; "
            "any: whichever asks first, each under its own name."
        ),
    ] = "vm"
    names: Annotated[Names | None, Key("With `use: any`: the names of the resources, instead of `name`.")] = None
    container: Annotated[ContainerUse | None, Key("How containers get the cards.")] = None
    sharing: Annotated[Sharing | None, Key("Containers share each card.")] = None
    health: Annotated[CardHealth | None, Key("What else makes a card Unhealthy.")] = None
    """See K15."""
    name: Annotated[ResourceName | None, Key("Default: a name for each model, from pci.ids.")] = None
    select: Annotated[tuple[Selector, ...], Key("Functions that any of these selects."), Limits(min_length=1)] = ()
    exclude: Annotated[tuple[Selector, ...], Key("Except these.")] = ()
    siblings: Annotated[
        Siblings, Key("Which siblings are attached with a device; must match launcherkit's policy in the pod.")
    ] = "slot"
    """See S1."""
    environment: Annotated[ContainerVariable, Key()] = ContainerVariable()
    bind: Annotated[Bind, Key("Bind them, with their IOMMU groups, to vfio-pci; on-demand: when one is allocated.")] = (
        False
    )
    """See K8."""
    driver: Annotated[
        BindDriver,
        Key("With bind: the VFIO driver. auto: the variant that the running kernel has for a function, else vfio-pci."),
    ] = "vfio-pci"
    bind_seconds: Annotated[
        float, Key("On demand: the longest that an allocation waits for it."), Limits(ge=1, le=40)
    ] = 30.0
    """The kubelet gives up a claim after 45 s."""
    grace_seconds: Annotated[
        _ForSeconds, Key("On demand: how long they must be unused before they are given back.")
    ] = 60.0
    give_back: Annotated[GiveBack, Key("On demand: whether they are given back to their drivers.")] = "always"
    release: Annotated[
        Release | None,
        Key("What is done with a device after a pod, before the next one gets it: reset, or a program."),
    ] = None
    """See K11."""
    when_bound: Annotated[
        bool,
        Key("Advertise only what has been bound to a VFIO driver. Default: the rest too, as Unhealthy."),
    ] = False
    """So it is for the rules of ``auto``."""
    same_device: Annotated[
        SameDevice,
        Key(
            "What pods may ask for by the label launcherkit.io/same-device: preferred: the device that their VM had, "
            "if it is free; required: it is kept for the VM, too."
        ),
    ] = False
    keep_for: Annotated[
        float,
        Key("With sameDevice: how many seconds a device is kept after its pod has ended."),
        Limits(ge=0, le=2592000),
    ] = 86400.0
    companion: Annotated[
        bool, Key("They are requested together with the card that they are part of, in the same pod.")
    ] = False
    dra: _Dra = False
    """See D1."""
    virtual_functions: Annotated[
        VfSettings | None, Key("Make virtual functions of them, which other rules advertise.")
    ] = None
    """See K12. These functions themselves are no devices."""
    with_kata: bool = False
    """``use: any`` without ``names`` includes Kata, which needs CDI: it is configured."""

    @property
    def uses(self) -> tuple[CardUse, ...]:
        """Who can get the cards; if there are several, whichever asks first (K10)."""
        if self.use != "any":
            return (self.use,)
        if self.names is not None:
            return self.names.uses
        return ("vm", "container", "kata") if self.with_kata else ("vm", "container")

    @property
    def watches_xids(self) -> bool:
        """Whether a critical error makes a card Unhealthy (K15)."""
        return self.health is not None and self.health.xid

    @property
    def on_demand(self) -> bool:
        """Functions keep their drivers until a device is allocated, and are bound to vfio-pci then (K8)."""
        return self.bind == "on-demand"


class VgpuRule(NamedTuple):
    """vGPUs of some types, mediated devices or VFs of SR-IOV vGPU cards (G4), that are advertised as one resource; if
    ``name`` is None, as one resource for each type.
    """

    types: Annotated[
        tuple[NonEmpty, ...],
        Key("Names or IDs of vGPU types, with * ? [...] as wildcards."),
        Limits(min_length=1),
    ] = ()
    """``GRID T4-1Q``, ``nvidia-222``; as in KubeVirt, spaces and ``_`` are equal."""
    name: Annotated[ResourceName | None, Key("Default: each type under its own name.")] = None
    mode: Annotated[
        Mode, Key("static: advertise what exists; dynamic: what could be created, created when needed.")
    ] = "static"
    parents: Annotated[tuple[NonEmpty, ...], Key("Only on these cards: globs of their addresses.")] = ()
    """Of the names of parents, or, for VFs, of the addresses of their physical functions."""
    dra: _Dra = False
    prefix: Annotated[EnvironmentPrefix, Key("Prefix of the variable's name.")] = "MDEV_PCI_RESOURCE"


class UsbSelector(NamedTuple):
    """Which USB devices."""

    vendor: Annotated[Id, Key("Vendor ID, hex, as lsusb has it.")]
    product: Annotated[Id, Key("Product ID, hex.")]
    serial: Annotated[NonEmpty | None, Key("Serial number. Default: any, and none.")] = None


class UsbRule(NamedTuple):
    """USB devices that are advertised under one name."""

    name: Annotated[ResourceName, Key("Name of the resource. Rules with the same name are alternatives.")]
    selectors: Annotated[
        tuple[UsbSelector, ...],
        Key("One device for each of these: all of them together are one device of the resource, as in KubeVirt."),
        Limits(min_length=1),
    ]
    dra: _Dra = False


USB_VARIABLE = "USB_RESOURCE"
"""The prefix of the names of variables for USB devices: other prefixes are for other kinds (E1)."""


_Count: TypeAlias = Annotated[Natural | None, Key("Default: as many as there is room for.")]


class GpuInstances(NamedTuple):
    """A number of GPU instances of a card in MIG mode."""

    profile: Annotated[NonEmpty, Key("Name or ID of a GPU instance profile, such as 1g.10gb.")]
    number: Annotated[Natural, Key("How many the card has.", "count")]


class LayoutEntry(NamedTuple):
    """A number of vGPUs of a type on a card, and the GPU instances on which they are."""

    parent: Annotated[NonEmpty, Key("A card: a glob of addresses, or #0 for the first by address.")]
    type: Annotated[NonEmpty | None, Key("Name or ID of a vGPU type.")] = None
    count: _Count = None  # type: ignore[assignment]  # the name in the file; nobody calls tuple.count
    gpu_instances: Annotated[
        tuple[GpuInstances, ...], Key("GPU instances (MIG) of the card, made by NVML. Needs nvidia-ml-py.")
    ] = ()
    """See G6."""


_Layout: TypeAlias = Annotated[tuple[LayoutEntry, ...], Key("Which vGPUs the cards of this node have.")]
_Spread: TypeAlias = Annotated[
    tuple[NonEmpty, ...],
    Key("Types for the other cards in turn; each card gets as many of its type as it has room for."),
]


class Layout(NamedTuple):
    """Which vGPUs a node has."""

    layout: _Layout = ()
    spread: _Spread = ()


class VgpuConfig(NamedTuple):
    """The settings for vGPUs."""

    layout: _Layout = ()
    """Applied at start and maintained (G5)."""
    spread: _Spread = ()
    """KubeVirt's ``mediatedDevicesConfiguration``. Maintained like the layout."""
    mdevs: Annotated[tuple[VgpuRule, ...], Key(name="mediatedDevices")] = ()
    vfs: Annotated[tuple[VgpuRule, ...], Key(name="virtualFunctions")] = ()
    grace_seconds: Annotated[_ForSeconds, Key("How long a vGPU must be unused before it is removed.")] = 60.0
    """See G3."""


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
    """A driver of Dynamic Resource Allocation, for devices of the rules that say ``dra: true``."""

    driver: Annotated[DriverName, Key("The name of the driver, as in DeviceClasses.")] = DRA_DRIVER
    """Also the domain of its attributes."""
    environment: Annotated[bool, Key("Also give containers the variables of the device plugin.")] = True
    """By CDI, for launchers that know nothing of DRA."""
    all: Annotated[bool, Key("Every rule has dra: true.")] = False  # the name in the file
    evict: Annotated[bool, Key("Evict pods whose device becomes unhealthy: taints are NoExecute.")] = False
    binding_conditions: Annotated[
        bool, Key("Devices that are being cleaned are allocated, and their pods wait for them before they get a node.")
    ] = False
    """KEP-5007; it takes the right to watch claims."""
    cdi_folder: str = "/var/run/cdi"
    """Where the CDI files of claims are written: the folder of `CdiConfig`, if there is one."""


class FabricConfig(NamedTuple):
    """NVIDIA's Fabric Manager, which activates the partitions of an NVSwitch board for pods."""

    socket: Annotated[
        str,
        Key("The socket on which it listens, its FM_CMD_UNIX_SOCKET_PATH."),
        Limits(pattern="^/", max_length=107),
    ] = "/run/nvidia-fabricmanager/socket"
    address: Annotated[
        str | None,
        Key("Instead of a socket: the IPv4 address and port on which it listens."),
        Limits(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}(:[0-9]{1,5})?$"),
    ] = None
    library: Annotated[NonEmpty, Key("Its client library: a name, or a path.")] = "libnvfm.so.1"
    modules: Annotated[
        Mapping[Module, Address],
        Key("The card of each module ID, for boards whose Fabric Manager doesn't report addresses."),
    ] = {}
    """See K13."""


class Config(NamedTuple):
    """The configuration of the device plugin of launcherkit. Every key may be left out."""

    auto: Annotated[
        Auto | None,
        Key(
            "Advertise what is bound to a VFIO driver without further rules: NVIDIA's GPUs, every GPU and "
            "accelerator, or everything; vGPUs that exist too."
        ),
    ] = None
    pci: Annotated[
        tuple[PciRule, ...], Key("PCI functions. The first rule that selects a function applies.", "resources")
    ] = ()
    vgpu: Annotated[VgpuConfig, Key()] = VgpuConfig()
    aliases: Annotated[
        Mapping[AliasKey, ShortName],
        Key("Names for models (10de:2204) and vGPU types (GRID T4-1Q), without the domain."),
    ] = {}
    """See K6."""
    domains: Annotated[Mapping[Id, Domain], Key("Vendor ID to the domain of automatic names.")] = {}
    """Override the built-in ones."""
    pci_ids: Annotated[NonEmpty | None, Key("A file pci.ids to use instead of the installed one.")] = None
    nodes: Annotated[
        NodeChoice,
        Key("Which device nodes a container gets: those of groups, VFIO's character devices, or both."),
    ] = "auto"
    cdi: Annotated[CdiConfig | None, Key()] = None
    dra: Annotated[DraConfig | None, Key()] = None
    """None: there is no DRA driver."""
    fabric: Annotated[FabricConfig | None, Key()] = None
    """None: no card is on an NVSwitch board whose partitions Fabric Manager activates (K13)."""
    usb: Annotated[tuple[UsbRule, ...], Key("USB devices. The first rule that selects a device has it.")] = ()
    rescan_seconds: Annotated[float, Key("The longest time between two scans of the host."), Limits(ge=1, le=3600)] = (
        30.0
    )

    @property
    def rules(self) -> tuple[PciRule | VgpuRule | UsbRule, ...]:
        """The rules of all resources."""
        return (*self.pci, *self.vgpu.mdevs, *self.vgpu.vfs, *self.usb)


class Reading(NamedTuple):
    """A configuration and how it was read."""

    config: Config
    """With the rules of ``auto`` after the others."""
    notes: tuple[Note, ...] = ()
    files: tuple[str, ...] = ()
    """The files that were read. When one of them changes, the configuration is read again."""
    cluster: bool = False
    """It uses KubeVirt's settings from the cluster. When these change, it is read again, too."""
