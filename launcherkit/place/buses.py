"""Predicts the buses that libvirt will make, and those that it will give to hostdevs without an address (P2).

libvirt goes through the devices without an address twice. The first time it only finds out how many buses are needed:
it takes the lowest free one, or else makes one: a pcie-root-port, or for the first conventional PCI device a
pcie-root-port with a pcie-to-pci-bridge behind it. The second time it places all devices, PCI controllers first, again
on the lowest free bus. Root ports for indices that the document leaves out exist from the beginning.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from launcherkit.model.address import GuestAddress
from launcherkit.model.domain import Controller, DomainFacts, Unplaced

HIGHEST_BUS = 255
_ROOT_PORT, _TO_PCI = "pcie-root-port", "pcie-to-pci-bridge"
_PORTS = (_ROOT_PORT, "pcie-switch-downstream-port")
_BRIDGES = (_TO_PCI, "pci-bridge")
_MAX = 32 * (HIGHEST_BUS + 1)
_FIRST_SLOT = 0x01
_LAST_SLOT = 0x1F


class Buses(NamedTuple):
    """The buses that the guest would have without launcherkit's controllers."""

    models: tuple[str, ...]
    """The controller of each bus, by index; without the spare root port that libvirt adds if it makes all of them."""
    bridges: tuple[Controller, ...]
    """Controllers other than root ports that the document doesn't have."""
    hostdevs: dict[int, GuestAddress]
    """The addresses that libvirt would give to the document's hostdevs, by index."""


def foresee_buses(domain: DomainFacts, joining: Container[int] = ()) -> Buses:
    """Do with the document what libvirt would.

    Args:
        domain: of a PCIe machine.
        joining: indices of hostdevs that need no slot from libvirt.
    """
    models = _declared_buses(domain)
    declared = len(models)
    used = {(address.bus, address.slot) for address in domain.guest_addresses if address.domain == 0}
    unplaced = [device for device in domain.unplaced if device.hostdev is None or device.hostdev not in joining]
    del unplaced[_MAX:]  # libvirt refuses such a domain
    _first_free(unplaced, models, used)
    made = [Controller(bus, models[bus], None) for bus in range(declared, len(models))]
    bridges = tuple([controller for controller in made if controller.model in _BRIDGES])
    behind_ports = [Unplaced("pcie") for bridge in bridges if bridge.model == _TO_PCI]
    places = _first_free([*behind_ports, *unplaced], models, used)[len(behind_ports) :]
    return Buses(
        tuple(models),
        bridges,
        {device.hostdev: place for device, place in zip(unplaced, places, strict=True) if device.hostdev is not None},
    )


def _declared_buses(domain: DomainFacts) -> list[str]:
    """The buses that the document names by a controller or an address; root ports for indices that it leaves out."""
    models = {controller.number: controller.model for controller in domain.controllers if controller.number is not None}
    for controller in domain.controllers:
        if controller.number is None:  # libvirt gives it the lowest index that is free
            models.setdefault(
                next((free for free in range(1, HIGHEST_BUS) if free not in models), HIGHEST_BUS), controller.model
            )
    buses = [address.bus for address in domain.guest_addresses if address.domain == 0]
    highest = min(max([0, *models, *buses]), HIGHEST_BUS)
    return ["pcie-root", *(models.get(bus, _ROOT_PORT) for bus in range(1, highest + 1))]


def _first_free(unplaced: list[Unplaced], models: list[str], used: Container[tuple[int, int]]) -> list[GuestAddress]:
    """The lowest free slot for each device; missing buses are added to ``models``."""
    for_bridges: set[int] = set()
    free = {"pcie": _free_ports(models, used, for_bridges), "pci": _free_bridge_slots(models, used, for_bridges)}
    return [next(free[device.needs]) for device in unplaced]


def _free_ports(models: list[str], used: Container[tuple[int, int]], for_bridges: set[int]) -> Iterator[GuestAddress]:
    bus = 0
    while True:
        if bus == len(models):
            models.append(_ROOT_PORT)
        if models[bus] in _PORTS and bus not in for_bridges and (bus, 0) not in used:
            yield GuestAddress(0, bus, 0, 0)
        bus += 1


def _free_bridge_slots(
    models: list[str], used: Container[tuple[int, int]], for_bridges: set[int]
) -> Iterator[GuestAddress]:
    bus = 0
    while True:
        if bus == len(models):
            if "dmi-to-pci-bridge" in models or any(bridge in models for bridge in _BRIDGES):
                models.append("pci-bridge")
            else:
                for_bridges.add(bus)
                models += _ROOT_PORT, _TO_PCI
        if models[bus] in _BRIDGES:
            for slot in range(_FIRST_SLOT, _LAST_SLOT + 1):
                if (bus, slot) not in used:
                    yield GuestAddress(0, bus, slot, 0)
        bus += 1
