"""A double of the process that has Fabric Manager's library, for tests without a compiler: it answers in memory.

It refuses what ``nv_fm_agent.h`` and NVIDIA's Fabric Manager User Guide say is refused, with the same return codes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcherkit.model.address import PciAddress
from launcherkit_plugin.fabric.manager import ProcessManager
from launcherkit_plugin.model.config import FabricConfig

CARDS = tuple(f"0000:{bus}:00.0" for bus in ("07", "0f", "47", "4e", "87", "90", "b7", "bd"))
"""Of tests/data/hosts/hgx.json."""
MODULES = dict(zip((3, 1, 4, 2, 7, 5, 8, 6), CARDS, strict=True))
"""The modules of a board aren't in the order of their addresses."""
TABLE = (
    (0, (1, 2, 3, 4, 5, 6, 7, 8)),
    (1, (1, 2, 3, 4)),
    (2, (5, 6, 7, 8)),
    (3, (1, 3)),
    (4, (2, 4)),
    (5, (5, 7)),
    (6, (6, 8)),
    *((6 + module, (module,)) for module in range(1, 9)),
)
"""Partitions by their IDs: of 8, 4, 2 and 1 modules, as HGX boards have them."""


def cards_of(number: int, table: Sequence[tuple[int, Sequence[int]]] = TABLE) -> frozenset[str]:
    """The addresses of a partition's cards."""
    return frozenset(MODULES[module] for module in dict(table)[number])


class Board:
    """Fabric Manager and a board, which outlive whoever asks.

    Args:
        table: the modules of each partition, by its ID.
        addresses: whether it reports the PCI addresses of cards, as on boards before H100.
        mode: of Fabric Manager, ``FABRIC_MODE``.
    """

    def __init__(
        self, table: Sequence[tuple[int, Sequence[int]]] = TABLE, *, addresses: bool = True, mode: int = 1
    ) -> None:
        self.table = dict(table)
        self._addresses = addresses
        self._mode = mode
        self.active: set[int] = set()
        self.vfs: dict[int, list[list[int]]] = {}
        self.codes: dict[str, list[int | str | BaseException]] = {}
        """What calls return next in place of what they should, by the call; ``crash`` and ``hang`` are possible too."""
        self.calls: list[tuple[str, int]] = []
        self.asked: list[list[str]] = []
        """The calls of each exchange with the process."""
        self.before: Callable[[str], None] = lambda call: None
        self.after: Callable[[str], None] = lambda call: None
        """Called before and after each call has its effect, and before and after a record is renamed (``rename``)."""

    def manager(self, config: FabricConfig | None = None) -> ProcessManager:
        """A new daemon's."""
        return ProcessManager(config or FabricConfig(), start=lambda: _Double(self))

    def start_again(self) -> None:
        """Fabric Manager starts again, with FABRIC_MODE_RESTART=0: nothing is active then."""
        self.active.clear()

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        call = question["call"]
        if "seen" in question and not self._is_begun(question):
            return {"begun": False}
        self.before(call)
        answer = self._answer(question)
        self.after(call)
        return answer

    def _is_begun(self, question: Mapping[str, Any]) -> bool:
        """What comes before an activation with a condition: a reading, and the record."""
        if json.dumps(self.answer({"call": "partitions"})) != question["seen"]:
            return False
        self.before("rename")
        try:
            os.rename(*question["rename"])
        except OSError:
            return False
        self.after("rename")
        return True

    def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        call, number = question["call"], question.get("id", -1)
        name = {
            "partitions": "fmGetSupportedFabricPartitions",
            "deactivate": "fmDeactivateFabricPartition",
            "activate": "fmActivateFabricPartitionWithVFs" if question.get("vfs") else "fmActivateFabricPartition",
        }[call]
        self.calls.append((call, number))
        if self.codes.get(call):
            code = self.codes[call].pop(0)
            if isinstance(code, BaseException):
                raise code
            if code == "crash":
                raise ConnectionResetError
            if code == "hang":
                raise TimeoutError
            return {"code": code, "from": name, "partitions": []}
        if call == "partitions":
            return {"code": 0, "from": name, "partitions": [self._described(each) for each in self.table]}
        return {"code": getattr(self, f"_{call}")(number, question.get("vfs")), "from": name}

    def _described(self, number: int) -> dict[str, Any]:
        gpus = [
            {
                "module": module,
                "uuid": f"GPU-{module}" if self._addresses else "",
                "address": f"0000{MODULES[module].upper()}" if self._addresses else "",
            }
            for module in self.table[number]
        ]
        return {"id": number, "active": number in self.active, "gpus": gpus}

    def _activate(self, number: int, vfs: list[list[int]]) -> int:
        if number not in self.table:
            return -1
        if bool(vfs) != (self._mode == 2):
            return -3
        if vfs and len(vfs) != len(self.table[number]):
            return -1
        if any(not set(self.table[other]).isdisjoint(self.table[number]) for other in self.active):
            return -7
        self.active.add(number)
        self.vfs[number] = [list(vf) for vf in vfs]
        return 0

    def _deactivate(self, number: int, _: object) -> int:
        if number not in self.table:
            return -1
        if number not in self.active:
            return -4
        self.active.discard(number)
        return 0


class _Double:
    def __init__(self, board: Board) -> None:
        self._board = board

    def ask(self, questions: Sequence[Mapping[str, Any]], seconds: float) -> list[bytes]:
        self._board.asked.append([question["call"] for question in questions])
        return [json.dumps(self._board.answer(question)).encode() for question in questions]

    def leave(self, problem: Exception) -> str:
        if isinstance(problem, TimeoutError):
            return "libnvfm has not returned in time, and its process was killed"
        return "the process with libnvfm was killed by signal 11"

    def end(self) -> None:
        pass


def addresses(*texts: str) -> tuple[PciAddress, ...]:
    return tuple(map(PciAddress.parse, texts))
