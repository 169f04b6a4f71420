"""Binding on a real kernel: whole groups, with the drivers that they had before, whoever is killed when (K8)."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias, get_args

import pytest

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit_lab import sysfs
from launcherkit_lab.devices import AUDIO, DISPLAY
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.binding.binder import Binder
from launcherkit_plugin.binding.ledger import Ledger
from launcherkit_plugin.daemon.wiring import Wiring, assemble
from launcherkit_plugin.host.drivers import SpareProcess, Sysfs
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.processes import boot_id
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import Config, PciRule, Selector
from launcherkit_plugin.model.device import Usage
from launcherkit_plugin.model.errors import BIND_REFUSED, DEVICE_HELD, STEP_FAILED, STEP_HANGS
from launcherkit_plugin.telemetry.reporter import Log, Reporter, silent
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.kernel.guests import Guests, slots_with
from tests.support.dying import Change, Life, Whom, live, rounds
from tests.support.errors import raises_code
from tests.support.kernel import AskedHolders
from tests.support.waiting import PATIENCE
from tests.tiers import KILLS as KILLS_VARIABLE

pytestmark = pytest.mark.kernel

KILLS = 30
PRELOADED = (
    "launcherkit_plugin.binding.reconciler",
    "launcherkit_plugin.cli.bind",
    "launcherkit_plugin.cli.unbind",
    "launcherkit_plugin.devices.container",
)
"""What a daemon and commands import when they need it."""

State: TypeAlias = dict[str, tuple[str | None, str | None]]
"""Address to driver and override."""


class Plugin(NamedTuple):
    """The plugin's commands, with a ledger of their own, on a machine without a kubelet."""

    folder: Path

    def __call__(self, *arguments: str) -> int:
        return run(self.with_places(arguments), {})

    def with_places(self, arguments: Sequence[str]) -> list[str]:
        return [*arguments, "--ledger", str(self.folder / "ledger"), "--kubelet-dir", str(self.folder / "none")]

    def on_record(self) -> State:
        """What the ledger says was there before."""
        records = Ledger(str(self.folder / "ledger"), boot_id("/proc")).records()
        return {str(entry.address): (entry.driver, entry.override) for record in records for entry in record.entries}


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def state(addresses: Sequence[str]) -> State:
    return {address: (sysfs.driver(address), sysfs.override(address)) for address in addresses}


def test_the_whole_group_is_bound_and_given_back_to_its_drivers(plugin: Plugin, card: sysfs.Card) -> None:
    before = state(card)
    assert [driver for driver, _ in before.values()] == ["bochs-drm", "snd_hda_intel"]
    assert plugin("bind", card.display) == 0
    assert [sysfs.driver(address) for address in card] == ["vfio-pci", "vfio-pci"]
    assert plugin.on_record() == before
    assert plugin("unbind", card.audio) == 0
    assert state(card) == before
    assert plugin.on_record() == {}


def power(address: str) -> list[str]:
    return [(sysfs.DEVICES / address / name).read_text().strip() for name in ("d3cold_allowed", "power/control")]


def test_what_is_bound_is_kept_awake_and_may_sleep_again_afterwards(plugin: Plugin, card: sysfs.Card) -> None:
    for address in card:
        (sysfs.DEVICES / address / "d3cold_allowed").write_text("1")  # 0 where a device has no such capability
        (sysfs.DEVICES / address / "power/control").write_text("auto")
    assert plugin("bind", card.display) == 0
    assert [power(address) for address in card] == [["0", "on"], ["0", "on"]]
    assert plugin("unbind", card.display) == 0
    assert [power(address) for address in card] == [["1", "auto"], ["1", "auto"]]


def test_what_was_bound_is_what_a_guest_gets_and_is_not_taken_from_it(
    plugin: Plugin, card: sysfs.Card, guests: Guests
) -> None:
    plugin("bind", card.display)
    env = {"PCI_RESOURCE_X": card.display}
    guests.start(env, does="wait")
    sysfs.until(lambda: "guest: waiting" in guests.serial("vm").read_text(), "a guest that hears the power button")
    with raises_code(DEVICE_HELD, match=f"/dev/vfio/{sysfs.group(card.display)} "):
        plugin("unbind", card.display)
    assert [sysfs.driver(address) for address in card] == ["vfio-pci", "vfio-pci"]
    guests.pod.libvirt("shutdown", "vm")
    assert len(slots_with(guests.listed(), DISPLAY, AUDIO)) == 1
    assert plugin("unbind", card.display) == 0


