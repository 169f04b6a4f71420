"""Resources stay registered whatever the kubelet does (K4), and it sees what becomes of their devices (K5)."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
import time
from pathlib import Path

import pytest

from launcherkit_lab.kubelet import Kubelet, NotAdmitted, running_kubelet
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.kubelet import advertiser
from launcherkit_plugin.kubelet.advertiser import AdvertisedResource, Advertiser
from launcherkit_plugin.kubelet.client import register
from launcherkit_plugin.model.errors import NO_KUBELET
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.plugin.kubelet.parts import NAME, Plugin, provoked, resource, until
from tests.support.errors import raises_code
from tests.support.looping import Loop, settled

OTHER = "nvidia.com/AD102GL_L40S"
SOCKET = "kubevirt-GA102_GEFORCE_RTX_3090.sock"


def test_a_resource_is_registered_and_its_devices_are_seen(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.advertise(resource("a", "b", "c", sick=["b"], numa=1), resource("d", name=OTHER))
    kubelet.wait_for(NAME, {"a": True, "b": False, "c": True})
    kubelet.wait_for(OTHER, {"d": True})
    assert (kubelet.topology(NAME), kubelet.topology(OTHER)) == ({"a": 1, "b": 1, "c": 1}, {})
    until(lambda: plugin.unregistered() == [])


def test_its_socket_is_named_as_nvidias_plugin_names_it_and_is_not_for_everybody(
    kubelet: Kubelet, plugin: Plugin
) -> None:
    plugin.advertise(resource("a"))
    kubelet.wait_for(NAME)
    assert sorted(os.listdir(kubelet.plugins)) == ["kubelet.sock", SOCKET]
    assert stat.S_IMODE((kubelet.plugins / SOCKET).stat().st_mode) == 0o660


# Health


def test_health_goes_both_ways_without_a_new_registration(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.advertise(resource("a", "b"))
    kubelet.wait_for(NAME, {"a": True, "b": True})
    plugin.advertise(resource("a", "b", sick=["a"]))
    kubelet.wait_for(NAME, {"a": False, "b": True})
    plugin.advertise(resource("a", "b", "c"))
    kubelet.wait_for(NAME, {"a": True, "b": True, "c": True})
    assert kubelet.registrations == [NAME]


def test_what_has_not_changed_is_not_told_again(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.advertise(resource("a"))
    kubelet.wait_for(NAME)
    for _ in range(10):
        plugin.advertise(resource("a"))
    plugin.advertise(resource("a", "b"))
    kubelet.wait_for(NAME, {"a": True, "b": True})
    assert kubelet.pushes(NAME) == 2


def test_a_resource_that_is_gone_has_no_devices_and_no_socket(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.advertise(resource("a"), resource("d", name=OTHER))
    kubelet.wait_for(NAME)
    kubelet.wait_for(OTHER)
    plugin.advertise(resource("d", name=OTHER))
    kubelet.wait(lambda: NAME not in kubelet.resources())
    until(lambda: not (kubelet.plugins / SOCKET).exists())
    assert kubelet.last_lists[NAME] == {}
    plugin.advertise(resource("a"), resource("d", name=OTHER))
    kubelet.wait_for(NAME, {"a": True})


# The kubelet comes and goes


def test_a_kubelet_that_is_not_there_yet_is_waited_for(folder: Path, plugin: Plugin) -> None:
    plugin.advertise(resource("a"), resource("d", name=OTHER))
    until(lambda: any("waiting" in line for line in plugin.log.lines))
    assert plugin.unregistered() == [OTHER, NAME]
    with running_kubelet(folder) as kubelet:
        plugin.look()
        kubelet.wait_for(NAME)
        kubelet.wait_for(OTHER)


def test_one_that_comes_unseen_is_found_all_the_same(folder: Path, plugin: Plugin) -> None:
    plugin.advertise(resource("a"))
    until(lambda: any("waiting" in line for line in plugin.log.lines))
    with running_kubelet(folder) as kubelet:
        kubelet.wait_for(NAME)


def test_whoever_asks_for_it_is_told_at_each_change_which_resources_are_not_registered(folder: Path) -> None:
    told: list[list[str]] = []

    async def scene() -> None:
        allocator = Allocator(Reservations(), time.monotonic)
        advertiser = Advertiser(
            str(folder), allocator, Reporter(), time.monotonic, changed=lambda names: told.append([*names])
        )
        advertiser.update([resource("a"), resource("d", name=OTHER)])
        advertiser.update([resource("a")])
        advertiser.update([])
        await advertiser.close()

    asyncio.run(scene())
    assert told == [[OTHER, NAME], [NAME], []]


def test_a_resource_that_the_kubelet_knows_is_not_registered_again(
    kubelet: Kubelet, plugin: Plugin, loop: Loop
) -> None:
    plugin.advertise(resource("a"))
    kubelet.wait_for(NAME)
    until(lambda: plugin.unregistered() == [])
    for _ in range(3):
        plugin.look()
        loop.run(settled())
        assert plugin.unregistered() == []
    assert plugin.tries(NAME) == 1


def test_a_socket_that_a_dead_kubelet_has_left_is_no_kubelet_and_that_is_reported_once(
    folder: Path, plugin: Plugin
) -> None:
    plugins = folder / "device-plugins"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(plugins / "kubelet.sock"))
    plugin.advertise(resource("a"))
    until(lambda: plugin.tries(NAME) > 3)
    wanted = provoked("LK711").replace("/var/lib/kubelet/device-plugins", str(plugins))
    assert plugin.log.lines == [f"info: {NAME}: waiting: {wanted}"]
    with running_kubelet(folder) as kubelet:
        kubelet.wait_for(NAME)


def test_after_a_restart_all_resources_are_back(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.advertise(resource("a"), resource("d", name=OTHER))
    for _ in range(5):
        kubelet.wait_for(NAME, {"a": True})
        kubelet.wait_for(OTHER, {"d": True})
        kubelet.restart()
        plugin.look()
    kubelet.wait_for(NAME, {"a": True})
    kubelet.wait_for(OTHER, {"d": True})


def test_a_device_in_use_is_back_after_a_restart_and_not_given_away_again(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.advertise(resource("a", "b"))
    kubelet.wait_for(NAME)
    (held,) = kubelet.admit("vm", [("compute", NAME, 1)])
    kubelet.restart()
    kubelet.wait_for(NAME, {"a": True, "b": True})
    (other,) = kubelet.admit("vm2", [("compute", NAME, 1)])
    assert {*held.ids, *other.ids} == {"a", "b"}
    with pytest.raises(NotAdmitted, match="requested: 1, available: 0"):
        kubelet.admit("vm3", [("compute", NAME, 1)])


@pytest.mark.slow
def test_twenty_restarts_under_load_lose_nothing(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.advertise(resource(*"abcdefgh"), resource("i", "j", name=OTHER))
    kubelet.wait_for(NAME)
    done, admitted = threading.Event(), []

    def load() -> None:
        while not done.is_set():
            try:
                admitted.append(kubelet.admit("pod", [("one", NAME, 3), ("two", NAME, 5)]))
                kubelet.delete("pod")
            except NotAdmitted:
                pass  # the kubelet is just gone

    worker = threading.Thread(target=load)
    worker.start()
    try:
        for _ in range(20):
            before = len(admitted)
            kubelet.restart()
            plugin.look()
            kubelet.wait_for(NAME, dict.fromkeys("abcdefgh", True))
            kubelet.wait_for(OTHER, {"i": True, "j": True})
            until(lambda before=before: len(admitted) > before)  # type: ignore[misc]
    finally:
        done.set()
        worker.join()
    assert all(len({*one.ids, *two.ids}) == 8 for one, two in admitted)


def test_a_stream_that_the_kubelet_closes_is_taken_for_its_having_forgotten_us(
    kubelet: Kubelet, plugin: Plugin
) -> None:
    plugin.advertise(resource("a"))
    kubelet.wait_for(NAME)
    kubelet.drop_streams()
    kubelet.wait(lambda: len(kubelet.registrations) > 1)
    kubelet.wait_for(NAME, {"a": True})


def test_one_that_is_replaced_before_it_has_dialled_is_reported_too(kubelet: Kubelet, plugin: Plugin) -> None:
    kubelet.forgetful = True
    plugin.advertise(resource("a"))
    kubelet.wait(lambda: kubelet.registrations)
    kubelet.forgetful = False
    kubelet.restart()
    kubelet.wait_for(NAME, {"a": True})


def test_a_connection_that_is_lost_leaves_the_callers_task_as_it_was(tmp_path: Path) -> None:
    """A task that counts as cancelled ends at its next timeout, up to Python 3.11.2."""

    async def scenario() -> int:
        async with await asyncio.start_unix_server(lambda _, writer: writer.close(), tmp_path / "kubelet.sock"):
            with raises_code(NO_KUBELET):
                await register(str(tmp_path), resource("a"))
        task = asyncio.current_task()
        assert task
        return task.cancelling()

    assert asyncio.run(scenario()) == 0


def test_one_that_never_dials_is_reported_again(
    kubelet: Kubelet, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advertiser, "UNWATCHED_SECONDS", 0.01)
    kubelet.forgetful = True
    plugin.advertise(resource("a"))
    kubelet.wait(lambda: len(kubelet.registrations) > 1)
    kubelet.forgetful = False
    kubelet.wait_for(NAME, {"a": True})


def test_a_kubelet_of_another_version_is_reported_once_and_asked_again(folder: Path, plugin: Plugin) -> None:
    kubelet = Kubelet(folder, versions=("v2",))
    kubelet.start()
    try:
        plugin.advertise(resource("a"))
        until(lambda: plugin.tries(NAME) > 2)
        wanted = provoked("LK715").replace("/var/lib/kubelet/device-plugins", f"{folder}/device-plugins")
        assert [line for line in plugin.log.lines if "LK715" in line] == [f"error: LK715: {wanted}. {plugin.help(715)}"]
    finally:
        kubelet.stop()


# The sockets


def test_a_socket_that_somebody_removes_is_made_again(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.advertise(resource("a"))
    kubelet.wait_for(NAME)
    (kubelet.plugins / SOCKET).unlink()
    plugin.look()
    kubelet.wait(lambda: len(kubelet.registrations) > 1)
    kubelet.wait_for(NAME, {"a": True})


def test_the_socket_of_a_plugin_that_was_killed_is_taken_over(kubelet: Kubelet, plugin: Plugin) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(kubelet.plugins / SOCKET))
        dead.listen()
    plugin.advertise(resource("a"))
    kubelet.wait_for(NAME, {"a": True})


def test_that_of_a_living_one_is_waited_for_and_the_others_go_on(kubelet: Kubelet, plugin: Plugin) -> None:
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(kubelet.plugins / SOCKET))
        living.listen()
        plugin.advertise(resource("a"), resource("d", name=OTHER))
        kubelet.wait_for(OTHER)
        until(lambda: any("LK716" in line for line in plugin.log.lines))
        wanted = provoked("LK716").replace("/var/lib/kubelet/device-plugins", str(kubelet.plugins))
        assert f"error: LK716: {wanted}. {plugin.help(716)}" in plugin.log.lines
        until(lambda: plugin.unregistered() == [NAME])
    kubelet.wait_for(NAME, {"a": True})


def test_what_is_in_the_way_of_one_is_not_in_that_of_the_others(kubelet: Kubelet, plugin: Plugin) -> None:
    (kubelet.plugins / SOCKET).mkdir()
    plugin.advertise(resource("a"), resource("d", name=OTHER))
    kubelet.wait_for(OTHER)
    until(lambda: any("LK717" in line for line in plugin.log.lines))
    wanted = provoked("LK717").replace("/var/lib/kubelet/device-plugins", str(kubelet.plugins))
    assert f"error: LK717: {wanted}. {plugin.help(717)}" in plugin.log.lines
    (kubelet.plugins / SOCKET).rmdir()
    kubelet.wait_for(NAME, {"a": True})


def test_a_path_that_is_too_long_to_be_dialled_is_reported_as_such(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.advertise(resource("a", name=f"nvidia.com/{'X' * 100}"))
    until(lambda: any("LK717" in line and "path too long" in line for line in plugin.log.lines))
    assert os.listdir(kubelet.plugins) == ["kubelet.sock"]


def test_in_the_end_the_sockets_are_gone_and_nobody_elses(folder: Path, kubelet: Kubelet, loop: Loop) -> None:
    plugin = Plugin(loop, kubelet.plugins)
    plugin.advertise(resource("a"), resource("d", name=OTHER))
    kubelet.wait_for(NAME)
    kubelet.wait_for(OTHER)
    plugin.close()
    assert os.listdir(kubelet.plugins) == ["kubelet.sock"]
    kubelet.wait(lambda: kubelet.resources() == set())
    assert kubelet.last_lists[NAME] == {"a": True}, "a plugin that is started anew has not lost its devices"


def test_a_name_that_kubernetes_does_not_take_is_reported(kubelet: Kubelet, plugin: Plugin) -> None:
    plugin.advertise(resource("a", name="nvidia.com/-"), resource("d", name=OTHER))
    kubelet.wait_for(OTHER)
    until(lambda: any("is invalid" in line for line in plugin.log.lines))


def test_the_end_waits_for_each_server_of_a_resource_that_went_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates, ended = [asyncio.Event(), asyncio.Event()], 0
    ends = iter(gates)

    async def end(_: AdvertisedResource, *, gone: bool) -> None:
        nonlocal ended
        assert gone
        await next(ends).wait()
        ended += 1

    async def scene() -> None:
        allocator = Allocator(Reservations(), time.monotonic)
        advertiser = Advertiser(str(folder), allocator, Reporter(), time.monotonic)
        for resources in ([resource("a")], [], [resource("a")], []):
            advertiser.update(resources)
            await asyncio.sleep(0)
        closing = asyncio.create_task(advertiser.close())
        gates[1].set()
        await settled()
        assert not closing.done()
        gates[0].set()
        await closing
        assert ended == 2

    monkeypatch.setattr(AdvertisedResource, "end", end)
    asyncio.run(scene())
