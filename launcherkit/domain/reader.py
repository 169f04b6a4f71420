"""Reads out of a domain document what the rules need to know of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TypeGuard

from lxml import etree

from launcherkit.domain.unplaced import Device, find_unplaced
from launcherkit.errors import BadHostdev, Collector
from launcherkit.model.address import GuestAddress, HostAddress, MdevAddress, PciAddress, UsbAddress, UsbModel
from launcherkit.model.domain import Controller, DomainFacts, ExistingHostdev, Topology
from launcherkit.model.request import Kind

_PCIE_MACHINES = ("q35", "pc-q35", "virt", "sbsa")
_PCI_MACHINES = ("pc", "pc-i440fx", "i440fx")
_DEFAULT_MACHINE = {"x86_64": "pc", "i686": "pc", "aarch64": "virt", "riscv64": "virt", "loongarch64": "virt"}
_QEMU_DRIVERS = ("kvm", "qemu", "hvf")
_PLACED_BY_LIBVIRT = ("s390x", "s390", "ppc64", "ppc64le")


def read_facts(root: etree._Element, name: str = "the domain document") -> DomainFacts:
    """Facts about a parsed domain.

    Args:
        root: the ``<domain>`` element.
        name: what messages call the document.

    Raises:
        BadHostdev: a hostdev's source address is not an address; all of them together.
    """
    errors = Collector()
    controllers: list[Controller] = []
    used: set[GuestAddress] = set()
    aliases: set[str] = set()
    hostdevs: list[ExistingHostdev] = []
    number_of: dict[HostAddress | None, int] = {}
    taken: set[PciAddress] = set()
    has_graphics = video_ramfb = False
    seen: list[Device] = []
    for device in _devices(root):
        tag = device.tag
        guest = alias = None
        placed = addressed = False
        source = driver = None
        for child in device:
            # Where a child is there twice, which libvirt's schema refuses, the first counts.
            if child.tag == "address" and not addressed:
                addressed = True
                guest = guest_address(child)
                placed = guest is not None or child.get("type") != "pci"
            elif child.tag == "alias" and alias is None:
                alias = child.get("name")
            elif child.tag == "source" and source is None:
                source = child
            elif child.tag == "driver" and driver is None:
                driver = child
        if guest is not None:
            used.add(guest)
        seen.append(Device(device, placed, len(hostdevs)))
        if tag == "hostdev":
            hostdev = _hostdev(device, source, alias, guest, placed, f"{name}, hostdev {len(hostdevs) + 1}", errors)
            if hostdev is not None:
                if driver is not None:
                    hostdev = hostdev._replace(iommufd=_yes_or_no(driver.get("iommufd")))
                hostdevs.append(hostdev)
                first = number_of.setdefault(hostdev.source, len(hostdevs))
                if first != len(hostdevs) and hostdev.source is not None:
                    errors.add(_twice(hostdev.source, first, len(hostdevs), name))
                continue
        elif tag == "controller" and device.get("type") == "pci":
            controllers.append(Controller(_number(device.get("index")), device.get("model", ""), guest))
        elif tag == "graphics":
            has_graphics = True
        elif tag == "video":
            video_ramfb = video_ramfb or any(model.get("type") == "ramfb" for model in device.iterchildren("model"))
        elif source is not None:
            taken.update(_host_addresses_of_other(device, source))
        if alias is not None:
            aliases.add(alias)
    errors.raise_if_any()
    arch, machine = _machine(root)
    topology = _topology(root.get("type"), arch, machine, controllers)
    return DomainFacts(
        topology=topology,
        machine=f"{arch}/{machine}",
        controllers=tuple(controllers),
        guest_addresses=frozenset(used),
        has_graphics=has_graphics,
        video_ramfb=video_ramfb,
        aliases=frozenset(aliases),
        hostdevs=tuple(hostdevs),
        taken=frozenset(taken),
        iommufd=_domain_iommufd(root),
        unplaced=find_unplaced(seen, arch, machine, used) if topology == "pcie" else (),
    )


def _domain_iommufd(root: etree._Element) -> bool | None:
    element = root.find("iommufd")
    return None if element is None else _yes_or_no(element.get("enabled"))


def _yes_or_no(text: str | None) -> bool | None:
    """libvirt's ``virYesNo``; None for anything else."""
    return {"yes": True, "no": False}.get(text or "")


def hostdev_elements(root: etree._Element) -> list[etree._Element]:
    """The elements behind `DomainFacts.hostdevs`, in the same order."""
    return [
        device
        for device in _devices(root)
        if device.tag == "hostdev" and _kind(device, device.find("source")) is not None
    ]


def _devices(root: etree._Element) -> list[etree._Element]:
    """Every device; libvirt reads all ``<devices>`` where there are several."""
    return [device for devices in root.iterchildren("devices") for device in devices if isinstance(device.tag, str)]


def _kind(hostdev: etree._Element, source: etree._Element | None) -> Kind | None:
    """Which of our kinds a hostdev is; None for SCSI and the capabilities of containers, which are not ours."""
    if (hostdev.get("mode") or "subsystem") != "subsystem":
        return None
    declared = hostdev.get("type")
    if declared:
        return declared if _is_kind(declared) else None
    address = None if source is None else source.find("address")
    if address is None:
        return None
    return "mdev" if address.get("uuid") else "usb" if address.get("device") else "pci"


def _is_kind(text: str) -> TypeGuard[Kind]:
    return text in ("pci", "mdev", "usb")


