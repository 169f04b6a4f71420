"""The records of GPU instances that were made, so that these are given back, and no others (G6).

A `launcherkit_plugin.records` file for each card is written before it is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from launcherkit.atomic import Disk
from launcherkit.request.fields import Fields, FirstProblem, integer
from launcherkit_plugin.binding.ledger import is_address
from launcherkit_plugin.records import RecordFolder, Stored
from launcherkit_plugin.vgpu.nvml import Placed


class Made(NamedTuple):
    """What was made on a card, or was about to be."""

    instances: frozenset[Placed] = frozenset()
    whole: frozenset[Placed] = frozenset()
    """Those of the last layout that was reached: what a failed change goes back to."""
    mode: bool = False
    """MIG mode was set. It outlives a reboot on some cards; GPU instances never do."""


class MadeRecords:
    """The records in a folder, by the address of the card.

    Args:
        folder: created on the first write.
        boot: the ID of this boot.
        disk: writes and removes the files.
    """

    def __init__(self, folder: str, boot: str, disk: Disk | None = None) -> None:
        self._records = RecordFolder(folder, boot, partial(_parse, boot), is_address, disk or Disk())

    def read(self) -> Mapping[str, Made]:
        """All records. A broken one says nothing of ours, so nothing on its card is destroyed (T2).

        Raises:
            UnreadableFile: the folder can't be read.
        """
        content = self._records.load()
        return {**dict.fromkeys(content.broken, Made()), **content.whole}

    def write(self, card: str, made: Made) -> None:
        """Write a record, or remove it if there is nothing to give back.

        Raises:
            UnwritableFile: the previous one is unchanged.
        """
        if made == Made():
            self._records.remove(card)
            return
        content = {"instances": sorted(made.instances), "whole": sorted(made.whole), "mode": int(made.mode)}
        self._records.write(card, content)


def _parse(boot: str, _: str, stored: Stored) -> Made:
    record = Fields(stored.content, "", FirstProblem())
    instances, whole = (record.many(key, _triple, "profile, start and size") for key in ("instances", "whole"))
    mode = record.needed("mode", integer, "0 or 1") != 0
    return Made(frozenset(instances), frozenset(whole), mode) if stored.boot == boot else Made(mode=mode)


def _triple(value: object) -> Placed:
    if not (isinstance(value, list) and len(value) == 3):
        raise ValueError
    return Placed(*map(integer, value))
