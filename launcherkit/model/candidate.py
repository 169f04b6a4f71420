"""The interface between a rehearsal and the device plugin, whose code allocates for nodes elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from launcherkit.model.host import HostFacts

DeviceChoice: TypeAlias = Literal["all", "preferred"]
"""How devices were chosen: ``all`` free ones are needed, or more are free and the device plugin ``preferred`` these.
The kubelet follows the preference unless its topology manager has already decided."""


@dataclass(frozen=True, slots=True)
class PromisedDevice:
    """A device that the VM's container would get."""

    resource: str
    id: str
    """The address of the primary, or the UUID of a mediated device."""
    functions: tuple[str, ...]
    """Addresses of all functions that are attached, the primary first; empty for a mediated device."""
    groups: tuple[int, ...]
    numa_node: int | None
    choice: DeviceChoice


@dataclass(frozen=True, slots=True)
class NodeAllocation:
    """The devices that the VM's container would get on a node."""

    devices: tuple[PromisedDevice, ...]
    env: Mapping[str, str]
    facts: HostFacts
    """The host as that container sees it: with only the container's own VFIO device nodes."""


class NodeCandidate(Protocol):
    """A node that a VM could be scheduled to."""

    @property
    def name(self) -> str:
        """The node's name."""
        ...

    def allocate(self, counts: Mapping[str, int]) -> NodeAllocation:
        """Allocate devices to one container, as the node's device plugin would.

        Args:
            counts: resource name to the number of devices, in the order of the requests.

        Raises:
            LauncherkitError: the node can't give them; says what is wrong with the devices that it has.
        """
        ...


@dataclass(frozen=True, slots=True)
class WithheldDevice:
    """A device that the device plugin gives to nobody now, or only to the VM that had it."""

    device: str
    """Its address."""
    state: Literal["kept", "cleaning", "quarantined"]
    since: int
    """Seconds since the epoch."""
    until: int | None
    """The same, for a kept device; None: until it is clean, or somebody has seen to it."""
    text: str
    """What `launcherkit-plugin status` says: ``kept for VM vms/one since ... until ...``."""


class NodeSource(Protocol):
    """Where nodes come from, and what the device plugin knows of this one: its entry point ``launcherkit.nodes``."""

    def recorded(
        self,
        places: Sequence[str],
        config: str | None,
        auto: str | None,
        env: Mapping[str, str],
        *,
        for_claim: bool = False,
    ) -> Sequence[NodeCandidate]:
        """Nodes from files of ``launcherkit snapshot``; all their devices count as free.

        Args:
            places: files and folders.
            config: path of the device plugin's configuration; None for its default names.
            auto: the value of the plugin's ``--auto``.
            env: the process's, which decides how messages are written.
            for_claim: all devices are for DRA where the configuration has no rule for it.

        Raises:
            LauncherkitError: one can't be read.
        """
        ...

    def published(self, namespace: str, node: str | None, env: Mapping[str, str]) -> Sequence[NodeCandidate]:
        """Nodes of a cluster as their device plugins publish them; devices that pods hold count as taken.

        Args:
            namespace: the device plugin's.
            node: only this one.
            env: has ``KUBECONFIG``.

        Raises:
            LauncherkitError: the cluster doesn't answer, or no node has published anything.
        """
        ...

    def withheld(self, root: str, now: float) -> Sequence[WithheldDevice]:
        """The devices that are withheld on this node, by the plugin's records.

        Args:
            root: the root of the host's file system.
            now: seconds since the epoch.

        Raises:
            UnreadableFile: the records can't be read.
        """
        ...

    def answer_claim(self, node: NodeCandidate, documents: Sequence[object], file: str) -> Mapping[str, str]:
        """Devices of a node that satisfy a claim; the scheduler may take others.

        Args:
            node: one of this source's.
            documents: the manifests that `launcherkit-plugin claim` prints.
            file: where they come from, for messages.

        Returns:
            The name of a device of the node's pool for each request.

        Raises:
            CLAIM_NOT_REHEARSED: they aren't of that form.
            LauncherkitError: the node can't satisfy it.
        """
        ...
