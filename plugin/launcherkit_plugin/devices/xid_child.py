"""Waits for critical errors (Xids) of NVIDIA's cards by NVML, in a process of its own, which stays.

NVML records events only while somebody has registered for them, and whoever has keeps the cards open. Each line of its
output is a JSON list: see `launcherkit_plugin.devices.xid_watch.XidWatch`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from launcherkit.process.parent import end_with
from launcherkit_plugin.host.nvml_library import NvmlLibrary, with_nvml

WAIT_MILLISECONDS = 20_000
"""The longest time without a line."""
_TIMEOUT = 10
_NO_INSTANCE = 0xFFFFFFFF


def _wait(cards: Sequence[str], library: NvmlLibrary) -> dict[str, Any]:
    kind, by_uuid = library.binding.nvmlEventTypeXidCriticalError, {}
    events = library("nvmlEventSetCreate")
    for card in cards:
        try:
            device = library.card(card)
            library("nvmlDeviceRegisterEvents", device, kind, events)
            by_uuid[library("nvmlDeviceGetUUID", device)] = card
        except library.binding.NVMLError as error:
            _say("refused", card, library.failure(error))
    if not by_uuid:
        return {"missing": "NVML can wait for none of the cards"}
    _say("watching")
    while True:
        event = library.unless((_TIMEOUT,), "nvmlEventSetWait_v2", events, WAIT_MILLISECONDS)
        if event is None:
            _say("alive")
        elif event.eventType == kind:
            instance = [each for each in (event.gpuInstanceId, event.computeInstanceId) if each != _NO_INSTANCE]
            _say("xid", by_uuid[library("nvmlDeviceGetUUID", event.device)], event.eventData, instance)


def _say(*words: Any) -> None:
    sys.stdout.write(f"{json.dumps(words)}\n")
    sys.stdout.flush()


def main(parent: int, cards: Sequence[str]) -> None:
    """Write what happens, until the parent ends this process or NVML fails; then the failure is the last line."""
    end_with(parent)
    _say("ended", with_nvml(partial(_wait, cards)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
