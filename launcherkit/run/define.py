"""Defines a translated domain in libvirt; after an error, libvirt has the same domains as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from launcherkit.domain.identity import read_identity, with_uuid
from launcherkit.domain.xml import read_document
from launcherkit.errors import DOMAIN_IN_THE_WAY
from launcherkit.model.plan import Plan
from launcherkit.run.connection import LibvirtFailure
from launcherkit.run.libvirt_errors import nameless, not_defined, not_started, too_old, went_away


class DefinedGuest(Protocol):
    """What is needed of `libvirt_connection.Guest`."""

    def uuid(self) -> str: ...
    def is_active(self) -> bool: ...
    def is_persistent(self) -> bool: ...
    def xml(self) -> bytes: ...
    def start(self) -> None: ...
    def undefine(self) -> None: ...


class Definer(Protocol):
    """What is needed of `libvirt_connection.Connection`."""

    def find(self, name: str) -> DefinedGuest | None: ...
    def define(self, domain_xml: bytes, *, validate: bool = ...) -> DefinedGuest: ...
    def version(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class PreviousDomain:
    """The domain that had the name before."""

    guest: DefinedGuest | None
    xml: bytes | None
    """Its definition; None for a domain that exists only while it runs."""


def version_of(connection: Definer) -> tuple[int, ...]:
    """The version of libvirt.

    Raises:
        LibvirtNotThere: libvirt went away.
    """
    with _libvirt_fails():
        return connection.version()


def define(connection: Definer, domain_xml: bytes, plan: Plan, *, start: bool) -> str:
    """Define a domain, validated by libvirt's schema, and start it if asked to; returns its name.

    A domain of that name is defined anew, and keeps its UUID if the document has none.

    Raises:
        DOMAIN_REFUSED: libvirt would not define the domain, or it has no name.
        GUEST_NOT_STARTED, DEVICE_BUSY: it would not start; the earlier definition, if any, is restored.
        NO_INITIATORS: libvirt is too old for the generic initiators of the plan.
        DOMAIN_IN_THE_WAY: a domain of that name has another UUID, or is running and was to be started.
        LibvirtNotThere: libvirt went away.
    """
    document = read_document(domain_xml)
    identity = read_identity(document)
    if not identity.name:
        raise nameless()
    error = too_old(plan, version_of(connection)) if plan.initiators else None
    if error is not None:
        raise error
    with _libvirt_fails():
        before = _before(connection, identity.name)
        if start and before.guest is not None and before.guest.is_active():
            raise DOMAIN_IN_THE_WAY(
                f"the domain {identity.name} is already running",
                f"Stop it first (virsh shutdown {identity.name}), or leave out --start to define it for the next time.",
                domain=identity.name,
            )
        if before.guest is not None and identity.uuid is None:
            domain_xml = with_uuid(document, before.guest.uuid())
    try:
        guest = connection.define(domain_xml)
    except LibvirtFailure as refusal:
        raise not_defined(refusal, identity.name, plan) from refusal
    if start:
        try:
            guest.start()
        except LibvirtFailure as refusal:
            _restore(connection, guest, before)
            raise not_started(refusal, identity.name, plan) from refusal
        except BaseException:
            _restore(connection, guest, before)
            raise
    return identity.name


def _before(connection: Definer, name: str) -> PreviousDomain:
    guest = connection.find(name)
    if guest is None:
        return PreviousDomain(None, None)
    return PreviousDomain(guest, guest.xml() if guest.is_persistent() else None)


def _restore(connection: Definer, guest: DefinedGuest, before: PreviousDomain) -> None:
    """Restore the earlier definition. The XML is libvirt's own, so it is not validated."""
    with suppress(LibvirtFailure):
        if before.xml is None:
            guest.undefine()
        else:
            connection.define(before.xml, validate=False)


@contextmanager
def _libvirt_fails() -> Iterator[None]:
    try:
        yield
    except LibvirtFailure as refusal:
        raise went_away(refusal) from refusal
