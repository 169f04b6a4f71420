"""What becomes of devices is told, and what is nobody's fault isn't."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from launcherkit_plugin.model.device import Device, Problem, Reason, Resource
from launcherkit_plugin.telemetry.reporter import Change, changes

GPU = "nvidia.com/GPU"


def resources(devices: Mapping[str, Reason | None]) -> dict[str, Resource]:
    """One resource, whose devices are Unhealthy for these reasons."""
    made = {id_: Device(id_, problem=Problem(why, f"{id_}: {why}") if why else None) for id_, why in devices.items()}
    return {GPU: Resource(GPU, "PCI_RESOURCE_X", made)}


ILL = ("Warning", "DeviceUnhealthy")
WELL = ("Normal", "DeviceHealthy")
GONE = ("Normal", "DeviceGone")


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        ({"a": None}, {"a": None}, []),
        ({"a": None}, {"a": "node"}, [(*ILL, f"{GPU}: a: node")]),
        ({"a": "node"}, {"a": "node"}, []),
        ({"a": "node"}, {"a": "driver"}, [(*ILL, f"{GPU}: a: driver")]),
        ({"a": "node"}, {"a": None}, [(*WELL, f"{GPU}: a can be allocated")]),
        ({}, {"a": None}, [(*WELL, f"{GPU}: a can be allocated")]),
        ({"a": None, "b": None}, {"b": None}, [(*GONE, f"{GPU}: no longer listed: a")]),
        ({"a": None}, {"a": "group-in-use"}, []),
        ({"a": "group-in-use"}, {"a": None}, []),
        ({"a": "other-type"}, {"a": "no-room"}, []),
        ({"a": "group-in-use"}, {"a": "driver"}, [(*ILL, f"{GPU}: a: driver")]),
        (
            {"a": None, "b": "node"},
            {"a": "node", "b": None},
            [(*ILL, f"{GPU}: a: node"), (*WELL, f"{GPU}: b can be allocated")],
        ),
    ],
)
def test_a_change_is_a_line(
    before: dict[str, Reason | None], after: dict[str, Reason | None], reported: list[tuple[str, str, str]]
) -> None:
    assert list(changes(resources(before), resources(after))) == [Change(*line) for line in reported]  # type: ignore[arg-type]


def test_a_resource_that_comes_or_goes_is_told_by_its_devices() -> None:
    assert [change.text for change in changes({}, resources({"a": None}))] == [f"{GPU}: a can be allocated"]
    assert [change.text for change in changes(resources({"a": None}), {})] == [f"{GPU}: no longer listed: a"]


def test_of_many_devices_a_few_are_named() -> None:
    (change,) = changes({}, resources({f"d{number:02d}": None for number in range(12)}))
    assert change.text == f"{GPU}: d00, d01, d02, d03, d04 and 7 more can be allocated"
