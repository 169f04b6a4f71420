"""Reads the requests of a VirtualMachineInstance (Q1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from launcherkit.errors import BadVmi, Collector, shown
from launcherkit.model.request import DisplayOptions, Request, Section

_SECTIONS: tuple[Section, ...] = ("gpus", "hostDevices")
_REMEDY = (
    "Give the whole VirtualMachineInstance as KubeVirt hands it to hooks, or what "
    "`kubectl get vmi NAME -o json` prints."
)


class Vmi(NamedTuple):
    """What the rules use of a VMI."""

    requests: tuple[Request, ...]
    annotations: Mapping[str, str]


def read_vmi(vmi: str | bytes | Mapping[str, Any], name: str = "the VMI") -> Vmi:
    """Take the requests out of a VMI, as JSON or parsed.

    Args:
        vmi: the document.
        name: what messages call it, a file's path for example.

    Raises:
        BadVmi: it is not JSON, or not of the VMI's shape; all faults together.
    """
    document = _parse(vmi, name) if isinstance(vmi, str | bytes) else vmi
    errors = Collector()
    requests: list[Request] = []
    reader = _Reader(name, errors)
    root = reader.mapping(document, "$")
    devices = root
    for key, path in (("spec", "spec"), ("domain", "spec.domain"), ("devices", "spec.domain.devices")):
        devices = reader.mapping(devices.get(key), path)
    for section in _SECTIONS:
        entries = devices.get(section)
        if entries is None:
            continue
        if not isinstance(entries, list | tuple):
            reader.fault(f"spec.domain.devices.{section}", entries, "a list")
            continue
        for index, entry in enumerate(entries):
            requests.append(_request(reader, section, index, entry))
    metadata = reader.mapping(root.get("metadata"), "metadata")
    annotations = reader.mapping(metadata.get("annotations"), "metadata.annotations")
    errors.raise_if_any()
    return Vmi(tuple(requests), {key: value for key, value in annotations.items() if isinstance(value, str)})


def _parse(text: str | bytes, name: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadVmi(f"{name} is not JSON: {problem}", _REMEDY) from problem


class _Reader:
    """Checks shapes and collects what is wrong, each with its JSON path."""

    def __init__(self, name: str, errors: Collector) -> None:
        self._name = name
        self._errors = errors

    def fault(self, path: str, value: object, expected: str) -> None:
        self._errors.add(BadVmi(f"{self._name}, {path}: expected {expected}, found {shown(value)}", _REMEDY))

    def mapping(self, value: object, path: str) -> Mapping[str, Any]:
        """A mapping; None counts as an empty one, as in Kubernetes."""
        if type(value) is dict or isinstance(value, Mapping):  # the first is what JSON gives, and quicker
            return value
        if value is not None or path == "$":
            self.fault(path, value, "an object")
        return {}

    def optional_bool(self, value: object, path: str) -> bool | None:
        if value is None or isinstance(value, bool):
            return value
        self.fault(path, value, "true or false")
        return None


def _request(reader: _Reader, section: Section, index: int, value: object) -> Request:
    path = f"spec.domain.devices.{section}[{index}]"
    entry = reader.mapping({} if value is None else value, path)
    name, resource = entry.get("name"), entry.get("deviceName") or None
    if not _is_text(name):
        reader.fault(f"{path}.name", name, "the name of the device")
        name = ""
    if resource is None:
        if not (entry.get("claimName") and entry.get("requestName")):
            reader.fault(f"{path}.deviceName", entry.get("deviceName"), "a resource name such as nvidia.com/GA102")
    elif not _is_text(resource):
        reader.fault(f"{path}.deviceName", resource, "a resource name such as nvidia.com/GA102")
        resource = None
    return Request(section, index, name, resource, _display(reader, path, entry) if section == "gpus" else None)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value)


def _display(reader: _Reader, path: str, entry: Mapping[str, Any]) -> DisplayOptions | None:
    if entry.get("virtualGPUOptions") is None:
        return None
    options = reader.mapping(entry["virtualGPUOptions"], f"{path}.virtualGPUOptions")
    if options.get("display") is None:
        return None
    path = f"{path}.virtualGPUOptions.display"
    display = reader.mapping(options["display"], path)
    ramfb = reader.mapping(display.get("ramFB"), f"{path}.ramFB")
    return DisplayOptions(
        reader.optional_bool(display.get("enabled"), f"{path}.enabled"),
        reader.optional_bool(ramfb.get("enabled"), f"{path}.ramFB.enabled"),
    )
