"""The opaque parameters of DeviceClasses and claims, as people write them. Only their JSON Schema is made from this.

The daemon reads them without pydantic: see `launcherkit_plugin.dra.parameters`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from launcherkit.model.policy import Siblings


class DeviceConfigSchema(BaseModel):
    """Parameters of the DRA driver of launcherkit, in a DeviceClass or a ResourceClaim."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_version: Literal["launcherkit.io/v1"] = Field(alias="apiVersion")
    kind: Literal["DeviceConfig"]
    siblings: Siblings | None = Field(
        None, description="Which functions come with a card; only fewer than the node's configuration says."
    )
    nodes: Literal["group", "iommufd"] | None = Field(None, description="The device nodes that a container gets.")
    rom: StrictBool | None = Field(
        None, description="Whether the guest sees the ROM of the card; only in a DeviceClass."
    )
    vgpu_type: str | None = Field(
        None, alias="vgpuType", min_length=1, max_length=64, description="The type that a vGPU must have."
    )
