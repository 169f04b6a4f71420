"""What everything that people write here has in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Written(BaseModel):
    """A mapping in a configuration: no keys but its own; a key with nothing behind it is as good as none."""

    # Built when it is used: most are used as parts of others alone.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {key: value for key, value in values.items() if value is not None}
        return values
