"""Rehearses a VM on several nodes: devices are allocated as by the device plugin, and translated as in its pod."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from launcherkit.compatibility import Version
from launcherkit.domain.guest import read_guest
from launcherkit.domain.reader import read_tree
from launcherkit.domain.xml import read_document
from launcherkit.errors import CLAIM_NOT_REHEARSED, BadInput, Collector, LauncherkitError, shown
from launcherkit.known_problems.checks import Circumstances, Recognised, recognise
from launcherkit.model.address import PciAddress
from launcherkit.model.candidate import NodeAllocation, NodeCandidate
from launcherkit.model.domain import GuestTree
from launcherkit.model.plan import Note
from launcherkit.model.policy import Policy
from launcherkit.model.quantity import amount_of
from launcherkit.model.window import MIB, card_bars, window_need
from launcherkit.pipeline import KnownHost, Translation, translate
from launcherkit.request.vmi import Vmi


@dataclass(frozen=True, slots=True)
class RehearsedVm:
    """A VM that isn't scheduled yet."""

    name: str
    domain_xml: bytes
    vmi: Vmi
    policy: Policy
    versions: Mapping[str, Version] = field(default_factory=dict)
    """Those of programs that it would run with, as far as they are known: ``{"KubeVirt": (1, 9, 0)}``."""


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The outcome for a VM on one node."""

    node: str
    errors: tuple[LauncherkitError, ...] = ()
    """Why it would not start; empty if it would."""
    allocation: NodeAllocation | None = None
    """None if the node can't give the requested devices."""
    translation: Translation | None = None
    """None if it would not start."""
    tree: GuestTree | None = None
    """The PCI tree of the translated domain; None if it would not start."""
    problems: tuple[Recognised, ...] = ()
    """Known problems that the VM has there; those of programs only if their versions are known."""

    @property
    def starts(self) -> bool:
        return self.translation is not None

    @property
    def bars(self) -> int:
        """Bytes of the guest's 64-bit window that firmware takes for the BARs of all attached functions (P5)."""
        if self.allocation is None or self.translation is None:
            return 0
        devices = (device.functions for device in self.translation.plan.devices)
        sources = [[part.source for part in parts if isinstance(part.source, PciAddress)] for parts in devices]
        return window_need(card for parts in sources for card in card_bars(parts, self.allocation.facts))


def rehearse(vm: RehearsedVm, nodes: Iterable[NodeCandidate]) -> tuple[NodeOutcome, ...]:
    """Rehearse a VM on each node independently.

    Raises:
        NOT_A_DOMAIN, LauncherkitError: the document isn't a valid domain.
        CLAIM_NOT_REHEARSED: a device is requested by a ResourceClaim, which the scheduler answers.
    """
    counts = requested_devices(vm.vmi)
    read_document(vm.domain_xml, vm.name)  # an error in the VM is not about any node
    return tuple(_on(node, vm, counts) for node in nodes)


def rehearse_claim(
    nodes: Iterable[NodeCandidate], ask: Callable[[NodeCandidate], Mapping[str, str]]
) -> tuple[Mapping[str, Mapping[str, str]], Sequence[LauncherkitError]]:
    """The nodes that can satisfy a claim, with a device for each request; and why the others can't.

    Args:
        nodes: each is asked by itself.
        ask: see `launcherkit.model.candidate.NodeSource.answer_claim`.

    Raises:
        CLAIM_NOT_REHEARSED: the claim isn't understood.
    """
    able, errors = {}, list[LauncherkitError]()
    for node in nodes:
        try:
            able[node.name] = ask(node)
        except BadInput:
            raise
        except LauncherkitError as error:
            errors += error.leaves()
    return able, errors


def requested_devices(vmi: Vmi) -> Mapping[str, int]:
    """The number of devices of each resource that the VM's container requests, in the order of the requests.

    Raises:
        CLAIM_NOT_REHEARSED, SeveralErrors: names each request that a claim answers.
    """
    counts: dict[str, int] = {}
    errors = Collector()
    for request in vmi.requests:
        if request.resource is not None:
            counts[request.resource] = counts.get(request.resource, 0) + 1
            continue
        errors.add(
            CLAIM_NOT_REHEARSED(
                f"{request.path}: {request.name!r} is answered by DRA {request.dra_claim}, and the scheduler chooses "
                "its device",
                "Rehearse a VM that asks by deviceName, or see what the claim could get with "
                "`launcherkit-plugin discover --dra --host SNAPSHOT`.",
                key=request.path,
            )
        )
    errors.raise_if_any()
    return counts


