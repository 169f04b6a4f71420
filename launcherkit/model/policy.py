"""What the operator may decide: `Policy`, and the table of its keys.

A key is declared once, at its field: type, default, and a `PolicyKey` that says the rest. From `POLICY_KEYS` are made
the variables, the options, the texts of help, the schema of policy files, the tables of the documentation, and what a
VMI's annotation may change. Values only; `launcherkit.request.policy` reads files and variables.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeAlias, get_args

from launcherkit.errors import BAD_POLICY, shown
from launcherkit.model.policy_key import (
    ALIAS_PREFIX,
    ALIAS_PREFIX_RULE,
    DIRECTORY,
    DRIVERS,
    ROMS,
    VARIABLE_PREFIXES,
    PolicyKey,
)

Siblings: TypeAlias = Literal["slot", "group", "listed", "reserve", "none"]
Pairing: TypeAlias = Literal["class", "positional"]
NodeCheck: TypeAlias = Literal["auto", "always", "never"]
Iommufd: TypeAlias = Literal["auto", "yes", "no"]
Topology: TypeAlias = Literal["auto", "flat", "numa", "strict", "switches"]
Replace: TypeAlias = Literal["no", "model", "yes"]
P2p: TypeAlias = Literal["off", "auto"]

SIBLINGS: tuple[Siblings, ...] = get_args(Siblings)
PAIRING: tuple[Pairing, ...] = get_args(Pairing)
NODE_CHECK: tuple[NodeCheck, ...] = get_args(NodeCheck)
REPLACE: tuple[Replace, ...] = get_args(Replace)
"""Each permits what those before it do."""

SIBLINGS_WITHIN: Mapping[Siblings, frozenset[Siblings]] = {
    "none": frozenset({"none"}),
    "listed": frozenset({"none", "listed"}),
    "reserve": frozenset({"none", "reserve"}),
    "slot": frozenset({"none", "reserve", "listed", "slot"}),
    "group": frozenset({"none", "group"}),
}
"""For each value, the values that attach nothing beyond it (S1). A function of the slot can be in another IOMMU group,
and one of the group in another slot, so neither of `slot` and `group` is within the other."""


class AliasPrefixes(NamedTuple):
    """Prefixes of aliases, before the request's name (X1); libvirt keeps only aliases that begin with ``ua-``."""

    gpu: Annotated[
        str,
        PolicyKey(
            "prefix of aliases under `gpus`", rules="X1", kind=ALIAS_PREFIX, variable="LAUNCHERKIT_ALIAS_PREFIX_GPU"
        ),
    ] = "ua-gpu-"
    hostdevice: Annotated[
        str,
        PolicyKey(
            "prefix of aliases under `hostDevices`",
            rules="X1",
            kind=ALIAS_PREFIX,
            variable="LAUNCHERKIT_ALIAS_PREFIX_HOSTDEVICE",
        ),
    ] = "ua-hostdevice-"
    usb: Annotated[
        str,
        PolicyKey(
            "prefix of aliases of USB devices", rules="X1", kind=ALIAS_PREFIX, variable="LAUNCHERKIT_ALIAS_PREFIX_USB"
        ),
    ] = "ua-usb-host-"


