"""VMs that have stopped while their pods are still there: what they had is free at once."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit_plugin.model.usage import Usage


class Stopped:
    """Devices of pods whose VM has ended. A pod runs one VM in its life, so it needs them no more."""

    def __init__(self) -> None:
        self._pods: dict[str, str] = {}
        """The pod, by device ID."""

    def mark(self, pod: str, devices: Iterable[str]) -> None:
        """The VM in a pod has ended; the pod is named as `launcherkit_plugin.model.usage.Holder` names it."""
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
        return Usage(usage.source, held), frozenset(self._pods)
