"""What a rehearsal asks of the device plugin: its code answers for a node that isn't here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from launcherkit.model.host import HostFacts

DeviceChoice: TypeAlias = Literal["all", "preferred"]
"""Whose it is: ``all`` that are free are needed, or more are free and these are ``preferred`` by the device plugin. The
kubelet follows a preference unless its topology manager has decided already."""


@dataclass(frozen=True, slots=True)
class PromisedDevice:
    """A device that the VM's container would get."""

    resource: str
    id: str
    """The address of the primary, or the UUID of a mediated device."""
    functions: tuple[str, ...]
    """Addresses of all that is attached with it, the primary first; empty for a mediated device."""
    groups: tuple[int, ...]
    numa_node: int | None
    choice: DeviceChoice


@dataclass(frozen=True, slots=True)
class Given:
    """What the VM's container would get on a node."""

    devices: tuple[PromisedDevice, ...]
    env: Mapping[str, str]
    facts: HostFacts
    """The host as that container sees it: of VFIO's device nodes it has its own alone."""


class NodeCandidate(Protocol):
    """A node that a VM could be scheduled to."""

    @property
    def name(self) -> str:
        """Of the node."""
        ...

    def give(self, wanted: Mapping[str, int]) -> Given:
        """Allocate devices to one container, as the node's device plugin would.

        Args:
            wanted: resource name to the number of devices, in the order of the requests.

        Raises:
            LauncherkitError: the node can't give them; with what is wrong with the devices that it has.
        """
        ...


class NodeSource(Protocol):
    """Where nodes come from: the entry point ``launcherkit.nodes`` of the device plugin."""

    def recorded(
        self, places: Sequence[str], config: str | None, auto: str | None, env: Mapping[str, str]
    ) -> Sequence[NodeCandidate]:
        """Nodes by what ``launcherkit snapshot`` wrote down of them; nobody has a device of theirs.

        Args:
            places: files and folders.
            config: path of the device plugin's configuration; None for the names that it gives by itself.
            auto: as the plugin's ``--auto``.
            env: of the process; it says how messages are written.

        Raises:
            LauncherkitError: one can't be read.
        """
        ...

    def published(self, namespace: str, node: str | None, env: Mapping[str, str]) -> Sequence[NodeCandidate]:
        """Nodes of a cluster by what their device plugins publish; what pods have isn't to be had.

        Args:
            namespace: of the device plugin.
            node: only this one.
            env: has ``KUBECONFIG``.

        Raises:
            LauncherkitError: the cluster can't be asked, or no node has published anything.
        """
        ...
