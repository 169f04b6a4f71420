"""Opaque parameters of DeviceClasses and claims: ``launcherkit.io/v1``, kind ``DeviceConfig`` (D6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

from launcherkit.choose.nodes import IOMMUFD_NODE
from launcherkit.errors import shown
from launcherkit.model.policy import SIBLINGS_WITHIN
from launcherkit_plugin.model.device import Device
from launcherkit_plugin.model.errors import BAD_DEVICE_CONFIG, DEVICE_CONFIG_REFUSED
from launcherkit_plugin.model.parameters import API_VERSION, CLASS_ONLY, KIND, Parameters
from launcherkit_plugin.model.texts import type_key


class OpaqueConfig(NamedTuple):
    """One entry of a claim's ``status.allocation.devices.config`` for this driver."""

    parameters: Mapping[str, Any]
    path: str
    by_claim: bool
    """True: it is from the claim, so a tenant wrote it. False: from its DeviceClass, which the operator wrote (T1)."""


def parameters_of(configs: Iterable[OpaqueConfig], claim: str) -> Parameters:
    """The merged parameters of a device. Later ones override earlier ones; a claim may only narrow those of its class.

    Args:
        configs: those of the class first.
        claim: its name in errors.

    Raises:
        BAD_DEVICE_CONFIG: a value is wrong; names the key, the value, and what is allowed.
        DEVICE_CONFIG_REFUSED: a claim sets what only its class may set.
    """
    parameters = Parameters()
    for config in configs:
        asked = _parsed(config, claim)
        if config.by_claim:
            _check_narrower(parameters, asked, config, claim)
        parameters = parameters._replace(**{key: value for key, value in asked._asdict().items() if value is not None})
    return parameters


def check_fits(parameters: Parameters, device: Device, claim: str, *, in_container: bool = False) -> None:
    """Check that a device supports the parameters, as far as this is known before it is allocated.

    Devices for containers have no parameters (K10).

    Raises:
        DEVICE_CONFIG_REFUSED: names the key and the device.
    """
    for name, rule in _KEYS.items() if in_container else ():
        value = getattr(parameters, rule.field)
        if value is not None:
            text = value if isinstance(value, str) else str(value).lower()
            _refuse(claim, device, name, text, "containers use it by the driver of the host")
    vgpu_type = parameters.vgpu_type
    if vgpu_type is not None and [type_key(vgpu_type)] != list(map(type_key, device.vgpu_types)):
        types = " or ".join(device.vgpu_types)
        _refuse(claim, device, "vgpuType", vgpu_type, f"it is a vGPU of type {types}" if types else "it is no vGPU")
    if parameters.rom is not None and not device.functions:
        _refuse(claim, device, "rom", str(parameters.rom).lower(), "a mediated device has no ROM")


def check_nodes_fit(parameters: Parameters, device: Device, nodes: Iterable[str], claim: str) -> None:
    """Check that the device nodes of a grant are of the kind that the parameters ask for (V2).

    Raises:
        DEVICE_CONFIG_REFUSED: see `check_fits`.
    """
    kind = "iommufd" if IOMMUFD_NODE in nodes else "group"
    if parameters.nodes not in (None, kind):
        _refuse(claim, device, "nodes", str(parameters.nodes), f"only {kind} is possible for it")


def _parsed(config: OpaqueConfig, claim: str) -> Parameters:
    document = config.parameters
    for key, value in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(key) != value:
            _bad(claim, config, key, document.get(key), f"it must be {value!r}")
    for key in document:
        if key not in _KEYS and key not in ("apiVersion", "kind"):
            _bad(claim, config, str(key), document[key], f"unknown key; known are {', '.join(_KEYS)}")
    values: dict[str, Any] = {}
    for name, (field, is_valid, rule) in _KEYS.items():
        values[field] = document.get(name)
        if values[field] is not None and not is_valid(values[field]):
            _bad(claim, config, name, values[field], rule)
    return Parameters(**values)


class _Rule(NamedTuple):
    """What is checked of the value of a key."""

    field: str
    """Of `Parameters`."""
    is_valid: Callable[[Any], bool]
    words: str
    """The rule in words."""


def _rules() -> dict[str, _Rule]:
    """The rules for the keys that `Parameters` declares, by key."""
    rules = {}
    for field, hint in get_type_hints(Parameters, include_extras=True).items():
        union, key = get_args(hint)
        kind, _ = get_args(union)
        rules[key.of(field)] = _Rule(field, *_rule(kind))
    return rules


def _rule(kind: Any) -> tuple[Callable[[Any], bool], str]:
    """The check of the values of a type, and what it says."""
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return lambda value: isinstance(value, str) and value in choices, f"it must be one of {', '.join(choices)}"
    if kind is bool:
        return lambda value: isinstance(value, bool), "it must be true or false"
    _, limits, noun = get_args(kind)
    return (
        lambda value: isinstance(value, str) and limits.min_length <= len(value) <= limits.max_length,
        f"it must be {noun.text}, of at most {limits.max_length} characters",
    )


_KEYS = _rules()


def _check_narrower(before: Parameters, asked: Parameters, config: OpaqueConfig, claim: str) -> None:
    """Check that a claim only chooses vGPU type and kind of nodes if its class doesn't, and narrows siblings (T1)."""
    wider: dict[str, str] = {}
    for key in CLASS_ONLY:
        if getattr(asked, _KEYS[key].field) is not None:
            wider[key] = "only a DeviceClass can say this"
    if before.siblings is not None and asked.siblings not in (None, *SIBLINGS_WITHIN[before.siblings]):
        wider["siblings"] = f"{asked.siblings!r} is not within what the DeviceClass says, {before.siblings!r}"
    for key, old, new in (("nodes", before.nodes, asked.nodes), ("vgpuType", before.vgpu_type, asked.vgpu_type)):
        if old is not None and new not in (None, old):
            wider[key] = f"{new!r} is not what the DeviceClass says, {old!r}"
    for key, reason in wider.items():
        raise DEVICE_CONFIG_REFUSED(
            f"ResourceClaim {claim}, {config.path}.{key}: {reason}",
            "Remove it from the claim, or let the DeviceClass say it.",
            file=f"ResourceClaim {claim}",
            key=f"{config.path}.{key}",
        )


def _bad(claim: str, config: OpaqueConfig, key: str, value: object, rule: str) -> NoReturn:
    raise BAD_DEVICE_CONFIG(
        f"ResourceClaim {claim}, {config.path}.{key}: {rule}; found {shown(value)}",
        "Correct the parameters in the claim, or in its DeviceClass; `launcherkit explain "
        "plugin-configuration` has all keys.",
        file=f"ResourceClaim {claim}",
        key=f"{config.path}.{key}",
    )


def _refuse(claim: str, device: Device, key: str, value: str, reason: str) -> NoReturn:
    raise DEVICE_CONFIG_REFUSED(
        f"ResourceClaim {claim}: {device.id} can't be given with {key}: {value}: {reason}",
        "Change the parameters in the claim or its DeviceClass, or let a CEL selector choose devices that fit.",
        device=device.id,
        file=f"ResourceClaim {claim}",
        key=key,
    )
