"""Narrows the operator's policy by a VMI's annotation, which may do nothing else (T1)."""

from __future__ import annotations

from collections.abc import Mapping

from launcherkit.errors import AnnotationsOff, AnnotationWidens, Collector
from launcherkit.model.policy import SIBLINGS, Policy, Siblings
from launcherkit.sources.layer import ANNOTATION, Layer

TENANT_KEYS = ("siblings", "pairing")
"""The keys that an annotation may have; all others are only for the operator."""

SIBLINGS_WITHIN: Mapping[Siblings, frozenset[Siblings]] = {
    "none": frozenset({"none"}),
    "listed": frozenset({"none", "listed"}),
    "reserve": frozenset({"none", "reserve"}),
    "slot": frozenset({"none", "reserve", "listed", "slot"}),
    "group": frozenset({"none", "group"}),
}
"""For each value, the values that attach nothing beyond it (S1). A function of the slot can be in another IOMMU group,
and one of the group in another slot, so neither of `slot` and `group` is within the other."""


def check_annotations_on(policy: Policy) -> None:
    """Refuse an annotation, unread, if the operator allows none.

    Raises:
        AnnotationsOff: the policy says ``annotations: no``.
    """
    if not policy.annotations:
        raise AnnotationsOff(
            f"annotation {ANNOTATION}: the operator's policy takes no annotations",
            "Remove the annotation from the VM, or ask the operator for `annotations: yes`.",
            key=ANNOTATION,
        )


def narrow(policy: Policy, asked: Layer) -> Policy:
    """The operator's policy, narrowed by an annotation.

    Args:
        policy: the operator's.
        asked: the annotation's decisions, only with `TENANT_KEYS`.

    Returns:
        A policy that `is_within` the operator's.

    Raises:
        AnnotationWidens, SeveralErrors: a value would attach more than the operator's policy does.
    """
    errors = Collector()
    siblings, pairing = asked.get("siblings", policy.siblings), asked.get("pairing", policy.pairing)
    if siblings not in SIBLINGS_WITHIN[policy.siblings]:
        less = ", ".join(value for value in SIBLINGS if value in SIBLINGS_WITHIN[policy.siblings])
        errors.add(_widens("siblings", siblings, policy.siblings, f"Within it: {less}."))
    if pairing != policy.pairing:
        # Each way pairs some requests with devices that the other wouldn't give them (C2, C4).
        errors.add(_widens("pairing", pairing, policy.pairing, "Neither way of pairing is within the other."))
    errors.raise_if_any()
    return policy._replace(siblings=siblings, pairing=pairing)


def is_within(policy: Policy, other: Policy) -> bool:
    """Whether a policy attaches nothing beyond the other, and is the same in everything that isn't the tenant's."""
    return policy.siblings in SIBLINGS_WITHIN[other.siblings] and policy._replace(siblings=other.siblings) == other


def _widens(key: str, asked: str, allowed: str, within: str) -> AnnotationWidens:
    return AnnotationWidens(
        f"annotation {ANNOTATION}, {key}: {asked!r} is not within the operator's policy, {key}: {allowed}",
        f"An annotation can only narrow the operator's policy. {within} Or ask the operator.",
        key=key,
    )
