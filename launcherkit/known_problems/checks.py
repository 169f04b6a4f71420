"""What recognises known problems: predicates on what is known of a host and of a VM.

Each returns None if it can't tell, as for a VM where none is given.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from launcherkit.choose.nodes import CDEVS, IOMMUFD_NODE, cdev_node, group_node
from launcherkit.compatibility import Version, dotted, version
from launcherkit.known_problems.table import KnownProblem, known_problems
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.guest import GuestFacts
from launcherkit.model.host import HostFacts, PciFunction, bound_to_vfio, group_of, is_gpu
from launcherkit.model.window import GIB

_LARGE_BAR = 64 * GIB
_HOLE = 1008 * GIB
"""Where AMD's hole below 1 TiB begins."""
_WIDTH = 48
"""QEMU's default for the address bits of an IOMMU, since 9.2."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known of a host, and of a VM if there is one; None is unknown."""

    versions: Mapping[str, Version]
    """Of programs, by product."""
    host: HostFacts
    devices: tuple[HostAddress, ...]
    """Those of the VM; without one, those that are set aside for VMs, and the GPUs."""
    of_vm: bool = False
    guest: GuestFacts | None = None
    iommufd: bool = False
    """Some of the VM's devices go through iommufd."""
    managed: bool = False
    """libvirt binds some of them."""
    claims: int = 0
    """How many devices of the VM are requested by ResourceClaims."""
    container: bool = False
    """This is a container, which got its device nodes."""
    node: bool = False
    """It is a node of a cluster."""
    cdi_enabled: bool | None = None
    """containerd's setting; None if it isn't set."""
    address_bits: int | None = None
    """Physical address bits of the host's CPU."""

    def functions(self) -> list[PciFunction]:
        """The PCI functions among the devices, as far as the host has them."""
        pci = (address for address in self.devices if isinstance(address, PciAddress))
        return [self.host.functions[address] for address in pci if address in self.host.functions]


def devices_for_vms(host: HostFacts) -> tuple[PciAddress, ...]:
    """The functions that are bound to VFIO, and the GPUs, which may be."""
    return tuple(
        address
        for address, function in sorted(host.functions.items())
        if bound_to_vfio(function, host.details.get(address)) or is_gpu(function)
    )


Verdict: TypeAlias = bool | None
_Predicate: TypeAlias = Callable[[Circumstances, KnownProblem], Verdict]


@dataclass(frozen=True, slots=True)
class ProblemCheck:
    """A way to recognise problems."""

    text: str
    """Who is concerned, as a noun: ``VMs with a PCI hostdev``."""
    holds: _Predicate
    evident: bool = False
    """It sees the problem itself: the product's version needn't be known."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """A known problem that is, or may be, here."""

    problem: KnownProblem
    version: Version | None
    """The product's; None if it isn't known."""
    certain: bool
    """False if it can't be told whether it concerns the VM."""

    @property
    def text(self) -> str:
        """Product, version, symptom and first source, on one line."""
        problem = self.problem
        if self.version is not None:
            named = f"{problem.product} {dotted(self.version)}"
        else:
            named = " ".join([problem.product, *([str(problem.affected[0])] if problem.affected else [])])
        return f"{named}: {problem.symptom} ({problem.sources[0]})"


def recognise(here: Circumstances, problems: Iterable[KnownProblem] | None = None) -> Iterator[Recognised]:
    """The known problems that are here, or may be, in the order of the table."""
    for problem in known_problems() if problems is None else problems:
        check, seen = CHECKS[problem.check], here.versions.get(problem.product)
        if seen is not None and not problem.affects(seen):
            continue
        if seen is None and problem.affected and not check.evident:
            continue
        verdict = check.holds(here, problem)
        if verdict or (verdict is None and seen is not None and problem.affected):
            yield Recognised(problem, seen, verdict is True)


def _of_vm(holds: Callable[[Circumstances], Verdict]) -> _Predicate:
    """A predicate on a VM; unknown where none is given."""
    return lambda here, _: holds(here) if here.of_vm else None


