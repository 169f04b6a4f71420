"""Resources and providers on built hosts, for tests of the device plugin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.devices.cdi import GrantedNodes
from launcherkit_plugin.devices.pci import PassedNodes, PciProvider
from launcherkit_plugin.devices.selectors import Selection
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import NodeChoice, PciRule, Selector
from launcherkit_plugin.model.device import NO_USAGE, Device, Grant, Holder, Problem, Resource, Usage
from tests.support.hosttree import HostTree
from tests.support.waiting import PATIENCE

GPU = "nvidia.com/GPU"
RULE = PciRule(select=(Selector(),), name=GPU)


def device(name: str, *groups: int, numa: int | None = None, path: Iterable[str] = (), why: str = "") -> Device:
    """A device by its ID and groups; with ``why`` it is Unhealthy."""
    return Device(name, numa, Problem("driver", why) if why else None, frozenset(groups), path=tuple(path))


def resource(name: str, *devices: Device, companion: bool = False) -> Resource:
    return Resource(name, f"PCI_RESOURCE_{name}", {each.id: each for each in devices}, companion)


def usage(held: Mapping[str, Mapping[str, str]]) -> Usage:
    """Pods by resource and ID."""
    return Usage("pod-resources", {name: {key: Holder(pod) for key, pod in ids.items()} for name, ids in held.items()})


class CountedId(str):
    """An ID that counts how often one is compared or looked up: what is linear shows in that and needs no clock."""

    looks = 0

    def __hash__(self) -> int:
        CountedId.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedId.looks += 1
        return super().__eq__(other)


class Node:
    """A provider on a tree, looked at as the daemon does."""

    def __init__(
        self,
        tree: HostTree,
        rules: Mapping[int, PciRule] | None = None,
        *,
        nodes: NodeChoice = "auto",
        granted: GrantedNodes | None = None,
        failure: Callable[[PciAddress], Problem | None] | None = None,
    ) -> None:
        """``rules`` by the class of functions, 0xCC; display controllers are GPUs if nothing is said."""
        self.host = node_host(str(tree.root))
        self.queue = WorkQueue(stall=PATIENCE)
        self._rules = {0x03: RULE} if rules is None else rules
        self.provider = PciProvider(
            Selection(self.rule_of, lambda _, rule: rule.name or ""),
            self.host,
            str(tree.root),
            nodes=PassedNodes(nodes, granted or GrantedNodes()),
            failure=failure,
            queue=self.queue,
        )
        self.seen: dict[str, Resource] = {}

    def rule_of(self, function: PciFunction) -> PciRule | None:
        return self._rules.get(function.class_code >> 16)

    def facts(self) -> HostFacts:
        return read_node(self.host, self.provider.wants, vgpu=False)

    def look(self, used: Usage = NO_USAGE, now: float = 0.0) -> dict[str, Resource]:
        self.seen = {found.name: found for found in self.provider.resources(self.facts(), used, now)}
        return self.seen

    def reasons(self, used: Usage = NO_USAGE, now: float = 0.0) -> dict[str, str | None]:
        """Why each device is Unhealthy, None for those that are well."""
        return {
            key: each.problem and each.problem.reason
            for found in self.look(used, now).values()
            for key, each in found.devices.items()
        }

    def grant(self, *ids: str, name: str = GPU) -> Grant:
        """What a container gets, by the last look and what has become of it."""
        return asyncio.run(self.provider.allocate(self.seen[name], ids))


def rebind(tree: HostTree, address: str, driver: str | None) -> None:
    """Give a function another driver, or none, as the kernel shows it."""
    directory = tree.path(address)
    lines = [line for line in (directory / "uevent").read_text().splitlines() if not line.startswith("DRIVER=")]
    if driver:
        tree.driver(driver)
        lines.insert(0, f"DRIVER={driver}")
    tree.bind(address, driver)
    (directory / "uevent").write_text("\n".join(lines) + "\n")


def regroup(tree: HostTree, slot: str, old: int, new: int) -> None:
    """Move the two functions of a card to a group of another number, as a rescan may."""
    for function in (f"{slot}.0", f"{slot}.1"):
        (tree.root / f"sys/kernel/iommu_groups/{old}/devices/{function}").unlink()
        link = tree.path(function) / "iommu_group"
        link.unlink()
        members = tree.root / f"sys/kernel/iommu_groups/{new}/devices"
        members.mkdir(parents=True, exist_ok=True)
        tree.link(str(link.relative_to(tree.root)), members.parent)
        tree.link(str((members / function).relative_to(tree.root)), tree.path(function))
    (tree.root / f"dev/vfio/{old}").unlink()
    tree.node(f"vfio/{new}")
