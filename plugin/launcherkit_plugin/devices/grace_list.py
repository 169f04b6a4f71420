"""Devices that can't be read or have disappeared stay listed: a single scan without them proves little (T2, K5)."""

from __future__ import annotations

from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit_plugin.model.device import Device, Problem, Usage

GONE_SECONDS = 600.0
"""How long a device that is no longer in sysfs stays listed as Unhealthy if no pod holds it."""


class GraceList:
    """The devices that one provider listed last, by resource and ID."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Device]] = {}
        self._gone_since: dict[str, float] = {}

    def keep(self, listed: dict[str, dict[str, Device]], host: HostFacts, usage: Usage, now: float) -> list[str]:
        """Add unreadable and missing devices to those found; returns the IDs of the unreadable ones.

        Args:
            listed: the devices of this scan, by resource and ID; changed in place.
            host: the scan.
            usage: which pod holds which device. A device stays listed as long as a pod holds it.
            now: seconds on a monotonic clock.
        """
        unread = self._keep_unknown(listed, host) if host.unknown else []
        self._keep_gone(listed, usage, now)
        self._before = listed
        return unread

    def _keep_unknown(self, listed: dict[str, dict[str, Device]], host: HostFacts) -> list[str]:
        """Devices with an unreadable function, or with one in their groups, are listed as before (T2)."""
        unread = set(host.unknown)
        groups = {group for group, members in host.groups.items() if not unread.isdisjoint(members)}
        kept = []
        for name, devices in self._before.items():
            for key, device in devices.items():
                gone = device.problem is not None and device.problem.reason == "gone"
                if not gone and not (unread.isdisjoint(device.functions) and groups.isdisjoint(device.groups)):
                    listed.setdefault(name, {})[key] = device
                    kept.append(key)
        return kept

    def _keep_gone(self, listed: dict[str, dict[str, Device]], usage: Usage, now: float) -> None:
        """Devices that have disappeared stay listed as Unhealthy, so that the kubelet and people see it (K5)."""
        missing = [
            (name, key, device)
            for name, devices in self._before.items()
            for key, device in devices.items()
            if key not in listed.get(name, ())
        ]
        # A card may be listed under another name or ID now.
        present = {_card(device) for own in listed.values() for device in own.values()} if missing else set()
        gone: dict[str, float] = {}
        for name, key, device in missing:
            since = self._gone_since.get(key, now)
            if _card(device) not in present and (now - since <= GONE_SECONDS or usage.is_held(name, key)):
                gone[key] = since
                problem = Problem("gone", f"{key} {device.description.partition(' ')[2]} is no longer in sysfs")
                listed.setdefault(name, {})[key] = device._replace(problem=problem)
        self._gone_since = gone


def _card(device: Device) -> PciAddress | str:
    """The primary; the ID of a device that is no PCI function."""
    return device.functions[0] if device.functions else device.id
