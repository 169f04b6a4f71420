"""What the operator may decide. Values only; files and flags are read in `launcherkit.sources`."""

from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from launcherkit.errors import BadPolicy, shown
from launcherkit.model.value import NamedTuple

Siblings: TypeAlias = Literal["slot", "group", "listed", "none"]
Pairing: TypeAlias = Literal["class", "positional"]
NodeCheck: TypeAlias = Literal["auto", "always", "never"]
Topology: TypeAlias = Literal["auto", "flat", "numa", "strict", "switches"]

SIBLINGS: tuple[Siblings, ...] = ("slot", "group", "listed", "none")
PAIRING: tuple[Pairing, ...] = ("class", "positional")
NODE_CHECK: tuple[NodeCheck, ...] = ("auto", "always", "never")
TOPOLOGY: tuple[Topology, ...] = ("auto", "flat", "numa", "strict", "switches")


class AliasPrefixes(NamedTuple):
    """What comes before a request's name in its alias (X1); libvirt keeps only aliases that begin with ``ua-``."""

    gpu: str = "ua-gpu-"
    hostdevice: str = "ua-hostdevice-"
    usb: str = "ua-usb-host-"


class _Decisions(NamedTuple):
    siblings: Siblings = "slot"
    """Which sibling functions come along (S1)."""
    pairing: Pairing = "class"
    """How addresses answer requests: by class (C2) or by position as KubeVirt does (C4)."""
    managed: bool = False
    """``managed`` of the hostdevs that are added (X1)."""
    alias_prefixes: AliasPrefixes = AliasPrefixes()
    extra_prefixes: tuple[str, ...] = ()
    """Further prefixes of variables with PCI addresses, without the last underscore: ``PCIDEVICE`` (E1)."""
    sysfs_root: str = "/"
    """Where ``sys/`` and ``dev/`` of the host are."""
    node_check: NodeCheck = "auto"
    """Whether device nodes must be there (V2); ``auto`` where the variables are, for there the VM runs."""
    annotations: bool = True
    """Whether a VMI's annotation may narrow the rest (T1)."""
    topology: Topology = "auto"
    """How the guest's PCIe tree follows the host's (P4)."""


class Policy(_Decisions):
    """Decisions of the operator, each with its default.

    Raises:
        BadPolicy: a value is none of those that a decision has. ``managed="no"`` would count as yes.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # to whom the signature is that of the fields

        def __new__(cls, *values: Any, **named: Any) -> Self:
            policy = super().__new__(cls, *values, **named)
            for field, choices in _CHOICES.items():
                value = getattr(policy, field)
                if not any(value is choice or (value == choice and isinstance(value, str)) for choice in choices):
                    raise BadPolicy(
                        f"policy, {field}: {shown(value)} is none of {', '.join(map(str, choices))}",
                        "Give one of them, or leave it out for the default.",
                        key=field,
                    )
            return policy

        @classmethod
        def _make(cls, values: Any) -> Self:
            return cls(*values)


_CHOICES: dict[str, tuple[object, ...]] = {
    "siblings": SIBLINGS,
    "pairing": PAIRING,
    "managed": (True, False),
    "node_check": NODE_CHECK,
    "topology": TOPOLOGY,
    "annotations": (True, False),
}
