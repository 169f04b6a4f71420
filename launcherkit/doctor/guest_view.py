"""Has a running guest got what its domain promises: the devices, in their places, with their memory (P4, P5)?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcherkit.doctor.finding import Finding
from launcherkit.host.functions import DEVICES, IdentityReader, read_bars, read_link
from launcherkit.host.tree import Tree
from launcherkit.model.address import GuestAddress, PciAddress
from launcherkit.model.domain import DomainFacts, ExistingHostdev, GuestTree
from launcherkit.model.host import Bar, HostFacts, PciFunction, PciLink
from launcherkit.show.layout import link_speed, size

_SECONDARY_BUS = 0x19
"""The offset in the config space of a bridge of the bus behind it."""
_UNSET = 0x20000000
"""``IORESOURCE_UNSET``: the kernel found no place for the BAR."""
_OWN_BARS = 6

GUEST_CHECKS = {
    "guest-device": "the guest has the device where the domain puts it, and it is the same model",
    "guest-numa-node": "the guest counts it to the cell that the domain puts it in",
    "guest-memory": "its BARs are as large as on the host, and each has a place",
    "guest-link": "its link is as wide as on the host",
    "guest-driver": "a driver in the guest is bound to it",
}
"""Every check of a running guest by name, in the order of the report, and what it looks at."""


@dataclass(frozen=True, slots=True)
class FunctionInGuest:
    """A PCI function as the guest's kernel sees it."""

    function: PciFunction
    bars: tuple[Bar, ...]
    link: PciLink | None


def check_guest(domain: DomainFacts, host: HostFacts, guest: Tree) -> list[Finding]:
    """Hold each hostdev of a running domain against what the guest's sysfs has in its place.

    Args:
        domain: of the document with the addresses that libvirt chose.
        host: with details; of a device that it doesn't know only the place in the guest is checked.
        guest: the guest's files.

    Raises:
        LauncherkitError: the guest's files can't be read.
    """
    if not domain.hostdevs:
        return [Finding("guest-device", "", "skipped", "the domain has no hostdevs")]
    findings = [finding for hostdev in domain.hostdevs for finding in _check(hostdev, domain, host, guest)]
    order = list(GUEST_CHECKS)
    return sorted(findings, key=lambda finding: order.index(finding.check))


def _check(hostdev: ExistingHostdev, domain: DomainFacts, host: HostFacts, guest: Tree) -> Iterator[Finding]:
    subject = str(hostdev.source) if hostdev.source is not None else hostdev.alias or "a hostdev"
    if hostdev.guest is None:
        usb = "a USB device has no PCI address in the guest"
        seen = usb if hostdev.kind == "usb" else "libvirt has given it no PCI address"
        yield Finding("guest-device", subject, "skipped", seen)
        return
    place = guest_place(hostdev.guest, domain.tree, guest)
    inside = None if place is None else read_guest_function(place, guest)
    if place is None or inside is None:
        where = f"at {place} in the guest" if place else f"behind bus {hostdev.guest.bus} of the domain"
        yield Finding("guest-device", subject, "fail", f"there is no function {where}", _ABSENT)
        return
    on_host = host.functions.get(hostdev.source) if isinstance(hostdev.source, PciAddress) else None
    yield _device(subject, place, inside.function, on_host)
    yield from _numa_node(subject, inside.function, domain, hostdev.guest)
    detail = None if on_host is None else host.details.get(on_host.address)
    yield _memory(subject, inside.bars, None if detail is None else detail.resources)
    if detail is not None and detail.link is not None and inside.link is not None:
        yield _link(subject, inside.link, detail.link)
    yield _driver(subject, inside.function)


# What the guest has.


def guest_place(address: GuestAddress, tree: GuestTree, guest: Tree) -> PciAddress | None:
    """The guest's own address of a device, whose buses its firmware has numbered; None if a bridge isn't there."""
    bus = 0
    for controller in tree.path(address):
        if controller.is_root:
            bus = controller.bus_number or 0
        elif controller.guest is not None:
            bridge = PciAddress(0, bus, controller.guest.slot, controller.guest.function)
            config = guest.read(f"{DEVICES}/{bridge}/config", _SECONDARY_BUS + 1) or b""
            if len(config) <= _SECONDARY_BUS:
                return None
            bus = config[_SECONDARY_BUS]
    return PciAddress(0, bus, address.slot, address.function)


