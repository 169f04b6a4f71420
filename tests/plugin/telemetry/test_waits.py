"""Work that hangs is told to people: by the log, an Event and two metrics."""

from __future__ import annotations

import asyncio
import threading

from prometheus_client import generate_latest

from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.errors import WORK_HANGS
from launcherkit_plugin.telemetry.prometheus import PrometheusMetrics
from launcherkit_plugin.telemetry.reporter import Reporter, Waits
from tests.support.errors import raises_code


def test_what_hangs_is_reported_when_it_does_and_when_it_comes_back() -> None:
    events: list[tuple[str, str, str]] = []
    lines: list[str] = []
    metrics = PrometheusMetrics()
    woken: list[int] = []

    class Events:
        def event(self, type: str, reason: str, message: str) -> None:  # noqa: A002
            events.append((type, reason, message.partition(" has")[0]))

    def log(level: str, text: str, **fields: object) -> None:
        lines.append(f"{level}: {text.partition(' has')[0]}")

    def shown(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"launcherkit_plugin_{name}")

    async def scene() -> None:
        queue = WorkQueue(Waits(Reporter(log, metrics, Events()), lambda: woken.append(1)))
        free = threading.Event()
        with raises_code(WORK_HANGS):
            await queue.run("0000:01:00.0", "removing mdev 7", lambda: free.wait(60), 0.01)
        assert (shown("hanging_operations"), shown("late_operations_total")) == (1, 1)
        assert events == [("Warning", "OperationHangs", "0000:01:00.0: removing mdev 7")]
        assert woken == [1]
        free.set()
        while queue.is_busy("0000:01:00.0"):
            await asyncio.sleep(0.001)

    asyncio.run(scene())
    assert (shown("hanging_operations"), shown("late_operations_total")) == (0, 1)
    assert events[1:] == [("Normal", "OperationCameBack", "0000:01:00.0: removing mdev 7")]
    assert lines == ["error: 0000:01:00.0: removing mdev 7", "info: 0000:01:00.0: removing mdev 7"]
    assert woken == [1, 1]
    assert b"launcherkit_plugin_hanging_operations 0.0" in generate_latest(metrics.registry)
