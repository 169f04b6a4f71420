"""Cards of NVSwitch boards, which containers get by whole fabric partitions (K13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby

from launcherkit.model.address import PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction
from launcherkit_plugin.devices.names import variable_name
from launcherkit_plugin.devices.provider import Provider
from launcherkit_plugin.fabric.fabric import CardSet, Fabric, card_of
from launcherkit_plugin.fabric.partitions import Partition
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
from launcherkit_plugin.model.errors import NO_PARTITION
from launcherkit_plugin.model.texts import LONGEST_NAME


class PartitionedProvider:
    """A `launcherkit_plugin.devices.provider.Provider` whose cards a container gets by whole partitions.

    It adds resources ``<name>-x2`` and so on, whose devices are partitions. Of the resource itself, a container gets
    the cards of one partition, however many it asks for.

    Args:
        provider: of the cards.
        fabric: knows the partitions, and activates them.
    """

    changes_host = True

    def __init__(self, provider: Provider, fabric: Fabric) -> None:
        self._provider = provider
        self._fabric = fabric
        self._host = NO_FACTS
        self._cards: dict[str, Resource] = {}
        """The resources of the provider, by their names and those of the resources made of them."""

    def wants(self, function: PciFunction) -> bool:
        """See `Provider.wants`."""
        return self._provider.wants(function)

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """See `Provider.resources`."""
        self._host, self._cards = host, {}
        offered: list[Resource] = []
        for resource in self._provider.resources(host, usage, now):
            self._cards[resource.name] = resource
            governed = self._governed(resource)
            if not governed:
                offered.append(resource)
                continue
            has_vfs = any(key != str(card) for key, card in governed.items())
            held = usage.held_ids
            used = self._fabric.cards_of(held, host) if has_vfs else frozenset[PciAddress]()
            marked = {
                key: self._marked(device, governed[key], now, used, held=key in held) if key in governed else device
                for key, device in resource.devices.items()
            }
            ours = set(governed.values())
            whole = [each for each in self._fabric.board.whole() if each.cards <= ours]
            cards = resource._replace(
                devices=marked,
                sets=tuple(frozenset(map(str, each.cards)) for each in whole),
                failing_sets=frozenset(
                    frozenset(map(str, partition.cards)) for partition in whole if self._fails(partition, now)
                ),
                card_of={key: str(card) for key, card in governed.items()} if has_vfs else {},
            )
            offered.append(cards)
            if not (resource.dra or has_vfs):  # a card has several VFs, and a claim asks for cards
                offered += self._of_partitions(cards, whole, usage, now)
        return tuple(offered)

    def _fails(self, partition: Partition, now: float) -> bool:
        return self._fabric.problem(partition.cards, now, held=False) is not None

    def _governed(self, resource: Resource) -> dict[str, PciAddress]:
        """The cards on the board, by the IDs of the devices that are cards, or VFs of cards."""
        if resource.use == "container" or resource.companion:
            return {}
        governed = {}
        for key, device in resource.devices.items():
            card = card_of(device, self._host)
            function = None if card is None else self._host.functions.get(card)
            if card is not None and function is not None and self._fabric.governs(function):
                governed[key] = card
        return governed

    def _marked(self, device: Device, card: PciAddress, now: float, used: Set[PciAddress], *, held: bool) -> Device:
        """A device with what Fabric Manager says of its card; ``used``: the cards of which pods have VFs."""
        mine = [each for each in self._fabric.board.whole() if card in each.cards]
        module = next((gpu.module for each in mine for gpu in each.gpus if gpu.address == card), 0)
        partitions = tuple(sorted((len(each.gpus), each.number) for each in mine))
        problem = device.problem or self._fabric.problem([card], now, held=held)
        if problem is None and not held:
            if card in used:
                problem = Problem("other-use", f"{device.id}: a pod has another VF of {card}, and with it its NVLinks")
            elif not mine:
                problem = Problem("fabric", f"{card} is in no fabric partition")
        return device._replace(problem=problem, module=module, partitions=partitions)

    def _of_partitions(
        self, resource: Resource, whole: Iterable[Partition], usage: Usage, now: float
    ) -> Iterable[Resource]:
        """The resources whose devices are partitions of several of a resource's cards."""
        several = sorted((each for each in whole if len(each.gpus) > 1), key=_size)
        for size, of_size in groupby(several, key=_size):
            name = _with_size(resource.name, size)
            prefix = resource.variable.removesuffix(variable_name(resource.name, ""))
            devices = {}
            for partition in of_size:
                members = [resource.devices[str(card)] for card in sorted(partition.cards)]
                key = CARD_SEPARATOR.join(member.id for member in members)
                held = usage.holder(name, key) is not None
                devices[key] = self._device(key, members, partition, now, held=held)
            self._cards[name] = resource
            yield resource._replace(
                name=name, variable=variable_name(name, prefix), devices=devices, sets=(), cards=size, same_device=False
            )

    def _device(self, key: str, members: Sequence[Device], partition: Partition, now: float, *, held: bool) -> Device:
        nodes = {member.numa_node for member in members}
        wrong = (member.problem for member in members if member.problem is not None)
        problem = self._fabric.problem(partition.cards, now, held=held) or next(wrong, None)
        return Device(
            key,
            nodes.pop() if len(nodes) == 1 else None,
            problem,
            frozenset(group for member in members for group in member.groups),
            tuple(function for member in members for function in member.functions),
            description=f"fabric partition {partition.number} with {len(members)} cards",
        )

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: Preferences = NO_PREFERENCES) -> Grant:
        """See `Provider.allocate`; activates the partitions."""
        cards = self._cards.get(resource.name, resource)
        keys = [card for key in ids for card in cards_in(key)]
        governed = self._governed(cards)
        claimed = [key for key in wishes.together if key in governed]
        # Requests of a claim are allocated one by one: its partition is activated with the last of its cards.
        waits = bool(claimed) and claimed[-1] not in ids
        sets = [] if waits else self._sets(cards, claimed or ids, governed)
        grant = await self._provider.allocate(cards, keys, wishes)
        if sets:
            own = (*ids, *keys, *wishes.together)
            await self._fabric.activate(resource.name, sets, own)
        if cards.name == resource.name:
            return grant
        env = {resource.variable if name == cards.variable else name: value for name, value in grant.env.items()}
        return grant._replace(env=env)

    def _sets(self, cards: Resource, ids: Sequence[str], governed: Mapping[str, PciAddress]) -> list[CardSet]:
        """The sets of cards to be activated: one for each ID of a partition, or one for all cards together.

        Raises:
            NO_PARTITION: two VFs are of one card.
        """
        partitions = [key for key in ids if CARD_SEPARATOR in key]
        together = [cards_in(key) for key in partitions] or [tuple(key for key in ids if key in governed)]
        sets = []
        for keys in together:
            of_keys = {key: governed[key] for key in keys if key in governed}
            if len(set(of_keys.values())) < len(of_keys):
                raise NO_PARTITION(
                    f"{cards.name}: {', '.join(keys)} are VFs of one card, of which only one can have its NVLinks",
                    "Let the container ask for fewer.",
                    resource=cards.name,
                )
            vfs = {card: PciAddress.parse(key) for key, card in of_keys.items() if key != str(card)}
            if of_keys:
                sets.append(CardSet(tuple(of_keys.values()), vfs))
        return sets

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """See `Provider.check`."""
        cards = self._cards.get(resource.name, resource)
        await self._provider.check(cards, [card for key in ids for card in cards_in(key)])


def _size(partition: Partition) -> int:
    return len(partition.gpus)


def _with_size(name: str, size: int) -> str:
    """``nvidia.com/H100-x2``, as long as a name may be."""
    domain, slash, short = name.partition("/")
    end = f"-x{size}"
    return f"{domain}{slash}{short[: LONGEST_NAME - len(end)]}{end}"