def read_guest_function(address: PciAddress, guest: Tree) -> FunctionInGuest | None:
    """A function of the guest; None if there is none."""
    with guest.below(f"{DEVICES}/{address}") as directory:
        function = IdentityReader().read(directory, "", address)
        if function is None:
            return None
        return FunctionInGuest(function, read_bars(directory.read("resource") or b""), read_link(directory))


# The checks.

_ABSENT = "See the guest's kernel log for the port above it; `launcherkit topology --domain` draws what it should have."


def _device(subject: str, place: PciAddress, inside: PciFunction, on_host: PciFunction | None) -> Finding:
    if on_host is not None and inside.model != on_host.model:
        seen = f"at {place} the guest has {inside.ids}, on the host it is {on_host.ids}"
        remedy = "Compare the domain that runs (`virsh dumpxml`) with the one that was defined; start it again."
        return Finding("guest-device", subject, "fail", seen, remedy)
    return Finding("guest-device", subject, "ok", f"{inside.ids} at {place} in the guest")


def _numa_node(subject: str, inside: PciFunction, domain: DomainFacts, address: GuestAddress) -> Iterator[Finding]:
    expander = domain.tree.expander_above(address)
    if expander is None or not domain.has_several_cells:
        return
    if inside.numa_node == expander.cell:
        yield Finding("guest-numa-node", subject, "ok", f"node {inside.numa_node}")
        return
    seen = "no node" if inside.numa_node is None else f"node {inside.numa_node}"
    remedy = "The guest's kernel may run with numa=off; see its log for the ACPI table SRAT."
    yield Finding("guest-numa-node", subject, "fail", f"{seen} in place of {expander.cell}", remedy)


def _memory(subject: str, bars: Sequence[Bar], on_host: Sequence[Bar] | None) -> Finding:
    own = [bar for bar in bars if bar.line < _OWN_BARS]
    homeless = [f"BAR {bar.line} ({size(bar.size)})" for bar in own if bar.flags & _UNSET]
    if homeless:
        remedy = "Make the guest's 64-bit PCI window larger: `launcherkit doctor --domain` says by how much, and how."
        return Finding("guest-memory", subject, "fail", f"no place for {', '.join(homeless)}", remedy)
    sizes = {bar.line: bar.size for bar in own}
    expected = sizes if on_host is None else {bar.line: bar.size for bar in on_host if bar.line < _OWN_BARS}
    if sizes != expected:
        seen = f"BARs {_sizes(sizes)}, on the host {_sizes(expected)}"
        return Finding("guest-memory", subject, "fail", seen, "See QEMU's log of the domain for this device.")
    return Finding("guest-memory", subject, "ok", f"BARs {_sizes(sizes)}")


def _sizes(sizes: dict[int, int]) -> str:
    return ", ".join(f"{line}: {size(length)}" for line, length in sorted(sizes.items())) or "none"


def _link(subject: str, inside: PciLink, on_host: PciLink) -> Finding:
    seen = _words(inside)
    if (inside.width or 0) < (on_host.width or 0):
        remedy = "Drivers that read the link may choose slower ways; newer QEMU gives ports the device's own link."
        return Finding("guest-link", subject, "warn", f"{seen}, on the host {_words(on_host)}", remedy)
    return Finding("guest-link", subject, "ok", seen)


def _words(link: PciLink) -> str:
    speed = "unknown speed" if link.speed is None else link_speed(link.speed)
    return f"{speed}, x{link.width or '?'}"


def _driver(subject: str, inside: PciFunction) -> Finding:
    if inside.driver is None:
        remedy = "Install the vendor's driver in the guest, or load it; its kernel log says why it refused the device."
        return Finding("guest-driver", subject, "warn", "none", remedy)
    return Finding("guest-driver", subject, "ok", inside.driver)
