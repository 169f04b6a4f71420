"""`launcherkit run` with real guests: the life of a launcher pod, from its start to every end that it can have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit_lab.guest.build import build_kernel
from tests.kernel.inside import was_asked_for
from tests.libvirt.daemon import DAEMON
from tests.libvirt.pod import KILL, TERM, CannotUnshare, Pod, Process, pod

pytestmark = pytest.mark.guest

STAYS = ("--grace", "60")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_kernel(tmp_path_factory.mktemp("kernel"))


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Pod]:
    """An empty pod; one that can't be made is a failure where the tier was asked for, else a skip."""
    try:
        with pod() as made:
            yield made
    except CannotUnshare as error:
        if was_asked_for(request.config):
            raise
        pytest.skip(str(error))


def vm(kernel: Path, does: str, name: str = "vm") -> list[str]:
    values = {"name": name, "type": "qemu", "memory_mib": "64", "vcpus": "1", "kernel": str(kernel), "cmdline": does}
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return ["--template", "q35", *settings, "--host", "none"]


def launch(place: Pod, kernel: Path, does: str, *more: str) -> Process:
    """Run a guest in a pod."""
    return place.launcherkit("run", *vm(kernel, does), "--console", *more)


def domains(place: Pod) -> set[str]:
    """What stays defined at the pod's libvirt, by its files."""
    return {path.stem for path in (place.folder / "etc" / "qemu").glob("*.xml")}


def test_a_guest_that_shuts_down_ends_the_pod_with_0_and_leaves_nothing(place: Pod, kernel: Path) -> None:
    process = launch(place, kernel, "off")
    assert process.ends() == 0, process.reported
    assert "guest: hello\nguest: off\n" in process.printed
    assert "the guest has shut down" in process.reported
    assert domains(place) == set()


def test_sigterm_asks_the_guest_to_shut_down(place: Pod, kernel: Path) -> None:
    process = launch(place, kernel, "wait", *STAYS)
    process.says("guest: waiting")
    process.send(TERM)
    assert process.ends() == 0, process.reported
    assert "guest: off" in process.printed
    assert domains(place) == set()


def test_a_guest_that_does_not_shut_down_in_time_is_destroyed(place: Pod, kernel: Path) -> None:
    process = launch(place, kernel, "deaf", "--grace", "1")
    process.says("guest: deaf")
    process.send(TERM)
    assert process.ends() == 13, process.reported
    assert domains(place) == set()


def test_a_second_signal_destroys_at_once(place: Pod, kernel: Path) -> None:
    process = launch(place, kernel, "deaf", "--grace", "100000")
    process.says("guest: deaf")
    process.send(TERM)
    process.tells("asked to stop")
    process.send(TERM)
    assert process.ends() == 13, process.reported


def test_a_guest_that_somebody_destroys_is_told_from_one_that_crashes(place: Pod, kernel: Path) -> None:
    process = launch(place, kernel, "wait")
    process.says("guest: waiting")
    place.libvirt("destroy", "vm")
    assert process.ends() == 11, process.reported


def test_a_qemu_that_dies_is_a_crash(place: Pod, kernel: Path) -> None:
    process = launch(place, kernel, "wait")
    process.says("guest: waiting")
    for pid in process.inner("qemu-system-x86_64"):
        os.kill(pid, KILL)
    assert process.ends() == 10, process.reported
    assert domains(place) == set()


def test_a_start_after_kill_9_cleans_what_the_first_left(place: Pod, kernel: Path) -> None:
    first = launch(place, kernel, "wait", "--owner", "pod-1")
    first.says("guest: waiting")
    first.send(KILL)
    first.ends()
    assert domains(place) == {"vm"}
    second = launch(place, kernel, "off", "--owner", "pod-1")
    assert second.ends() == 0, second.reported
    assert "the guest vm was left by an earlier launcher of pod-1: destroyed and undefined" in second.reported
    assert domains(place) == set()


def test_what_belongs_to_another_owner_or_to_nobody_is_not_touched(place: Pod, kernel: Path) -> None:
    first = launch(place, kernel, "wait", "--owner", "pod-1")
    first.says("guest: waiting")
    first.send(KILL)
    first.ends()
    second = launch(place, kernel, "off", "--owner", "pod-2")
    assert second.ends() == 65
    assert "error[LK626]: the domain vm is there already and belongs to pod-1" in second.reported
    assert domains(place) == {"vm"}


def test_a_libvirtd_that_dies_is_started_again_and_the_guest_goes_on(place: Pod, kernel: Path) -> None:
    process = launch(place, kernel, "wait", *STAYS)
    process.says("guest: waiting")
    (qemu,) = process.inner("qemu-system-x86_64")
    (daemon,) = process.inner(DAEMON)
    os.kill(daemon, KILL)
    process.tells("libvirt is back")
    assert process.inner("qemu-system-x86_64") == [qemu]
    assert f"{DAEMON} was killed by signal 9" in process.reported
    process.send(TERM)
    assert process.ends() == 0, process.reported
    assert domains(place) == set()


