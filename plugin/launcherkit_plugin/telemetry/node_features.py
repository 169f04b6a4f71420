"""Labels of the node for Node Feature Discovery, in a file that its worker reads.

One label for each fact, so that a pod's node affinity can select it: ``launcherkit.io/iommu=true``. The counts by
resource have separate namespaces, because a resource's name may be as long as a label's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from launcherkit.atomic import Disk
from launcherkit.choose.nodes import CONTAINER_NODE, IOMMUFD_NODE
from launcherkit.errors import UnwritableFile
from launcherkit.model.host import HostFacts, bound_to_vfio
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.records import identity

FILE = "launcherkit"
DOMAIN = "launcherkit.io"


def features(host: HostFacts, resources: Sequence[Resource]) -> dict[str, str]:
    """Labels of a node.

    * ``launcherkit.io/iommu``: whether the kernel has put functions into IOMMU groups.
    * ``launcherkit.io/vfio``: which of VFIO's device nodes exist: ``group``, ``iommufd``, ``both`` or ``none``.
    * ``launcherkit.io/vfio-functions``: how many functions are bound to a VFIO driver.
    * ``devices.launcherkit.io/<NAME>``, ``healthy.launcherkit.io/<NAME>``: devices of ``<domain>/<NAME>``.
    """
    bound = sum(bound_to_vfio(function, host.details.get(at)) for at, function in host.functions.items())
    counts = {
        f"{counted}.{DOMAIN}/{resource.name.rpartition('/')[2]}": str(number)
        for resource in resources
        for counted, number in (
            ("devices", len(resource.devices)),
            ("healthy", sum(device.healthy for device in resource.devices.values())),
        )
    }
    return {
        f"{DOMAIN}/iommu": str(bool(host.groups.keys() - host.noiommu)).lower(),
        f"{DOMAIN}/vfio": _nodes(host.nodes or frozenset()),
        f"{DOMAIN}/vfio-functions": str(bound),
        **counts,
    }


def _nodes(nodes: frozenset[str]) -> str:
    match CONTAINER_NODE in nodes, IOMMUFD_NODE in nodes:
        case True, True:
            return "both"
        case True, False:
            return "group"
        case False, True:
            return "iommufd"
    return "none"


class FeatureFile:
    """The file in the worker's folder, replaced by rename and only if it changes: the worker watches it.

    Args:
        folder: where the worker looks for files. If it is missing, Node Feature Discovery isn't installed, and nothing
            is written.
    """

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, FILE)
        self._written: tuple[dict[str, str], tuple[int, ...] | None] | None = None
        """The labels, and the file's identity when they were written."""

    def write(self, labels: Mapping[str, str]) -> bool:
        """Write the labels. True if the file has changed.

        Raises:
            UnwritableFile: names the file and the reason.
        """
        if (labels, identity(self.path)) == self._written or not os.path.isdir(os.path.dirname(self.path)):
            return False
        Disk().replace(self.path, "".join(f"{key}={value}\n" for key, value in sorted(labels.items())).encode())
        self._written = dict(labels), identity(self.path)
        return True

    def remove(self) -> None:
        """Remove the file: the worker then removes the labels."""
        with suppress(UnwritableFile):  # the daemon is ending, and can do nothing else
            Disk().remove(self.path)
        self._written = None
