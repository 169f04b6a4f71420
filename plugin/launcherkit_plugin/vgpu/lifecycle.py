"""Which vGPUs are needed: those that pods have (G3), except those of pods whose VM has ended."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit_plugin.model.device import Problem, Usage

UNKNOWN_USAGE = Problem("usage", "it isn't known yet which vGPUs pods have: see the log for what can't be read")
"""Why no vGPU is created until usage was known once. After a reboot the vGPUs of pods don't exist any more, and a new
one could give their card another type."""


def elsewhere(usage: Usage, resource: str, device: str) -> Problem | None:
    """Why a device of this resource isn't free: a pod has it under another resource name, from before a rename."""
    for name, devices in usage.held.items():
        if name != resource and device in devices:
            return Problem("group-in-use", f"{devices[device]} has {device} as {name}")
    return None


class Stopped:
    """Devices of pods whose VM has ended. A pod runs only one VM, so it doesn't need them any more."""

    def __init__(self) -> None:
        self._pods: dict[str, str] = {}
        """The pod, by device ID."""

    def mark(self, pod: str, devices: Iterable[str]) -> None:
        """Note that the VM of a pod has ended. ``pod`` has the form of `launcherkit_plugin.model.device.Holder.pod`."""
        self._pods.update(dict.fromkeys(devices, pod))

    def without(self, usage: Usage) -> tuple[Usage, frozenset[str]]:
        """Usage without the devices of those pods, and the IDs of these. Forgets devices that the pods have lost."""
        if not self._pods or not usage.known:
            return usage, frozenset()
        holders: dict[str, set[str]] = {}
        for devices in usage.held.values():
            for device, holder in devices.items():
                holders.setdefault(device, set()).add(holder.pod)
        # A device that was allocated to another pod since then belongs to that pod.
        self._pods = {device: pod for device, pod in self._pods.items() if holders.get(device) == {pod}}
        held = {
            resource: {device: holder for device, holder in devices.items() if device not in self._pods}
            for resource, devices in usage.held.items()
        }
        return usage._replace(held=held), frozenset(self._pods)
