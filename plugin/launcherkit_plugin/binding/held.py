"""Nothing is taken away that a pod has or a process has open (K8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.resolve.vfio import cdev_node, group_node
from launcherkit.sources.host import Host
from launcherkit_plugin.host.open_nodes import OpenNodes
from launcherkit_plugin.model.errors import DeviceHeld, HoldersUnknown
from launcherkit_plugin.model.usage import Usage


class Holders:
    """Looks who holds what: a `launcherkit_plugin.binding.binder.CheckFree`.

    Args:
        host: facts are read from when it is asked.
        usage: gives what the kubelet says.
        open_nodes: gives what processes have open.
        unknown_is_free: where nobody can tell, it counts as free.
    """

    def __init__(
        self,
        host: Host,
        usage: Callable[[], Usage],
        open_nodes: Callable[[], OpenNodes],
        *,
        unknown_is_free: bool = False,
    ) -> None:
        self._host = host
        self._usage = usage
        self._open_nodes = open_nodes
        self._unknown_is_free = unknown_is_free

    def __call__(self, addresses: Sequence[PciAddress], *, sure: bool) -> None:
        """See `launcherkit_plugin.binding.binder.CheckFree`."""
        facts, usage, nodes = self._host.facts(addresses), self._usage(), self._open_nodes()
        holder = next(holders_of(addresses, facts, usage, nodes), None)
        if holder is not None:
            raise DeviceHeld(holder, "End the pod or the VM first; nothing takes a device away from one that runs.")
        if not sure or self._unknown_is_free:
            return
        who = ", ".join(map(str, addresses))
        for address in _near(addresses, facts) & facts.unknown.keys():
            raise HoldersUnknown(
                f"whether somebody has {address} can't be told: {facts.unknown[address]}",
                "Mend what keeps it from being read, or, where you know that nobody has it, --force.",
            )
        if not usage.known:
            raise HoldersUnknown(
                f"whether a pod has {who} can't be told: neither PodResources nor the kubelet's checkpoint can be read",
                "Give their places with --pod-resources or --kubelet-dir, or, where you know that no pod has them, "
                "--force.",
            )
        if not nodes.complete:
            raise HoldersUnknown(
                f"whether a process has {who} open can't be told: {nodes.unseen}",
                "Run it as root in the host's PID namespace (in a pod: hostPID), or, where you know that nobody has "
                "them, with --force.",
            )


def holders_of(addresses: Sequence[PciAddress], host: HostFacts, usage: Usage, nodes: OpenNodes) -> Iterator[str]:
    """Who has what of some functions, in words.

    Args:
        addresses: functions.
        host: facts about them, their groups and slots.
        usage: which pod holds which device.
        nodes: which process has which node open.
    """
    near = _near(addresses, host)
    for devices in usage.kept.values():
        for device, holder in devices.items():
            address = _address(device)
            if address in near:
                yield f"{address} is held by {holder}"
    groups = {function.iommu_group for address in addresses if (function := host.functions.get(address))}
    wanted = {group_node(group) for group in groups} | {cdev_node(host.details.get(address)) for address in addresses}
    for node in sorted(node for node in wanted if node is not None):
        for process in nodes.holders.get(node, ()):
            yield f"{node} is open in {process}"


def _near(addresses: Iterable[PciAddress], host: HostFacts) -> set[PciAddress]:
    """With these functions, whoever has one of them may have the others: those of their groups and slots."""
    near = set(addresses)
    for function in [host.functions[address] for address in near if address in host.functions]:
        if function.iommu_group is not None:
            near.update(host.groups.get(function.iommu_group, ()))
        if not function.is_vf:
            near.update(each.address for each in host.slot_functions(function.address) if not each.is_vf)
    return near


def _address(device: str) -> PciAddress | None:
    """The address that a device ID is, ours and that of other plugins."""
    try:
        return PciAddress.parse(device)
    except ValueError:
        return None
