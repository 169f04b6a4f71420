"""USB devices as devices of the kubelet: which they are, whether a guest can have them, what a container gets (K14)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.devices.cdi import GrantedNodes, claimed_nodes
from launcherkit_plugin.devices.grace_list import GraceList
from launcherkit_plugin.devices.names import variable_name
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import USB_VARIABLE, UsbRule, UsbSelector
from launcherkit_plugin.model.device import (
    CARD_SEPARATOR,
    NO_PREFERENCES,
    Device,
    Grant,
    Preferences,
    Problem,
    Resource,
    Usage,
    cards_in,
)
from launcherkit_plugin.model.errors import DEVICE_HELD, DEVICE_UNHEALTHY
from launcherkit_plugin.model.usb_device import UsbDevice

READ_SECONDS = 5.0
"""How long reading all USB devices may take."""
_KEY = "USB devices"


class _PluginDevice(NamedTuple):
    """A device of the kubelet: one USB device for each selector of a rule, which go to a guest together."""

    rule: UsbRule
    parts: tuple[UsbDevice, ...]

    @property
    def id(self) -> str:
        """The IDs of all."""
        return CARD_SEPARATOR.join(part.id for part in self.parts)


class UsbProvider:
    """A `launcherkit_plugin.devices.provider.Provider` for the USB devices that rules select. It is a
    `launcherkit_plugin.devices.provider.Reconciler` too, which changes nothing: it reads the devices.

    Args:
        rules: rules with the same name are alternatives.
        read: reads the devices of these models; blocks. Raises a `LauncherkitError`.
        users: returns which processes have a device open; blocks.
        queue: runs work that may hang.
        granted: how containers get variables and nodes.
    """

    def __init__(
        self,
        rules: Sequence[UsbRule],
        read: Callable[[], tuple[UsbDevice, ...]],
        users: Callable[[Sequence[UsbDevice]], OpenNodes],
        queue: WorkQueue,
        granted: GrantedNodes,
    ) -> None:
        self.changes_host = False
        self._rules = rules
        self._read = read
        self._users = users
        self._queue = queue
        self._granted = granted
        self._present: tuple[UsbDevice, ...] | None = None
        self._listed: Mapping[str, Iterable[str]] = {}
        """The IDs that were advertised last, by resource."""
        self._nodes: dict[str, dict[str, tuple[str]]] | None = None
        """The node of each, by resource and ID, for CDI files; None: it isn't known yet."""
        self._grace = GraceList()

    def wants(self, function: PciFunction) -> bool:  # noqa: ARG002  # nothing about PCI functions
        """See `launcherkit_plugin.devices.provider.Provider.wants`."""
        return False

    # What is advertised

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """See `launcherkit_plugin.devices.provider.Provider.resources`."""
        if self._present is None:
            return ()
        devices: dict[str, dict[str, Device]] = {}
        nodes: dict[str, dict[str, tuple[str]]] = {}
        for unit in self._units(self._present, usage):
            devices.setdefault(unit.rule.name, {})[unit.id] = _device(unit, usage)
            if not unit.rule.dra:
                own_nodes = {part.id: (part.address.node,) for part in unit.parts}
                nodes.setdefault(unit.rule.name, {}).update(own_nodes)
        self._nodes = nodes
        self._grace.keep(devices, host._replace(unknown={}), usage, now)
        self._listed = devices
        dra = {rule.name: rule.dra for rule in self._rules}
        return tuple(
            Resource(name, variable_name(name, USB_VARIABLE), of_one, dra=dra[name])
            for name, of_one in sorted(devices.items())
        )

    def _units(self, present: Iterable[UsbDevice], usage: Usage) -> Iterator[_PluginDevice]:
        """The devices of all rules. What is held or was listed stays together; the rest is taken by the rules in turn,
        as by KubeVirt: the first devices that match, until a selector finds none."""
        free = {device.id: device for device in present}
        names = dict.fromkeys(rule.name for rule in self._rules)
        held = [(name, key) for name in names for key in usage.held.get(name, ())]
        held.sort(key=lambda entry: -len(cards_in(entry[1])))  # usage has the parts beside the whole
        listed = [(name, key) for name in names for key in self._listed.get(name, ())]
        for name, key in (*held, *listed):
            unit = self._unit(name, key, free)
            if unit is not None:
                yield unit
                for part in unit.parts:
                    del free[part.id]
        for _, key in held:  # what is left of a device of which another part is gone
            for part_id in cards_in(key):
                free.pop(part_id, None)
        for rule in self._rules:
            while (parts := _first(rule.selectors, free.values())) is not None:
                yield _PluginDevice(rule, parts)
                for part in parts:
                    del free[part.id]

    def _unit(self, name: str, key: str, present: Mapping[str, UsbDevice]) -> _PluginDevice | None:
        """The devices of an ID, if all are there and a rule of the resource still selects them in this order."""
        parts = tuple(present[part] for part in cards_in(key) if part in present)
        if len(parts) < len(cards_in(key)):
            return None
        for rule in self._rules:
            if rule.name == name and len(rule.selectors) == len(parts) and all(map(_selects, rule.selectors, parts)):
                return _PluginDevice(rule, parts)
        return None

    def look_at(self) -> None:
        """Read the devices, for `resources`; blocks."""
        self._present = self._read()

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> Sequence[asyncio.Task[bool]]:  # noqa: ARG002
        """See `launcherkit_plugin.devices.provider.Reconciler`.

        Raises:
            CDI_NOT_WRITTEN: names the file.
        """
        if self._nodes is not None:
            self._granted.replace(self._nodes, usage.kept_ids)
        begun = self._queue.begin(_KEY, "reading the USB devices", self._read, READ_SECONDS)
        return () if begun is None else (asyncio.create_task(self._end(begun)),)

    async def _end(self, begun: asyncio.Future[tuple[UsbDevice, ...]]) -> bool:
        before, self._present = self._present, await begun
        return before != self._present

    # What a container gets

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: Preferences = NO_PREFERENCES) -> Grant:  # noqa: ARG002
        """See `launcherkit_plugin.devices.provider.Provider.allocate`.

        Raises:
            DEVICE_UNHEALTHY: one was unplugged, or the host uses it now.
            DEVICE_HELD: a process has one open.
        """
        units = await self._look(resource, ids)
        listed = [str(part.address) for unit in units.values() for part in unit.parts]
        nodes = {part.id: (part.address.node,) for unit in units.values() for part in unit.parts}
        if resource.dra:
            addresses = dict(zip(ids, listed, strict=True))
            return claimed_nodes(resource.variable, nodes, listed, ())._replace(usb=addresses)
        if self._nodes is not None:  # else the next turn would write the node that it had when it was read last
            self._nodes = {**self._nodes, resource.name: {**self._nodes.get(resource.name, {}), **nodes}}
        fresh = {part.id: part for unit in units.values() for part in unit.parts}
        self._present = tuple([fresh.get(device.id, device) for device in self._present or ()])
        return self._granted.grant(resource, nodes, listed=listed)  # several that go together have a CDI name each

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """See `launcherkit_plugin.devices.provider.Provider.check`."""
        await self._look(resource, ids)

    async def _look(self, resource: Resource, ids: Sequence[str]) -> dict[str, _PluginDevice]:
        return await self._queue.run(_KEY, "reading USB devices", partial(self._units_now, resource, ids), READ_SECONDS)

    def _units_now(self, resource: Resource, ids: Sequence[str]) -> dict[str, _PluginDevice]:
        """The devices as they are now, by ID: what was plugged in again has another device number."""
        present = {device.id: device for device in self._read()}
        units: dict[str, _PluginDevice] = {}
        for key in ids:
            unit = self._unit(resource.name, key, present)
            if unit is None:
                raise _unhealthy(resource, key, "it is not plugged in any more")
            for part in unit.parts:
                if part.problem is not None:
                    raise _unhealthy(resource, key, part.problem.text)
            units[key] = unit
        parts = tuple(part for unit in units.values() for part in unit.parts)
        for node, processes in self._users(parts).holders.items():
            raise DEVICE_HELD(
                f"{resource.name}: {node} is open in {processes[0]}",
                "End that process, or have it leave the device alone; the next pod gets it then.",
                device=", ".join(ids),
            )
        return units


