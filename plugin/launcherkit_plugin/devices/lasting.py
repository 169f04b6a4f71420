"""Devices that can't be read, or aren't there any more, stay listed: a look that lacks them proves little (T2, K5)."""

from __future__ import annotations

from launcherkit.model.host import HostFacts
from launcherkit_plugin.model.device import Device, Problem, Usage

GONE_SECONDS = 600.0
"""For how long a device that is no longer on sysfs, and that no pod holds, stays listed as Unhealthy."""


class Lasting:
    """What one provider has listed last, by resource and ID."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Device]] = {}
        self._gone_since: dict[str, float] = {}

    def keep(self, found: dict[str, dict[str, Device]], host: HostFacts, usage: Usage, now: float) -> list[str]:
        """Add to what a look has found; gives the IDs of those that can't be read and are as they were.

        Args:
            found: by resource and ID.
            host: the look.
            usage: what pods hold stays listed for as long as they do.
            now: seconds on a monotonic clock.
        """
        unread = self._keep_unknown(found, host) if host.unknown else []
        self._keep_gone(found, usage, now)
        self._before = found
        return unread

    def _keep_unknown(self, found: dict[str, dict[str, Device]], host: HostFacts) -> list[str]:
        """What can't be read now is as it was (T2): devices with such a function, or with one in their groups."""
        unread = set(host.unknown)
        groups = {group for group, members in host.groups.items() if not unread.isdisjoint(members)}
        kept = []
        for name, devices in self._before.items():
            for key, device in devices.items():
                gone = device.problem is not None and device.problem.reason == "gone"
                if not gone and not (unread.isdisjoint(device.functions) and groups.isdisjoint(device.groups)):
                    found.setdefault(name, {})[key] = device
                    kept.append(key)
        return kept

    def _keep_gone(self, found: dict[str, dict[str, Device]], usage: Usage, now: float) -> None:
        """Devices that were there a moment ago stay listed, Unhealthy: so that the kubelet and people see it (K5)."""
        missing = [
            (name, key, device)
            for name, devices in self._before.items()
            for key, device in devices.items()
            if key not in found.get(name, ())
        ]
        # A card may be listed by another name or ID now.
        there = {device.functions[0] for devices in found.values() for device in devices.values()} if missing else set()
        gone: dict[str, float] = {}
        for name, key, device in missing:
            since = self._gone_since.get(key, now)
            if device.functions[0] not in there and (
                now - since <= GONE_SECONDS or usage.holder(name, key) is not None
            ):
                gone[key] = since
                problem = Problem("gone", f"{key} {device.description.partition(' ')[2]} is no longer in sysfs")
                found.setdefault(name, {})[key] = device._replace(problem=problem)
        self._gone_since = gone
