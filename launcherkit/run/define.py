"""Defines a translated domain in libvirt, if the host can do without its devices.

After an error, libvirt has the same domains as before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from launcherkit.domain.identity import read_identity, with_uuid
from launcherkit.domain.xml import read_document
from launcherkit.errors import DOMAIN_IN_THE_WAY, HOST_NEEDS_DEVICE, Collector, Refused
from launcherkit.host.use import out_of_sight, read_uses, shows_host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import is_vfio_name
from launcherkit.model.plan import Plan
from launcherkit.run.connection import LibvirtFailure
from launcherkit.run.libvirt_errors import nameless, not_defined, not_started, too_old, went_away


class DefinedGuest(Protocol):
    """What is needed of `launcherkit.run.connection.Guest`. Tests that have no libvirt stand in for it."""

    def uuid(self) -> str: ...
    def is_active(self) -> bool: ...
    def is_persistent(self) -> bool: ...
    def xml(self) -> bytes: ...
    def start(self) -> None: ...
    def undefine(self) -> None: ...


class Definer(Protocol):
    """What is needed of `launcherkit.run.connection.Connection`. Tests that have no libvirt stand in for it."""

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


# What libvirt must not take from this host, because it can't do without: its disks and its default route (V1).


_NEEDED = "Allocate another device, or stop using this one on the host first."
_UNSEEN = (
    "Bind it to vfio-pci on the node first (`launcherkit-plugin bind` sees what the host uses), or run this in the "
    "host's namespaces (in a pod: hostPID and hostNetwork)."
)


def refuse_needed_by_host(plan: Plan, host: str) -> None:
    """Check the functions that libvirt would take from their drivers: those with ``managed='yes'``.

    Args:
        plan: of the domain that will be defined.
        host: the directory with the host's ``sys/`` and ``proc/``. Anything else, such as a snapshot, tells nothing
            about use.

    Raises:
        HOST_NEEDS_DEVICE, SeveralErrors: the host needs one of them, or it can't be seen here whether it does.
    """
    # With managed='no' V1 has refused such drivers.
    taken = {
        member.address: member.driver
        for group in plan.groups
        for member in group.members
        if member.attached and member.driver not in (None, "pci-stub") and not is_vfio_name(member.driver)
    }
    if not taken or not os.path.isdir(host):
        return
    proc, errors = os.path.join(host, "proc"), Collector()
    uses = read_uses(host, proc, taken, process="1" if shows_host(proc) else "self")
    for address, driver in taken.items():
        vital = [use.text for use in uses[address] if use.vital]
        unseen = None if vital else out_of_sight(host, proc, address)
        if vital:
            errors.add(_error(address, driver, f"is needed by this host: {'; '.join(vital)}", _NEEDED))
        elif unseen is not None:
            errors.add(_error(address, driver, f"may be needed by the host: it can't be seen here {unseen}", _UNSEEN))
    errors.raise_if_any()


def _error(address: PciAddress, driver: str, problem: str, remedy: str) -> Refused:
    text = f"{address}, which libvirt would take from its driver {driver} (managed='yes'), {problem}"
    return HOST_NEEDS_DEVICE(text, remedy, device=str(address), driver=driver)
