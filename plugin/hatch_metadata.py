"""Asks the hook of the checkout, one folder up. In an sdist PKG-INFO has its answers, and nobody asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface
from hatchling.plugin.utils import load_plugin_from_script


class MetadataOfTheCheckout(MetadataHookInterface):
    """The hook of both distributions, where it is."""

    def update(self, metadata: dict[str, Any]) -> None:
        shared = Path(self.root).resolve().parent / "hatch_build.py"
        hook = load_plugin_from_script(
            str(shared),
            "hatch_build.py",
            MetadataHookInterface,  # type: ignore[type-abstract]  # what is loaded is a subclass
            "metadata_hook",
        )
        hook(self.root, self.config).update(metadata)
