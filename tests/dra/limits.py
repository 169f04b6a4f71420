"""What the API server refuses of a ResourceSlice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(rf"{LABEL.pattern}(\.{LABEL.pattern})*")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
QUANTITY = re.compile(r"[0-9]+([KMGTPE]i?|[mk])?")
TAINT_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
EFFECTS = {"None", "NoSchedule", "NoExecute"}
KEYS = {
    "spec": {"driver", "nodeName", "pool", "devices", "sharedCounters"},
    "device": {"name", "attributes", "capacity", "consumesCounters", "taints"},
}


def wrong_in_slice(spec: Mapping[str, Any]) -> Iterator[str]:
    """What the API refuses of a slice."""
    if not spec.keys() <= KEYS["spec"] or ("devices" in spec) == ("sharedCounters" in spec):
        yield f"exactly one of devices and sharedCounters: {sorted(spec)}"
    devices = spec.get("devices", [])
    heavy = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    if len(devices) > (64 if heavy else 128):
        yield f"{len(devices)} devices, of which some have taints or counters: {heavy}"
    names = [device["name"] for device in devices]
    if len(set(names)) != len(names) or not all(LABEL.fullmatch(name) for name in names):
        yield f"names of devices: {names}"
    for device in devices:
        yield from (f"{device['name']}: {text}" for text in _wrong_in_device(device))
    sets = spec.get("sharedCounters", [])
    if len(sets) > 8 or len({one["name"] for one in sets}) != len(sets):
        yield f"{len(sets)} counter sets"
    for one in sets:
        if not LABEL.fullmatch(one["name"]) or not 0 < len(one["counters"]) <= 32:
            yield f"counter set {one['name']}: {len(one['counters'])} counters"
        yield from _wrong_counters(one["counters"])


def _wrong_in_device(device: Mapping[str, Any]) -> Iterator[str]:
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    if not device.keys() <= KEYS["device"]:
        yield f"keys {sorted(device)}"
    if len(attributes) + len(capacity) > 32:
        yield f"{len(attributes) + len(capacity)} attributes and capacities"
    for name in (*attributes, *capacity):
        domain, _, identifier = name.rpartition("/")
        if not IDENTIFIER.fullmatch(identifier) or len(domain) > 63:
            yield f"name {name!r}"
    for name, value in attributes.items():
        yield from (f"{name}: {text}" for text in _wrong_in_value(value))
    for name, value in capacity.items():
        if set(value) != {"value"} or not QUANTITY.fullmatch(str(value["value"])):
            yield f"capacity {name}: {value}"
    consumed = device.get("consumesCounters", [])
    if len(consumed) > 2 or len({one["counterSet"] for one in consumed}) != len(consumed):
        yield f"consumes of {[one['counterSet'] for one in consumed]}"
    for one in consumed:
        yield from _wrong_counters(one["counters"])
    yield from _wrong_taints(device.get("taints", []))


def _wrong_in_value(value: Mapping[str, Any]) -> Iterator[str]:
    kinds: dict[str, type] = {"int": int, "bool": bool, "string": str, "version": str}
    if len(value) != 1:
        yield "exactly one value must be specified"
        return
    ((kind, content),) = value.items()
    if kind not in kinds or type(content) is not kinds[kind]:
        yield f"{kind}: {content!r}"
    elif isinstance(content, str) and len(content.encode()) > 64:
        yield f"more than 64 bytes: {content!r}"


def _wrong_counters(counters: Mapping[str, Any]) -> Iterator[str]:
    for name, value in counters.items():
        if not LABEL.fullmatch(name) or set(value) != {"value"} or not QUANTITY.fullmatch(str(value["value"])):
            yield f"counter {name}: {value}"


def _wrong_taints(taints: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    taints = list(taints)
    if len(taints) > 16:
        yield f"{len(taints)} taints"
    for taint in taints:
        if taint.get("effect") not in EFFECTS or not TAINT_KEY.fullmatch(taint.get("key", "")):
            yield f"taint {taint}"