def _on(node: NodeCandidate, vm: RehearsedVm, counts: Mapping[str, int]) -> NodeOutcome:
    allocation = None
    try:
        allocation = node.allocate(counts)
        translation = translate(
            vm.domain_xml,
            env=allocation.env,
            host=KnownHost(allocation.facts),
            vmi=vm.vmi,
            policy=vm.policy,
            name=vm.name,
        )
    except LauncherkitError as error:
        return NodeOutcome(node.name, tuple(error.leaves()), allocation)
    root = read_document(translation.domain_xml, vm.name).root
    here = Circumstances(
        versions=vm.versions,
        host=allocation.facts,
        devices=tuple(each.source for device in translation.plan.devices for each in device.functions),
        of_vm=True,
        guest=read_guest(root),
        iommufd=translation.plan.iommufd,
        claims=sum(request.dra_claim is not None for request in vm.vmi.requests),
        container=True,
    )
    problems = tuple(match for match in recognise(here) if match.certain)
    return NodeOutcome(node.name, (), allocation, translation, read_tree(root), problems)


# A domain for a VM that was never started: a bundled template with the CPUs and memory of its VMI.


@dataclass(frozen=True, slots=True)
class StandIn:
    """A template and its values."""

    template: str
    values: Mapping[str, str]
    notes: tuple[Note, ...] = ()
    """What of the VMI's CPUs and memory isn't understood."""


def stand_in(document: Mapping[str, Any]) -> StandIn:
    """A stand-in for a VMI's domain; whatever the VMI doesn't say, or isn't understood, is as in the template or 1.

    Args:
        document: a parsed VMI or VirtualMachine that `read_vmi` accepts.
    """
    template = _part(document, "spec", "template")
    vmi = template if _part(template, "spec") else document
    name = _part(document, "metadata").get("name") or _part(vmi, "metadata").get("name")
    domain = _part(vmi, "spec", "domain")
    values = {"name": str(name) if isinstance(name, str) and name else "vm"}
    memory, notes = _memory_mib(domain)
    vcpus, cpu_notes = _vcpus(_part(domain, "cpu"))
    notes += cpu_notes
    if memory is not None:
        values["memory_mib"] = str(memory)
    if vcpus is not None:
        values["vcpus"] = str(vcpus)
    if _part(vmi, "spec").get("architecture") == "arm64":
        return StandIn("virt-aarch64", values, tuple(notes))
    if isinstance(_part(domain, "firmware").get("bootloader"), Mapping):
        values["firmware"] = "efi" if "efi" in _part(domain, "firmware", "bootloader") else "bios"
    return StandIn("q35", values, tuple(notes))


def _memory_mib(domain: Mapping[str, Any]) -> tuple[int | None, list[Note]]:
    """The guest's memory in MiB, None for the template's; and the notes on what isn't understood."""
    quantities = {
        "memory.guest": _part(domain, "memory").get("guest"),
        "resources.requests.memory": _part(domain, "resources", "requests").get("memory"),
    }
    amounts = {key: amount_of(quantity) for key, quantity in quantities.items() if quantity is not None}
    memory = next(filter(None, amounts.values()), 0)
    if memory >= MIB:
        return int(memory // MIB), []
    key = next(iter(amounts), None)
    return None, [] if key is None else [_not_understood(key, quantities[key], "the template's memory")]


def _vcpus(cpu: Mapping[str, Any]) -> tuple[int | None, list[Note]]:
    """The guest's CPUs, None for the template's; and the notes on what isn't understood."""
    counts = {key: cpu[key] for key in ("sockets", "cores", "threads") if cpu.get(key) is not None}
    wrong = [key for key, count in counts.items() if not isinstance(count, int) or count < 1]
    notes = [_not_understood(f"cpu.{key}", counts[key], "1") for key in wrong]
    return prod(count for key, count in counts.items() if key not in wrong) if cpu else None, notes


def _not_understood(key: str, value: object, instead: str) -> Note:
    return Note("domain", f"spec.domain.{key}: {shown(value)} isn't understood, and counts as {instead}")


def _part(document: Any, *keys: str) -> Mapping[str, Any]:
    """A mapping in a document; empty if it is missing."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}
