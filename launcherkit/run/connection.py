"""The part of libvirt that launcherkit uses, with libvirt's errors as `LibvirtFailure`.

libvirt's Python module has no types and may not be installed, so it is imported by name, here and nowhere else. The
numbers are libvirt's and never change: they are its ABI.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from launcherkit.domain.identity import NAMESPACE, owner_of
from launcherkit.errors import LIBVIRT_MODULE_MISSING, LIBVIRT_NOT_THERE

SYSTEM = "qemu:///system"

_VALIDATE = 1  # VIR_DOMAIN_DEFINE_VALIDATE
_START_PAUSED = 1
_XML_SECURE, _XML_INACTIVE = 1, 2
_METADATA_ELEMENT = 2
_CONSOLE_FORCE = 1
# Managed save and the metadata of snapshots and checkpoints go; NVRAM and TPM are the user's data and stay.
_UNDEFINE = 1 | 2 | 8 | 16
_UNDEFINE_KEEP_TPM = 64
_NO_DOMAIN, _INVALID_ARGUMENT = 42, 8
_NO_AGENT = (55, 74, 86)  # VIR_ERR_OPERATION_INVALID, ARGUMENT_UNSUPPORTED (no channel) and AGENT_UNRESPONSIVE
_AGENT_SECONDS = 10
_CHUNK = 65536


class LibvirtFailure(Exception):
    """An error that libvirt reports."""

    def __init__(self, message: str, code: int = 0, *, lost: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.lost = lost
        """The connection is gone, and with it perhaps the daemon."""

    @property
    def no_domain(self) -> bool:
        """Whether libvirt has no such domain."""
        return self.code == _NO_DOMAIN

    @property
    def no_agent(self) -> bool:
        """Whether there is no guest agent that answers, so that it isn't the agent that refuses."""
        return self.lost or self.code in _NO_AGENT


@dataclass(frozen=True, slots=True)
class GuestState:
    """A domain's ``virDomainState`` and its reason, as libvirt's numbers."""

    state: int
    reason: int


class Connection:
    """A connection to libvirt; every method raises `LibvirtFailure` if libvirt reports an error."""

    def __init__(self, module: Any, raw: Any) -> None:
        self._module, self._raw = module, raw

    def find(self, name: str) -> Guest | None:
        """The domain of that name, running or not; None if there is none."""
        try:
            with self.translating_errors():
                return Guest(self, self._raw.lookupByName(name))
        except LibvirtFailure as refusal:
            if refusal.no_domain:
                return None
            raise

    def version(self) -> tuple[int, ...]:
        """The version of the libvirt that answers."""
        with self.translating_errors():
            number = int(self._raw.getLibVersion())
        return number // 1_000_000, number // 1000 % 1000, number % 1000

    def guests(self) -> list[Guest]:
        """Every domain, running or not."""
        with self.translating_errors():
            return [Guest(self, raw) for raw in self._raw.listAllDomains(0)]

    def define(self, domain_xml: bytes, *, validate: bool = True) -> Guest:
        """Define a domain, or define it anew."""
        with self.translating_errors():
            return Guest(self, self._raw.defineXMLFlags(domain_xml.decode(), _VALIDATE if validate else 0))

    def close(self) -> None:
        """Never fails."""
        with suppress(Exception):
            self._raw.close()

    def open_stream(self) -> Any:
        """A blocking ``virStream``."""
        with self.translating_errors():
            return self._raw.newStream(0)

    @contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Turn libvirt's errors into `LibvirtFailure`."""
        try:
            yield
        except self._module.libvirtError as problem:
            message = problem.get_error_message() or str(problem)
            raise LibvirtFailure(message, problem.get_error_code() or 0, lost=not self._alive()) from problem

    def _alive(self) -> bool:
        try:
            return bool(self._raw.isAlive())
        except self._module.libvirtError:
            return False


