"""What a plan says, down to its last value."""

from typing import assert_type

from launcherkit import Plan
from launcherkit.model.address import GuestAddress, HostAddress, MdevAddress, PciAddress, PciSlot, UsbAddress, UsbModel
from launcherkit.model.domain import Controller
from launcherkit.model.plan import (
    Attachment,
    GroupMember,
    GuestPlace,
    Match,
    NotAttached,
    Origin,
    PlannedDevice,
    PlannedFunction,
    Role,
    Shown,
    TouchedGroup,
    Window,
)
from launcherkit.model.request import Kind, Section, SriovInterface


def plan(made: Plan) -> None:
    assert_type(made.devices, tuple[PlannedDevice, ...])
    assert_type(made.controllers, tuple[Controller, ...])
    assert_type(made.groups, tuple[TouchedGroup, ...])
    assert_type(made.nodes, tuple[str, ...])
    assert_type(made.not_attached, tuple[HostAddress, ...])
    assert_type(made.iommufd, bool)
    assert_type(made.window, Window | None)
    assert_type(made.cells, tuple[int, ...])
    assert_type(made.removed, tuple[tuple[int, HostAddress], ...])
    assert_type(made.initiators, tuple[HostAddress, ...])
    assert_type(made.root_ports, tuple[int, ...])


def device(planned: PlannedDevice) -> None:
    assert_type(planned.kind, Kind)
    assert_type(planned.functions, tuple[PlannedFunction, ...])
    assert_type(planned.not_attached, tuple[NotAttached, ...])
    assert_type(planned.kept, bool)
    assert_type(planned.primary, PlannedFunction)
    for left in planned.not_attached:
        assert_type(left.address, PciAddress)
        assert_type(left.why, str)


def function(planned: PlannedFunction) -> None:
    assert_type(planned.attachment, Attachment)
    assert_type(planned.source, HostAddress)
    assert_type(planned.alias, str)
    assert_type(planned.guest, GuestPlace | None)
    assert_type(planned.shown, Shown | None)
    assert_type(planned.managed, bool)
    assert_type(planned.iommufd, bool | None)
    assert_type(planned.rom, str | None)
    assert_type(planned.driver, str | None)
    assert_type(planned.nodeset, frozenset[int] | None)
    assert_type(planned.boot_order, int | None)
    if planned.guest:
        assert_type(planned.guest.address, GuestAddress)
        assert_type(planned.guest.multifunction, bool | None)
    if planned.shown:
        assert_type(
            (planned.shown.model, planned.shown.display, planned.shown.ramfb), tuple[str | None, str | None, str | None]
        )


def attachment(made: Attachment) -> None:
    assert_type(made.source, HostAddress)
    assert_type(made.role, Role)
    assert_type(made.why, str)
    assert_type(made.match, Match | None)
    assert_type(made.hostdev, int | None)
    assert_type(made.replaces, HostAddress | None)


def match(made: Match) -> None:
    assert_type(made.origin, Origin)
    assert_type(made.section, Section)
    assert_type(made.name, str)
    assert_type(made.resource, str | None)
    assert_type(made.variable, str | None)
    assert_type(made.primary, HostAddress)
    assert_type(made.asked, bool)
    assert_type(made.rom, str | None)
    assert_type(made.by_claim, bool)
    assert_type(made.sriov, SriovInterface | None)
    if made.sriov:
        assert_type(made.sriov.attachment, str | None)
        assert_type(made.sriov.guest, GuestAddress | None)
        assert_type(made.sriov.boot_order, int | None)


def group(touched: TouchedGroup) -> None:
    assert_type(touched.number, int)
    assert_type(touched.members, tuple[GroupMember, ...])
    for member in touched.members:
        assert_type(member.address, PciAddress)
        assert_type(member.driver, str | None)
        assert_type(member.attached, bool)
        assert_type(member.bridge, bool)


def guest(controller: Controller, window: Window) -> None:
    assert_type(controller.number, int | None)
    assert_type(controller.model, str)
    assert_type(controller.guest, GuestAddress | None)
    assert_type(controller.bus_number, int | None)
    assert_type(controller.cell, int | None)
    assert_type(controller.is_root, bool)
    assert_type((window.need, window.hole), tuple[int, int | None])
    assert_type((window.pass_bits, window.root), tuple[bool, str])


def address(text: str) -> HostAddress:
    pci = PciAddress.parse(text)
    assert_type(pci, PciAddress)
    assert_type((pci.domain, pci.bus, pci.device, pci.function), tuple[int, int, int, int])
    assert_type(pci.slot, PciSlot)
    assert_type((pci.slot.domain, pci.slot.bus, pci.slot.device), tuple[int, int, int])
    there = GuestAddress(0, 1, 0, 1)
    assert_type((there.domain, there.bus, there.slot, there.function), tuple[int, int, int, int])
    assert_type(there.function_0, GuestAddress)
    usb = UsbAddress.parse("1:4")
    assert_type((usb.bus, usb.device, usb.node), tuple[int, int, str])
    assert_type(MdevAddress.parse(text).uuid, str)
    assert_type(UsbModel("0x046d:0xc52b").ids, str)
    return pci


def text_of(source: HostAddress) -> str:
    match source:
        case PciAddress():
            return f"function {source.function} of {source.slot}"
        case MdevAddress(uuid):
            return uuid
        case UsbAddress():
            return source.node
        case UsbModel(ids):
            return ids
