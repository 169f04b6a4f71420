"""A plain device plugin for vfio-pci, and ways to get it wrong: ``python -m launcherkit_lab.faulty``.

Without ``--fault`` it is what a device plugin has to be, and can be read as an example: it gives whole IOMMU groups,
the smallest part of a machine that one guest can have (Linux: Documentation/driver-api/vfio.rst).
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from launcherkit_lab.endpoint import OWN_POOL, serialized
from launcherkit_lab.proto import deviceplugin_v1beta1_pb2 as wire
from launcherkit_lab.sysfs import link

VFIO = "vfio-pci"
CONTAINER = "/dev/vfio/vfio"


@dataclass(frozen=True)
class Card:
    """An IOMMU group: the drivers of its functions, by their addresses, without bridges, which stay with the host."""

    group: str
    drivers: Mapping[str, str | None]
    numa: int

    @property
    def first(self) -> str:
        return min(self.drivers)


class Plugin:
    """A device plugin of one resource, each part of it a method that a fault can replace.

    Args:
        resource: its name, ``example.com/CARD``.
        host: where ``sys/`` is.
        folder: the kubelet's ``device-plugins``.
    """

    seconds = 0.2
    """Between two looks at the machine, and at whether the kubelet has started again."""
    version = "v1beta1"
    healthy, unhealthy = "Healthy", "Unhealthy"
    prefix = "PCI_RESOURCE"

    def __init__(self, resource: str, host: Path, folder: Path) -> None:
        self.resource, self.folder = resource, folder
        self.groups = host / "sys/kernel/iommu_groups"
        self.socket = folder / f"{resource.replace('/', '-')}.sock"
        self.was_killed = self.socket.exists()
        self.listed: dict[str, Card] = {}
        self.ending = threading.Event()
        self.server: grpc.Server | None = None
        self.registered = False

    def cards(self) -> dict[str, Card]:
        """Those that a guest could have now, by their IDs."""
        cards = (_card(group) for group in sorted(self.groups.iterdir()))
        return {card.first: card for card in cards if card.drivers and self.is_assignable({*card.drivers.values()})}

    def is_assignable(self, drivers: set[str | None]) -> bool:
        return drivers == {VFIO}

    def devices(self) -> list[wire.Device]:
        """Whatever was ever there; unhealthy is what has gone since, or has another driver."""
        now = self.cards()
        self.listed |= now
        return [self.device(name, name in now, card.numa) for name, card in sorted(self.listed.items())]

    def device(self, name: str, is_there: bool, numa: int) -> wire.Device:
        nodes = [wire.NUMANode(ID=numa)] if numa >= 0 else []
        health = self.healthy if is_there else self.unhealthy
        return wire.Device(ID=name, health=health, topology=wire.TopologyInfo(nodes=nodes))

    def watch(self, _: wire.Empty, context: Any) -> Iterator[wire.ListAndWatchResponse]:
        """The list, and again whenever it is another."""
        sent: list[wire.Device] | None = None
        while context.is_active() and not self.ending.is_set():
            if (devices := self.devices()) != sent:
                sent = devices
                yield wire.ListAndWatchResponse(devices=devices)
            self.ending.wait(self.seconds)

    def allocate(self, request: wire.AllocateRequest, context: Any) -> wire.AllocateResponse:
        now, answer = self.cards(), wire.AllocateResponse()
        for container in request.container_requests:
            for name in container.devices_ids:
                if not self.may_have(name, now):
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{name}: no device, or not a healthy one")
            every = self.listed | now
            cards = [every[name] for name in container.devices_ids if name in every]
            variables = {self.variable(): ",".join(self.addresses(cards))}
            nodes = {path: self.on_host(path) for path in self.nodes(cards)}
            specs = [wire.DeviceSpec(container_path=path, host_path=nodes[path], permissions="rw") for path in nodes]
            answer.container_responses.add(envs=variables, devices=specs)
        return answer

    def may_have(self, name: str, now: Mapping[str, Card]) -> bool:
        return name in now

    def variable(self) -> str:
        """The name by which KubeVirt looks for it (pkg/util, ResourceNameToEnvVar)."""
        return f"{self.prefix}_{self.resource.upper().replace('/', '_').replace('.', '_')}"

    def addresses(self, cards: Iterable[Card]) -> list[str]:
        """One for each device, for KubeVirt takes as many as the VM asks for, from the first one on."""
        return [card.first for card in cards]

    def nodes(self, cards: Iterable[Card]) -> list[str]:
        return [CONTAINER, *(f"/dev/vfio/{card.group}" for card in cards)]

    def on_host(self, path: str) -> str:
        """The host's node for one of a container's."""
        return path

    def prefer(self, request: wire.PreferredAllocationRequest, _: Any) -> wire.PreferredAllocationResponse:
        answer = wire.PreferredAllocationResponse()
        for one in request.container_requests:
            names = dict.fromkeys([*one.must_include_deviceIDs, *sorted(one.available_deviceIDs)])
            answer.container_responses.add(deviceIDs=self.preferred([*names], one.allocation_size))
        return answer

    def preferred(self, names: list[str], count: int) -> list[str]:
        return names[:count]

    def options(self, *_: object) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions(get_preferred_allocation_available=True)

    def serve(self) -> None:
        """Listen at its socket, anew if it has before: gRPC removes the socket of a server that stops."""
        self.stop()
        self.socket.unlink(missing_ok=True)
        unary = grpc.unary_unary_rpc_method_handler
        methods = {
            "GetDevicePluginOptions": unary(self.options, wire.Empty.FromString, serialized),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.watch, wire.Empty.FromString, serialized),
            "GetPreferredAllocation": unary(self.prefer, wire.PreferredAllocationRequest.FromString, serialized),
            "Allocate": unary(self.allocate, wire.AllocateRequest.FromString, serialized),
        }
        self.server = grpc.server(ThreadPoolExecutor(16))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
        self.server.add_insecure_port(f"unix:{self.socket}")
        self.server.start()
        self.registered = False

    def endpoint(self) -> str:
        return self.socket.name

    def register(self) -> None:
        """Tell the kubelet; where it isn't there, or says no, the next look tries again."""
        request = wire.RegisterRequest(
            version=self.version, endpoint=self.endpoint(), resource_name=self.resource, options=self.options()
        )
        with grpc.insecure_channel(f"unix:{self.folder / 'kubelet.sock'}", OWN_POOL) as channel:
            try:
                channel.unary_unary("/v1beta1.Registration/Register", serialized)(request, timeout=5)
                self.registered = True
            except grpc.RpcError as refusal:
                print(f"not registered: {refusal.details()}", file=sys.stderr, flush=True)

    def is_forgotten(self) -> bool:
        """Whether the kubelet has started: it removes all sockets then."""
        return not self.socket.exists()

    def run(self) -> None:
        """Serve, and register after each start of the kubelet, till `end`."""
        while not self.ending.is_set():
            if self.server is None or self.is_forgotten():
                self.serve()
            if not self.registered:
                self.register()
            self.ending.wait(self.seconds)
        self.stop()

    def end(self, *_: object) -> None:
        self.ending.set()

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop(0).wait()