class Guest:
    """A domain of a connection; every method raises `LibvirtFailure` if libvirt reports an error."""

    def __init__(self, connection: Connection, raw: Any) -> None:
        self._connection, self._raw = connection, raw

    def name(self) -> str:
        with self._connection.translating_errors():
            return str(self._raw.name())

    def uuid(self) -> str:
        with self._connection.translating_errors():
            return str(self._raw.UUIDString())

    def is_active(self) -> bool:
        with self._connection.translating_errors():
            return bool(self._raw.isActive())

    def is_persistent(self) -> bool:
        with self._connection.translating_errors():
            return bool(self._raw.isPersistent())

    def xml(self) -> bytes:
        """The definition, with its passwords."""
        with self._connection.translating_errors():
            return str(self._raw.XMLDesc(_XML_SECURE | _XML_INACTIVE)).encode()

    def running_xml(self) -> bytes:
        """What runs, with the addresses that libvirt has chosen, and without passwords."""
        with self._connection.translating_errors():
            return str(self._raw.XMLDesc(0)).encode()

    def ask_agent(self, command: str) -> str:
        """What the guest's agent replies to a command, both JSON; an error of the agent is libvirt's."""
        module = _imported("libvirt_qemu")  # libvirt's module, the part that is QEMU's alone
        with self._connection.translating_errors():
            return str(module.qemuAgentCommand(self._raw, command, _AGENT_SECONDS, 0))

    def state(self) -> GuestState:
        with self._connection.translating_errors():
            state, reason = self._raw.state(0)
            return GuestState(int(state), int(reason))

    def owner(self) -> str | None:
        """The owner in its metadata; None if no `launcherkit run` has made it."""
        try:
            with self._connection.translating_errors():
                return owner_of(self._raw.metadata(_METADATA_ELEMENT, NAMESPACE, 0))
        except LibvirtFailure as refusal:
            if refusal.lost:
                raise
            return None

    def start(self, *, paused: bool = False) -> None:
        with self._connection.translating_errors():
            self._raw.createWithFlags(_START_PAUSED if paused else 0)

    def resume(self) -> None:
        with self._connection.translating_errors():
            self._raw.resume()

    def shutdown(self) -> None:
        """Ask it to shut down, by its agent or its power button."""
        with self._connection.translating_errors():
            self._raw.shutdown()

    def destroy(self) -> None:
        """Pull its plug."""
        with self._connection.translating_errors():
            self._raw.destroy()

    def undefine(self) -> None:
        """Forget its definition; its NVRAM and TPM stay."""
        try:
            with self._connection.translating_errors():
                self._raw.undefineFlags(_UNDEFINE | _UNDEFINE_KEEP_TPM)
        except LibvirtFailure as refusal:
            if refusal.code != _INVALID_ARGUMENT:  # before libvirt 8.9 there is no such flag
                raise
            with self._connection.translating_errors():
                self._raw.undefineFlags(_UNDEFINE)

    def console(self) -> Iterator[bytes]:
        """What its first console prints, until the guest ends; the console is opened at once."""
        stream = self._connection.open_stream()
        with self._connection.translating_errors():
            self._raw.openConsole(None, stream, _CONSOLE_FORCE)
        return self._chunks(stream)

    def _chunks(self, stream: Any) -> Iterator[bytes]:
        with self._connection.translating_errors():
            while chunk := stream.recv(_CHUNK):
                yield chunk


def import_libvirt() -> Any:
    """libvirt's Python module.

    Raises:
        LIBVIRT_MODULE_MISSING: it is not installed.
    """
    return _imported("libvirt")


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as problem:
        raise LIBVIRT_MODULE_MISSING(
            f"libvirt's Python module can't be imported: {problem}",
            "Install it: apt-get install python3-libvirt, or launcherkit's extra `libvirt`, which compiles it.",
        ) from problem


def connect(uri: str) -> Connection:
    """Open a connection.

    Raises:
        LIBVIRT_MODULE_MISSING: libvirt's Python module is not installed.
        LibvirtNotThere: nobody answers at the URI.
    """
    module = import_libvirt()
    module.registerErrorHandler(lambda *_: None, None)  # it would print each error besides raising it
    try:
        return Connection(module, module.open(uri))
    except module.libvirtError as problem:
        raise LIBVIRT_NOT_THERE(
            f"libvirt does not answer at {uri}: {problem.get_error_message()}",
            "Start libvirtd or virtqemud, mount its socket into this container, or give another --connect URI.",
            file=uri,
        ) from problem


# The guest's serial console on standard output.


_DRAIN_SECONDS = 5.0


class Console:
    """Copies a console to a file descriptor in a thread of its own, until the guest ends or the reader has gone."""

    def __init__(self, chunks: Iterator[bytes], target: int) -> None:
        self._thread = threading.Thread(target=_copy, args=(chunks, target), name="console", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait a little for what the guest has printed last."""
        self._thread.join(_DRAIN_SECONDS)


def _copy(chunks: Iterator[bytes], target: int) -> None:
    try:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(target, rest) :]
    except (OSError, LibvirtFailure):
        pass  # the reader or libvirt has gone; the guest does not depend on either
