"""The device nodes that a container gets for its functions (V2, K2), and whether the host has changed since."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.choose.nodes import CDEVS, CONTAINER_NODE, IOMMUFD_NODE, node_set
from launcherkit.choose.siblings import assemble_devices
from launcherkit.host.identity_memory import EVENTS
from launcherkit.host.tree import DiskTree
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit.model.plan import Match
from launcherkit_plugin.host.progress import Progress
from launcherkit_plugin.model.config import NodeChoice, PciRule


class NodeSets(NamedTuple):
    """The device nodes of some functions, of both kinds."""

    groups: tuple[str, ...] | None
    """VFIO's container and all groups; None if one is missing."""
    cdevs: tuple[str, ...] | None
    """``/dev/iommu`` and VFIO's character devices of all functions; None if one is missing. VFIO's container is added
    if the node has it: QEMU doesn't open it, but libvirt 12.8 passes nothing through without it."""
    has_iommufd: bool
    """Whether the node has ``/dev/iommu``."""


def node_sets(functions: Sequence[PciAddress], host: HostFacts) -> NodeSets:
    """The device nodes of functions. If the facts don't cover ``/dev``, they are assumed to exist."""
    groups = _nodes_of(functions, host, iommufd=False)
    cdevs = _nodes_of(functions, host, iommufd=True)
    if host.nodes is None:
        return NodeSets(groups, cdevs, has_iommufd=cdevs is not None)
    if cdevs is not None and CONTAINER_NODE in host.nodes:
        cdevs = (CONTAINER_NODE, *cdevs)
    return NodeSets(groups, cdevs, has_iommufd=IOMMUFD_NODE in host.nodes)


def _nodes_of(functions: Sequence[PciAddress], host: HostFacts, *, iommufd: bool) -> tuple[str, ...] | None:
    needed = node_set(functions, host, iommufd=iommufd)
    return needed.nodes if needed.is_complete(host) else None


def chosen_nodes(sets: Sequence[NodeSets], choice: NodeChoice) -> tuple[str, ...] | None:
    """The nodes for several devices together, each once; None if a chosen one is missing.

    ``auto`` and the single kinds never mix kinds: a reader could use one kind for one device and the other for the
    next (V2). ``both`` is for readers that decide themselves; without iommufd it gives only the nodes of the groups.
    """
    groups, cdevs = [each.groups for each in sets], [each.cdevs for each in sets]
    alternatives = {
        "group": [groups],
        "cdev": [cdevs],
        "auto": [groups, cdevs],
        "both": [[*groups, *cdevs] if any(kinds.has_iommufd for kinds in sets) else groups],
    }
    for alternative in alternatives[choice]:
        if None not in alternative:
            return tuple(dict.fromkeys(node for nodes in alternative for node in nodes or ()))
    return None


def missing_node(functions: Sequence[PciAddress], host: HostFacts, choice: NodeChoice) -> str:
    """The missing node to name in a message: the first one that a person would look for."""
    present = host.nodes or frozenset()
    candidates: list[str] = []
    if choice != "cdev":
        candidates += node_set(functions, host, iommufd=False).nodes
    if choice == "cdev" or (choice == "both" and IOMMUFD_NODE in present):
        cdevs = node_set(functions, host, iommufd=True).own
        unnamed = f"below {CDEVS.rstrip('/')}"
        candidates += [IOMMUFD_NODE, *(node or f"the character device of {at} {unnamed}" for at, node in cdevs.items())]
    return next((node for node in candidates if node not in present), candidates[0])


_CLASS = "sys/class/egm"


def has_egm(root: str, progress: Progress) -> bool:
    """Whether the host has EGM (extended GPU memory); blocks."""
    progress.owner = None  # no card's
    progress.to(f"{root}/{_CLASS}")
    try:
        return bool(os.listdir(f"{root}/{_CLASS}"))
    except OSError:
        return False


def egm_nodes(root: str, functions: Collection[str]) -> tuple[str, ...]:
    """The EGM nodes for a container, such as ``/dev/egm4``: those whose GPUs it gets all of.

    A node is left out if another container may get one of its GPUs, or if its list of GPUs can't be read (T2).

    Args:
        root: the directory that contains ``sys`` and ``dev``.
        functions: BDFs of those that the container gets.
    """
    with DiskTree(root or "/") as tree:
        return tuple(_egm_nodes(tree, frozenset(functions)))


def _egm_nodes(tree: DiskTree, functions: frozenset[str]) -> Iterator[str]:
    for name in tree.names(_CLASS):
        gpus = (tree.read(f"{_CLASS}/{name}/gpu_devices") or b"").decode(errors="replace").lower().split()
        if name.startswith("egm") and gpus and functions.issuperset(gpus) and tree.exists(f"dev/{name}"):
            yield f"/dev/{name}"


class Fingerprint(NamedTuple):
    """What a plan depends on, in a form that is cheap to compare with sysfs. All paths include the root."""

    functions: tuple[str, ...]
    """The names of all functions whose files are read, the primary first."""
    read: tuple[str, ...]
    """A file of the primary, by the link from its driver, which is read: that hangs if the card does."""
    bound: tuple[str, ...]
    """Links from drivers to their functions, which must exist. The opposite links, from functions to drivers, take
    three times as long to read, because of a longer path and another link in it."""
    unbound: tuple[str, ...]
    """The driver links of functions without a driver, which must not exist."""
    members: tuple[tuple[str, frozenset[str]], ...]
    """Directories and their entries: those of IOMMU groups, and those that name VFIO's character devices."""
    events: bytes | None
    """See `HostFacts`. As long as the kernel has sent no uevent, no device was added, so the entries are the same."""


