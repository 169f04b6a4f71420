"""What one source of decisions says of a policy, whichever it is: a flag, a variable, a policy file, an annotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcherkit.model.policy import Iommufd, NodeCheck, Pairing, Policy, Siblings, Topology

ANNOTATION = "launcherkit.io/policy"
"""Of a VMI: its own policy (T1)."""

if TYPE_CHECKING:
    from typing import TypedDict

    class Layer(TypedDict, total=False):
        """What one source of decisions says; keys are the fields of `Policy`, alias prefixes one by one."""

        siblings: Siblings
        pairing: Pairing
        managed: bool
        node_check: NodeCheck
        topology: Topology
        iommufd: Iommufd
        annotations: bool
        extra_prefixes: tuple[str, ...]
        sysfs_root: str
        gpu: str
        hostdevice: str
        usb: str
        rom: Mapping[str, str]
        driver: Mapping[str, str]
        generic_initiators: bool

else:  # to define it would take longer than all else here
    Layer = dict


def policy_of(layer: Layer) -> Policy:
    """A policy from one layer and the defaults."""
    fields: dict[str, Any] = dict(layer)
    prefixes = {name: fields.pop(name) for name in ("gpu", "hostdevice", "usb") if name in fields}
    policy = Policy(**fields)
    return policy._replace(alias_prefixes=policy.alias_prefixes._replace(**prefixes)) if prefixes else policy


ALIAS_PREFIX_RULE = "libvirt keeps only aliases that begin with ua-, with letters, digits, - and _ after it."


def is_alias_prefix(text: str) -> bool:
    """Begins with ``ua-``, and nothing in it that an alias can't have."""
    return text.startswith("ua-") and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def is_variable_prefix(text: str) -> bool:
    """Upper case letters, digits and underscores, a letter first."""
    return text.isascii() and text.replace("_", "").isalnum() and text == text.upper() and text[:1].isalpha()
