"""What a container is handed for its vGPUs (K2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from launcherkit_plugin.devices.cdi import CdiFile, cdi_name
from launcherkit_plugin.model.device import Grant, Resource


class GrantedNodes:
    """Device nodes for containers, and for their runtime where CDI is used.

    Args:
        cdi: where they are written down for the runtime.
        cdi_only: containers get them in no other way.
    """

    def __init__(self, cdi: CdiFile | None = None, *, cdi_only: bool = False) -> None:
        self._cdi = cdi
        self._only = cdi_only
        self._written: dict[str, tuple[str, ...]] = {}

    def grant(self, resource: Resource, nodes: Mapping[str, Sequence[str]]) -> Grant:
        """The answer for devices with these nodes, by ID in the order of the request.

        Raises:
            UnwritableFile: they can't be written down.
        """
        names: tuple[str, ...] = ()
        if self._cdi is not None:
            self._written |= {device: tuple(of_one) for device, of_one in nodes.items()}
            self._cdi.add(nodes)
            names = tuple(map(cdi_name, nodes))
        unique = tuple(dict.fromkeys(node for of_one in nodes.values() for node in of_one))
        return Grant({resource.variable: ",".join(nodes)}, () if names and self._only else unique, names)

    def refresh(self, there: Mapping[str, Sequence[str]], held: Collection[str]) -> None:
        """What is written down for the runtime: what there is, and what somebody has: it may be newer than the look.

        Args:
            there: the nodes of all devices that were there, by ID.
            held: the IDs of those that somebody has.

        Raises:
            UnwritableFile: they can't be written down.
        """
        if self._cdi is not None:
            self._written = {device: of_one for device, of_one in self._written.items() if device in held}
            self._written |= {device: tuple(of_one) for device, of_one in there.items()}
            self._cdi.replace(self._written)