def _device(unit: _PluginDevice, usage: Usage) -> Device:
    problem = next((part.problem for part in unit.parts if part.problem is not None), _elsewhere(unit, usage))
    first, alone = unit.parts[0], len(unit.parts) == 1
    numa = {part.numa_node for part in unit.parts}
    return Device(
        unit.id,
        first.numa_node if len(numa) == 1 else None,
        problem,
        description=", ".join(map(str, unit.parts)),
        usb=tuple(part.address for part in unit.parts),
        traits=tuple(_traits(first).items()) if alone else (),
    )


def _traits(device: UsbDevice) -> dict[str, str | int]:
    return {
        "vendorID": f"{device.vendor:04x}",
        "productID": f"{device.product:04x}",
        "serial": device.serial,
        "model": device.text,
        "port": device.name,
        "usbVersion": device.version,
        "speed": device.speed or "",
    }


def _elsewhere(unit: _PluginDevice, usage: Usage) -> Problem | None:
    """A pod has one of the devices under another name, or beside others."""
    own = {unit.id, *(part.id for part in unit.parts)}
    for name, holders in usage.kept.items():
        if name == unit.rule.name and unit.id in holders:
            continue
        for key, holder in holders.items():
            if key in own:
                return Problem("group-in-use", f"{key}: {holder} has it as {name}")
    return None


def _first(selectors: Sequence[UsbSelector], devices: Iterable[UsbDevice]) -> tuple[UsbDevice, ...] | None:
    """The first device for each selector; None if one finds none. Those that name a serial number choose first."""
    free = list(devices)
    chosen: dict[int, UsbDevice] = {}
    for place in sorted(range(len(selectors)), key=lambda place: selectors[place].serial is None):
        first = next((device for device in free if _selects(selectors[place], device)), None)
        if first is None:
            return None
        free.remove(first)
        chosen[place] = first
    return tuple(chosen[place] for place in range(len(selectors)))


def _selects(selector: UsbSelector, device: UsbDevice) -> bool:
    return (selector.vendor, selector.product) == device.model and selector.serial in (None, device.serial)


def _unhealthy(resource: Resource, key: str, reason: str) -> Exception:
    return DEVICE_UNHEALTHY(
        f"{resource.name}: {key} is no longer available: {reason}",
        "Plug it in again, or fix what the message names; the device then becomes Healthy by itself.",
        device=key,
        resource=resource.name,
    )
