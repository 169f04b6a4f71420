"""Refuses to let libvirt take from this host what it can't do without: its disks and its default route (V1)."""

from __future__ import annotations

import os

from launcherkit.errors import HOST_NEEDS_DEVICE, Collector, Refused
from launcherkit.host.use import out_of_sight, read_uses, shows_host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import is_vfio_name
from launcherkit.model.plan import Plan

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
