"""Who asked for what, and which variables were there to answer."""

from typing import Literal, NamedTuple, TypeAlias

from launcherkit.model.address import HostAddress

Section: TypeAlias = Literal["gpus", "hostDevices"]
Kind: TypeAlias = Literal["pci", "mdev", "usb"]


class DisplayOptions(NamedTuple):
    """``virtualGPUOptions.display`` of a gpu; None where the key is silent."""

    enabled: bool | None
    ramfb: bool | None


class Request(NamedTuple):
    """One entry of ``spec.domain.devices.gpus`` or ``hostDevices`` (Q1)."""

    section: Section
    position: int
    name: str
    resource: str | None
    """``deviceName``; None for one that is answered by a DRA claim (E5)."""
    display: DisplayOptions | None = None

    @property
    def path(self) -> str:
        return f"spec.domain.devices.{self.section}[{self.position}]"


class Allocation(NamedTuple):
    """A variable of the environment and what it holds, repeats removed (E3)."""

    variable: str
    suffix: str
    """The ``<R>`` of the variable's name, which stands for the resource (E1)."""
    kind: Kind
    entries: tuple[HostAddress, ...]
