"""What a kubelet knows of pods with claims, and of what was prepared for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.dra.api import results_of


class NotPrepared(Exception):
    """Why a pod's containers can't be made; the event FailedPrepareDynamicResources has this text."""


class Pod(NamedTuple):
    """A pod with claims."""

    name: str
    claims: tuple[str, ...]
    """The names of ResourceClaims."""
    containers: Mapping[str, Sequence[tuple[str, str]]]
    """For each container its claims, each with a request, or "" for all of them."""

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"


class Prepared(NamedTuple):
    """A device that a driver has prepared."""

    driver: str
    requests: tuple[str, ...]
    device: str
    cdi: tuple[str, ...]


class HeldClaim:
    """What the kubelet knows of a claim."""

    def __init__(self, claim: Mapping[str, Any]) -> None:
        self.name = claim["metadata"]["name"]
        self.namespace = claim["metadata"]["namespace"]
        self.uid = claim["metadata"]["uid"]
        self.drivers = sorted({result["driver"] for result in results_of(claim)})
        self.allocated = {(one["driver"], one["pool"], one["device"]) for one in results_of(claim)}
        self.pods: set[str] = set()
        self.prepared = False
        self.devices: list[Prepared] = []
