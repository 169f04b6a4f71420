"""Activates fabric partitions for pods, and deactivates those of its own that no pod has any more (K13).

Fabric Manager's state is read before and after each change and in each turn of the loop, and never assumed. A partition
without a record is somebody else's, and is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction, bound_to_vfio
from launcherkit_plugin.fabric.activations import Activated, ActivatedPartitions
from launcherkit_plugin.fabric.manager import CALL_SECONDS, FabricManager, NotBegun
from launcherkit_plugin.fabric.partitions import Board, Partition
from launcherkit_plugin.fabric.problems import lost, misfit, names, no_partition, not_changed, of_others
from launcherkit_plugin.host.driver_nodes import NVIDIA
from launcherkit_plugin.host.work_queue import WorkQueue, tasks_of
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.device import Device, Holder, Problem, Usage, cards_in
from launcherkit_plugin.model.errors import CARD_IN_OTHER_USE, PARTITION_OF_OTHERS
from launcherkit_plugin.telemetry.reporter import Reporter

KEY = "Fabric Manager"
"""The key of its work: it makes one change at a time."""
CHANGE_SECONDS = 3 * CALL_SECONDS
"""How long an Allocate waits: a former pod's partition may have to be deactivated before."""
LATE_SECONDS = 2 * CALL_SECONDS
"""How long after a call without an answer its partition may still become active."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 600.0
_DISPLAY, _SWITCH = 0x03, 0x0680


class CardSet(NamedTuple):
    """The cards that one container gets together."""

    cards: tuple[PciAddress, ...]
    """Physical functions."""
    vfs: Mapping[PciAddress, PciAddress] = {}
    """Where guests get VFs, the VF of each card."""


class _State(NamedTuple):
    """What was read last."""

    board: Board = Board()
    error: LauncherkitError | None = None
    """Why the board's state is unknown now."""
    ours: frozenset[int] = frozenset()
    """The IDs of partitions with a record."""
    is_read: bool = False
    """Whether the board has been read at all."""


