"""Reads the device nodes below a tree's ``dev/``, and whether that is a container's."""

from __future__ import annotations

from launcherkit.sources.file_tree import Tree


def read_nodes(tree: Tree) -> frozenset[str] | None:
    """The paths of VFIO's device nodes; None if the tree has no ``dev/``."""
    nodes = ["/dev/vfio/" + name for name in tree.names("dev/vfio") if name != "devices"]
    nodes += ["/dev/vfio/devices/" + name for name in tree.names("dev/vfio/devices")]
    if tree.exists("dev/iommu"):
        nodes.append("/dev/iommu")
    return frozenset(nodes) if nodes or tree.exists("dev") else None


def is_noiommu(tree: Tree, group: int) -> bool:
    """Whether VFIO made a PCI function's group itself, in its no-IOMMU mode (V1).

    Linux names such a group (``drivers/vfio/group.c``). It names those of mediated devices likewise, in every mode.
    """
    return (tree.read(f"sys/kernel/iommu_groups/{group}/name", 32) or b"").rstrip() == b"vfio-noiommu"


_EVERY_HOSTS = ("dev/kmsg", "dev/mem", "dev/cpu_dma_latency")
"""Nodes that the kernel itself makes. Runtimes give them only to privileged containers, with all other nodes."""


def is_container_dev(tree: Tree) -> bool:
    """Whether a container runtime made ``dev/``, with only the nodes that were given to the container (S2)."""
    return tree.exists("dev") and not any(tree.exists(node) for node in _EVERY_HOSTS)