def test_a_group_with_a_member_that_must_stay_is_refused_whole(plugin: Plugin, mixed: tuple[str, str]) -> None:
    before = state(mixed)
    with raises_code(BIND_REFUSED, match=f"{mixed[0]}.* VFs"):
        plugin("bind", mixed[1])
    assert state(mixed) == before
    assert plugin.on_record() == {}


def unchecked(plugin: Plugin, sysfs: Sysfs) -> Binder:
    """A binder that doesn't ask who uses a function."""
    ledger = Ledger(str(plugin.folder / "ledger"), boot_id("/proc"))
    return Binder(node_host("/"), sysfs, ledger, AskedHolders())


def test_where_the_kernel_refuses_one_all_get_back_what_they_had(
    plugin: Plugin, card: sysfs.Card, mixed: tuple[str, str]
) -> None:
    """The checks that would have refused it are left out: a physical function with VFs is none that VFIO takes."""
    addresses = [PciAddress.parse(address) for address in (*card, mixed[0])]
    before = state([*card, mixed[0]])
    binder = unchecked(plugin, Sysfs())
    with raises_code(STEP_FAILED, match=mixed[0]):
        binder.bind(addresses, addresses, "vfio-pci")
    assert state([*card, mixed[0]]) == before
    assert plugin.on_record() == {}


def test_a_driver_that_does_not_let_go_is_left_waiting_and_seen_to_later(plugin: Plugin, card: sysfs.Card) -> None:
    before = state(card)
    sound = sysfs.DEVICES / card.audio / "sound"
    sysfs.until(lambda: list(sound.glob("card*/controlC*")), "the card's control")  # its codecs are looked for aside
    control = next(sound.glob("card*/controlC*"))
    node = Path("/dev/snd", control.name)
    addresses = [PciAddress.parse(address) for address in card]
    unseen = unchecked(plugin, Sysfs("/", 2))
    with open(node, "rb"):
        with raises_code(DEVICE_HELD, match=f"{node} is open in "):
            plugin("bind", card.display)
        assert (state(card), plugin.on_record()) == (before, {})
        with raises_code(STEP_HANGS, match=card.audio):
            unseen.bind(addresses, addresses, "vfio-pci")
        assert sysfs.driver(card.display) == "bochs-drm"
        assert plugin.on_record() == {card.audio: before[card.audio]}
    sysfs.until(lambda: sysfs.driver(card.audio) is None, "the sound driver gone")
    assert plugin("bind", card.display) == 0
    assert [sysfs.driver(address) for address in card] == ["vfio-pci", "vfio-pci"]
    assert plugin("unbind", card.display) == 0
    assert state(card) == before


def test_whoever_is_killed_when_nothing_is_lost(plugin: Plugin, card: sysfs.Card) -> None:
    """Of bind and unbind, and of the processes that do their writing. Each next call finds what the last one left."""
    before = state(card)
    most = max(dying(plugin, name, card).changes for name in ("bind", "unbind"))
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    last: list[Change] = []
    round_ = 0
    # Many come to their end before: what is there already takes few changes. And it's chance where the others are.
    while len(last) < KILLS or sum(change.path.startswith("/sys/") for change in last) <= KILLS / 10:
        bound = {driver for driver, _ in state(card).values()} == {"vfio-pci"}
        name = "unbind" if bound else chance.choice(["bind", "unbind"])
        whom = chance.choice(get_args(Whom))
        found = dying(plugin, name, card, chance.randint(1, most), whom)
        where = f"seed {seed}, round {round_}: {name}, {whom} at {found.last}"
        check_nothing_lost(plugin, card, before, where)
        last += [found.last] if found.last else []
        if round_ % 10 == 9:
            to_the_end(plugin, card, before, where)
        round_ += 1
        assert round_ < 5 * KILLS, f"most had come to their end before they were killed, or it was elsewhere: {last}"


