"""What a VM in a container has of its devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from launcherkit_lab.conformance.expectation import Expectation, Level, NotTried, judged
from launcherkit_lab.conformance.machine import Given, Machine
from launcherkit_lab.conformance.node import Node
from launcherkit_lab.conformance.sources import LAB, VFIO
from launcherkit_lab.guest.qemu import GuestRefused, NoGuest, place


def _seen(node: Node) -> str:
    guests: list[str] = []

    def problems() -> Iterator[str]:
        for container in node.several():
            yield from (f"{container}: {problem}" for problem in _of_guest(node, container))
            guests.append(" and ".join(container.addresses))

    wrong = [*problems()]
    return judged(wrong, f"guests have found {'; '.join(guests)}")


def _of_guest(node: Node, container: Given) -> Iterator[str]:
    """What is wrong with the guest of a container."""
    if not container.addresses:
        raise NotTried(f"{container}: no {node.variable(container.holding.resource)} says what a guest is to have")
    nodes = {device.path: device.host_path for device in container.devices}
    yield from problems_of_guest(node.machine, container.addresses, nodes, node.limits.patience)


def problems_of_guest(
    machine: Machine, addresses: Sequence[str], nodes: Mapping[str, str], seconds: float
) -> Iterator[str]:
    """What is wrong with a guest that has functions by the device nodes of a container.

    Args:
        addresses: all functions that it is to find.
        nodes: the path in the container, and the host's.
        seconds: how long the guest may take.

    Raises:
        NotTried: no guest can be started here.
    """
    try:
        listing = machine.guest(addresses, nodes, seconds)
    except NoGuest as error:
        raise NotTried(str(error)) from error
    except GuestRefused as refusal:
        yield f"no guest: {refusal}"
        return
    left = {address: f"{vendor:04x}:{device:04x}" for address, (vendor, device) in listing.items()}
    for index, address in enumerate(addresses):
        seen, model = left.pop(place(index), "nothing"), machine.model(address)
        if seen != model:
            yield f"{address} is {model}, and the guest finds {seen} in its place"
    yield from (f"the guest also finds {model} at {address}" for address, model in left.items())


EXPECTATIONS = (
    Expectation(
        "DP20",
        Level.MUST,
        "A guest with a container's nodes finds the functions that the variable names, and no others",
        f"{VFIO}, Usage Example; QEMU, docs/devel/vfio-iommufd.rst; {LAB}: it is what the device is for",
        _seen,
    ),
)
