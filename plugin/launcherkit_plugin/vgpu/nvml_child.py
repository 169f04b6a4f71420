"""Makes calls of NVML, NVIDIA's management library, in a process of its own: one may hang or crash.

It answers one question of `launcherkit_plugin.vgpu.nvml` and ends, so that no card stays open: the driver doesn't
unbind or reset one that is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from ctypes import byref, c_uint
from typing import Any

from launcherkit_plugin.host.child import answer_with
from launcherkit_plugin.host.nvml_library import NOT_SUPPORTED, NvmlLibrary, with_nvml

_INVALID_ARGUMENT = 2


def _instances(library: NvmlLibrary, device: Any, profile: int, most: int) -> Iterator[tuple[Any, Any]]:
    """The handles of the GPU instances of a profile, with what is known of each."""
    handles, number = (library.binding.c_nvmlGpuInstance_t * most)(), c_uint(most)
    library("nvmlDeviceGetGpuInstances", device, profile, handles, byref(number))
    for handle in handles[: min(number.value, most)]:
        yield handle, library("nvmlGpuInstanceGetInfo", handle)


def _read(library: NvmlLibrary, asked: dict[str, Any]) -> dict[str, Any]:
    """MIG mode, profiles and GPU instances of a card. Profiles and instances are known only in MIG mode."""
    device = library.card(asked["card"])
    mode = library.unless((NOT_SUPPORTED,), "nvmlDeviceGetMigMode", device)
    current, pending = mode or (None, None)
    profiles, instances = [], []
    for number in range(library.binding.NVML_GPU_INSTANCE_PROFILE_COUNT if current else 0):
        codes = (_INVALID_ARGUMENT, NOT_SUPPORTED)
        info = library.unless(codes, "nvmlDeviceGetGpuInstanceProfileInfoV", device, number)
        if info is None:
            continue
        places = c_uint(0)
        library("nvmlDeviceGetGpuInstancePossiblePlacements", device, info.id, None, byref(places))
        placements = (library.binding.c_nvmlGpuInstancePlacement_t * places.value)()
        library("nvmlDeviceGetGpuInstancePossiblePlacements", device, info.id, placements, byref(places))
        at = [(place.start, place.size) for place in placements[: places.value]]
        profiles.append({"id": info.id, "name": info.name, "most": info.instanceCount, "placements": at})
        for _, its in _instances(library, device, info.id, info.instanceCount):
            instances.append((its.profileId, its.placement.start, its.placement.size))
    return {"current": current, "pending": pending, "profiles": profiles, "instances": instances}


def _create(library: NvmlLibrary, asked: dict[str, Any]) -> dict[str, Any]:
    placement = library.binding.c_nvmlGpuInstancePlacement_t(asked["start"], asked["size"])
    device = library.card(asked["card"])
    library("nvmlDeviceCreateGpuInstanceWithPlacement", device, asked["profile"], byref(placement))
    return {}


def _destroy(library: NvmlLibrary, asked: dict[str, Any]) -> dict[str, Any]:
    place = asked["start"], asked["size"]
    for handle, its in _instances(library, library.card(asked["card"]), asked["profile"], asked["most"]):
        if (its.placement.start, its.placement.size) == place:
            library("nvmlGpuInstanceDestroy", handle)
    return {}


def _set_mode(library: NvmlLibrary, asked: dict[str, Any]) -> dict[str, Any]:
    """NVML returns two codes: of the call, and of what it did at once to activate the mode."""
    return {"activation": library("nvmlDeviceSetMigMode", library.card(asked["card"]), asked["mode"])}


_CALLS = {"read": _read, "create": _create, "destroy": _destroy, "mode": _set_mode}


def answer(question: bytes) -> bytes:
    """Make the calls of one question, both as JSON. An error of NVML is answered with its code and function."""
    asked = json.loads(question)
    return json.dumps(with_nvml(lambda library: _CALLS[asked["call"]](library, asked))).encode()


if __name__ == "__main__":
    answer_with(answer)
