"""Which rule a type falls under, and what its resource is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from launcherkit.model.request import resource_suffix
from launcherkit_plugin.model.config import MdevRule, VgpuVfRule
from launcherkit_plugin.vgpu.cards import is_meant, is_type

NameOf: TypeAlias = Callable[[str, int | None], str]
"""The automatic name of a resource (K6), from the name of a type and the card's vendor."""

_Rule = TypeVar("_Rule", MdevRule, VgpuVfRule)


def rule_for(rules: Sequence[_Rule], parents: Iterable[str], type_id: str, name: str | None) -> _Rule | None:
    """The first rule that a type on a parent falls under; a parent goes by its own name and by its card's."""
    names = tuple(parents)
    return next(
        (
            rule
            for rule in rules
            if any(is_type(pattern, type_id, name) for pattern in rule.types) and is_from(rule, names)
        ),
        None,
    )


def is_from(rule: MdevRule | VgpuVfRule, names: Iterable[str]) -> bool:
    """Whether a rule is about a parent of these names."""
    known = tuple(names)
    return not rule.parents or any(is_meant(pattern, known) for pattern in rule.parents)


def resource_name(rule: MdevRule | VgpuVfRule, name: str, vendor: int | None, name_of: NameOf) -> str:
    """What the resource of a type is called."""
    return rule.name or name_of(name, vendor)


def variable(rule: MdevRule | VgpuVfRule, resource: str) -> str:
    """The variable that a container finds its devices in (E1)."""
    return f"{rule.prefix}_{resource_suffix(resource)}"
