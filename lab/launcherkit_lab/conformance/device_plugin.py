"""The expectations of device plugins. A number stays with its expectation; a new one gets the next."""

from __future__ import annotations

from launcherkit_lab.conformance import advertisement, allocation, guest, lifecycle, pods
from launcherkit_lab.conformance.expectation import Expectation
from launcherkit_lab.conformance.node import Node

DEVICE_PLUGIN: tuple[Expectation[Node], ...] = (
    *advertisement.EXPECTATIONS,
    *allocation.EXPECTATIONS,
    *pods.EXPECTATIONS,
    *lifecycle.EXPECTATIONS,
    *guest.EXPECTATIONS,
)
