"""Are VFIO's device nodes here, one set and not a mix of two, and may this user open them (V2)?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from launcherkit.choose.nodes import CDEVS, CONTAINER_NODE, IOMMUFD_NODE, needed_nodes, node_set
from launcherkit.compatibility import compatibility, dotted
from launcherkit.doctor.facts import SNAPSHOT, Facts, KubeletNode, Node, not_here
from launcherkit.doctor.finding import Finding
from launcherkit.model.address import MdevAddress, PciAddress

_SHOWN = 12
_PLUGIN = "The device plugin must hand it to this container: see its log; outside a pod: modprobe vfio-pci."


def check_nodes(facts: Facts) -> Iterator[Finding]:
    """The nodes that QEMU opens, then who may use them."""
    nodes, subject = facts.host.nodes, facts.subject
    reason = _why_not(facts)
    if reason is not None or nodes is None:
        for check in ("vfio-nodes", "node-permissions"):
            yield Finding(check, "", "skipped", reason or "there is no /dev to look into")
        return
    devices = [source for source in subject.attached if isinstance(source, PciAddress | MdevAddress)]
    if not devices:
        yield _base(nodes)
        yield from _permissions(facts, tuple(sorted(nodes & {CONTAINER_NODE, IOMMUFD_NODE})))
        return
    needed, iommufd = subject.nodes, subject.wants_iommufd
    if needed is None:  # no plan of a translation has them
        alone = needed_nodes(devices, facts.host, iommufd)
        needed, iommufd = alone.nodes, alone.iommufd
    if subject.wants_iommufd and not iommufd:
        yield Finding(
            "vfio-nodes",
            "",
            "fail",
            "the domain asks for iommufd, but a device of it can only go through its IOMMU group",
            "Take iommufd out of the hostdevs: mediated devices can't use it, nor functions without a node in "
            "/dev/vfio/devices.",
        )
    yield from _presence(facts, needed, iommufd, nodes)
    yield from _permissions(facts, tuple(node for node in needed if node in nodes))


def _presence(facts: Facts, needed: Sequence[str], iommufd: bool, nodes: Collection[str]) -> Iterator[Finding]:
    """Of the needed nodes, each that is missing; one finding if none is."""
    missing = [node for node in needed if node not in nodes]
    if not missing:
        which = "iommufd's" if iommufd else "the groups'"
        yield Finding("vfio-nodes", "", "ok", f"{which}: {_some(needed)}")
        return
    expected = facts.subject.of_vm or facts.subject.has_variables
    if not expected and facts.gathered is not None and facts.gathered.machine.container:
        seen = f"not in this container: {_some(missing)}; nothing says that they should be"
        yield Finding("vfio-nodes", "", "skipped", seen)
        return
    for node in missing:
        yield Finding("vfio-nodes", node, "fail", f"not here{_other_set(facts, iommufd)}", _PLUGIN)


def _why_not(facts: Facts) -> str | None:
    """Why nodes aren't checked; a snapshot does say which exist."""
    if not facts.subject.nodes_matter:
        return "the policy says that nodes need not be here"
    return None if facts.gathered is None else not_here(facts)


def _base(nodes: frozenset[str]) -> Finding:
    """If nothing is attached: can anything be?"""
    present = [node for node in (CONTAINER_NODE, IOMMUFD_NODE) if node in nodes]
    if present:
        return Finding("vfio-nodes", "", "ok", f"{', '.join(present)}; no device is set aside for VMs yet")
    return Finding("vfio-nodes", "", "warn", f"neither {CONTAINER_NODE} nor {IOMMUFD_NODE} is here", _PLUGIN)


def _other_set(facts: Facts, iommufd: bool) -> str:
    """Half of the other set: the result if a plugin and a VM disagree."""
    nodes = facts.host.nodes or frozenset()
    if iommufd:
        return "; the groups' nodes are there" if CONTAINER_NODE in nodes else ""
    functions = [source for source in facts.subject.attached if isinstance(source, PciAddress)]
    through = node_set(functions, facts.host, iommufd=True)
    cdevs = [node for node in through.nodes if node != IOMMUFD_NODE and node in nodes]
    if IOMMUFD_NODE in nodes and not cdevs:
        return f"; of the other set {IOMMUFD_NODE} is there, but no {CDEVS.rstrip('/')} of these devices"
    if cdevs and IOMMUFD_NODE not in nodes:
        return f"; of the other set {cdevs[0]} is there, but not {IOMMUFD_NODE}"
    return ""


