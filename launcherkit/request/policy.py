"""Finds the policy: flags, variables ``LAUNCHERKIT_*``, a policy file, defaults; then the VMI's annotation.

The operator's sources take precedence in this order. The annotation is the tenant's, and can only narrow their result
(T1). What is read is what the table `POLICY_KEYS` has. The policy file and the annotation are read with pydantic, which
is imported only if there is one, so that the exec hook without them stays fast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from launcherkit.errors import (
    ANNOTATION_WIDENS,
    ANNOTATIONS_OFF,
    BAD_ANNOTATION,
    BAD_POLICY,
    BAD_SETTING,
    OPERATORS_KEY,
    Code,
    Collector,
    LauncherkitError,
    shown,
)
from launcherkit.model.address import PciAddress
from launcherkit.model.policy import POLICY_KEYS, AliasPrefixes, Policy
from launcherkit.model.policy_key import (
    ALIAS_PREFIX,
    ALIAS_PREFIX_RULE,
    DIRECTORY,
    DRIVER_RULE,
    DRIVERS,
    FUNCTION_RULE,
    ROM_RULE,
    ROMS,
    VARIABLE_PREFIXES,
    PolicyKey,
    ValueKind,
    is_alias_prefix,
    is_driver,
    is_function,
    is_rom,
    is_variable_prefix,
    word_for,
)
from launcherkit.request.fields import read_file

if TYPE_CHECKING:
    from pydantic import BaseModel

    from launcherkit.request.vmi import Vmi

ANNOTATION = "launcherkit.io/policy"
"""A VMI's annotation with its own policy (T1)."""
POLICY = "LAUNCHERKIT_POLICY"
TENANT_KEYS = tuple((key, key.within) for key in POLICY_KEYS if key.within)
"""The keys that an annotation may have; all others are only for the operator."""

Layer: TypeAlias = Mapping[str, Any]
"""The decisions of one source, by the field of their key."""


def resolve_policy(flags: Layer, env: Mapping[str, str], vmi: Vmi | None, policy_file: str | None) -> Policy:
    """The operator's policy, narrowed by the VMI's annotation.

    Args:
        flags: the decisions of the command line.
        env: this process's environment, of which ``LAUNCHERKIT_*`` is read.
        vmi: the VMI, whose annotation ``launcherkit.io/policy`` is read.
        policy_file: the file's path; None uses ``LAUNCHERKIT_POLICY``.

    Raises:
        BAD_SETTING: a variable has an invalid value.
        BAD_ANNOTATION, BAD_POLICY, SeveralErrors: the annotation or the file is wrong.
        ANNOTATION_WIDENS, OPERATORS_KEY, ANNOTATIONS_OFF: the annotation asks for what a tenant can't have.
        UnreadableFile: the policy file can't be read.
    """
    path = policy_file or env.get(POLICY)
    of_file = read_policy_file(path) if path else {}
    policy = policy_of({**of_file, **variables_layer(env), **flags})
    annotation = vmi.annotations.get(ANNOTATION) if vmi else None
    if not annotation:
        return policy
    if not policy.annotations:
        raise ANNOTATIONS_OFF(
            f"annotation {ANNOTATION}: the operator's policy takes no annotations",
            "Remove the annotation from the VM, or ask the operator for `annotations: yes`.",
            key=ANNOTATION,
        )
    return narrow(policy, read_policy_annotation(annotation))


def policy_of(layer: Layer) -> Policy:
    """The policy of one layer, with defaults for the rest."""
    fields = dict(layer)
    prefixes = {field: fields.pop(field) for field in AliasPrefixes._fields if field in fields}
    policy = Policy(**fields)
    return policy._replace(alias_prefixes=policy.alias_prefixes._replace(**prefixes)) if prefixes else policy


# Variables


