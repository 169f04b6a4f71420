"""What containers get of a card with its host driver: device nodes, or its UUID or index for NVIDIA's runtime.

The UUIDs of NVIDIA's cards, which are their device IDs, are remembered while a card has another driver (K10).
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from launcherkit.atomic import Disk
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction
from launcherkit_plugin.devices.cdi import cdi_annotation, cdi_name
from launcherkit_plugin.host.driver_nodes import NVIDIA, card_nodes, nvidia_card
from launcherkit_plugin.model.config import ContainerBy, ContainerUse, PciRule
from launcherkit_plugin.model.device import Grant
from launcherkit_plugin.records import Stored, read_record, write_record

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""The variable that NVIDIA's container runtime reads."""

NONE_VISIBLE = {VISIBLE: "void"}
"""For containers that must get nothing from that runtime, whatever their image says."""

UUIDS_FILE = "gpu-uuids"
"""The file of the cards' UUIDs in the ledger's folder. It has no extension, because files with ``.json`` are records
there."""


class CardAccess(NamedTuple):
    """What the driver of a card offers to containers."""

    nodes: tuple[str, ...]
    uuid: str | None
    number: int | None
    """NVIDIA's index."""


class GrantedCard(NamedTuple):
    """A card that a container gets, and how."""

    use: ContainerUse
    by: ContainerBy
    access: CardAccess


ReadCard: TypeAlias = Callable[[PciAddress], CardAccess]


def read_card(root: str, proc: str, address: PciAddress) -> CardAccess:
    """Read a card; blocks.

    Args:
        root: the directory that contains the host's ``sys``.
        proc: where its proc file system is mounted.
        address: of the card.

    Raises:
        UnreadableFile: a file exists and can't be read.
    """
    nvidia = nvidia_card(proc, address)
    nodes = card_nodes(root, proc, address)
    return CardAccess(nodes, None, None) if nvidia is None else CardAccess(nodes, nvidia.uuid, nvidia.number)


def access_by(rule: PciRule, function: PciFunction) -> ContainerBy:
    """How containers get a card.

    By default never by the variable, which any pod can set by itself to get cards that were not allocated to it; but a
    DRA claim has no other way to give NVIDIA's cards.
    """
    if rule.container is not None and rule.container.by is not None:
        return rule.container.by
    if function.vendor != NVIDIA:
        return "nodes"
    return "environment" if rule.dra else "cdi"


def why_unusable(use: ContainerUse, by: ContainerBy, access: CardAccess) -> str | None:
    """Why a card with its host driver can't be given to a container, in words; None if it can."""
    if by == "nodes" and not access.nodes:
        return "its driver has no device node for containers"
    if by == "cdi" and use.cdi_names == "index" and access.number is None:
        return "NVIDIA's driver doesn't have it, so its number isn't known"
    if by != "nodes" and access.uuid is None:
        return "NVIDIA's driver doesn't say its UUID: run nvidia-smi once, or nvidia-persistenced"
    return None


def own_nodes(card: GrantedCard) -> tuple[str, ...]:
    """The card's device nodes, if this plugin passes them to the container; else an empty tuple."""
    by_us = card.by == "nodes" or (card.by == "environment" and card.use.pass_nodes)
    return card.access.nodes if by_us else ()


def container_grant(uses: Sequence[GrantedCard], *, annotate: bool) -> Grant:
    """What a container gets for cards, in the order of the request.

    Args:
        uses: each card, and how the container gets it.
        annotate: CDI names are also in an annotation.
    """
    visible = [access.uuid for _, by, access in uses if by == "environment" and access.uuid is not None]
    names = tuple(
        cdi_name(str(access.number if use.cdi_names == "index" else access.uuid), use.cdi_kind)
        for use, by, access in uses
        if by == "cdi"
    )
    nodes = [node for given in uses for node in own_nodes(given)]
    return Grant(
        {VISIBLE: ",".join(visible)} if visible else {},
        tuple(dict.fromkeys((*nodes, *(node for use, _, _ in uses for node in use.nodes)))),
        names,
        cdi_annotation(names) if names and annotate else {},
        permissions="rw",
    )


class CardUuids:
    """The UUIDs that were seen since the machine booted, by address.

    Args:
        folder: where they are kept for the next process; None: nowhere.
        boot: the ID of this boot; after a reboot the addresses may belong to other cards.
        disk: writes the file.
    """

    def __init__(self, folder: str | None, boot: str, disk: Disk | None = None) -> None:
        self._path = None if folder is None else os.path.join(folder, UUIDS_FILE)
        self._boot = boot
        self._disk = disk or Disk()
        self.problem: str | None = None
        """Why what an earlier process kept can't be read. It is learnt again when the cards have their driver."""
        self._found = self._kept()
        self._is_written = True

    def get(self, address: str) -> str | None:
        """The UUID of the card at an address; None if unknown."""
        return self._found.get(address)

    def update(self, address: str, uuid: str) -> None:
        """Remember a UUID.

        Raises:
            UnwritableFile: it can't be kept for the next process; this process remembers it.
        """
        if self._found.get(address) == uuid and self._is_written:
            return
        # The card may have moved: no other address has this UUID any more.
        self._found = {at: other for at, other in self._found.items() if other != uuid} | {address: uuid}
        if self._path is not None:
            self._is_written = False  # a disk that is full now may have room next time
            write_record(self._disk, self._path, Stored(self._boot, {"uuids": self._found}))
            self._is_written = True

    def _kept(self) -> dict[str, str]:
        if self._path is None:
            return {}
        try:
            stored = read_record(self._path)
            if stored.boot != self._boot:
                return {}
            return {str(address): str(uuid) for address, uuid in stored.content["uuids"].items()}
        except FileNotFoundError:
            return {}
        except OSError as problem:
            self.problem = f"{self._path}: {problem.strerror or problem}"
        except (ValueError, LookupError, TypeError, AttributeError) as problem:
            self.problem = f"{self._path} is not the record of the cards' UUIDs: {problem}"
        return {}
