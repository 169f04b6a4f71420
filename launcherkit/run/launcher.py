"""The life of one guest: `launcherkit run`, the entrypoint of a launcher pod.

It polls the guest's state rather than waiting for events: each successful poll updates the liveness file, and nothing
is missed if libvirt was away.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from launcherkit.domain.identity import read_identity, with_owner
from launcherkit.domain.xml import read_document
from launcherkit.errors import DOMAIN_IN_THE_WAY, LibvirtNotThere
from launcherkit.model.plan import Plan
from launcherkit.pipeline import Translation
from launcherkit.run.children import IN_WORDS, Children, Ending, Wakeups, ending_of
from launcherkit.run.connection import Connection, Console, Guest, LibvirtFailure
from launcherkit.run.daemons import Daemons
from launcherkit.run.libvirt_errors import nameless, not_defined, not_started, too_old, went_away

# Guests that an earlier `launcherkit run` left behind after kill -9, and how to tell them from others' guests.


class OwnedGuest(Protocol):
    """What is needed of `launcherkit.run.connection.Guest`. Tests that have no libvirt stand in for it."""

    def name(self) -> str: ...
    def owner(self) -> str | None: ...
    def is_active(self) -> bool: ...
    def is_persistent(self) -> bool: ...
    def destroy(self) -> None: ...
    def undefine(self) -> None: ...


def hold(owner: str, name: str) -> socket.socket | None:
    """Hold the name of a guest for as long as the socket is open; None if another process holds it.

    It is an abstract Unix socket, so it belongs to this network namespace, which is the pod's.
    """
    digest = hashlib.sha256(f"{owner}\0{name}".encode()).hexdigest()
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0launcherkit-run-{digest}")
    except OSError:
        lock.close()
        return None
    return lock


def hold_or_refuse(owner: str, name: str) -> socket.socket:
    """As `hold`.

    Raises:
        DOMAIN_IN_THE_WAY: another launcher runs the guest.
    """
    lock = hold(owner, name)
    if lock is None:
        raise DOMAIN_IN_THE_WAY(
            f"the guest {name} is run by another `launcherkit run` here",
            "Stop that one, or give the guest a name of its own.",
            domain=name,
        )
    return lock


def clean(guests: Iterable[OwnedGuest], owner: str, own_name: str, report: Callable[[str], None]) -> None:
    """Destroy and undefine the guests of an owner that have lost their launcher.

    Args:
        guests: all that libvirt has.
        owner: the owner's name.
        own_name: the guest whose name this process holds.
        report: called with a sentence for each guest that is removed.

    Raises:
        DOMAIN_IN_THE_WAY: a guest with this guest's name has another owner, or none.
        LibvirtFailure: libvirt reports an error.
    """
    for guest in guests:
        name, whose = guest.name(), guest.owner()
        if whose == owner:
            with ExitStack() as held:
                lock = None if name == own_name else hold(owner, name)
                if lock is not None:
                    held.enter_context(lock)
                elif name != own_name:
                    continue  # its launcher lives
                report(f"the guest {name} was left by an earlier launcher of {owner}: destroyed and undefined")
                remove(guest)
        elif name == own_name:
            by = f"belongs to {whose}" if whose else "is not one of `launcherkit run`"
            raise DOMAIN_IN_THE_WAY(
                f"the domain {name} is there already and {by}",
                f"Undefine it (virsh undefine {name}), give the guest another name, or say --owner {whose or 'NAME'} "
                "if it is yours.",
                domain=name,
            )


def remove(guest: OwnedGuest) -> None:
    """Destroy a guest if it runs, and undefine it; one that is gone is fine.

    Raises:
        LibvirtFailure: libvirt reports an error.
    """
    try:
        if guest.is_active():
            persistent = guest.is_persistent()
            guest.destroy()
            if not persistent:
                return
        guest.undefine()
    except LibvirtFailure as refusal:
        if not refusal.no_domain:
            raise


Make: TypeAlias = Callable[[tuple[int, ...] | None], Translation]

_LOOK = 0.5
_LIVENESS = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
_PRESS = 5.0  # a booting guest ignores the power button


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings."""

    uri: str
    owner: str
    grace: float
    """Seconds that a guest may take to shut down."""
    wait: float
    """Seconds that libvirt may take to answer, at the start and after its connection was lost."""
    console: bool
    liveness: str | None
    """A file that is touched while everything works."""


@dataclass(frozen=True, slots=True)
class World:
    """What a launcher needs from outside."""

    connect: Callable[[str], Connection]
    daemons: Daemons
    children: Children
    wakeups: Wakeups
    clock: Callable[[], float]
    report: Callable[[str], None]


class StopAsked(Exception):
    """A stop was requested before the guest ran."""


def run_guest(settings: Settings, world: World, make: Make) -> Ending:
    """Run a guest from its definition to its end; whatever happens, no guest of this run is left behind.

    Args:
        settings: the operator's.
        world: connections, processes, signals.
        make: translates, for a version of libvirt or, if that is None, any; called before anything is started, so that
            an invalid input is reported at once.

    Raises:
        LauncherkitError: it could not be run, or libvirt went away for longer than ``settings.wait``.
    """
    launcher = _Launcher(settings, world)
    try:
        ending = launcher.run(make)
        world.report(IN_WORDS[ending])
        return ending
    except StopAsked:
        world.report("asked to stop before the guest ran")
        return Ending.SHUT_DOWN
    except LibvirtFailure as refusal:
        raise went_away(refusal) from refusal
    finally:
        launcher.close()