def _card(group: Path) -> Card:
    members = sorted((group / "devices").iterdir())
    functions = [path for path in members if not (path / "class").read_text().startswith("0x06")]
    numa = [int((path / "numa_node").read_text()) for path in functions]
    return Card(group.name, {path.name: link(path / "driver") for path in functions}, max(numa, default=-1))


@dataclass(frozen=True)
class Fault:
    """What a faulty plugin does, the number of the expectation that it fails, and what of `Plugin` is replaced."""

    about: str
    failed: str
    replaced: Mapping[str, Any]


def _split(plugin: Plugin) -> dict[str, Card]:
    every = [(card, *one) for card in Plugin.cards(plugin).values() for one in card.drivers.items()]
    return {address: Card(card.group, {address: driver}, card.numa) for card, address, driver in every}


def _numbered(plugin: Plugin) -> dict[str, Card]:
    cards = sorted(Plugin.cards(plugin).items(), reverse=plugin.was_killed)
    return {f"card-{number}": card for number, (_, card) in enumerate(cards)}


def _sick_for_ever(plugin: Plugin, name: str, is_there: bool, numa: int) -> wire.Device:
    sick: set[str] = vars(plugin).setdefault("sick", set())
    sick |= set() if is_there else {name}
    return Plugin.device(plugin, name, name not in sick, numa)


def _prefer_others(plugin: Plugin, names: list[str], count: int) -> list[str]:
    return [*(name for name in plugin.listed if name not in names), *names][:count]


def _leave(plugin: Plugin) -> None:
    Plugin.run(plugin)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(plugin.socket))


def _sick(plugin: Plugin) -> set[str]:
    return set(plugin.listed) - set(plugin.cards())


