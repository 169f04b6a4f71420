"""What is counted, and nothing of how: `launcherkit_plugin.telemetry.prometheus` keeps it, a command keeps nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from launcherkit_plugin.model.device import Resource

ActionOutcome: TypeAlias = Literal["done", "refused", "failed"]
"""Refused: we said no, or somebody else did, for a reason that has a code. Failed: what should work did not."""

Binding: TypeAlias = Literal["bind", "unbind"]
ClaimAction: TypeAlias = Literal["prepare", "unprepare"]
VgpuChange: TypeAlias = Literal["create", "remove"]
"""Of an mdev, or of the type of a VF."""


class Metrics:
    """Counts what happens; this one keeps nothing. Cheap, raises nothing, and may be called from any thread."""

    def allocated(self, resource: str, seconds: float, outcome: ActionOutcome) -> None:
        """An Allocate was answered."""

    def claim(self, action: ClaimAction, seconds: float, outcome: ActionOutcome) -> None:
        """A ResourceClaim was prepared or unprepared."""

    def registered(self, resource: str, outcome: ActionOutcome) -> None:
        """A resource, or the DRA driver, was registered with the kubelet, or not."""

    def scanned(self, seconds: float) -> None:
        """The host was looked at."""

    def devices(self, resources: Sequence[Resource]) -> None:
        """What is advertised from now on."""

    def bound(self, action: Binding, outcome: ActionOutcome) -> None:
        """A group was bound to VFIO, or given back."""

    def vgpu(self, action: VgpuChange, outcome: ActionOutcome) -> None:
        """A vGPU was made or removed."""

    def held_groups(self, number: int) -> None:
        """So many IOMMU groups have a device that a pod holds."""

    def reloaded(self, outcome: ActionOutcome) -> None:
        """The configuration was read again."""

    def hangs(self, number: int) -> None:
        """Work on the host has become late; so many pieces are by now."""

    def came_back(self, number: int) -> None:
        """Late work has ended; so many pieces are left."""