def _of_guest(holds: Callable[[Circumstances, GuestFacts], Verdict]) -> _Predicate:
    """A predicate on a VM's domain; unknown where it isn't given."""
    return lambda here, _: (None if here.guest is None else holds(here, here.guest)) if here.of_vm else None


def _of_function(holds: Callable[[Circumstances, PciFunction], bool]) -> _Predicate:
    """A predicate on one of the devices that is of the problem's hardware."""
    return lambda here, problem: any(holds(here, each) for each in here.functions() if problem.concerns(each))


def _pci(here: Circumstances) -> int:
    return sum(isinstance(address, PciAddress) for address in here.devices)


def _mdevs(here: Circumstances) -> int:
    return sum(isinstance(address, MdevAddress) for address in here.devices)


def _gpus(here: Circumstances) -> int:
    """Functions other than siblings: one for each slot, and VFs, which have slots of their own kind."""
    return len({each.address if each.is_vf else each.address[:3] for each in here.functions()})


def _cdev_without_node(here: Circumstances, _: KnownProblem) -> Verdict:
    if here.container:
        return False  # a container that runs had its nodes
    if here.host.nodes is None:
        return None
    if not (here.node or "KubeVirt" in here.versions):
        return False
    names = [cdev_node(here.host.details.get(each.address)) for each in here.functions()]
    return any(name is not None and name not in here.host.nodes for name in names)


def _large_bar(here: Circumstances, function: PciFunction) -> bool:
    detail = here.host.details.get(function.address)
    return detail is not None and any(bar.size >= _LARGE_BAR and bar.line < 7 for bar in detail.resources)


def _resets_by(method: str) -> Callable[[Circumstances, PciFunction], bool]:
    def holds(here: Circumstances, function: PciFunction) -> bool:
        detail = here.host.details.get(function.address)
        return detail is not None and method in detail.reset_methods and not function.is_vf

    return holds


def _no_device_reset(here: Circumstances, function: PciFunction) -> bool:
    detail = here.host.details.get(function.address)
    return is_gpu(function) and detail is not None and detail.reset_methods[:1] != ("device_specific",)


def _in_d3cold(here: Circumstances, function: PciFunction) -> bool:
    detail = here.host.details.get(function.address)
    return detail is not None and detail.power_state == "D3cold"


def _variant(here: Circumstances, function: PciFunction) -> bool:
    """Whether its driver is a VFIO driver other than vfio-pci; that of a vGPU's VF is, too (V1)."""
    return function.driver != "vfio-pci" and bound_to_vfio(function, here.host.details.get(function.address))


def _audio_apart(here: Circumstances, function: PciFunction) -> bool:
    """An audio function that is bound to VFIO, beside a GPU that is bound to nvidia."""
    if not function.is_hd_audio or not bound_to_vfio(function, here.host.details.get(function.address)):
        return False
    return any(is_gpu(each) and each.driver == "nvidia" for each in here.host.slot_functions(function.address))


def _function_on_host_driver(here: Circumstances, function: PciFunction) -> bool:
    """A GPU of three functions or more that is bound to VFIO, beside one that is bound to something else."""
    if not is_gpu(function) or not bound_to_vfio(function, here.host.details.get(function.address)):
        return False
    others = here.host.slot_functions(function.address)
    drivers = [each.driver for each in others if not bound_to_vfio(each, here.host.details.get(each.address))]
    return len(others) > 2 and any(drivers)


def _root_complexes(here: Circumstances, _: KnownProblem) -> Verdict:
    """Whether devices of one NUMA node are below several root complexes."""
    if not here.of_vm:
        return None
    places = {
        (function.numa_node, detail.parents[0])
        for function in here.functions()
        if (detail := here.host.details.get(function.address)) is not None and detail.parents
    }
    roots = Counter(node for node, _ in places if node is not None)
    return any(number > 1 for number in roots.values())


