"""Opaque parameters of DeviceClasses and claims, as values, which declare their keys (D6)."""

from typing import Annotated, Literal, NamedTuple, TypeAlias

from launcherkit.model.policy import Siblings
from launcherkit_plugin.model.device import Preferences
from launcherkit_plugin.model.keys import Key, Limits

API_VERSION, KIND = "launcherkit.io/v1", "DeviceConfig"
LONGEST_TYPE = 64


CLASS_ONLY = ("rom",)
"""Keys that only a DeviceClass may have: its operator decides them (T1)."""


class Noun(NamedTuple):
    """What messages call a text."""

    text: str


VgpuType: TypeAlias = Annotated[str, Limits(min_length=1, max_length=LONGEST_TYPE), Noun("the name of a vGPU type")]


class Parameters(NamedTuple):
    """Parameters of the DRA driver of launcherkit, in a DeviceClass or a ResourceClaim."""

    # None: the node's configuration decides.
    siblings: Annotated[
        Siblings | None, Key("Which functions come with a card; only fewer than the node's configuration says.")
    ] = None
    nodes: Annotated[Literal["group", "iommufd"] | None, Key("The device nodes that a container gets.")] = None
    rom: Annotated[bool | None, Key("Whether the guest sees the ROM of the card; only in a DeviceClass.")] = None
    vgpu_type: Annotated[VgpuType | None, Key("The type that a vGPU must have.")] = None

    @property
    def wishes(self) -> Preferences:
        """The part that the device's provider needs."""
        return Preferences(self.siblings, "cdev" if self.nodes == "iommufd" else self.nodes)
