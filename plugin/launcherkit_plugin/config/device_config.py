"""The opaque parameters of DeviceClasses and claims, as people write them. Only their JSON Schema is made from this.

The daemon reads them without pydantic: see `launcherkit_plugin.dra.parameters`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from launcherkit_plugin.config.fields import Declared
from launcherkit_plugin.model.parameters import API_VERSION, KIND, Parameters

DEVICE_CONFIG = Declared(
    Parameters,
    title="DeviceConfigSchema",
    beside=("", {"api_version": (Literal[API_VERSION], Field(alias="apiVersion")), "kind": (Literal[KIND], ...)}),
)
