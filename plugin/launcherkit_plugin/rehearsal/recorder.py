"""Writes this node down for others, in the daemon: when something has changed, and at most once a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from launcherkit.errors import LauncherkitError
from launcherkit.sources.host import Host
from launcherkit_plugin.rehearsal.node_record import MOST_BYTES, pack, record_of
from launcherkit_plugin.rehearsal.offer import NodeOffer, with_topology

PAUSE_SECONDS = 60.0


class NodeRecorder:
    """Sends a record of the node on its way.

    Args:
        host: read for what the daemon doesn't need itself: its NUMA nodes, and all about what is advertised.
        send: takes ``{"record": ...}``, or ``{"problem": ...}`` where there can be none.
        clock: seconds on a monotonic clock.
    """

    def __init__(self, host: Host, send: Callable[[Mapping[str, str]], None], clock: Callable[[], float]) -> None:
        self._host = host
        self._send = send
        self._clock = clock
        self._at = -PAUSE_SECONDS
        self._work: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a record is being made."""
        return self._work is not None and not self._work.done()

    def take(self, offer: NodeOffer) -> None:
        """What there is now. Never waits; what comes too soon is left to the daemon's next look."""
        now = self._clock()
        if now - self._at >= PAUSE_SECONDS and not self.busy:
            self._at = now
            self._work = asyncio.create_task(self._record(offer))

    async def _record(self, offer: NodeOffer) -> None:
        """In a thread: a device that doesn't answer holds up nothing but its node's record (K9)."""
        try:
            packed = await asyncio.to_thread(_packed, self._host, offer)
        except LauncherkitError as error:
            self._send({"problem": error.message})
            return
        if len(packed) > MOST_BYTES:
            self._send({"problem": f"the record has {len(packed)} bytes, more than {MOST_BYTES}"})
        else:
            self._send({"record": packed})


def _packed(host: Host, offer: NodeOffer) -> str:
    offer = with_topology(offer, host)
    return pack(record_of(offer._replace(facts=offer.facts._replace(unknown={}, events=None))))
