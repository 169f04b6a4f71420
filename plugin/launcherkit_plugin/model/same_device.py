"""Pods that ask for the device that their VM had, and which VM had which device last."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

LABEL = "launcherkit.io/same-device"
"""The label of a pod. KubeVirt copies the labels of a VM's template to its pods."""

VM_LABEL = "launcherkit.io/vm"
"""The label of a ResourceClaim that names its VM; several claims of a VM for one resource need different ones."""

Wish: TypeAlias = Literal["preferred", "required"]
"""What a pod may ask for: ``preferred``: the same device if it is free; ``required``: that one or none."""
WISHES: tuple[Wish, ...] = ("preferred", "required")


def wish_of(label: object) -> Wish | Literal[""]:
    """What a value of the `LABEL` asks for; empty for none, and for any other."""
    return next((wish for wish in WISHES if wish == label), "")


class Owner(NamedTuple):
    """A VM: the VirtualMachineInstance that controls a pod; a pod that none controls stands for itself.

    It has no UID: a VM that is deleted and created again under its name is the same, as it is for its disks.
    """

    namespace: str
    vm: str

    def __str__(self) -> str:
        return f"VM {self.namespace}/{self.vm}"


class AskingPod(NamedTuple):
    """A pod of this node, or one with the `LABEL` that isn't on any node yet."""

    owner: Owner
    wish: Wish | Literal[""]
    """Empty without the label."""
    asks: Mapping[str, int]
    """How many devices its containers ask for, by resource."""
    ended: bool = False


class Kept(NamedTuple):
    """The last VM that had a device: what is recorded."""

    device: str
    resource: str
    owner: Owner | None
    """None: the record can't be read."""
    wish: Wish
    pod: str
    """The pod that has or had it: ``namespace/name``."""
    since: float
    """When it got the device; times are in seconds since the epoch."""
    ended: float | None = None
    """When the pod was found to have ended; None: it hasn't."""
    seconds: float = 0.0
    """How long the device is kept from then on."""

    @property
    def until(self) -> float:
        """When it is not kept any more."""
        return float("inf") if self.ended is None else self.ended + self.seconds

    def __str__(self) -> str:
        """``for VM vms/one since 2026-11-25 12:00 UTC until 2026-11-26 12:00 UTC``."""
        who = f"for {self.owner or 'a VM that its record does not name'}"
        if self.ended is None:
            return who
        since, until = (
            datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC") for moment in (self.ended, self.until)
        )
        return f"{who} since {since} until {until}"