def test_the_liveness_file_is_touched_while_all_is_well_and_goes_with_the_guest(place: Pod, kernel: Path) -> None:
    alive = place.folder / "alive"
    process = launch(place, kernel, "wait", *STAYS, "--liveness", str(alive))
    process.says("guest: waiting")
    seen = alive.stat().st_mtime_ns
    process.until(lambda: alive.stat().st_mtime_ns > seen, "the file touched again")
    process.send(TERM)
    assert process.ends() == 0
    assert not alive.exists()


def test_pid_1_buries_what_others_leave_to_it(place: Pod, kernel: Path) -> None:
    process = launch(place, kernel, "wait", *STAYS)
    process.says("guest: waiting")
    orphan = ["nsenter", "--target", str(process.pid()), "--pid", "sh", "-c", "(sleep 0 &)"]
    assert os.spawnvp(os.P_WAIT, orphan[0], orphan) == 0
    process.until(lambda: process.zombies() == [], "no zombie")
    process.send(TERM)
    assert process.ends() == 0


def test_a_libvirt_that_is_not_there_is_waited_for_and_then_69(place: Pod, kernel: Path) -> None:
    process = launch(place, kernel, "off", "--no-daemon", "--wait", "1")
    assert process.ends() == 69
    assert "error[LK621]: libvirt does not answer at qemu:///system" in process.reported


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (["--domain", "/nowhere/domain.xml"], "error[LK131]: /nowhere/domain.xml: No such file or directory"),
        (["--template", "q35", "--set", "name=vm", "--env-file", "/nowhere/env"], "error[LK131]: /nowhere/env: "),
        (["--domain", "lab/launcherkit_lab/guest/guest.c"], "error[LK121]: lab/launcherkit_lab/guest/guest.c"),
    ],
)
def test_what_is_wrong_with_an_input_is_reported_before_any_daemon_is_started(
    place: Pod, given: list[str], reported: str
) -> None:
    process = place.launcherkit("run", *given, "--host", "none")
    assert process.ends() == 65
    assert reported in process.reported
    assert "started" not in process.reported


def test_a_stop_while_libvirt_is_waited_for_is_heard(place: Pod, kernel: Path) -> None:
    alive = place.folder / "alive"
    process = launch(place, kernel, "off", "--no-daemon", "--wait", "100000", "--liveness", str(alive))
    process.until(alive.exists, "the liveness file")
    process.send(TERM)
    assert process.ends() == 0
    assert "asked to stop before the guest ran" in process.reported


def test_a_guest_that_can_not_start_is_69_and_leaves_nothing(place: Pod, kernel: Path) -> None:
    process = launch(place, Path("/nowhere/kernel"), "off")
    assert process.ends() == 69
    assert "error[LK624]: libvirt could not start vm" in process.reported
    assert domains(place) == set()


def test_a_guest_that_outlived_its_launcher_is_destroyed_by_the_next_one(place: Pod, kernel: Path) -> None:
    place.libvirtd()
    first = place.outside("run", *vm(kernel, "wait"), "--console", "--connect", place.uri, "--owner", "pod-1")
    first.says("guest: waiting")
    first.kill()
    assert place.libvirt("list", "--name").split() == ["vm"]
    second = place.outside("run", *vm(kernel, "off", "other"), "--connect", place.uri, "--owner", "pod-1")
    assert second.ends() == 0, second.reported
    assert place.libvirt("list", "--all", "--name").split() == []


def test_a_guest_whose_launcher_lives_is_not_taken_for_a_leftover(place: Pod, kernel: Path) -> None:
    place.libvirtd()
    first = place.outside("run", *vm(kernel, "wait"), "--console", "--connect", place.uri, "--owner", "pod-1")
    first.says("guest: waiting")
    second = launch_beside(place, kernel)
    assert second == 65
    assert place.libvirt("list", "--name").split() == ["vm"]


def launch_beside(place: Pod, kernel: Path) -> int:
    """A second launcher of the same guest; gives its exit code."""
    return place.outside("run", *vm(kernel, "off"), "--connect", place.uri, "--owner", "pod-1").ends()


def test_a_libvirtd_of_somebody_else_that_does_not_come_back_is_69(place: Pod, kernel: Path) -> None:
    daemons = place.libvirtd()
    process = place.outside("run", *vm(kernel, "wait"), "--console", "--connect", place.uri, "--wait", "1")
    process.says("guest: waiting")
    daemons.send(KILL)
    assert process.ends() == 69
    assert "the guest goes on" in process.reported