class Fabric:
    """A `launcherkit_plugin.devices.provider.Reconciler`.

    Args:
        manager: asks Fabric Manager.
        records: of the partitions that were activated.
        queue: runs work that may hang.
        reporter: reports each problem once.
        usage: returns which pod has which device, including those that were allocated a moment ago.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        manager: FabricManager,
        records: ActivatedPartitions,
        queue: WorkQueue,
        reporter: Reporter,
        usage: Callable[[], Usage],
        clock: Callable[[], float],
    ) -> None:
        self._manager = manager
        self._records = records
        self._queue = queue
        self._reporter = reporter
        self._usage = usage
        self._clock = clock
        self._host = NO_FACTS
        self._state = _State()
        self._switches: tuple[PciAddress, ...] = ()
        """NVSwitches that are bound to VFIO."""
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._activating: set[PciAddress] = set()
        """The cards of calls that aren't answered yet."""
        self._late: dict[int, float] = {}
        """Until when partitions may become active whose activation had no answer."""

    def wants(self, function: PciFunction) -> bool:
        """See `Reconciler.wants`: the drivers of NVSwitches tell whether a VM has them."""
        return function.vendor == NVIDIA and function.class_code >> 8 == _SWITCH

    # What is known

    @property
    def board(self) -> Board:
        """The partitions as they were read last."""
        return self._state.board

    def governs(self, card: PciFunction) -> bool:
        """Whether a card needs an active partition: those of the board, or all GPUs of NVIDIA while it is unknown."""
        if card.vendor != NVIDIA or card.class_code >> 16 != _DISPLAY:
            return False
        state = self._state
        return card.address in state.board.cards or not state.board.partitions or bool(state.board.unmatched)

    def problem(self, cards: Collection[PciAddress], now: float, *, held: bool) -> Problem | None:
        """Why cards can't be allocated together, as far as that is a matter of their partitions; or, if a pod has them,
        that they aren't in an active one.
        """
        if not self._activating.isdisjoint(cards):
            return None
        text = self._why_lost(cards) if held else self._why_not(cards, now)
        return None if text is None else Problem("fabric", text)

    def _why_lost(self, cards: Collection[PciAddress]) -> str | None:
        state = self._state
        over = state.board.overlapping(cards)
        is_lost = state.error is None and over and not any(partition.active for partition in over)
        return lost(cards).message if is_lost else None

    def _why_not(self, cards: Collection[PciAddress], now: float) -> str | None:
        state = self._state
        if state.error is None and not state.is_read:
            return "Fabric Manager has not been asked yet"
        error = state.error or misfit(state.board, self._switches)
        if error is not None:
            return error.message
        for partition in state.board.overlapping(cards):
            if partition.active and partition.number not in state.ours:
                return of_others([partition]).message
            failure = self._backoff.why(("deactivate", partition.number), now)
            if failure is not None:
                return failure
        exact = state.board.exactly(cards)
        return None if exact is None else self._backoff.why(("activate", exact.number), now)

    # For a pod

    async def activate(self, resource: str, sets: Sequence[CardSet], ids: Collection[str]) -> None:
        """Activate the partitions of cards that a container gets: all of them, or none.

        Args:
            resource: as which it gets them.
            sets: the cards.
            ids: the IDs of all devices that it gets; if another pod had one of them, that pod has ended.

        Raises:
            CARD_IN_OTHER_USE: a pod has another VF of one of the cards.
            NO_PARTITION: some cards are no partition.
            PARTITION_OF_OTHERS: somebody else has activated one with one of them.
            FABRIC_UNREACHABLE, FABRIC_MISFIT, PARTITION_NOT_CHANGED, UnwritableFile, WORK_HANGS: it isn't possible now.
        """
        own = {card for together in sets for card in together.cards}
        used = self.cards_of(self._usage().kept_ids.difference(ids), self._host) & own
        if used:
            raise CARD_IN_OTHER_USE(
                f"{resource}: a pod has another VF of {names(used)}, and with it its NVLinks",
                "Wait until that pod has ended; the next pod gets other cards if there are any.",
                device=names(used),
                resource=resource,
            )
        self._activating |= own
        try:
            doing = f"activating fabric partitions for {resource}"
            work = partial(self._activate_all, resource, sets)
            await self._queue.run(KEY, doing, work, CHANGE_SECONDS, turn=CHANGE_SECONDS)
        finally:
            self._activating -= own

    def _activate_all(self, resource: str, sets: Sequence[CardSet]) -> None:
        if len(sets) == 1 and self._seems_free(sets[0].cards):
            with suppress(NotBegun):
                return self._activate_each(resource, sets, self._state.board, as_seen=True)
        board = self._read()
        error = misfit(board, self._switches)
        if error is not None:
            raise error
        return self._activate_each(resource, sets, board)

    def _seems_free(self, cards: Collection[PciAddress]) -> bool:
        """Whether cards were a partition that is inactive when the board was read last, and without a record: as long
        as the state isn't read again, an old record would say of anybody's partition that it is ours.
        """
        state, exact = self._state, self._state.board.exactly(cards)
        if state.error is not None or exact is None or exact.number in state.ours:
            return False
        overlapping = state.board.overlapping(cards)
        return misfit(state.board, self._switches) is None and not any(other.active for other in overlapping)

    def _activate_each(self, resource: str, sets: Sequence[CardSet], board: Board, *, as_seen: bool = False) -> None:
        """Activate all partitions, or none; raises NotBegun if the board isn't any more ``as_seen``."""
        done: list[Partition] = []
        try:
            for cards, vfs in sets:
                partition = board.exactly(cards)
                if partition is None:
                    raise no_partition(resource, cards, board)
                self._make_way(board, partition)
                self._activate(resource, partition, vfs, board if as_seen else None)
                done.append(partition)
            board = self._state.board
            for partition in done:
                if not board.is_active(partition):
                    raise not_changed(partition, "activated")
        except LauncherkitError:
            for partition in done:
                with suppress(LauncherkitError):  # what is left is deactivated by a later turn: no pod has it
                    self._undo(partition)
            raise

    def _make_way(self, board: Board, partition: Partition) -> None:
        """Deactivate a former pod's partition that has some of the cards. The kubelet has given them to another pod, so
        that pod has ended.
        """
        for other in board.overlapping(partition.cards):
            if not other.active:
                continue
            if other.number not in self._state.ours:
                raise of_others([other])
            self._deactivate(other)

    def _activate(
        self, resource: str, partition: Partition, vfs: Mapping[PciAddress, PciAddress], seen: Board | None
    ) -> None:
        """Record and activate a partition that is inactive.

        If it was inactive in a board that was ``seen`` once, the process with the library reads the board, and puts the
        record in its place: one exchange with it in place of two.

        Raises:
            NotBegun: it is another board, or the record can't be put there.
            PARTITION_OF_OTHERS: something else has just activated it, or one that overlaps it.
            FABRIC_UNREACHABLE, PARTITION_NOT_CHANGED, UnwritableFile: it is inactive again, or its record stays.
        """
        number, key = partition.number, ("activate", partition.number)
        record = Activated(number, tuple(sorted(partition.cards)), resource)
        in_order = [vfs[gpu.address] for gpu in partition.gpus if gpu.address is not None and gpu.address in vfs]
        with ExitStack() as prepared:
            first = (seen, prepared.enter_context(self._records.prepared(record))) if seen else None
            if first is None:
                self._records.write(record)
            try:
                self._know(self._manager.activate(number, in_order, first), self._state.ours | {number})
            except LauncherkitError as error:
                self._backoff.failed(key, self._clock(), error.message)
                self._reporter.metrics.fabric_changed("activate", "failed")
                if isinstance(error.__cause__, OSError):  # there was no answer: it may have been begun
                    self._late[number] = self._clock() + LATE_SECONDS
                with suppress(LauncherkitError):  # else a later turn does it
                    if error.code == PARTITION_OF_OTHERS.code:
                        self._records.remove(number)
                    else:
                        self._undo(partition)
                raise
        self._backoff.succeeded(key)
        self._reporter.metrics.fabric_changed("activate", "done")

    def _undo(self, partition: Partition) -> None:
        if not self._read().is_active(partition):
            if not self._may_be_late(partition.number, self._clock()):
                self._records.remove(partition.number)
        elif partition.number in self._state.ours:  # else the process has ended before its record was in its place
            self._deactivate(partition)

    def _deactivate(self, partition: Partition) -> None:
        """Deactivate a partition of ours, and remove its record once it is inactive.

        Raises:
            FABRIC_UNREACHABLE, PARTITION_NOT_CHANGED, UnwritableFile: its record stays.
        """
        number, key = partition.number, ("deactivate", partition.number)
        try:
            board = self._manager.deactivate(number)
            self._know(board, self._state.ours)
            if board.is_active(partition):
                raise not_changed(partition, "deactivated")
        except LauncherkitError as error:
            self._backoff.failed(key, self._clock(), error.message)
            self._reporter.metrics.fabric_changed("deactivate", "failed")
            raise
        self._backoff.succeeded(key)
        self._reporter.metrics.fabric_changed("deactivate", "done")
        self._records.remove(number)

    # In each turn

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> Sequence[asyncio.Task[bool]]:
        """See `Reconciler.reconcile`: reads the board, and deactivates what no pod has any more."""
        self._switches = tuple(
            address
            for address, function in sorted(host.functions.items())
            if self.wants(function) and bound_to_vfio(function, host.details.get(address))
        )
        self._host = host
        held = _held_cards(usage, host) if usage.known else None
        doing = "reading and deactivating fabric partitions"
        begun = self._queue.begin(KEY, doing, partial(self._look, held, now), CHANGE_SECONDS)
        return tasks_of([begun])

    def read(self) -> None:
        """Read the board, for a command that shows what there would be; blocks."""
        with suppress(LauncherkitError):
            self._read()

    def _look(self, held: _HeldCards | None, now: float) -> bool:
        """Read the board, and deactivate what no pod has; blocks. Returns whether there is something new."""
        before = self._state
        try:
            board = self._read()
        except LauncherkitError as error:
            self._note("asked", error, "FabricManagerUnreachable")
            self._reporter.metrics.fabric_state(None)
            return before.error is None
        self._note("asked", None)
        self._note("misfit", misfit(board, self._switches), "FabricMisconfigured")
        if held is not None:
            if self._end_unheld(board, held.cards, now):
                board = self._read()
            if board.partitions:
                self._report(board, held)
        self._reporter.metrics.fabric_state(len(board.active))
        return before != self._state

    def _end_unheld(self, board: Board, held: frozenset[PciAddress], now: float) -> bool:
        """Deactivate our partitions without a pod, and remove the records of those that are inactive; returns whether
        there was one."""
        ended = False
        for number, record in self._records.read().items() if board.partitions else ():
            partition = board.numbered(number)
            cards = frozenset(record.cards) | (frozenset() if partition is None else partition.cards)
            if not held.isdisjoint(cards):
                continue
            if partition is None or not partition.active:
                if not self._may_be_late(number, now):
                    self._records.remove(number)
                    ended = True
            elif not self._backoff.too_early(("deactivate", number), now):
                ended |= self._end(partition, record)
        return ended

    def _may_be_late(self, number: int, now: float) -> bool:
        """Whether an activation without an answer may still come about; then its record says whose it is."""
        if self._late.get(number, now) <= now:
            self._late.pop(number, None)
            return False
        return True

    def _end(self, partition: Partition, record: Activated) -> bool:
        about = f"deactivate {partition.number}"
        try:
            self._deactivate(partition)
        except LauncherkitError as error:
            self._note(about, error, "PartitionNotDeactivated")
            return False
        self._note(about, None)
        text = f"{record.resource}: fabric partition {partition.number} is inactive again after a pod had it"
        self._reporter.happened("PartitionDeactivated", text)
        return True

    def _report(self, board: Board, held: _HeldCards) -> None:
        """Report partitions of others, and cards of pods that are in no active one."""
        # One whose record is lost is a container's if that has its cards and no others.
        of_pods = [each for each in board.active if each.number in self._state.ours or each.cards in held.together]
        others = [each for each in board.active if each not in of_pods]
        self._note("others", of_others(others) if others else None, "PartitionOfOthers")
        covered = {card for partition in of_pods for card in partition.cards}
        uncovered = (held.cards & board.cards) - covered - self._activating
        self._note("lost", lost(uncovered) if uncovered else None, "PartitionLost")

    def _note(self, about: str, error: LauncherkitError | None, reason: str = "") -> None:
        if error is None:
            self._reporter.solved(about)
        else:
            self._reporter.problem(about, error, reason)

    def _read(self) -> Board:
        """Read the board and the records; blocks.

        Raises:
            FABRIC_UNREACHABLE, UnreadableFile: they can't be read; the board is what it was.
        """
        try:
            board = self._manager.board()
            self._know(board, frozenset(self._records.read()))
        except LauncherkitError as error:
            self._state = self._state._replace(error=error)
            raise
        return board

    def _know(self, board: Board, ours: frozenset[int]) -> None:
        self._state = _State(board, None, ours, is_read=True)

    @staticmethod
    def cards_of(ids: Iterable[str], host: HostFacts) -> frozenset[PciAddress]:
        """The cards of devices, by their IDs; of IDs that are no addresses there are none."""
        cards = (_card(key, host) for key in ids)
        return frozenset(card for card in cards if card is not None)


class _HeldCards(NamedTuple):
    """The cards that pods have."""

    cards: frozenset[PciAddress]
    together: frozenset[frozenset[PciAddress]]
    """Those of each container, and of each device that is a partition."""


def _held_cards(usage: Usage, host: HostFacts) -> _HeldCards:
    of_containers: dict[tuple[str, Holder], set[PciAddress]] = {}
    together: set[frozenset[PciAddress]] = set()
    for name, devices in usage.kept.items():
        for key, holder in devices.items():
            cards = Fabric.cards_of(cards_in(key), host)
            if len(cards) > 1:
                together.add(cards)
            of_containers.setdefault((name, holder), set()).update(cards)
    together.update(map(frozenset, of_containers.values()))
    return _HeldCards(Fabric.cards_of(usage.kept_ids, host), frozenset(together))


def card_of(device: Device, host: HostFacts) -> PciAddress | None:
    """The card of a device: its primary, or of a VF its physical function; None if it has no function."""
    return host.physical_function(device.functions[0]) if device.functions else None


def _card(key: str, host: HostFacts) -> PciAddress | None:
    """The card of a device by its ID; None if that is no address."""
    try:
        return host.physical_function(PciAddress.parse(key))
    except ValueError:
        return None
