"""PCI passthrough: which functions are devices, whether they are available, and what a container gets for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple, Protocol

from launcherkit.choose.viability import check_isolation, check_viability, touched_groups
from launcherkit.errors import DEVICE_ASLEEP, DEVICE_GONE, GROUP_NOT_VIABLE, NO_IOMMU_GROUP, LauncherkitError
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction, bound_to_vfio, describe
from launcherkit.model.policy import SIBLINGS_WITHIN
from launcherkit_plugin.devices.cdi import GrantedNodes, claimed_nodes
from launcherkit_plugin.devices.container_card import NONE_VISIBLE
from launcherkit_plugin.devices.grace_list import GraceList
from launcherkit_plugin.devices.names import name_for, variable_name
from launcherkit_plugin.devices.nodes import (
    PciPlan,
    chosen_nodes,
    egm_nodes,
    has_egm,
    is_unchanged,
    missing_node,
    nodes_exist,
    plan_of,
)
from launcherkit_plugin.devices.selectors import Selection, companions, primaries
from launcherkit_plugin.host.driver_nodes import NVIDIA
from launcherkit_plugin.host.progress import Progress
from launcherkit_plugin.host.work_queue import TURN_SECONDS, WorkQueue, binding_keys
from launcherkit_plugin.model.config import CardUse, NodeChoice, PciRule
from launcherkit_plugin.model.device import NO_PREFERENCES, Device, Grant, Preferences, Problem, Reason, Resource, Usage
from launcherkit_plugin.model.errors import DEVICE_CONFIG_REFUSED, DEVICE_UNHEALTHY

EGM_SECONDS = 5.0
"""How long an Allocate waits for the lists of GPUs of EGM nodes."""


class PassedNodes(NamedTuple):
    """Which device nodes containers get, and how."""

    choice: NodeChoice = "auto"
    granted: GrantedNodes = GrantedNodes()
    """How containers get them."""
    kata: GrantedNodes | None = None
    """How Kata gets them; None: in the same way."""


class BindsOnDemand(Protocol):
    """Binds functions of rules with ``on_demand`` when one is allocated to a pod (K8).

    It is `launcherkit_plugin.binding.on_demand.OnDemandBinding`, which this package doesn't know: binding is imported
    only where a rule asks for it.
    """

    def foreseen(self, host: HostFacts) -> tuple[HostFacts, Mapping[PciAddress, Problem]]:
        """The host as it would be with all of those bound, and why some can't be bound or given back."""
        ...

    async def bind(self, resource: str, devices: Sequence[Device], seconds: float) -> None:
        """Bind the groups of devices for a pod to which they are being allocated.

        Raises:
            NOT_BOUND_ON_DEMAND: one can't be bound; completed steps are undone.
            BINDING_TOO_SLOW: it takes longer than ``seconds``; if it succeeds later, it is undone.
            WORK_HANGS: other work on the group hangs; completed steps are undone.
        """
        ...


class _Seen(NamedTuple):
    """What a look at the host just before an Allocate shows."""

    same: bool
    """Drivers and groups are those of the last scan."""
    nodes: bool
    """All device nodes exist."""
    egm: bool
    """The host has extended GPU memory (EGM)."""


