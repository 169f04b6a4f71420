"""Who needs a vGPU, and which may go: nobody has had it for the grace time (G3), or its VM has ended."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit_plugin.model.device import Problem, Usage

UNKNOWN_USAGE = Problem("usage", "it isn't known yet which vGPUs pods have: see the log for what can't be read")
"""Why nothing new is made until usage was known once. After a reboot what pods have is not there any more, and what is
made first may fix another type than theirs."""


def held_devices(usage: Usage) -> frozenset[str]:
    """The IDs that somebody has, whatever the resource is called: its name may have changed while a pod had it."""
    return frozenset(device for devices in usage.held.values() for device in devices)


def kept_devices(usage: Usage) -> frozenset[str]:
    """The IDs that somebody has, or may have: none of them is removed (G3)."""
    return frozenset(device for devices in usage.kept.values() for device in devices)


def elsewhere(usage: Usage, resource: str, device: str) -> Problem | None:
    """Why a device isn't this resource's to give: somebody has had it since it was another's, before a rename."""
    for name, devices in usage.held.items():
        if name != resource and device in devices:
            return Problem("mate-in-use", f"{devices[device]} has {device} as {name}")
    return None


class Stopped:
    """Devices of pods whose VM has ended. A pod runs one VM in its life, so it needs them no more."""

    def __init__(self) -> None:
        self._pods: dict[str, str] = {}
        """The pod, by device ID."""

    def mark(self, pod: str, devices: Iterable[str]) -> None:
        """The VM in a pod has ended; the pod is named as `launcherkit_plugin.model.device.Holder` names it."""
        self._pods.update(dict.fromkeys(devices, pod))

    def without(self, usage: Usage) -> tuple[Usage, frozenset[str]]:
        """Usage without those pods' devices, and the IDs of these. Forgets what the pods don't have any more."""
        if not self._pods or not usage.known:
            return usage, frozenset()
        holders: dict[str, set[str]] = {}
        for devices in usage.held.values():
            for device, holder in devices.items():
                holders.setdefault(device, set()).add(holder.pod)
        # A slot that has gone to another pod is that one's, whatever became of the first.
        self._pods = {device: pod for device, pod in self._pods.items() if holders.get(device) == {pod}}
        held = {
            resource: {device: holder for device, holder in devices.items() if device not in self._pods}
            for resource, devices in usage.held.items()
        }
        return usage._replace(held=held), frozenset(self._pods)
