"""Names of the resources of a card for each of its uses: VMs, Kata and containers (K10)."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit_plugin.devices.names import LONGEST_NAME
from launcherkit_plugin.model.config import CardUse, PciRule

SHARED = ".shared"
"""What NVIDIA's device plugin adds to the name of a resource that is shared."""


def name_for(name: str, rule: PciRule, use: CardUse) -> str:
    """The name of a rule's resource for a use.

    Args:
        name: of the rule, or of the model.
        rule: it may have a separate name for each use.
        use: one of the rule's.
    """
    found = rule.names.get(use)
    if found is None:
        found = name if use == "vm" or len(rule.uses) == 1 else _with_end(name, f"-{use}")
    shared = use == "container" and rule.sharing is not None and rule.sharing.rename
    return _with_end(found, SHARED) if shared else found


def written_names(rules: Iterable[PciRule]) -> list[tuple[str, PciRule]]:
    """The configured names, each with its rule."""
    return [
        (name_for(rule.name or "", rule, use), rule)
        for rule in rules
        for use in rule.uses
        if rule.name is not None or use in rule.names
    ]


def _with_end(name: str, end: str) -> str:
    domain, slash, short = name.partition("/")
    return f"{domain}{slash}{short[: LONGEST_NAME - len(end)]}{end}"
