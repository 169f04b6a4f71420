"""Whether a guest could have a function as the host is now, and what is in the way (V1, V3)."""

from typing import Literal, TypeAlias

from launcherkit.model.address import PciAddress
from launcherkit.model.value import NamedTuple

ReadyState: TypeAlias = Literal["ready", "blocked", "idle", "parent", "host", "unused", "bridge"]
"""Of GPUs, accelerators and what has a VFIO driver: ``ready``, ``blocked``, ``idle`` (no driver, or a VF without a vGPU
type) or ``parent`` (its VFs or mediated devices go to guests). Of all else: ``host`` for what the host uses, ``unused``
for what has no driver, ``bridge``."""

FOR_GUESTS: tuple[ReadyState, ...] = ("ready", "blocked", "idle", "parent")
"""The states of devices that people give to guests."""


class Blocker(NamedTuple):
    """Why QEMU could not have a function."""

    code: str | None
    """Of the error that a translation would end with; None where no error is about it."""
    device: PciAddress
    """Which function is the cause."""
    why: str
    """``bound to snd_hda_intel``."""
    whole: bool
    """Whether it keeps the whole IOMMU group from guests (V1), not the device alone (V3)."""


class Readiness(NamedTuple):
    """The state of a function, and what is in its way."""

    state: ReadyState
    blockers: tuple[Blocker, ...] = ()
    """Those of its whole group; where a function is the host's own, those that it is itself to others."""

    @property
    def for_guests(self) -> bool:
        """Whether it is a device that people give to guests."""
        return self.state in FOR_GUESTS