def test_a_card_that_changes_hands_is_whole_whoever_is_killed_when(plugin: Plugin, card: sysfs.Card) -> None:
    """On demand, from the host to a VM, to a container and back, over and over. The next daemon finds what the last one
    left."""
    before = state(card)
    ledger = str(plugin.folder / "ledger")

    def daemon(times: int, die_at: int = 0) -> Life:
        below = "/sys", plugin.folder
        work = change_hands_quietly, ledger, card.display, times
        return live(*work, below=below, die_at=die_at, whom="first", imported=[__name__, *PRELOADED])

    most = daemon(times=1).changes
    assert state(card) == before
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    kills, between = int(os.environ.get(KILLS_VARIABLE, "20")), list[bool]()
    for round_ in rounds(kills, lambda: sum(between) > kills / 10):  # while the card was between two drivers, too
        found = daemon(1000, chance.randint(1, most))
        where = f"seed {seed}, round {round_}: {found.last}"
        assert found.last is not None, f"{where}: the daemon has ended with {found.code}"
        check_nothing_lost(plugin, card, before, where)
        drivers = {driver for driver, _ in state(card).values()}
        between.append(drivers not in ({"vfio-pci"}, {"bochs-drm", "snd_hda_intel"}))
    said: list[str] = []
    asyncio.run(
        change_hands(ledger, card.display, times=1, log=lambda level, text, **__: said.append(f"{level}: {text}"))
    )
    assert state(card) == before, f"seed {seed}: {said}"
    assert plugin.on_record() == {}


def check_nothing_lost(plugin: Plugin, card: sysfs.Card, before: State, where: str) -> None:
    """What differs from before is on record."""
    now, record = state(card), plugin.on_record()
    lost = [address for address, found in now.items() if found != before[address] != record.get(address)]
    assert not lost, f"{where}: {now}, on record {record}"


async def change_hands(ledger: str, address: str, times: int, log: Log = silent) -> None:
    """Be a daemon whose pods end as soon as they have their card: a VM's, a container's, a VM's (K8, K10).

    Args:
        ledger, address: the daemon's, and the card's.
        times: how often.
        log: gets what the daemon says.
    """
    rule = PciRule(
        select=(Selector(addresses=(address,)),),
        name="example.com/GPU",
        bind="on-demand",
        bind_seconds=60,
        grace_seconds=0,
        use="any",
    )
    host = node_host("/")
    reporter, spare = Reporter(log), SpareProcess()
    nobody = Usage("pod-resources", {})
    wiring = Wiring(
        host,
        "/",
        reporter,
        WorkQueue(stall=PATIENCE),
        Stopped(),
        ledger=ledger,
        usage=lambda: nobody,
        make_worker=spare.worker,
    )
    setup = assemble(Config(pci=(rule,)), wiring)

    async def give_back() -> HostFacts:
        facts = read_node(host, setup.wants, vgpu=False)
        for reconciler in setup.reconcilers:
            await asyncio.gather(*reconciler.reconcile(facts, nobody, time.monotonic()))
        return read_node(host, setup.wants, vgpu=False)

    for _ in range(times):
        facts = await give_back()  # what an earlier one has left
        (vm,), (container,) = (each.resources(facts, nobody, time.monotonic()) for each in setup.providers)
        await setup.providers[0].allocate(vm, [address])
        assert sysfs.driver(address) == "vfio-pci"
        grant = await setup.providers[1].allocate(container, [address])
        assert (sysfs.driver(address), len(grant.nodes)) == ("bochs-drm", 1)
        await setup.providers[0].allocate(vm, [address])
        assert sysfs.driver(address) == "vfio-pci"
        await give_back()
    spare.close()


def change_hands_quietly(ledger: str, address: str, times: int) -> None:
    """Runs in a process of its own."""
    be_quiet()
    asyncio.run(change_hands(ledger, address, times))


def to_the_end(plugin: Plugin, card: sysfs.Card, before: State, where: str) -> None:
    """Once nobody is killed any more, all are bound, and then all are as they were."""
    plugin("bind", card.display)
    assert [sysfs.driver(address) for address in card] == ["vfio-pci", "vfio-pci"], where
    plugin("unbind", card.display)
    assert state(card) == before, where
    assert plugin.on_record() == {}, where


def dying(plugin: Plugin, name: str, card: sysfs.Card, die_at: int = 0, whom: Whom = "first") -> Life:
    """A command that is killed at a change, or the process that does its writing. What it needs was imported before."""
    arguments = plugin.with_places([name, card.display])
    return live(
        quietly, arguments, below=["/sys", plugin.folder], die_at=die_at, whom=whom, imported=[__name__, *PRELOADED]
    )


def quietly(arguments: list[str]) -> None:
    """Runs in a process of its own."""
    be_quiet()
    with suppress(LauncherkitError):
        run(arguments, {})


def be_quiet() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
