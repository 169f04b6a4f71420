"""Reads which device nodes a tree has below ``dev/``, and whose ``dev/`` that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcherkit.sources.tree import Tree


def read_nodes(tree: Tree) -> frozenset[str] | None:
    """The paths of VFIO's device nodes; None where the tree has no ``dev/`` to tell by."""
    nodes = ["/dev/vfio/" + name for name in tree.names("dev/vfio") if name != "devices"]
    nodes += ["/dev/vfio/devices/" + name for name in tree.names("dev/vfio/devices")]
    if tree.exists("dev/iommu"):
        nodes.append("/dev/iommu")
    return frozenset(nodes) if nodes or tree.exists("dev") else None


_EVERY_HOSTS = ("dev/kmsg", "dev/mem", "dev/cpu_dma_latency")
"""Nodes that the kernel itself makes. A runtime gives them to privileged containers, with all others that there are."""


def is_container_dev(tree: Tree) -> bool:
    """Whether ``dev/`` is one that a container runtime made, with nothing in it that wasn't given to it (S2)."""
    return tree.exists("dev") and not any(tree.exists(node) for node in _EVERY_HOSTS)