def _list(plugin: Plugin, *_: object) -> Iterator[wire.ListAndWatchResponse]:
    yield wire.ListAndWatchResponse(devices=plugin.devices())


def _crossed(plugin: Plugin, path: str) -> str:
    return path if path == CONTAINER else f"/dev/vfio/{max(card.group for card in plugin.listed.values())}"


_devices, _nodes = Plugin.devices, Plugin.nodes
FAULTS = {
    name: Fault(about, failed, {part: other})
    for name, about, failed, part, other in (
        ("wrong-version", "registers for a version that no kubelet has", "DP1", "version", "v1alpha"),
        ("wrong-endpoint", "registers its socket's whole path", "DP1", "endpoint", lambda me: str(me.socket)),
        ("no-return", "doesn't register when the kubelet has restarted", "DP16", "is_forgotten", lambda _: False),
        ("list-ends", "ends ListAndWatch after the first list", "DP1", "watch", _list),
        ("duplicate-ids", "lists each device twice", "DP2", "devices", lambda me: _devices(me) * 2),
        ("forgets-card", "leaves out the last card", "DP4", "devices", lambda me: _devices(me)[:-1]),
        ("wrong-health", "says healthy where the API says Healthy", "DP1", "healthy", "healthy"),
        (
            "lists-unbound",
            "lists functions without a driver",
            "DP3",
            "is_assignable",
            lambda _, has: has <= {VFIO, None},
        ),
        ("lists-host-group", "lists what the host has a part of", "DP3", "is_assignable", lambda _, has: VFIO in has),
        ("splits-groups", "lists each function of a group as a device", "DP14", "cards", _split),
        ("keeps-dead", "says Healthy, whatever has become of a card", "DP12", "unhealthy", "Healthy"),
        ("sick-for-ever", "says Unhealthy of what was so once", "DP12", "device", _sick_for_ever),
        ("other-ids", "numbers its devices, after a kill from the other end", "DP17", "cards", _numbered),
        ("unknown-id", "allocates IDs that never were", "DP11", "may_have", lambda me, one, _: one not in _sick(me)),
        ("unhealthy-id", "allocates what is unhealthy", "DP13", "may_have", lambda me, one, _: one in me.listed),
        ("hangs", "never answers Allocate", "DP3", "allocate", lambda me, *_: me.ending.wait()),
        ("prefers-outside", "prefers devices that aren't available", "DP10", "preferred", _prefer_others),
        ("wrong-variable", "names its variable as for network cards", "DP6", "prefix", "PCIDEVICE"),
        ("wrong-address", "names the last card for every one", "DP7", "addresses", lambda me, _: [max(me.listed)]),
        ("forgets-nodes", "gives no group's node", "DP7", "nodes", lambda *_: [CONTAINER]),
        ("forgets-container", "gives no /dev/vfio/vfio", "DP7", "nodes", lambda me, cards: _nodes(me, cards)[1:]),
        ("extra-nodes", "gives the nodes of all groups", "DP7", "nodes", lambda me, _: _nodes(me, me.listed.values())),
        ("crosses-nodes", "gives the node of another group by the right name", "DP20", "on_host", _crossed),
        ("leaves-socket", "leaves its socket when it ends", "DP19", "run", _leave),
        ("ignores-sigterm", "doesn't end on SIGTERM", "DP18", "end", lambda *_: None),
    )
}
"""By name."""


def main() -> int:
    """Run the plugin till SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m launcherkit_lab.faulty",
        description="A plain device plugin for vfio-pci; with one of these faults, each found by an expectation:",
        epilog="\n".join(f"{name:17} {fault.failed:4} {fault.about}" for name, fault in FAULTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--resource", metavar="NAME", default="example.com/CARD", help="default: %(default)s")
    parser.add_argument("--kubelet-dir", metavar="DIR", default="/var/lib/kubelet", help="default: %(default)s")
    parser.add_argument("--host", metavar="DIR", default="/", help="where sys/ is (default: %(default)s)")
    parser.add_argument("--fault", metavar="NAME", choices=FAULTS, help="what it gets wrong")
    arguments = parser.parse_args()
    kind = type("FaultyPlugin", (Plugin,), dict(FAULTS[arguments.fault].replaced) if arguments.fault else {})
    plugin = kind(arguments.resource, Path(arguments.host), Path(arguments.kubelet_dir, "device-plugins"))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, plugin.end)
    plugin.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