def _permissions(facts: Facts, nodes: tuple[str, ...]) -> Iterator[Finding]:
    name = "node-permissions"
    if facts.gathered is None:
        yield Finding(name, "", "skipped", SNAPSHOT)
        return
    access = facts.gathered.nodes
    if not nodes:
        yield Finding(name, "", "skipped", "none of the nodes that are wanted is here")
    for node in nodes:
        if node not in access:
            yield Finding(name, node, "skipped", "its mode can't be read")
        elif access[node].usable:
            yield Finding(name, node, "ok", _mode(access[node]))
        else:
            # On a host libvirt's daemon is root and gives the node to QEMU; in a pod nothing does.
            pod = facts.gathered.machine.container
            yield Finding(
                name,
                node,
                "fail" if pod else "warn",
                f"{_mode(access[node])}: this user can't read and write it",
                "In a pod: run as the node's owner, or have the device plugin or a udev rule on the node set the "
                "owner; on a host: let libvirt's system daemon, which is root, start the VM.",
            )


def _some(nodes: Sequence[str]) -> str:
    """Their names, abbreviated for a whole host."""
    more = len(nodes) - _SHOWN
    return ", ".join(nodes[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _mode(node: Node) -> str:
    return f"mode {node.mode:04o}, owner {node.owner}:{node.group}"


# Can a DRA driver work on this node? If none is registered nothing fails: what it would lack is a warning.


DRIVER = "pci.launcherkit.io"
_CDI_BY_DEFAULT = (2, 0)
_INSTALL = "Install the component `dra` of deploy/plugin."


def check_dra_node(facts: Facts) -> Iterator[Finding]:
    """Kubelet, CDI and driver of a node; a VM by itself needs none of them."""
    if facts.subject.of_vm:
        return
    node = facts.gathered.node if facts.gathered is not None else None
    if node is None:
        reason = SNAPSHOT if facts.gathered is None else "no kubelet has its folder here, /var/lib/kubelet"
        for check in ("dra-kubelet", "dra-cdi", "dra-driver"):
            yield Finding(check, "", "skipped", reason)
        return
    yield _judged("dra-kubelet", node, *_kubelet(node))
    yield _judged("dra-cdi", node, *_cdi(node))
    yield _driver(node)


def _judged(check: str, node: KubeletNode, good: bool, seen: str, remedy: str) -> Finding:
    """A missing requirement fails only if a driver is registered."""
    if good:
        return Finding(check, "", "ok", seen)
    if node.has_driver(DRIVER):
        return Finding(check, "", "fail", seen, remedy)
    return Finding(check, "", "skipped", f"{seen}; a DRA driver would need that, and none of launcherkit's is here")


def _kubelet(node: KubeletNode) -> tuple[bool, str, str]:
    since = compatibility().since("dra")
    if node.kubelet is not None and node.kubelet < since:
        return False, f"kubelet {dotted(node.kubelet)}; DRA needs {dotted(since)}", "Stay with the device plugin."
    if not node.registry:
        seen = "no folder /var/lib/kubelet/plugins_registry"
        return False, seen, "The kubelet makes it when it starts: see whether it runs, and with which --root-dir."
    version = "a kubelet of unknown version" if node.kubelet is None else f"kubelet {dotted(node.kubelet)}"
    return True, f"{version}, and /var/lib/kubelet/plugins_registry", ""


def _cdi(node: KubeletNode) -> tuple[bool, str, str]:
    if not node.cdi_writable:
        return False, "/var/run/cdi is on a file system that is read-only", "Make /var/run a file system in memory."
    if node.containerd is None:
        return True, "CDI files can be written; containerd's version is not known", ""
    seen, since = f"containerd {dotted(node.containerd)}", compatibility().since("cdi")
    if node.containerd < since:
        return False, f"{seen}; CDI needs {dotted(since)}", f"Use containerd {dotted(since)} or later."
    enabled = node.containerd >= _CDI_BY_DEFAULT if node.cdi_enabled is None else node.cdi_enabled
    if enabled:
        return True, f"{seen} with CDI; its files can be written", ""
    remedy = (
        "Set enable_cdi = true in the section of the CRI plugin in /etc/containerd/config.toml, and restart containerd."
    )
    return False, f"{seen} without CDI", remedy


def _driver(node: KubeletNode) -> Finding:
    name = "dra-driver"
    if not node.has_driver(DRIVER):
        others = f", only of {', '.join(sorted(node.drivers))}" if node.drivers else ""
        return Finding(name, "", "skipped", f"no socket of {DRIVER} in plugins_registry{others}", _INSTALL)
    if not node.cluster_sockets:
        seen = f"{DRIVER} has its socket, but no pod of this node has that of the container `cluster`"
        return Finding(name, "", "warn", seen, "Add the component `cluster`: it publishes the slices and reads claims.")
    return Finding(name, "", "ok", f"{DRIVER} has its socket, and so has the container `cluster`")
