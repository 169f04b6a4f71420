"""Makes calls of NVML, NVIDIA's management library, in a process of its own: one may hang or crash.

It answers one question of `launcherkit_plugin.vgpu.nvml` and ends, so that no card stays open: the driver doesn't
unbind or reset one that is. The binding is ``pynvml`` of nvidia-ml-py; what each call does and returns is in NVIDIA's
``nvml.h``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import suppress
from ctypes import byref, c_uint
from typing import Any

from launcherkit_plugin.host.child import answer_with

_INVALID_ARGUMENT, _NOT_SUPPORTED = 2, 3


class _Library:
    """The binding, which remembers the last function that was called."""

    def __init__(self) -> None:
        self.binding: Any = importlib.import_module("pynvml")
        self.function = ""

    def __call__(self, function: str, *arguments: Any) -> Any:
        self.function = function
        return getattr(self.binding, function)(*arguments)

    def unless(self, codes: tuple[int, ...], function: str, *arguments: Any) -> Any:
        """What a function returns; None if it fails with one of some codes."""
        try:
            return self(function, *arguments)
        except self.binding.NVMLError as error:
            if error.value not in codes:
                raise
            return None

    def card(self, address: str) -> Any:
        return self("nvmlDeviceGetHandleByPciBusId", address)

    def instances(self, device: Any, profile: int, most: int) -> Iterator[tuple[Any, Any]]:
        """The handles of the GPU instances of a profile, with what is known of each."""
        handles, number = (self.binding.c_nvmlGpuInstance_t * most)(), c_uint(most)
        self("nvmlDeviceGetGpuInstances", device, profile, handles, byref(number))
        for handle in handles[: min(number.value, most)]:
            yield handle, self("nvmlGpuInstanceGetInfo", handle)


def _read(library: _Library, asked: dict[str, Any]) -> dict[str, Any]:
    """MIG mode, profiles and GPU instances of a card. Profiles and instances are known only in MIG mode."""
    device = library.card(asked["card"])
    mode = library.unless((_NOT_SUPPORTED,), "nvmlDeviceGetMigMode", device)
    current, pending = mode or (None, None)
    profiles, instances = [], []
    for number in range(library.binding.NVML_GPU_INSTANCE_PROFILE_COUNT if current else 0):
        codes = (_INVALID_ARGUMENT, _NOT_SUPPORTED)
        info = library.unless(codes, "nvmlDeviceGetGpuInstanceProfileInfoV", device, number)
        if info is None:
            continue
        places = c_uint(0)
        library("nvmlDeviceGetGpuInstancePossiblePlacements", device, info.id, None, byref(places))
        placements = (library.binding.c_nvmlGpuInstancePlacement_t * places.value)()
        library("nvmlDeviceGetGpuInstancePossiblePlacements", device, info.id, placements, byref(places))
        at = [(place.start, place.size) for place in placements[: places.value]]
        profiles.append({"id": info.id, "name": info.name, "most": info.instanceCount, "placements": at})
        for _, its in library.instances(device, info.id, info.instanceCount):
            instances.append((its.profileId, its.placement.start, its.placement.size))
    return {"current": current, "pending": pending, "profiles": profiles, "instances": instances}


def _create(library: _Library, asked: dict[str, Any]) -> dict[str, Any]:
    placement = library.binding.c_nvmlGpuInstancePlacement_t(asked["start"], asked["size"])
    device = library.card(asked["card"])
    library("nvmlDeviceCreateGpuInstanceWithPlacement", device, asked["profile"], byref(placement))
    return {}


def _destroy(library: _Library, asked: dict[str, Any]) -> dict[str, Any]:
    place = asked["start"], asked["size"]
    for handle, its in library.instances(library.card(asked["card"]), asked["profile"], asked["most"]):
        if (its.placement.start, its.placement.size) == place:
            library("nvmlGpuInstanceDestroy", handle)
    return {}


def _set_mode(library: _Library, asked: dict[str, Any]) -> dict[str, Any]:
    """NVML returns two codes: of the call, and of what it did at once to activate the mode."""
    return {"activation": library("nvmlDeviceSetMigMode", library.card(asked["card"]), asked["mode"])}


_CALLS = {"read": _read, "create": _create, "destroy": _destroy, "mode": _set_mode}


def answer(question: bytes) -> bytes:
    """Make the calls of one question, both as JSON. An error of NVML is answered with its code and function."""
    asked = json.loads(question)
    try:
        library = _Library()
    except ImportError as problem:
        return json.dumps({"missing": str(problem)}).encode()
    try:
        library("nvmlInit")
        try:
            return json.dumps(_CALLS[asked["call"]](library, asked)).encode()
        finally:
            with suppress(library.binding.NVMLError):
                library.binding.nvmlShutdown()
    except library.binding.NVMLError as error:
        return json.dumps({"code": error.value, "from": library.function, "text": str(error)}).encode()


if __name__ == "__main__":
    answer_with(answer)