def _hostdev(
    device: etree._Element,
    source: etree._Element | None,
    alias: str | None,
    guest: GuestAddress | None,
    placed: bool,
    name: str,
    errors: Collector,
) -> ExistingHostdev | None:
    kind = _kind(device, source)
    if kind is None:
        return None
    return ExistingHostdev(
        kind=kind,
        source=_source_address(kind, source, name, errors),
        alias=alias,
        guest=guest,
        placed=placed,
        managed=device.get("managed") or None,  # KubeVirt has written empty ones, which libvirt refuses
        display=device.get("display") or None,
        ramfb=device.get("ramfb") or None,
    )


def _twice(source: HostAddress, first: int, second: int, name: str) -> BadHostdev:
    """A source is a hostdev's identity (X2); libvirt refuses a second one with "Hostdev already exists"."""
    return BadHostdev(
        f"{name}, hostdev {second}: hostdev {first} has the source {source} already",
        "Take one of them out; a device can be attached once.",
    )


def _source_address(kind: Kind, source: etree._Element | None, name: str, errors: Collector) -> HostAddress | None:
    address = None if source is None else source.find("address")
    if kind == "usb" and address is not None and address.get("device") is None:
        return None  # named by its port, as newer libvirt can
    if address is None:
        if kind == "usb":
            return None if source is None else _usb_model(source)
        errors.add(BadHostdev(f"{name}: it has no <source><address/></source>", _REMEDY))
        return None
    try:
        if kind == "mdev":
            return MdevAddress.parse(address.get("uuid", ""))
        if kind == "usb":
            return UsbAddress(_limited(address, "bus", 999), _limited(address, "device", 999))
        return _pci_source(address)
    except ValueError as problem:
        shown = " ".join(f"{key!s}={value!r}" for key, value in address.items())
        errors.add(BadHostdev(f"{name}: its source address {shown[:100]} is wrong: {problem}", _REMEDY))
        return None


_REMEDY = "Write the address as libvirt's formatdomain has it, or leave the hostdev out: a request adds it."


def _usb_model(source: etree._Element) -> UsbModel | None:
    vendor, product = source.find("vendor"), source.find("product")
    if vendor is None or product is None:
        return None
    return UsbModel(f"{vendor.get('id', '')}:{product.get('id', '')}")


def _pci_source(address: etree._Element) -> PciAddress:
    return PciAddress(
        _limited(address, "domain", 0xFFFFFFFF),
        _limited(address, "bus", 0xFF),
        _limited(address, "slot", 0x1F),
        _limited(address, "function", 7),
    )


def _limited(address: etree._Element, key: str, highest: int) -> int:
    text = address.get(key, "0")
    value = _number(text)
    if value is None or value > highest:
        raise ValueError(f"{key} is not a number from 0 to {highest:#x}")
    return value


def _number(text: str | None) -> int | None:
    """A number as libvirt reads it: C's strtoul with base 0, so ``010`` is 8."""
    digits = (text or "").lstrip(" \t\n\r").removeprefix("+")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[:1] == "0" and len(digits) > 1 else 10
    digits = digits[2:] if base == 16 else digits
    if not digits.isascii() or not digits.isalnum() or len(digits.lstrip("0")) > 16:
        return None
    try:
        return int(digits, base)
    except ValueError:
        return None


def guest_address(address: etree._Element) -> GuestAddress | None:
    """The PCI address in the guest; None for one of another type, and for 0000:00:00.0, which to libvirt is none."""
    if address.get("type") != "pci":
        return None
    get = address.get
    numbers = [_number(get(name, "0")) for name in ("domain", "bus", "slot", "function")]
    if None in numbers or not any(numbers):
        return None
    return GuestAddress._make(number or 0 for number in numbers)


def _host_addresses_of_other(device: etree._Element, source: etree._Element) -> Iterator[PciAddress]:
    """The host functions that a device other than a hostdev uses: an SR-IOV interface; an NVMe disk or its backing."""
    if device.tag == "interface" and device.get("type") == "hostdev":
        sources = [source]
    elif device.tag == "disk":
        sources = [each for each in device.iter("source") if each.get("type") == "pci"]
    else:
        return
    for each in sources:
        address = each.find("address")
        if address is not None:
            with suppress(ValueError):
                yield _pci_source(address)


def _machine(root: etree._Element) -> tuple[str, str]:
    type_ = root.find("os/type")
    arch = "x86_64" if type_ is None else type_.get("arch", "x86_64")
    machine = None if type_ is None else type_.get("machine")
    return arch, machine or _DEFAULT_MACHINE.get(arch, "")


def _topology(driver: str | None, arch: str, machine: str, controllers: list[Controller]) -> Topology:
    """How PCI is built, by the root controller if it is written, else by the machine (P2, P6)."""
    if arch in _PLACED_BY_LIBVIRT or driver not in _QEMU_DRIVERS:
        return "other"
    models = {controller.model for controller in controllers}
    if "pcie-root" in models:
        return "pcie"
    if "pci-root" in models:
        return "pci" if _is_machine(machine, _PCI_MACHINES) else "other"
    if _is_machine(machine, _PCIE_MACHINES):
        return "pcie"
    return "pci" if _is_machine(machine, _PCI_MACHINES) else "other"


def _is_machine(machine: str, families: tuple[str, ...]) -> bool:
    """``pc-q35-rhel9.4.0`` is of the family ``pc-q35``."""
    return machine in families or machine.startswith(tuple(family + "-" for family in families))