def variables_layer(env: Mapping[str, str]) -> Layer:
    """The decisions of the variables ``LAUNCHERKIT_*``; an empty variable counts as unset.

    Raises:
        BAD_SETTING: names the variable, its value and the valid ones.
    """
    layer = {
        key.field: _from_text(key, text) for key in POLICY_KEYS if key.variable and (text := env.get(key.variable))
    }
    for key in POLICY_KEYS:
        if key.off and (text := env.get(key.off_variable)) and _chosen(key.off_variable, text, ("yes", "no")) == "yes":
            layer.setdefault(key.field, key.off)
    return layer


def _from_text(key: PolicyKey, text: str) -> object:
    if words := key.kind.words:
        return words[_chosen(key.variable, text, words)]
    assert key.kind.from_text is not None  # otherwise it has no variable
    value = key.kind.from_text(text)
    if problem := key.kind.problem(value):
        fault, rule = problem
        sign = "=" if value == text else ": "  # a value that is made of the text may be wrong only in a part
        raise BAD_SETTING(f"{key.variable}{sign}{fault}", key.kind.text_rule or rule, variable=key.variable)
    return value


def _chosen(variable: str, text: str, words: Collection[str]) -> str:
    if text not in words:
        raise BAD_SETTING(
            f"{variable}={shown(text)} is none of {', '.join(words)}",
            f"Set {variable} to one of them, or unset it.",
            variable=variable,
        )
    return text


# The policy file and the annotation

_REMEDY = "`launcherkit explain policy` lists all keys."
_TENANTS = " and ".join(", ".join(key.name for key, _ in TENANT_KEYS).rsplit(", ", 1))
_ANNOTATION_REMEDY = f"Correct the annotation {ANNOTATION}; it takes {_TENANTS}."
_OPERATORS_REMEDY = f"Remove it from the annotation, which takes {_TENANTS}; or ask the operator to set it."
_OPERATORS_KEYS = {key.name.partition(".")[0] for key in POLICY_KEYS if not key.within}


def read_policy_file(path: str) -> Layer:
    """Read a policy file.

    Raises:
        UnreadableFile: the file can't be read.
        BAD_POLICY, SeveralErrors: everything that is wrong in it.
    """
    from launcherkit.request.documents import parse_document

    values = parse_document(read_file(path), path, BAD_POLICY, _REMEDY)
    return _validated(values, path, BAD_POLICY, _REMEDY)


def read_policy_annotation(text: str) -> Layer:
    """Read the annotation of a VMI. Authors of VMs may only set the keys `TENANT_KEYS` (T1).

    Raises:
        BAD_ANNOTATION, SeveralErrors: everything that is wrong in it.
        OPERATORS_KEY: it has another key, whatever the value.
    """
    from launcherkit.request.documents import parse_document

    name = f"annotation {ANNOTATION}"
    values = parse_document(text, name, BAD_ANNOTATION, _ANNOTATION_REMEDY)
    errors = Collector()
    for key in sorted(_OPERATORS_KEYS.intersection(values if isinstance(values, dict) else ())):
        errors.add(OPERATORS_KEY(f"{name}, {key}: only the operator can set it", _OPERATORS_REMEDY, key=key))
    errors.raise_if_any()
    return _validated(values, name, BAD_ANNOTATION, _ANNOTATION_REMEDY)


def _validated(values: object, name: str, error: Code[LauncherkitError], remedy: str) -> Layer:
    from launcherkit.request.documents import validate_document

    return layer_of(validate_document(policy_schema(), values, name, error, remedy))


def layer_of(model: BaseModel) -> Layer:
    """The decisions that are set in a `policy_schema`."""
    decisions: dict[str, Any] = model.model_dump(exclude_none=True)
    decisions |= decisions.pop("alias_prefixes", {})
    return decisions