class _Launcher:
    def __init__(self, settings: Settings, world: World) -> None:
        self._settings, self._world = settings, world
        self._connection: Connection | None = None
        self._guest: Guest | None = None
        self._name = ""
        self._console: Console | None = None

    def run(self, make: Make) -> Ending:
        translation = make(None)
        document = read_document(translation.domain_xml)
        self._name = read_identity(document).name
        if not self._name:
            raise nameless()
        connection = self._reach(patient=False)
        with hold_or_refuse(self._settings.owner, self._name):
            clean(connection.guests(), self._settings.owner, self._name, self._world.report)
            if self._world.wakeups.stops:
                raise StopAsked
            if translation.plan.window is not None:  # an old libvirt can't take all of it (P5)
                translation = make(connection.version())
                document = read_document(translation.domain_xml)
            error = too_old(translation.plan, connection.version()) if translation.plan.initiators else None
            if error is not None:
                raise error
            try:
                self._guest = connection.define(with_owner(document, self._settings.owner))
            except LibvirtFailure as refusal:
                raise not_defined(refusal, self._name, translation.plan) from refusal
            try:
                self._start(self._guest, translation.plan)
                return self._watch(self._guest)
            finally:
                self._remove()

    def close(self) -> None:
        """Leave nothing behind."""
        self._remove()
        if self._connection is not None:
            self._connection.close()
        self._world.daemons.stop(self._world.wakeups.wait, self._world.clock)
        self._world.children.close()
        if self._settings.liveness:
            with suppress(OSError):
                os.unlink(self._settings.liveness)

    def _remove(self) -> None:
        if self._console is not None:
            self._console.finish()
            self._console = None
        if self._guest is not None:
            guest, self._guest = self._guest, None
            try:
                remove(guest)
            except LibvirtFailure as refusal:
                self._world.report(f"{self._name} could not be removed: {refusal.message}")

    def _start(self, guest: Guest, plan: Plan) -> None:
        try:
            if not self._settings.console:
                guest.start()
                return
            guest.start(paused=True)  # so that nothing that it prints is missed
            self._show_console()
            guest.resume()
        except LibvirtFailure as refusal:
            raise not_started(refusal, self._name, plan) from refusal

    def _show_console(self) -> None:
        """On a connection of its own: a blocking stream may delay other calls on its connection."""
        connection = self._world.connect(self._settings.uri)
        guest = connection.find(self._name)
        if guest is not None:
            self._console = Console(guest.console(), 1)

    def _watch(self, guest: Guest) -> Ending:
        wakeups, clock, report = self._world.wakeups, self._world.clock, self._world.report
        asked: float | None = None
        pressed = 0.0
        while True:
            self._report_ended()
            try:
                ending = ending_of(guest.state())
            except LibvirtFailure as refusal:
                again = self._found_again(refusal)
                if again is None:
                    return Ending.DESTROYED
                guest = again
                continue
            if ending is not None:
                return ending
            self._touch()
            if wakeups.stops:
                if asked is None:
                    asked = clock()
                    report(f"asked to stop: {self._name} has {self._settings.grace:g} seconds to shut down")
                if wakeups.stops > 1 or clock() - asked >= self._settings.grace:
                    with suppress(LibvirtFailure):
                        guest.destroy()
                    return Ending.STOPPED_BY_FORCE
                if not pressed or clock() - pressed >= _PRESS:
                    pressed = clock()
                    with suppress(LibvirtFailure):  # it may be ending, or may not support it
                        guest.shutdown()
            wakeups.wait(_LOOK)

    def _found_again(self, refusal: LibvirtFailure) -> Guest | None:
        """The guest after libvirt was away, None if it is gone; the guest itself runs on without libvirt."""
        if refusal.no_domain:
            self._guest = None
            return None
        if not refusal.lost:
            raise refusal
        self._world.report(f"libvirt has gone ({refusal.message}); the guest goes on, waiting for libvirt to come back")
        self._guest = None
        self._guest = self._reach(patient=True).find(self._name)
        if self._guest is not None:
            self._world.report("libvirt is back")
            if self._settings.console:
                with suppress(LibvirtFailure, LibvirtNotThere):
                    self._show_console()
        return self._guest

    def _reach(self, *, patient: bool) -> Connection:
        """Connect, after starting libvirt if that is ours to do; if ``patient``, a requested stop has to wait."""
        world = self._world
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        end, told = world.clock() + self._settings.wait, False
        while True:
            self._report_ended()
            if world.wakeups.stops and not patient:
                raise StopAsked
            for program in world.daemons.start():
                world.report(f"started {program}")
                told = True
            try:
                self._connection = world.connect(self._settings.uri)
                return self._connection
            except LibvirtNotThere as absent:
                if world.clock() >= end:
                    raise
                if not (told or patient):  # a lost connection is reported where it is noticed
                    world.report(f"{absent.message}; waiting for up to {self._settings.wait:g} seconds")
                    told = True
            self._touch()
            world.wakeups.wait(_LOOK)

    def _report_ended(self) -> None:
        for ended in self._world.children.ended():
            self._world.report(ended)

    def _touch(self) -> None:
        if self._settings.liveness:
            with suppress(OSError):
                os.close(os.open(self._settings.liveness, _LIVENESS, 0o644))
                os.utime(self._settings.liveness)
