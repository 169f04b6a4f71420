"""Whether a guest could have a function in the host's present state, and what is in the way (V1, V3)."""

from typing import Literal, NamedTuple, TypeAlias

from launcherkit.model.address import PciAddress

ReadyState: TypeAlias = Literal["ready", "blocked", "idle", "parent", "host", "unused", "bridge"]
"""For GPUs, accelerators and functions with a VFIO driver: ``ready``, ``blocked``, ``idle`` (no driver, or a VF without
a vGPU type) or ``parent`` (its VFs or mediated devices go to guests). For all others: ``host`` if the host uses it,
``unused`` if it has no driver, or ``bridge``."""

FOR_GUESTS: tuple[ReadyState, ...] = ("ready", "blocked", "idle", "parent")
"""The states of devices that are meant for guests."""


class Blocker(NamedTuple):
    """Why QEMU couldn't have a function."""

    code: str
    """The code of the error with which a translation would fail."""
    device: PciAddress
    """The function that is the cause."""
    why: str
    """Such as ``bound to snd_hda_intel``."""
    whole: bool
    """Whether it keeps the whole IOMMU group from guests (V1), not just the device (V3)."""


class Readiness(NamedTuple):
    """The state of a function, and what is in its way."""

    state: ReadyState
    blockers: tuple[Blocker, ...] = ()
    """The blockers of its whole group; for a function that the host uses, those that it causes itself."""

    @property
    def for_guests(self) -> bool:
        """Whether it is a device that is meant for guests."""
        return self.state in FOR_GUESTS