class PciProvider:
    """A `launcherkit_plugin.devices.provider.Provider` for PCI functions that rules select.

    Args:
        selection: which functions are devices, and their names.
        host: read again at an Allocate if something has changed since the scan.
        root: the directory that contains the host's ``sys`` and ``dev``.
        nodes: which device nodes containers get.
        queue: runs work that may hang.
        failure: returns why a function of a rule with ``bind`` could not be bound (K8), None if nothing failed.
        on_demand: binds functions when they are allocated.
        unready: returns why nobody may get a virtual function yet (K12), None if there is no reason.
    """

    def __init__(
        self,
        selection: Selection,
        host: Host,
        root: str = "/",
        *,
        nodes: PassedNodes = PassedNodes(),  # noqa: B008  # immutable
        queue: WorkQueue | None = None,
        failure: Callable[[PciAddress], Problem | None] | None = None,
        on_demand: BindsOnDemand | None = None,
        unready: Callable[[PciFunction], Problem | None] | None = None,
    ) -> None:
        self._unready = unready
        self._selection = selection
        self._host = host
        self._root = root.rstrip("/")
        self._nodes = nodes.choice
        self._granted = nodes.granted
        self._kata = nodes.kata or nodes.granted
        self._queue = queue or WorkQueue()
        self._failure = failure
        self._on_demand = on_demand
        self._rules: dict[str, PciRule] = {}
        self._uses: dict[str, CardUse] = {}
        self._plans: dict[str, PciPlan] = {}
        self._devices: dict[str, dict[str, Device]] = {}
        self._had_vfio: set[PciAddress] = set()
        self._grace = GraceList()
        self._bind_seconds: dict[str, float] = {}
        """Of devices that are bound on demand, by ID: how long an allocation may wait for that."""
        self._nvidia: set[str] = set()
        """IDs of devices for guests that NVIDIA's container runtime must leave alone."""
        self._waiting: set[str] = set()
        """IDs of devices that are bound on demand and aren't bound now."""

    @property
    def changes_host(self) -> bool:
        """See `launcherkit_plugin.devices.provider.Provider.changes_host`."""
        return self._on_demand is not None

    def wants(self, function: PciFunction) -> bool:
        """See `launcherkit_plugin.devices.provider.Provider.wants`."""
        rule = self._selection.may_match(function)
        return rule is not None and rule.uses != ("container",)

    # What is advertised

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """See `launcherkit_plugin.devices.provider.Provider.resources`."""
        devices_of: dict[str, dict[str, Device]] = {}
        plans: dict[str, PciPlan] = {}
        self._waiting = set()
        named = self._named(host, usage)
        then, problems = (host, {}) if self._on_demand is None else self._on_demand.foreseen(host)
        self._bind_seconds = {str(function.address): rule.bind_seconds for function, rule, _ in named if rule.on_demand}
        for function, rule, name in named:
            self._rules[name] = rule
            plan = plan_of(function.address, rule, then, self._root)
            device = self._device(function, rule, plan, host, then)
            if problems and (problem := next((problems[each] for each in plan.functions if each in problems), None)):
                device = device._replace(problem=problem)
            plans[device.id] = plan
            devices_of.setdefault(name, {})[device.id] = device
            if function.vendor == NVIDIA and rule.environment.void:
                self._nvidia.add(device.id)
        for key in self._grace.keep(devices_of, host, usage, now):
            plans[key] = self._plans[key]
        self._plans, self._devices = plans, devices_of
        beside = companions(named)
        return tuple(
            Resource(
                name,
                variable_name(name, rule.environment.prefix),
                devices,
                name in beside,
                dra=rule.dra,
                use=self._uses[name],
                lists_siblings=rule.environment.list_siblings,
                same_device=rule.same_device if rule.keep_for else False,
                keep_for=rule.keep_for,
            )
            for name, devices in sorted(devices_of.items())
            for rule in (self._rules[name],)
        )

    def _named(self, host: HostFacts, usage: Usage) -> list[tuple[PciFunction, PciRule, str]]:
        """The functions that are devices, each with its rule and the name of its resource."""
        named = []
        for function, rule in primaries(self._selection.match, host):
            if rule.uses == ("container",):
                continue
            name = self._selection.name_of(function, rule)
            if bound_to_vfio(function, host.details.get(function.address)):
                self._had_vfio.add(function.address)
            elif (
                rule.when_bound
                and function.address not in self._had_vfio
                and usage.holder(name, str(function.address)) is None
            ):
                continue
            for use in rule.uses:
                if use != "container":
                    named.append((function, rule, name_for(name, rule, use)))
                    self._uses[named[-1][2]] = use
        return named

    def _device(self, function: PciFunction, rule: PciRule, plan: PciPlan, host: HostFacts, then: HostFacts) -> Device:
        """A device. ``host`` has the facts of now, ``then`` those after binding on demand."""
        detail, key = host.details.get(function.address), str(function.address)
        changed = (then.functions.get(each) is not host.functions.get(each) for each in plan.functions)
        waits = then is not host and any(changed)
        about = describe(function)
        if waits:
            self._waiting.add(key)
        groups = [host.functions[each].iommu_group for each in plan.functions if each in host.functions]
        return Device(
            key,
            function.numa_node,
            self._problem(then.functions[function.address], rule, plan, then, has_nodes=not waits),
            frozenset([group for group in groups if group is not None]),
            plan.functions,
            detail.parents if detail else (),
            f"{about}, on {function.driver or 'no driver'} until it is allocated" if waits else about,
            model=self._selection.model_of(function) if rule.dra else "",
        )

    def _problem(
        self, function: PciFunction, rule: PciRule, plan: PciPlan, host: HostFacts, *, has_nodes: bool = True
    ) -> Problem | None:
        """Why a device isn't available (K5): the first problem that has to be fixed."""
        if self._unready is not None and (unready := self._unready(function)) is not None:
            return unready
        detail = host.details.get(function.address)
        if detail is not None and not detail.config_readable:
            return Problem(
                "config-space", f"{describe(function)} has fallen off the bus: its config space reads all ones"
            )
        if not bound_to_vfio(function, detail):
            failed = self._failure(function.address) if self._failure is not None and rule.bind is True else None
            bound = f"is bound to {function.driver}, not" if function.driver else "has no driver; it must be bound"
            return failed or Problem("driver", f"{describe(function)} {bound} to a VFIO driver")
        groups = touched_groups(plan.functions, host)
        for error in (*check_isolation(plan.functions, host), *check_viability(groups, (), host)):
            return Problem(_reason(error), error.message)
        if has_nodes and self._chosen_nodes([plan]) is None:
            missing = missing_node(plan.functions, host, self._nodes)
            return Problem("node", f"{describe(function)}: {missing} is not there")
        return None

    # What a container gets

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: Preferences = NO_PREFERENCES) -> Grant:
        """See `launcherkit_plugin.devices.provider.Provider.allocate`."""
        rule = _narrowed(self._rules[resource.name], wishes, resource.name)
        choose = partial(self._chosen_nodes, choice=wishes.nodes, one_kind=resource.dra)
        plans, nodes, has_egm = await self._plans_now(resource, ids, rule, choose, narrowed=wishes.siblings is not None)
        if nodes is None:
            raise _no_common_nodes(resource.name, ids, wishes.nodes)
        grant = self._grant(resource, dict(zip(ids, plans, strict=True)), nodes)
        env = {**grant.env, **NONE_VISIBLE} if grant.env and not self._nvidia.isdisjoint(ids) else grant.env
        more = await self._egm_nodes(plans) if has_egm else ()
        return grant._replace(env=env, nodes=(*grant.nodes, *more))

    async def _plans_now(
        self,
        resource: Resource,
        ids: Sequence[str],
        rule: PciRule,
        choose: Callable[[Sequence[PciPlan]], tuple[str, ...] | None],
        *,
        narrowed: bool,
    ) -> tuple[list[PciPlan], tuple[str, ...] | None, bool]:
        """The plans of the last scan if the host still matches them, their nodes, and whether it has EGM. Otherwise the
        host is read again, after devices that are bound on demand have been bound.

        Args:
            resource: of the devices.
            ids: of the devices.
            rule: with the siblings that a claim wishes.
            choose: the nodes for plans, if all are there.
            narrowed: the rule has fewer siblings than in the last scan.

        Raises:
            LauncherkitError: see `_look_again` and `BindsOnDemand.bind`.
        """
        unbound = [key for key in ids if key in self._bind_seconds]
        seconds, began = min((self._bind_seconds[key] for key in unbound), default=TURN_SECONDS), monotonic()
        await self._queue.quiet(binding_keys(resource, ids), seconds)  # one may be on its way back to another driver
        plans = [self._plans[key] for key in ids if key in self._plans]
        nodes = choose(plans)
        compare = partial(self._compare, plans if len(plans) == len(ids) else None, nodes or ())
        seen = await self._queue.look(self._touched(ids), compare)
        if seen.same and nodes is not None and seen.nodes and not narrowed:
            return plans, nodes, seen.egm
        if not seen.same and unbound and self._on_demand is not None:
            devices = [resource.devices[key] for key in unbound]
            await self._on_demand.bind(resource.name, devices, seconds - (monotonic() - began))
        plans = await self._look_again(resource, ids, rule)
        return plans, choose(plans), seen.egm

    def _touched(self, ids: Iterable[str]) -> list[str]:
        """The functions whose files are read for devices, as far as the last scan knows."""
        fingerprints = [self._plans[key].fingerprint for key in ids if key in self._plans]
        return list(dict.fromkeys([*ids, *(name for each in fingerprints for name in each.functions)]))

    def _compare(self, plans: Sequence[PciPlan] | None, nodes: Collection[str], progress: Progress) -> _Seen:
        """Compare the host with the last scan; blocks."""
        if plans is None:
            return _Seen(same=False, nodes=False, egm=has_egm(self._root, progress))
        same = is_unchanged([plan.fingerprint for plan in plans], self._root, progress)
        owners = {node: plan.fingerprint.functions[0] for plan in plans for node in _of_one(plan, nodes)}
        return _Seen(same, same and nodes_exist(owners, self._root, progress), has_egm(self._root, progress))

    def _grant(self, resource: Resource, plans: Mapping[str, PciPlan], nodes: tuple[str, ...]) -> Grant:
        """The variable and the device nodes, from the kubelet or by CDI, for devices; ``plans`` are by ID."""
        listed: Iterable[str] = plans
        if self._rules[resource.name].environment.list_siblings:
            listed = dict.fromkeys(str(function) for plan in plans.values() for function in plan.functions)
        if resource.dra:
            own = {key: _of_one(plan, nodes) for key, plan in plans.items()}
            along = {key: tuple(map(str, plan.functions[1:])) for key, plan in plans.items()}
            return claimed_nodes(resource.variable, own, listed, nodes)._replace(along=along)
        granted = self._granted_for(resource.name)
        with_cdi = plans if granted.cdi is not None else {}
        own = {key: self._chosen_nodes([plan]) or () for key, plan in with_cdi.items()}
        return granted.grant(resource, own, listed=listed, together=nodes)

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """See `launcherkit_plugin.devices.provider.Provider.check`."""
        await self._look_again(resource, ids, self._rules[resource.name])

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> Sequence[asyncio.Task[bool]]:  # noqa: ARG002
        """See `launcherkit_plugin.devices.provider.Reconciler`: writes the CDI files."""
        # Devices that were bound on demand since the scan have nodes by now; Allocate has written them to the files.
        held = usage.held_ids.intersection(self._bind_seconds)
        for granted in {self._granted, self._kata}:
            if granted.cdi is not None:
                nodes = {
                    name: {
                        key: self._chosen_nodes([self._plans[key]]) or ()
                        for key, device in devices.items()
                        if device.healthy and key not in self._waiting
                    }
                    for name, devices in self._devices.items()
                    if not self._rules[name].dra and self._granted_for(name) is granted
                }
                granted.replace(nodes, held)
        return ()

    def _granted_for(self, resource: str) -> GrantedNodes:
        return self._kata if self._uses[resource] == "kata" else self._granted

    async def _egm_nodes(self, plans: Sequence[PciPlan]) -> tuple[str, ...]:
        functions = [str(function) for plan in plans for function in plan.functions]
        read = partial(egm_nodes, self._root, functions)
        return await self._queue.run("egm", "reading /sys/class/egm", read, EGM_SECONDS)

    async def _look_again(self, resource: Resource, ids: Sequence[str], rule: PciRule) -> list[PciPlan]:
        """Plans from the present state of the host.

        Raises:
            DEVICE_UNHEALTHY: names the first device that isn't available.
            WORK_HANGS: reading one hangs.
        """
        addresses = [PciAddress.parse(key) for key in ids]
        host = await self._queue.look(
            self._touched(ids), lambda progress: self._host.followed(progress.open_tree).facts(addresses)
        )
        plans = []
        for address in addresses:
            function = host.functions.get(address)
            plan = plan_of(address, rule, host, self._root)
            problem = _absence(address, host) if function is None else self._problem(function, rule, plan, host)
            if problem is not None:
                raise DEVICE_UNHEALTHY(
                    f"{resource.name}: {address} is no longer available: {problem.text}",
                    "Fix what the message names; the device then becomes Healthy by itself.",
                    device=str(address),
                    resource=resource.name,
                )
            plans.append(plan)
        return plans

    def _chosen_nodes(
        self, plans: Sequence[PciPlan], *, choice: NodeChoice | None = None, one_kind: bool = False
    ) -> tuple[str, ...] | None:
        choice = choice or ("auto" if one_kind and self._nodes == "both" else self._nodes)
        return chosen_nodes([plan.nodes for plan in plans], choice)


