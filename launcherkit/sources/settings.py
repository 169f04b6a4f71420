"""Finds the policy: flags, variables ``LAUNCHERKIT_*``, a policy file, defaults; then the VMI's annotation.

The operator's sources take precedence in this order. The annotation is the tenant's, and can only narrow their result
(T1). The policy file and the annotation are read with pydantic, which is imported only if there is one, so that the
exec hook without them stays fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from launcherkit.errors import BadSetting, shown
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.model.policy import (
    ALIAS_PREFIX_RULE,
    IOMMUFD,
    NODE_CHECK,
    PAIRING,
    SIBLINGS,
    TOPOLOGY,
    Policy,
    is_alias_prefix,
    is_variable_prefix,
)
from launcherkit.sources.layer import ANNOTATION, Layer, policy_of
from launcherkit.sources.vmi import Vmi

HOST = "LAUNCHERKIT_HOST"
POLICY = "LAUNCHERKIT_POLICY"
NO_NODE_CHECK = "LAUNCHERKIT_NO_NODE_CHECK"


def resolve_policy(flags: Layer, env: Mapping[str, str], vmi: Vmi | None, policy_file: str | None) -> Policy:
    """The operator's policy, narrowed by the VMI's annotation.

    Args:
        flags: the decisions of the command line.
        env: this process's environment, of which ``LAUNCHERKIT_*`` is read.
        vmi: the VMI, whose annotation ``launcherkit.io/policy`` is read.
        policy_file: the file's path; None uses ``LAUNCHERKIT_POLICY``.

    Raises:
        BadSetting: a variable has an invalid value.
        BadAnnotation, BadPolicy, SeveralErrors: the annotation or the file is wrong.
        AnnotationWidens, OperatorsKey, AnnotationsOff: the annotation asks for what a tenant can't have.
        UnreadableFile: the policy file can't be read.
    """
    merged: Layer = {}
    path = policy_file or env.get(POLICY)
    if path:
        from launcherkit.sources.policy_file import read_policy_file

        merged.update(read_policy_file(path))
    merged.update(variables_layer(env))
    merged.update(flags)
    policy = policy_of(merged)
    annotation = vmi.annotations.get(ANNOTATION) if vmi else None
    if not annotation:
        return policy
    from launcherkit.sources.tenant import check_annotations_on, narrow

    check_annotations_on(policy)
    from launcherkit.sources.policy_file import read_policy_annotation

    return narrow(policy, read_policy_annotation(annotation))


def variables_layer(env: Mapping[str, str]) -> Layer:
    """The decisions of the variables ``LAUNCHERKIT_*``; an empty variable counts as unset.

    Raises:
        BadSetting: names the variable, its value and the valid ones.
    """
    layer: dict[str, Any] = {}
    for variable, (field, read) in VARIABLES.items():
        text = env.get(variable)
        if text:
            layer[field] = read(variable, text)
    if (text := env.get(NO_NODE_CHECK)) and _yes_or_no(NO_NODE_CHECK, text):
        layer.setdefault("node_check", "never")
    return cast("Layer", layer)  # each reader returns its field's type


def _choice(choices: tuple[str, ...]) -> Callable[[str, str], str]:
    def read(variable: str, text: str) -> str:
        if text not in choices:
            raise BadSetting(
                f"{variable}={shown(text)} is none of {', '.join(choices)}",
                f"Set {variable} to one of them, or unset it.",
                variable=variable,
            )
        return text

    return read


def _yes_or_no(variable: str, text: str) -> bool:
    return _choice(("yes", "no"))(variable, text) == "yes"


def _alias_prefix(variable: str, text: str) -> str:
    if not is_alias_prefix(text):
        raise BadSetting(f"{variable}={shown(text)} is not a prefix of aliases", ALIAS_PREFIX_RULE, variable=variable)
    return text


def _prefixes(variable: str, text: str) -> tuple[str, ...]:
    prefixes = tuple(filter(None, (prefix.strip().rstrip("_") for prefix in text.split(","))))
    for prefix in prefixes:
        if not is_variable_prefix(prefix):
            raise BadSetting(
                f"{variable}: {shown(prefix)} is not a prefix of variables",
                "Name prefixes such as PCIDEVICE, with commas between.",
                variable=variable,
            )
    return prefixes


def _text(_variable: str, text: str) -> str:
    return text


VARIABLES: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "LAUNCHERKIT_SIBLINGS": ("siblings", _choice(SIBLINGS)),
    "LAUNCHERKIT_PAIRING": ("pairing", _choice(PAIRING)),
    "LAUNCHERKIT_MANAGED": ("managed", _yes_or_no),
    "LAUNCHERKIT_NODE_CHECK": ("node_check", _choice(NODE_CHECK)),
    "LAUNCHERKIT_TOPOLOGY": ("topology", _choice(TOPOLOGY)),
    "LAUNCHERKIT_IOMMUFD": ("iommufd", _choice(IOMMUFD)),
    "LAUNCHERKIT_GENERIC_INITIATORS": ("generic_initiators", _yes_or_no),
    "LAUNCHERKIT_ANNOTATIONS": ("annotations", _yes_or_no),
    "LAUNCHERKIT_EXTRA_PREFIXES": ("extra_prefixes", _prefixes),
    "LAUNCHERKIT_SYSFS_ROOT": ("sysfs_root", _text),
    "LAUNCHERKIT_ALIAS_PREFIX_GPU": ("gpu", _alias_prefix),
    "LAUNCHERKIT_ALIAS_PREFIX_HOSTDEVICE": ("hostdevice", _alias_prefix),
    "LAUNCHERKIT_ALIAS_PREFIX_USB": ("usb", _alias_prefix),
}


class DeferredHost:
    """A host that is opened when facts are asked for: a VM without devices needs none."""

    def __init__(self, text: str) -> None:
        self.text = text

    def facts(
        self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = (), *, topology: bool = False
    ) -> HostFacts:
        """As `Host.facts`; also raises the errors of `open_host`."""
        from launcherkit.sources.host import open_host

        return open_host(self.text).facts(addresses, mdevs, topology=topology)


def host_of(flag: str | None, env: Mapping[str, str], policy: Policy) -> DeferredHost:
    """The host that ``--host``, ``LAUNCHERKIT_HOST`` or the policy's ``sysfsRoot`` names, in this order."""
    return DeferredHost(flag or env.get(HOST) or policy.sysfs_root)
