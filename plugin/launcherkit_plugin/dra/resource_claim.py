"""Parses a ResourceClaim: which devices of this driver are allocated to which request, and with which parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launcherkit.errors import BadInput, ErrorFields, shown
from launcherkit.request.fields import DocumentErrors, Fields, flag, string, text
from launcherkit_plugin.dra.labels import share_name
from launcherkit_plugin.dra.parameters import OpaqueConfig
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.model.errors import BAD_RESOURCE_CLAIM
from launcherkit_plugin.model.same_device import LABEL, VM_LABEL, AskingPod, Owner, wish_of

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
    """Of a device that several claims may have, the ID of this claim's share (KEP-5075)."""
    admin: bool = False
    """It is only looked at: the claim gets its state, and doesn't hold it (D13)."""
    configs: tuple[OpaqueConfig, ...] = ()
    """The opaque parameters for this driver, not yet parsed; those of classes come first."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from the claim's other results."""
        return self.request, self.device, self.share_id

    @property
    def name(self) -> str:
        """Its name in the files of the claim."""
        return share_name(self.device, self.share_id)


class AllocatedClaim(NamedTuple):
    """The part of a claim that concerns this driver."""

    ref: ClaimRef
    devices: tuple[AllocatedDevice, ...]
    pod_claim: str = ""
    """Its name in the pod, if it was created from a template."""
    generation: int = 0
    asking: AskingPod | None = None
    """Its VM, and whether it asks for the devices that this had, by labels. Without a VM it stands for itself."""


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
        BAD_RESOURCE_CLAIM: it is another claim, isn't allocated, has no device of this driver, or doesn't have the form
            of a ResourceClaim.
    """
    root = Fields(document, "", _ClaimErrors(ref))
    metadata, status = root.inner("metadata", required=True), root.inner("status")
    uid = metadata.pop("uid")
    if uid != ref.uid:
        raise _bad(ref, f"its UID is {shown(uid)}, not {ref.uid!r}: it was created again under this name")
    if not status.peek("allocation"):
        raise _bad(ref, "it isn't allocated: there is no status.allocation")
    devices = status.inner("allocation").inner("devices")
    own = [result for result in devices.objects("results") if result.pop("driver") == driver]
    if not own:
        raise _bad(ref, f"none of its devices is of the driver {driver}")
    configs = list(_configs(devices.objects("config"), driver))
    generation, labels = metadata.pop("generation"), metadata.mapping("labels")
    return AllocatedClaim(
        ref,
        tuple(_device(result, configs) for result in own),
        metadata.inner("annotations").optional(POD_CLAIM, _label, _A_LABEL) or "",
        generation if isinstance(generation, int) else 0,
        AskingPod(Owner(ref.namespace, str(labels.get(VM_LABEL) or ref.name)), wish_of(labels.get(LABEL)), {}),
    )


class _ClaimErrors(DocumentErrors):
    """The first thing that is wrong in a claim."""

    def __init__(self, ref: ClaimRef) -> None:
        super().__init__(f"ResourceClaim {ref}", BAD_RESOURCE_CLAIM, _REMEDY, most=1)
        self._ref = ref

    def error(self, where: str, message: str) -> BadInput:
        return _bad(self._ref, f"{where}: {message}", key=where)

    def wrong(self, where: str, value: object, expected: str) -> None:
        self.add(where, f"{shown(value)} is not {expected}")


def _device(result: Fields, configs: Sequence[tuple[frozenset[str], OpaqueConfig]]) -> AllocatedDevice:
    whole = result.required("request", string, "the name of a request", "")
    request = whole.partition("/")[0]
    if not _LABEL.fullmatch(request):
        result.problem("request", request, _A_LABEL)
    return AllocatedDevice(
        request,
        result.required("pool", text, "the name of a pool", ""),
        result.required("device", _label, _A_LABEL, ""),
        result.optional("shareID", _uid, "a UID") or "",
        result.optional("adminAccess", flag, "true or false") or False,
        tuple(parameters for requests, parameters in configs if not requests or requests & {request, whole}),
    )


def _configs(entries: Sequence[Fields], driver: str) -> Iterator[tuple[frozenset[str], OpaqueConfig]]:
    """The parameters for this driver, each with the requests to which they apply, none for all; classes come first."""
    for source in _SOURCES:
        for entry in entries:
            if entry.peek("source") != source or not isinstance(entry.peek("opaque"), Mapping):
                continue
            opaque = entry.inner("opaque")
            if opaque.pop("driver") == driver:
                requests = frozenset(entry.many("requests", string, "the name of a request"))
                parameters = opaque.mapping("parameters", required=True)
                yield requests, OpaqueConfig(parameters, opaque.at("parameters"), source == "FromClaim")


_A_LABEL = "a DNS label"


def _uid(value: object) -> str:
    if not isinstance(value, str) or not is_uid(value):
        raise ValueError
    return value


def _label(value: object) -> str:
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise ValueError
    return value


_REMEDY = (
    "See what the claim says: kubectl get resourceclaim -n NAMESPACE NAME -o yaml. The kubelet tries again by itself."
)


def _bad(ref: ClaimRef, problem: str, key: str = "") -> BadInput:
    claim = f"ResourceClaim {ref}"
    facts: ErrorFields = {"file": claim, "key": key} if key else {"file": claim}
    return BAD_RESOURCE_CLAIM(f"{claim} can't be prepared: {problem}", _REMEDY, **facts)
