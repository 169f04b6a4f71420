"""Who uses a function: a pod or a process. A function in use is never taken away (K8).

What the host itself uses it for is read by `launcherkit.host.use`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from launcherkit.choose.nodes import own_nodes
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit_plugin.host.driver_nodes import driver_nodes, nvidia_uuids
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.host.scan import near
from launcherkit_plugin.model.device import Holder, Usage, cards_in, without_replica
from launcherkit_plugin.model.errors import DEVICE_HELD, HOLDERS_UNKNOWN
from launcherkit_plugin.model.usb_device import controller_in

_FORCE = "`launcherkit-plugin unbind --force`"


class Holders:
    """Checks that no pod and no process uses functions.

    Args:
        host: facts are read from here at each check.
        usage: returns which pod holds which device. In the daemon whoever begins work sets this anew, and work in
            progress in a thread uses the newest, too.
        open_nodes: returns which process has which device node open, of VFIO's and of those that it is given.
        root: where the host's ``sys/`` is.
        proc: where its proc file system is mounted.
        unknown_is_free: never raise HOLDERS_UNKNOWN when functions are given back.
        unseen_is_free: nor when they are bound and it is unknown which files processes have open.
    """

    def __init__(
        self,
        host: Host,
        usage: Callable[[], Usage],
        open_nodes: Callable[[Mapping[str, tuple[int, int]]], OpenNodes],
        *,
        root: str,
        proc: str,
        unknown_is_free: bool = False,
        unseen_is_free: bool = True,
    ) -> None:
        self._host = host
        self.usage = usage
        self._open_nodes = open_nodes
        self._root = root
        self._proc = proc
        self._unknown_is_free = unknown_is_free
        self._unseen_is_free = unseen_is_free

    def check(self, addresses: Sequence[PciAddress], *, giving_back: bool) -> None:
        """Check that functions are free.

        Args:
            addresses: the functions.
            giving_back: they go from VFIO to their previous drivers; if false, from their drivers to VFIO.

        Raises:
            DEVICE_HELD: a pod or a process has one of them.
            HOLDERS_UNKNOWN: this can't be determined, and must be.
        """
        who = ", ".join(map(str, addresses))
        if not giving_back:
            nodes = self.users(addresses)
            if not (nodes.complete or self._unseen_is_free):
                raise HOLDERS_UNKNOWN(
                    f"it is unknown whether a process has {who} open: {nodes.unseen}",
                    "Run the daemon as root in the host's PID namespace (in a pod: hostPID).",
                    device=who,
                )
            return
        facts, usage, nodes = self._host.facts(addresses), self.usage(), self._open_nodes({})
        _refuse_held(addresses, holders_of(addresses, facts, usage, nodes))
        if self._unknown_is_free:
            return
        for address in near(addresses, facts) & facts.unknown.keys():
            raise HOLDERS_UNKNOWN(
                f"it is unknown whether somebody has {address}: {facts.unknown[address]}",
                f"Fix what keeps it from being read; or, if you know that nobody has it: {_FORCE}.",
                device=str(address),
            )
        if not usage.known:
            raise HOLDERS_UNKNOWN(
                f"it is unknown whether a pod has {who}: neither PodResources nor the kubelet's checkpoint can be read",
                "Name their places with --pod-resources or --kubelet-dir; or, if you know that no pod has them: "
                f"{_FORCE}.",
                device=who,
            )
        if not nodes.complete:
            raise HOLDERS_UNKNOWN(
                f"it is unknown whether a process has {who} open: {nodes.unseen}",
                "Run this as root in the host's PID namespace (in a pod: hostPID); or, if you know that nobody has "
                f"them: {_FORCE}.",
                device=who,
            )

    def users(self, addresses: Sequence[PciAddress]) -> OpenNodes:
        """Check that no pod and no process uses functions by their present drivers; returns what processes have open.

        Raises:
            DEVICE_HELD: a pod or a process has one of them.
            UnreadableFile: their device nodes can't be determined.
        """
        devices = driver_nodes(self._root, self._proc, addresses)
        nodes, usage = self._open_nodes(devices), by_address(self.usage(), nvidia_uuids(self._proc))
        _refuse_held(addresses, holders_of(addresses, self._host.facts(addresses), usage, nodes, devices))
        return nodes

    def besides(self, resource: str, ids: Collection[str], is_checked: Callable[[PciAddress], bool]) -> Holders:
        """The same for a pod to which devices are being allocated: these are in use only if others have them, and
        unknown counts as in use (T2).

        Args:
            resource, ids: what is being allocated.
            is_checked: whether K3 has been checked for a function. Its reservation, or its claim, is left out.
        """
        return Holders(
            self._host,
            lambda: _of_others(self.usage(), resource, ids, is_checked),
            self._open_nodes,
            root=self._root,
            proc=self._proc,
            unseen_is_free=False,
        )


def _of_others(usage: Usage, resource: str, ids: Collection[str], is_checked: Callable[[PciAddress], bool]) -> Usage:
    """The devices that others hold; for the arguments see `Holders.besides`."""

    def matters(device: str, holder: Holder) -> bool:
        address = address_in(device)
        if controller_in(device):  # K3 has nothing to do with it
            return True
        return bool(holder.pod) or (address is not None and not is_checked(address))

    held = {
        name: {
            device: holder
            for device, holder in devices.items()
            if matters(device, holder) and not (name == resource and device in ids)
        }
        for name, devices in usage.kept.items()
    }
    return Usage(usage.source, held)


def _refuse_held(addresses: Sequence[PciAddress], holders: Iterator[str]) -> None:
    holder = next(holders, None)
    if holder is not None:
        raise DEVICE_HELD(
            holder,
            "End that pod or process first: a device in use is never taken away.",
            device=", ".join(map(str, addresses)),
        )


def holders_of(
    addresses: Sequence[PciAddress], host: HostFacts, usage: Usage, nodes: OpenNodes, own: Collection[str] = ()
) -> Iterator[str]:
    """Sentences that say who uses some functions.

    Args:
        addresses: functions.
        host: facts about them, their groups and slots.
        usage: which pod holds which device.
        nodes: which process has which node open.
        own: the functions' nodes by the drivers that they have.
    """
    nearby = near(addresses, host)
    groups = {function.iommu_group for address in addresses if (function := host.functions.get(address)) is not None}
    grouped = {*addresses, *(member for group in groups - {None} for member in host.groups.get(group or 0, ()))}
    for devices in usage.kept.values():
        for device, holder in devices.items():
            for key in cards_in(device):
                # Whoever has a USB device has a part of its controller, and nothing else of the slot.
                controller, address = controller_in(key), address_in(controller_in(key) or key)
                if address in (grouped if controller else nearby):
                    yield f"{key if controller else address} is held by {holder}"
    for node in sorted({*own, *(node for address in addresses for node in own_nodes(address, host))}):
        for process in nodes.holders.get(node, ()):
            yield f"{node} is open in {process}"


def by_address(usage: Usage, uuids: Mapping[str, str]) -> Usage:
    """Usage with UUIDs of cards replaced by addresses. NVIDIA's device plugin and ours use UUIDs as device IDs. What
    follows them stays: each replica and share of a card has a holder of its own.

    Args:
        usage: which pod holds which device.
        uuids: from UUID to address.
    """
    held = {
        name: {_at_address(device, uuids): holder for device, holder in devices.items()}
        for name, devices in usage.kept.items()
    }
    return Usage(usage.source, held)


def _at_address(device: str, uuids: Mapping[str, str]) -> str:
    card = without_replica(device)
    return uuids.get(card, card) + device.removeprefix(card)


def address_in(device: str) -> PciAddress | None:
    """The address in a device ID, of ours or of another plugin; None if the ID is no address."""
    try:
        return PciAddress.parse(without_replica(device))
    except ValueError:
        return None
