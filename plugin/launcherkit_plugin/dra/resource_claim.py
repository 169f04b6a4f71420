"""Parses a ResourceClaim: which devices of this driver are allocated to which request, and with which parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launcherkit.errors import BadInput, shown
from launcherkit_plugin.dra.parameters import OpaqueConfig
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.model.errors import BAD_RESOURCE_CLAIM

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that was created from a template; its value is the claim's name in the pod."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9][-.A-Za-z0-9]{0,252}")
_SOURCES = ("FromClass", "FromClaim")
"""In order of precedence, lowest first: the claim overrides its DeviceClass."""


class AllocatedDevice(NamedTuple):
    """One result of an allocation."""

    request: str
    """The name of the request; for a list of alternatives, without the name of the chosen one."""
    pool: str
    device: str
    share_id: str = ""
    configs: tuple[OpaqueConfig, ...] = ()
    """The opaque parameters for this driver, not yet parsed; those of classes come first."""


class AllocatedClaim(NamedTuple):
    """The part of a claim that concerns this driver."""

    ref: ClaimRef
    devices: tuple[AllocatedDevice, ...]
    pod_claim: str = ""
    """Its name in the pod, if it was created from a template."""
    generation: int = 0


def is_uid(text: str) -> bool:
    """Whether a text can be the UID of a claim, and a part of paths."""
    return _NAME.fullmatch(text) is not None


def check_names(ref: ClaimRef) -> None:
    """Check that namespace, name and UID of a claim can be parts of paths.

    Raises:
        BAD_RESOURCE_CLAIM: one is invalid.
    """
    for key, value in (("namespace", ref.namespace), ("name", ref.name), ("uid", ref.uid)):
        if not _NAME.fullmatch(value):
            whose = ClaimRef(*(shown(each).strip("'") for each in ref))
            raise _bad(whose, f"{key}: {shown(value)} is not the {key} of an object")


def allocated(document: Mapping[str, Any], ref: ClaimRef, driver: str) -> AllocatedClaim:
    """The devices of a driver in a ResourceClaim of ``resource.k8s.io/v1``.

    Args:
        document: the object.
        ref: the claim that the kubelet named.
        driver: results of other drivers are ignored.

    Raises:
        BAD_RESOURCE_CLAIM: it is another claim, isn't allocated, has no device of this driver, asks for admin access,
            or doesn't have the form of a ResourceClaim.
    """
    metadata = _object(document.get("metadata"), "metadata", ref)
    if metadata.get("uid") != ref.uid:
        raise _bad(
            ref, f"its UID is {shown(metadata.get('uid'))}, not {ref.uid!r}: it was created again under this name"
        )
    status = _object(document.get("status") or {}, "status", ref)
    if not status.get("allocation"):
        raise _bad(ref, "it isn't allocated: there is no status.allocation")
    allocation = _object(status["allocation"], "status.allocation", ref)
    devices = _object(allocation.get("devices") or {}, "status.allocation.devices", ref)
    path = "status.allocation.devices.results"
    own = [
        (result, f"{path}[{index}]")
        for index, result in enumerate(_objects(devices.get("results"), path, ref))
        if result.get("driver") == driver
    ]
    if not own:
        raise _bad(ref, f"none of its devices is of the driver {driver}")
    configs = list(_configs(devices.get("config"), ref, driver))
    annotations = _object(metadata.get("annotations") or {}, "metadata.annotations", ref)
    pod_claim = annotations.get(POD_CLAIM)
    return AllocatedClaim(
        ref,
        tuple(_device(result, where, configs, ref) for result, where in own),
        "" if pod_claim is None else _label(pod_claim, f"metadata.annotations[{POD_CLAIM}]", ref),
        metadata["generation"] if isinstance(metadata.get("generation"), int) else 0,
    )


def _device(
    result: Mapping[str, Any], where: str, configs: Sequence[tuple[frozenset[str], OpaqueConfig]], ref: ClaimRef
) -> AllocatedDevice:
    if result.get("adminAccess"):
        raise _bad(
            ref,
            f"{where}.adminAccess: VFIO lets only one process open an IOMMU group, so its user can't share it",
        )
    whole = result.get("request")
    if not isinstance(whole, str):
        raise _bad(ref, f"{where}.request: {shown(whole)} is not the name of a request")
    request = _label(whole.partition("/")[0], f"{where}.request", ref)
    pool, share = result.get("pool"), result.get("shareID")
    if not isinstance(pool, str) or not pool:
        raise _bad(ref, f"{where}.pool: {shown(pool)} is not the name of a pool")
    of_it = tuple(parameters for requests, parameters in configs if not requests or requests & {request, whole})
    device = _label(result.get("device"), f"{where}.device", ref)
    return AllocatedDevice(request, pool, device, share if isinstance(share, str) else "", of_it)


def _configs(found: Any, ref: ClaimRef, driver: str) -> Iterator[tuple[frozenset[str], OpaqueConfig]]:
    """The parameters for this driver, each with the requests to which they apply, none for all; classes come first."""
    path = "status.allocation.devices.config"
    entries = list(enumerate(_objects(found or [], path, ref)))
    for source in _SOURCES:
        for index, entry in entries:
            opaque = entry.get("opaque")
            if entry.get("source") != source or not isinstance(opaque, dict) or opaque.get("driver") != driver:
                continue
            requests = entry.get("requests") or []
            if not isinstance(requests, list) or not all(isinstance(name, str) for name in requests):
                raise _bad(ref, f"{path}[{index}].requests: {shown(requests)} is not a list of names")
            where = f"{path}[{index}].opaque.parameters"
            parameters = _object(opaque.get("parameters"), where, ref)
            yield frozenset(requests), OpaqueConfig(parameters, where, source == "FromClaim")


def _objects(found: Any, path: str, ref: ClaimRef) -> list[Mapping[str, Any]]:
    if not isinstance(found, list):
        raise _bad(ref, f"{path}: {shown(found)} is not a list")
    return [_object(each, f"{path}[{index}]", ref) for index, each in enumerate(found)]


def _object(found: Any, path: str, ref: ClaimRef) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise _bad(ref, f"{path}: {shown(found)} is not an object")
    return found


def _label(found: Any, path: str, ref: ClaimRef) -> str:
    if not isinstance(found, str) or not _LABEL.fullmatch(found):
        raise _bad(ref, f"{path}: {shown(found)} is not a DNS label")
    return found


def _bad(ref: ClaimRef, why: str) -> BadInput:
    return BAD_RESOURCE_CLAIM(
        f"ResourceClaim {ref} can't be prepared: {why}",
        "See what the claim says: kubectl get resourceclaim -n NAMESPACE NAME -o yaml. The kubelet tries again by "
        "itself.",
        file=f"ResourceClaim {ref}",
    )