class _Decisions(NamedTuple):
    siblings: Annotated[
        Siblings,
        PolicyKey(
            "which sibling functions are attached with a device",
            more="all of the card's slot, all of the IOMMU group, those that the environment lists, or none; reserve "
            "attaches the slot's and doesn't show them to the guest",
            rules="S1",
            within=lambda siblings: SIBLINGS_WITHIN[siblings],
        ),
    ] = "slot"
    pairing: Annotated[
        Pairing,
        PolicyKey(
            "how addresses answer requests",
            more="by PCI class, or by position as KubeVirt does",
            rules="C2, C4",
            # Each way pairs some requests with devices that the other wouldn't give them (C2, C4).
            within=lambda pairing: {pairing},
            within_text="Neither way of pairing is within the other.",
        ),
    ] = "class"
    managed: Annotated[
        bool, PolicyKey("whether libvirt binds the devices to `vfio-pci` and gives them back", rules="X1")
    ] = False
    alias_prefixes: Annotated[
        AliasPrefixes, PolicyKey("prefixes of aliases, before the request's name", rules="X1")
    ] = AliasPrefixes()
    extra_prefixes: Annotated[
        tuple[str, ...],
        PolicyKey(
            "further prefixes of variables with PCI addresses",
            more="PCIDEVICE for the SR-IOV network device plugin",
            rules="E1",
            kind=VARIABLE_PREFIXES,
        ),
    ] = ()
    sysfs_root: Annotated[str, PolicyKey("the directory with the host's `sys/` and `dev/`", kind=DIRECTORY)] = "/"
    node_check: Annotated[
        NodeCheck,
        PolicyKey(
            "whether the VFIO device nodes must exist",
            more="auto where the environment holds the devices, for there the VM runs",
            rules="V2",
            off="never",
        ),
    ] = "auto"
    annotations: Annotated[
        bool, PolicyKey("whether the annotation `launcherkit.io/policy` of a VMI may narrow the policy", rules="T1")
    ] = True
    topology: Annotated[
        Topology,
        PolicyKey(
            "how the guest's PCIe tree follows the host's",
            more="by NUMA cell where the domain binds several, not at all, wherever it can, or not without; or by NUMA "
            "cell and host switch",
            rules="P4",
        ),
    ] = "auto"
    iommufd: Annotated[
        Iommufd,
        PolicyKey(
            "whether functions go to VFIO through iommufd where the domain doesn't say",
            more="auto by the nodes that there are",
            rules="V2",
        ),
    ] = "auto"
    rom: Annotated[
        Mapping[str, str],
        PolicyKey(
            "the ROM of functions, by address or by `vendor:device`",
            more="off, on or the path of a file",
            rules="X1",
            kind=ROMS,
            no_default="the card's own",
        ),
    ] = {}
    driver: Annotated[
        Mapping[str, str],
        PolicyKey(
            "the VFIO driver that libvirt is to use for functions, by address or by `vendor:device`",
            rules="X1",
            kind=DRIVERS,
            no_default="libvirt's choice",
        ),
    ] = {}
    generic_initiators: Annotated[
        bool,
        PolicyKey(
            "whether GPUs of Grace get NUMA cells of the guest for their memory",
            more="eight cells for each, and a pcie-expander-bus of its own",
            rules="P7",
        ),
    ] = False
    replace: Annotated[
        Replace,
        PolicyKey(
            "which device may take the place of another that the domain had for its request",
            more="one like it, one of another model that fits its place, or any, which is placed anew where it doesn't "
            "fit",
            rules="X2",
            within=lambda replace: REPLACE[: REPLACE.index(replace) + 1],
            alone="yes",
        ),
    ] = "no"
    p2p: Annotated[
        P2p,
        PolicyKey(
            "whether GPUs of NVIDIA are told that they can access each other's memory directly",
            more="auto tells those that share a PCIe switch or a root complex of the host",
            rules="P8",
        ),
    ] = "off"
    smmuv3: Annotated[
        bool,
        PolicyKey(
            "whether root complexes of Arm's guests get a virtual SMMUv3",
            more="one for each pcie-expander-bus whose functions go through iommufd, accelerated by the host's",
            rules="P9",
        ),
    ] = False
    numa_distances: Annotated[
        bool,
        PolicyKey(
            "whether the guest's NUMA cells are as far from each other as the host's nodes",
            more="where it is known which node each cell stands for",
            rules="P10",
        ),
    ] = False


class Policy(_Decisions):
    """Decisions of the operator, each with its default.

    Raises:
        BAD_POLICY: a value isn't one of the decision's, such as ``managed="no"``, which would count as yes.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers take the signature from the fields

        def __new__(cls, *values: Any, **named: Any) -> Self:
            policy = super().__new__(cls, *values, **named)
            for field, problem, remedy in _problems(policy):
                raise BAD_POLICY(f"policy, {field}: {problem}", remedy, key=field)
            return policy

        @classmethod
        def _make(cls, values: Any) -> Self:
            return cls(*values)


def _keys_of(values: Any, group: str = "") -> Iterator[PolicyKey]:
    """The keys declared at the fields of a named tuple and of those in it; also documents the fields for ``help()``."""
    for field, declared in values.__annotations__.items():
        type_, key = declared.__origin__, declared.__metadata__[0]
        rules = f" ({key.rules})" if key.rules else ""
        getattr(values, field).__doc__ = f"{key.help[0].upper()}{key.help[1:]}{rules}."
        if hasattr(type_, "_fields"):
            yield from _keys_of(type_, field)
        else:
            key.stand_at(field, group, type_, values._field_defaults[field])
            yield key


POLICY_KEYS: tuple[PolicyKey, ...] = tuple(_keys_of(_Decisions))
"""Every key, in the order of the fields."""


def _problems(policy: _Decisions) -> Iterator[tuple[str, str, str]]:
    """Each wrong decision: its field, what is wrong, and what is valid."""
    prefixes: object = policy.alias_prefixes
    if not isinstance(prefixes, AliasPrefixes):
        yield "alias_prefixes", f"{shown(prefixes)} is not an AliasPrefixes", ALIAS_PREFIX_RULE
        return
    for key in POLICY_KEYS:
        if problem := key.kind.problem(key.of(policy)):
            yield key.group or key.field, *problem