_KINDS_IN_CLAIMS: Mapping[NodeChoice, str] = {"group": "group", "cdev": "iommufd"}
"""The kinds of nodes by their names in the parameters of claims."""


def _narrowed(rule: PciRule, wishes: Preferences, resource: str) -> PciRule:
    """The rule with the siblings that a claim wishes.

    Raises:
        DEVICE_CONFIG_REFUSED: those are more than the rule has; what was published for the device relies on the rule.
    """
    if wishes.siblings is None:
        return rule
    if wishes.siblings not in SIBLINGS_WITHIN[rule.siblings]:
        raise DEVICE_CONFIG_REFUSED(
            f"{resource}: siblings: {wishes.siblings!r} is not within the rule's, {rule.siblings!r}",
            "Change the parameters in the claim or its DeviceClass, or `siblings` in the configuration of the node.",
            resource=resource,
            key="siblings",
        )
    return rule._replace(siblings=wishes.siblings)


def _no_common_nodes(resource: str, ids: Sequence[str], choice: NodeChoice | None) -> LauncherkitError:
    """Why one container can't have the nodes of some devices, of the kind that a claim asks for, or of any."""
    if choice is not None:
        return DEVICE_CONFIG_REFUSED(
            f"{resource}: {', '.join(ids)} can't be given with nodes: {_KINDS_IN_CLAIMS[choice]}: they are not there",
            "Change the parameters in the claim or its DeviceClass; iommufd needs a kernel that has it.",
            device=", ".join(ids),
            resource=resource,
            key="nodes",
        )
    return DEVICE_UNHEALTHY(
        f"{resource}: {', '.join(ids)} can't go to one container together: some have only the device "
        "nodes of their groups, others only VFIO's character devices",
        "Let vfio-pci offer the same kind of node for all of them, or request them in different pods.",
        device=", ".join(ids),
        resource=resource,
    )


def _of_one(plan: PciPlan, chosen: Collection[str]) -> tuple[str, ...]:
    """The nodes of one device among those that were chosen for several."""
    return tuple(node for node in (*(plan.nodes.groups or ()), *(plan.nodes.cdevs or ())) if node in chosen)


def _absence(address: PciAddress, host: HostFacts) -> Problem:
    if address in host.unknown:
        return Problem("not-viable", f"it can't be read: {host.unknown[address]}")
    return Problem("gone", f"{address} is no longer in sysfs")


def _reason(error: LauncherkitError) -> Reason:
    reasons: Mapping[str, Reason] = {
        GROUP_NOT_VIABLE.code: "not-viable",
        DEVICE_ASLEEP.code: "asleep",
        DEVICE_GONE.code: "config-space",
        NO_IOMMU_GROUP.code: "no-group",
    }
    return reasons.get(error.code, "not-viable")
