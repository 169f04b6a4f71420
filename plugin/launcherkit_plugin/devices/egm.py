"""Extended GPU memory: on NVIDIA Grace a node ``/dev/egmN`` gives a guest memory that belongs to some GPUs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from launcherkit.sources.tree import DiskTree

_CLASS = "sys/class/egm"


def has_egm(root: str) -> bool:
    """Whether the host has any; a directory is looked at, which waits for nobody."""
    try:
        return bool(os.listdir(f"{root}/{_CLASS}"))
    except OSError:
        return False


def egm_nodes(root: str, given: Collection[str]) -> tuple[str, ...]:
    """The nodes whose GPUs all go to one container, by name: ``/dev/egm4``.

    One of which another container may get a GPU is nobody's, and so is one whose GPUs can't be read (T2).

    Args:
        root: where ``sys/`` and ``dev/`` are.
        given: BDFs of what the container gets.
    """
    with DiskTree(root or "/") as tree:
        return tuple(_nodes(tree, frozenset(given)))


def _nodes(tree: DiskTree, given: frozenset[str]) -> Iterator[str]:
    for name in tree.names(_CLASS):
        gpus = (tree.read(f"{_CLASS}/{name}/gpu_devices") or b"").decode(errors="replace").lower().split()
        if name.startswith("egm") and gpus and given.issuperset(gpus) and tree.exists(f"dev/{name}"):
            yield f"/dev/{name}"