def _node_of_another_group(here: Circumstances, _: KnownProblem) -> bool:
    """Whether a container lacks the node of its device's group, and has that of another."""
    nodes = here.host.nodes or frozenset()
    needed = {group_node(group_of(address, here.host)) for address in here.devices} - {None}
    present = {node for node in nodes if re.fullmatch(r"/dev/vfio/\d+", node)}
    return here.of_vm and here.container and not here.iommufd and bool(needed - present) and bool(present - needed)


def _narrow_viommu(here: Circumstances, _: KnownProblem) -> Verdict:
    """Whether the guest's IOMMU would be wider than the host's addresses, which are known of the CPU."""
    if here.address_bits is not None and here.address_bits >= _WIDTH:
        return False
    if not here.of_vm or here.guest is None:
        return None
    if not here.guest.viommu or not here.guest.vfio_devices or here.guest.viommu_bits is not None:
        return False
    return None if here.address_bits is None else True


def _amd_1tib(here: Circumstances, _: KnownProblem) -> Verdict:
    """Whether the host is AMD's, the machine type moves memory, and there is enough of it."""
    bridges = (each for each in here.host.functions.values() if each.class_code >> 8 == 0x0600)
    if not any(bridge.vendor == 0x1022 for bridge in bridges):
        return False
    if not here.of_vm or here.guest is None:
        return None
    machine = re.fullmatch(r"(?:pc-)?q35(?:-(rhel)?(\d+\.\d+)(?:\.\d+)?)?", here.guest.machine)
    if machine is None or (machine[2] is not None and version(machine[2]) < ((9, 2) if machine[1] else (7, 1))):
        return False
    return None if here.guest.most_memory is None else here.guest.most_memory >= _HOLE


OF_NODES = ("node", "cdi-off")
"""The checks of what concerns no VM alone."""