@cache
def policy_schema() -> type[BaseModel]:
    """The model of a policy as people write it, made from the table of keys."""
    from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, create_model

    function = Annotated[str, AfterValidator(_checked_function)]
    types: dict[ValueKind, Any] = {
        ALIAS_PREFIX: Annotated[str, AfterValidator(_checked_alias_prefix)],
        VARIABLE_PREFIXES: tuple[Annotated[str, AfterValidator(_checked_variable_prefix)], ...],
        DIRECTORY: Annotated[str, Field(min_length=1)],
        ROMS: dict[function, Annotated[str, BeforeValidator(_checked_rom)]],
        DRIVERS: dict[function, Annotated[str, AfterValidator(_checked_driver)]],
    }

    def field_of(key: PolicyKey) -> tuple[Any, Any]:
        type_ = (key.type if key.kind.choices else types[key.kind]) | None
        if "yes" in key.kind.choices:
            type_ = Annotated[type_, BeforeValidator(_yes_or_no)]
        if "off" in key.kind.choices:
            type_ = Annotated[type_, BeforeValidator(_on_or_off)]
        about = f"{key.help[0].upper()}{key.help[1:]}{key.more and ': '}{key.more}. Default: {key.default_word}"
        return type_, Field(None, alias=key.name.rpartition(".")[2], description=about)

    def model_of(name: str, about: str, fields: Mapping[str, Any]) -> type[BaseModel]:
        config = ConfigDict(extra="forbid", frozen=True)
        model: type[BaseModel] = create_model(name, __config__=config, __doc__=about, __module__=__name__, **fields)
        return model

    inner = {key.field: field_of(key) for key in POLICY_KEYS if key.group}
    about = "What comes before a request's name in its alias; each begins with `ua-`."
    prefixes: Any = model_of("AliasPrefixesSchema", about, inner)
    group = prefixes | None, Field(None, alias="aliasPrefixes")
    fields = {key.group or key.field: group if key.group else field_of(key) for key in POLICY_KEYS}
    return model_of("PolicySchema", "The policy of launcherkit. Every key may be left out.", fields)


def _checked_alias_prefix(text: str) -> str:
    if not is_alias_prefix(text):
        raise ValueError(ALIAS_PREFIX_RULE)
    return text


def _checked_variable_prefix(text: str) -> str:
    if not is_variable_prefix(text.rstrip("_")):
        raise ValueError("a prefix is of upper case letters, digits and underscores, such as PCIDEVICE")
    return text.rstrip("_")


def _checked_function(text: str) -> str:
    text = text.lower()
    with suppress(ValueError):
        text = str(PciAddress.parse(text))  # with its domain
    if not is_function(text):
        raise ValueError(FUNCTION_RULE)
    return text


def _checked_rom(value: object) -> object:
    value = _on_or_off(value)
    if not isinstance(value, str) or not is_rom(value):
        raise ValueError(ROM_RULE)
    return value


def _checked_driver(text: str) -> str:
    if not is_driver(text):
        raise ValueError(DRIVER_RULE)
    return text


def _yes_or_no(value: object) -> object:
    """YAML reads ``yes`` and ``no`` as true and false."""
    return word_for(value) if isinstance(value, bool) else value


def _on_or_off(value: object) -> object:
    """YAML reads ``on`` and ``off`` as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


# The tenant


def narrow(policy: Policy, asked: Layer) -> Policy:
    """The operator's policy, narrowed by an annotation.

    Args:
        policy: the operator's.
        asked: the annotation's decisions, only of `TENANT_KEYS`.

    Returns:
        A policy that attaches nothing beyond the operator's, and is the same in everything that isn't the tenant's.

    Raises:
        ANNOTATION_WIDENS, SeveralErrors: a value would attach more than the operator's policy does.
    """
    errors = Collector()
    narrowed: dict[str, Any] = {}
    for key, within in TENANT_KEYS:
        allowed = key.of(policy)
        value = narrowed[key.field] = asked.get(key.field, allowed)
        if value not in within(allowed):
            less = ", ".join(word for word, choice in key.kind.words.items() if choice in within(allowed))
            errors.add(
                ANNOTATION_WIDENS(
                    f"annotation {ANNOTATION}, {key.name}: {word_for(value)!r} is not within the operator's policy, "
                    f"{key.name}: {word_for(allowed)}",
                    "An annotation can only narrow the operator's policy. "
                    f"{key.within_text.format(less)} Or ask the operator.",
                    key=key.name,
                )
            )
    errors.raise_if_any()
    return policy._replace(**narrowed)
