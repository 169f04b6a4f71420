"""The decisions of one source of a policy: flags, variables, a policy file, an annotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcherkit.model.policy import Iommufd, NodeCheck, Pairing, Policy, Siblings, Topology

ANNOTATION = "launcherkit.io/policy"
"""A VMI's annotation with its own policy (T1)."""

if TYPE_CHECKING:
    from typing import TypedDict

    class Layer(TypedDict, total=False):
        """The decisions of one source; keys are the fields of `Policy`, and the single alias prefixes."""

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

else:  # defining it would take longer than everything else here
    Layer = dict


def policy_of(layer: Layer) -> Policy:
    """The policy of one layer, with defaults for the rest."""
    fields: dict[str, Any] = dict(layer)
    prefixes = {name: fields.pop(name) for name in ("gpu", "hostdevice", "usb") if name in fields}
    policy = Policy(**fields)
    return policy._replace(alias_prefixes=policy.alias_prefixes._replace(**prefixes)) if prefixes else policy