CHECKS: Mapping[str, ProblemCheck] = {
    "node": ProblemCheck("nodes of a cluster", lambda here, _: here.node),
    "cdi-off": ProblemCheck("nodes of a cluster", lambda here, _: here.node and not here.cdi_enabled),
    "claims": ProblemCheck("VMs with several devices by ResourceClaims", _of_vm(lambda here: here.claims > 1)),
    "pci-hostdev": ProblemCheck("VMs with a PCI hostdev", _of_vm(lambda here: _pci(here) > 0)),
    "container-with-pci-hostdev": ProblemCheck(
        "VMs with a PCI hostdev, in containers", _of_vm(lambda here: here.container and _pci(here) > 0)
    ),
    "modeless-hostdev": ProblemCheck(
        "VMs with a PCI hostdev without mode", _of_guest(lambda _, guest: guest.modeless_hostdevs > 0)
    ),
    "hostdev-interface": ProblemCheck(
        "VMs with an interface of type hostdev", _of_guest(lambda _, guest: guest.hostdev_interfaces > 0)
    ),
    "mdev": ProblemCheck("VMs with a mediated device", _of_vm(lambda here: _mdevs(here) > 0)),
    "several-mdevs": ProblemCheck("VMs with several mediated devices", _of_vm(lambda here: _mdevs(here) > 1)),
    "memory-hotplug": ProblemCheck(
        "VMs with a PCI hostdev and room for more memory",
        _of_guest(lambda here, guest: _pci(here) > 0 and (guest.most_memory or 0) > (guest.memory or 0)),
    ),
    "iommufd": ProblemCheck("VMs with devices through iommufd", _of_vm(lambda here: here.iommufd)),
    "iommufd-and-several": ProblemCheck(
        "VMs with several devices through iommufd", _of_vm(lambda here: here.iommufd and _gpus(here) > 1)
    ),
    "iommufd-and-large-bar": ProblemCheck(
        "VMs through iommufd with BARs of 64 GiB or more",
        _of_vm(lambda here: here.iommufd and any(_large_bar(here, each) for each in here.functions())),
    ),
    "iommufd-without-node": ProblemCheck(
        f"VMs with devices through iommufd where {IOMMUFD_NODE} is missing",
        _of_vm(
            lambda here: here.iommufd and (None if here.host.nodes is None else IOMMUFD_NODE not in here.host.nodes)
        ),
        evident=True,
    ),
    "viommu-and-several": ProblemCheck(
        "VMs with an IOMMU and several devices", _of_guest(lambda _, guest: guest.viommu and guest.vfio_devices > 1)
    ),
    "hidden-viommu-and-several": ProblemCheck(
        "VMs with an IOMMU by arguments of QEMU and several devices",
        _of_guest(lambda _, guest: guest.hidden_viommu and guest.vfio_devices > 1),
    ),
    "narrow-viommu": ProblemCheck(
        "VMs with an IOMMU and a device, on hosts with fewer than 48 address bits", _narrow_viommu
    ),
    "sev-snp": ProblemCheck(
        "VMs with SEV-SNP and a PCI hostdev", _of_guest(lambda here, guest: guest.sev_snp and _pci(here) > 0)
    ),
    "kvm-hidden": ProblemCheck(
        "VMs for which KVM is hidden, without `<ioapic driver='kvm'/>`",
        lambda here, problem: (
            _of_guest(lambda _, guest: guest.kvm_hidden and not guest.kvm_ioapic)(here, problem)
            and any(is_gpu(each) for each in here.functions() if problem.concerns(each))
        ),
    ),
    "amd-1tib": ProblemCheck("VMs with nearly 1 TiB of memory on AMD hosts", _amd_1tib, evident=True),
    "root-complexes-of-one-node": ProblemCheck(
        "VMs with devices of one NUMA node below several root complexes", _root_complexes
    ),
    "cdev-without-node": ProblemCheck(
        f"devices whose VFIO character device has no node in {CDEVS.rstrip('/')}", _cdev_without_node, evident=True
    ),
    "node-of-another-group": ProblemCheck(
        "pods with the node of another IOMMU group than that of their device", _node_of_another_group, evident=True
    ),
    "hardware": ProblemCheck("such devices", _of_function(lambda _, function: not function.is_hd_audio)),
    "physical-function": ProblemCheck(
        "such devices that are no VFs", _of_function(lambda _, function: not function.is_vf), evident=True
    ),
    "large-bar": ProblemCheck("devices with BARs of 64 GiB or more", _of_function(_large_bar)),
    "reset-by-bus": ProblemCheck(
        "such devices that the kernel resets by the bus", _of_function(_resets_by("bus")), evident=True
    ),
    "reset-by-flr": ProblemCheck(
        "such devices that the kernel resets by a function level reset", _of_function(_resets_by("flr")), evident=True
    ),
    "no-device-reset": ProblemCheck(
        "such devices without a reset of their own", _of_function(_no_device_reset), evident=True
    ),
    "d3cold": ProblemCheck("devices in D3cold", _of_function(_in_d3cold), evident=True),
    "variant-driver": ProblemCheck("devices bound to a variant of vfio-pci", _of_function(_variant)),
    "managed-variant": ProblemCheck("VMs with managed='yes'", _of_vm(lambda here: here.managed)),
    "plain-vfio": ProblemCheck(
        "such devices bound to vfio-pci itself",
        _of_function(lambda _, function: function.driver == "vfio-pci"),
        evident=True,
    ),
    "vgpu-vf": ProblemCheck(
        "vGPUs that are VFs",
        _of_function(
            lambda here, function: (
                (detail := here.host.details.get(function.address)) is not None and detail.vgpu is not None
            )
        ),
    ),
    "audio-apart": ProblemCheck(
        "audio functions bound to VFIO beside a GPU bound to nvidia", _of_function(_audio_apart), evident=True
    ),
    "function-on-host-driver": ProblemCheck(
        "GPUs bound to VFIO beside a third function that is not", _of_function(_function_on_host_driver), evident=True
    ),
}
"""Every check by name."""
