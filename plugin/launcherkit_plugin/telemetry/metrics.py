"""The interface for metrics. `launcherkit_plugin.telemetry.prometheus` implements it; commands count nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from launcherkit_plugin.model.device import Resource

ActionOutcome: TypeAlias = Literal["done", "refused", "failed"]
"""Refused: for a reason with an error code, by us or somebody else. Failed: something that should work did not."""

Binding: TypeAlias = Literal["bind", "unbind"]
ClaimAction: TypeAlias = Literal["prepare", "unprepare"]
FabricChange: TypeAlias = Literal["activate", "deactivate"]
VgpuChange: TypeAlias = Literal["create", "remove"]
"""A change of an mdev, or of the type of a VF."""


class Metrics:
    """Counts what happens. Methods are cheap, never raise, and are thread-safe. This class ignores everything."""

    def allocated(self, resource: str, seconds: float, outcome: ActionOutcome) -> None:
        """An Allocate was answered, after ``seconds``."""

    def claim(self, action: ClaimAction, seconds: float, outcome: ActionOutcome) -> None:
        """A ResourceClaim was prepared or unprepared, in ``seconds``."""

    def registered(self, resource: str, outcome: ActionOutcome) -> None:
        """A resource, or the DRA driver, was registered with the kubelet, or not."""

    def scanned(self, seconds: float) -> None:
        """The host was scanned, in ``seconds``."""

    def devices(self, resources: Sequence[Resource]) -> None:
        """These resources are advertised from now on."""

    def bound(self, action: Binding, outcome: ActionOutcome) -> None:
        """A group was bound to VFIO, or given back."""

    def cleaned(self, outcome: ActionOutcome) -> None:
        """A device was cleaned after a pod had it, or not."""

    def fabric_changed(self, action: FabricChange, outcome: ActionOutcome) -> None:
        """A fabric partition was activated or deactivated, or not."""

    def fabric_state(self, active: int | None) -> None:
        """So many fabric partitions are active now; None: Fabric Manager can't be asked."""

    def xids_seen(self, *, seen: bool) -> None:
        """Whether critical errors of cards are seen, where a rule asks for it."""

    def vgpu(self, action: VgpuChange, outcome: ActionOutcome) -> None:
        """A vGPU was created or removed."""

    def held_groups(self, number: int) -> None:
        """``number`` IOMMU groups now have a device that a pod holds."""

    def reloaded(self, outcome: ActionOutcome) -> None:
        """The configuration was read again."""

    def hangs(self, number: int) -> None:
        """Work on the host has become late; ``number`` pieces are late now."""

    def came_back(self, number: int) -> None:
        """Late work has ended; ``number`` pieces are still late."""
