"""Can a DRA driver work on this node? If none is registered nothing fails: what it would lack is a warning."""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit.compatibility import compatibility, dotted
from launcherkit.doctor.facts import SNAPSHOT, Facts, KubeletNode
from launcherkit.doctor.finding import Finding

DRIVER = "pci.launcherkit.io"
_CDI_BY_DEFAULT = (2, 0)
_INSTALL = "Install the component `dra` of deploy/plugin."


def check_dra_node(facts: Facts) -> Iterator[Finding]:
    """Kubelet, CDI and driver of a node; a VM by itself needs none of them."""
    if facts.subject.of_vm:
        return
    node = facts.gathered.node if facts.gathered is not None else None
    if node is None:
        why = SNAPSHOT if facts.gathered is None else "no kubelet has its folder here, /var/lib/kubelet"
        for check in ("dra-kubelet", "dra-cdi", "dra-driver"):
            yield Finding(check, "", "skipped", why)
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