def fingerprint_of(addresses: Sequence[PciAddress], host: HostFacts, root: str) -> Fingerprint:
    """The fingerprint of some functions, the others in their slots, and all members of the groups of these.

    Args:
        addresses: the primary first.
        host: facts about them.
        root: the directory that contains ``sys``.
    """
    nearby, groups = _nearby(addresses, host)
    names = {address: str(address) for address in sorted(nearby, key=tuple)}  # plain tuples are quicker to compare
    pci = f"{root}/sys/bus/pci"
    read, bound, unbound = [], [], []
    for address, name in names.items():
        driver = nearby[address].driver
        if driver is None:
            unbound.append(f"{pci}/devices/{name}/driver")
        elif address == addresses[0]:
            read.append(f"{pci}/drivers/{driver}/{name}/uevent")
        else:
            bound.append(f"{pci}/drivers/{driver}/{name}")
    directories = []
    for group, members in groups.items():
        entries = frozenset([names.get(address) or str(address) for address in members])
        directories.append((f"{root}/sys/kernel/iommu_groups/{group}/devices", entries))
    for address, name in names.items():
        detail = host.details.get(address)
        if detail is not None and detail.vfio_dev is not None:
            directories.append((f"{pci}/devices/{name}/vfio-dev", frozenset({detail.vfio_dev})))
    functions = tuple(dict.fromkeys([str(addresses[0]), *names.values()]))
    return Fingerprint(functions, tuple(read), tuple(bound), tuple(unbound), tuple(directories), host.events)


def _nearby(
    addresses: Iterable[PciAddress], host: HostFacts
) -> tuple[dict[PciAddress, PciFunction], dict[int, tuple[PciAddress, ...]]]:
    """All functions in the slots of some, and in the groups of these; and the members of these groups."""
    functions: dict[PciAddress, PciFunction] = {}
    for address in {address.slot: address for address in addresses if address in host.functions}.values():
        functions |= {function.address: function for function in host.slot_functions(address)}
    numbers = {function.iommu_group for function in functions.values()}
    groups = {number: host.groups.get(number, ()) for number in numbers if number is not None}
    for members in groups.values():
        functions |= {address: host.functions[address] for address in members if address in host.functions}
    return functions, groups


def is_unchanged(fingerprints: Iterable[Fingerprint], root: str, progress: Progress) -> bool:
    """Whether the host still matches fingerprints; blocks.

    The links of drivers are always read: they change before the uevent is sent.

    Args:
        fingerprints: taken earlier.
        root: the directory that contains ``sys``.
        progress: each step is noted in it.
    """
    events = _uevents(root, progress)
    try:
        for (primary, *_), read, bound, unbound, members, then in fingerprints:
            progress.owner = primary
            for path in read:
                _read(path, progress)
            for path in bound:
                progress.to(path)
                os.readlink(path)
            if events is None or events != then:
                for path, entries in members:
                    progress.to(path)
                    if entries != set(os.listdir(path)):
                        return False
            for path in unbound:
                progress.to(path)
                if not _is_absent(path):
                    return False
    except OSError:
        return False
    return True


def _uevents(root: str, progress: Progress) -> bytes | None:
    """How many uevents the kernel has sent, as decimal text; None if unknown."""
    try:
        return _read(f"{root}/{EVENTS}", progress)
    except OSError:
        return None


def _read(path: str, progress: Progress) -> bytes:
    progress.to(path)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 32)
    finally:
        os.close(file)


def _is_absent(path: str) -> bool:
    try:
        os.readlink(path)
    except OSError as problem:
        return isinstance(problem, FileNotFoundError)  # unknown is not absent (T2)
    return False


def nodes_exist(nodes: Mapping[str, str], root: str, progress: Progress) -> bool:
    """Whether device nodes exist; blocks.

    Args:
        nodes: of each node, a device that needs it.
        root: the directory that contains ``dev``.
        progress: each step is noted in it.
    """
    with progress.open_tree(root or "/") as tree:
        for node, progress.owner in nodes.items():
            if not tree.exists(node[1:]):
                return False
    return True


class PciPlan(NamedTuple):
    """What a container gets for a device, and what this depends on."""

    functions: tuple[PciAddress, ...]
    nodes: NodeSets
    fingerprint: Fingerprint


def plan_of(address: PciAddress, rule: PciRule, host: HostFacts, root: str) -> PciPlan:
    """The plan for a primary, with the siblings that the reader in the pod will find (S1, S2)."""
    functions = _attached(address, rule, host)
    return PciPlan(functions, node_sets(functions, host), fingerprint_of(functions, host, root))


def _attached(address: PciAddress, rule: PciRule, host: HostFacts) -> tuple[PciAddress, ...]:
    if rule.siblings == "listed" and not rule.environment.list_siblings:
        return (address,)
    siblings = "slot" if rule.siblings == "listed" else rule.siblings
    match = Match("environment", "gpus", "device", None, None, address)
    # The container will see exactly the nodes that this plugin gives it.
    (device,) = assemble_devices([match], siblings, host, own_nodes=True)
    return tuple(part.source for part in device.attachments if isinstance(part.source, PciAddress))
