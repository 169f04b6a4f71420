"""The page of the configuration tells the truth."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from pydantic import BaseModel

from launcherkit_plugin.config.kubevirt import SettingsSchema
from launcherkit_plugin.config.schema import (
    CDI,
    CONFIG,
    CONTAINER,
    DRA,
    ENVIRONMENT,
    FABRIC,
    GPU_INSTANCES,
    HEALTH,
    LAYOUT_ENTRY,
    MDEVS,
    NAMES,
    RESOURCE,
    SELECTOR,
    SHARING,
    USB,
    USB_SELECTOR,
    VFS,
    VGPU,
    KubevirtSchema,
)
from tests.plugin.config.test_reading import FULL
from tests.support.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "plugin-configuration.md"


def parts() -> dict[str, str]:
    """The text below each heading of any level, by heading."""
    texts = re.split(r"^##+ (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(texts[1::2], texts[2::2], strict=True))


def keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    return {prefix + (field.alias or name) for name, field in model.model_fields.items()}


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("Keys", keys(CONFIG.model)),
        ("resources", keys(RESOURCE.model) - {"environment"} | keys(ENVIRONMENT.model, "environment.")),
        ("container", keys(CONTAINER.model)),
        ("sharing", keys(SHARING.model)),
        ("health", keys(HEALTH.model)),
        ("Selectors", keys(SELECTOR.model)),
        (
            "vgpu",
            keys(VGPU.model)
            | keys(LAYOUT_ENTRY.model, "layout[].")
            | keys(GPU_INSTANCES.model, "layout[].gpuInstances[]."),
        ),
        ("vGPU resources", keys(MDEVS.model) | keys(VFS.model)),
        ("kubevirt", keys(KubevirtSchema)),
        ("cdi", keys(CDI.model)),
        ("dra", keys(DRA.model)),
        ("fabric", keys(FABRIC.model)),
        ("usb", keys(USB.model) | keys(USB_SELECTOR.model, "selectors[].")),
    ],
)
def test_the_tables_name_every_key_and_no_other(heading: str, expected: set[str]) -> None:
    assert set(re.findall(r"^\| `([\w.\[\]]+)` \|", parts()[heading], re.MULTILINE)) == expected


def test_the_settings_that_are_read_of_kubevirt_are_those_that_can_be_written_here() -> None:
    of_kubevirt_alone = {"developerConfiguration"}
    assert keys(SettingsSchema) - of_kubevirt_alone == keys(KubevirtSchema) - {"file", "cluster"}


def test_the_tests_use_every_key_there_is() -> None:
    def used(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            yield from value
            for part in value.values():
                yield from used(part)
        elif isinstance(value, list):
            for part in value:
                yield from used(part)

    # those of selectors are tried one by one in test_declared.py
    rules = (RESOURCE, ENVIRONMENT, CONTAINER, SHARING, NAMES)
    declared = (CONFIG, *rules, VGPU, LAYOUT_ENTRY, MDEVS, VFS, CDI, DRA, FABRIC, USB, USB_SELECTOR)
    every = {key for each in declared for key in keys(each.model)}
    assert every - set(used(yaml.safe_load(FULL))) == {"auto", "kubevirt", "socket"}  # these have tests of their own
