"""The double of the container `cluster` at the daemon's own socket: both speak the same protocol."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from launcherkit_plugin.cluster.socket import ClusterSocket
from launcherkit_plugin.model.errors import CLAIM_UNREADABLE
from launcherkit_plugin.model.wakeups import WakeupQueue
from tests.dra.api import Api
from tests.dra.cluster import Cluster
from tests.dra.scheduler import DeviceClass, Scheduler, requested
from tests.support.errors import raises_code
from tests.support.looping import Loop, running_loop

DRIVER = "pci.launcherkit.io"
SPEC = {"devices": [{"name": "pci-0000-01-00-0"}]}


class Ends(NamedTuple):
    """Both ends, connected."""

    loop: Loop
    daemon: ClusterSocket
    cluster: Cluster
    api: Api
    restart: Callable[[], None]
    """The daemon's end is closed, and opened again."""

    def published(self, *specs: object) -> None:
        """The daemon wants these slices."""
        self.loop.call(self.daemon.publish_slices, DRIVER, list(specs))
        self.api.wait(lambda: len(self.api.slices()) == len(specs), "the slices")


@pytest.fixture
def ends() -> Iterator[Ends]:
    with tempfile.TemporaryDirectory(prefix="ends-") as folder, running_loop() as loop:
        path, api, stack = Path(folder, "cluster.sock"), Api(), AsyncExitStack()

        daemon = ClusterSocket(lambda *_, **__: None, WakeupQueue(0.01))

        async def listen() -> None:
            await stack.enter_async_context(daemon.listening(str(path)))

        async def restart() -> None:
            await stack.aclose()
            await listen()

        loop.run(listen())
        with Cluster(path, api) as cluster:
            yield Ends(loop, daemon, cluster, api, lambda: loop.run(restart()))
            assert cluster.complaints == []
        loop.run(stack.aclose())


def test_what_the_daemon_wants_is_published_whole(ends: Ends) -> None:
    ends.published(SPEC)
    (spec,) = ends.api.slices()
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    assert spec == {**SPEC, "driver": DRIVER, "nodeName": "node-1", "pool": pool}
    ends.published()
    assert ends.api.writes == 2


def test_slices_that_were_wiped_come_back(ends: Ends) -> None:
    ends.published(SPEC)
    before = ends.api.slices()
    ends.api.wipe()
    (after,) = ends.api.slices()
    assert after["pool"].pop("generation") > before[0]["pool"].pop("generation")
    assert after == before[0]


def test_a_claim_is_read_as_it_is_now(ends: Ends) -> None:
    ends.published(SPEC)
    uid = ends.api.create_claim("one", [requested("gpu", "gpu")])["metadata"]["uid"]
    Scheduler(ends.api, {"gpu": DeviceClass(DRIVER)}).reserve("one", "vm")
    claim = ends.loop.run(ends.daemon.get_claim("default", "one", uid, 60.0))
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "pci-0000-01-00-0"


def test_a_claim_that_can_not_be_read_is_an_error(ends: Ends) -> None:
    uid = ends.api.create_claim("one", [requested("gpu", "gpu")])["metadata"]["uid"]
    for name, asked, away in (("two", uid, False), ("one", "another", False), ("one", uid, True)):
        ends.cluster.set_away(away)
        with raises_code(CLAIM_UNREADABLE):
            ends.loop.run(ends.daemon.get_claim("default", name, asked, 60.0))


def test_a_status_is_taken_of_devices_that_are_allocated_alone(ends: Ends) -> None:
    ends.published(SPEC)
    uid = ends.api.create_claim("one", [requested("gpu", "gpu")])["metadata"]["uid"]
    Scheduler(ends.api, {"gpu": DeviceClass(DRIVER)}).reserve("one", "vm")
    device = {"driver": DRIVER, "pool": "node-1", "device": "pci-0000-01-00-0", "conditions": []}
    ends.loop.call(ends.daemon.claim_status, "default", "one", uid, [device])
    ends.api.wait(lambda: ends.api.claim("default", "one")["status"].get("devices") == [device], "the status")
    ends.loop.call(ends.daemon.claim_status, "default", "one", uid, [{**device, "device": "another"}])
    ends.api.wait(lambda: ends.cluster.complaints, "a refusal")
    assert "another" in ends.cluster.complaints.pop()


def test_it_connects_again_to_a_daemon_that_comes_back(ends: Ends) -> None:
    ends.published(SPEC)
    ends.restart()
    ends.published(SPEC, SPEC | {"devices": [{"name": "other"}]})
