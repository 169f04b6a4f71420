"""What containers get of a card with its host driver: device nodes, or its UUID or index for NVIDIA's runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit_plugin.devices.cdi import cdi_annotation, cdi_name
from launcherkit_plugin.host.driver_nodes import NVIDIA, card_nodes, nvidia_card
from launcherkit_plugin.model.config import ContainerBy, ContainerUse, PciRule
from launcherkit_plugin.model.device import Grant

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""The variable that NVIDIA's container runtime reads."""

NONE_VISIBLE = {VISIBLE: "void"}
"""For containers that must get nothing from that runtime, whatever their image says."""


class CardAccess(NamedTuple):
    """What the driver of a card offers to containers."""

    nodes: tuple[str, ...]
    uuid: str | None
    number: int | None
    """NVIDIA's index."""


class GivenCard(NamedTuple):
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


def given_by(rule: PciRule, function: PciFunction) -> ContainerBy:
    """How containers get a card.

    By default never by the variable, which any pod can set by itself to get cards that were not allocated to it; but a
    DRA claim has no other way to give NVIDIA's cards.
    """
    if rule.container.by is not None:
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


def own_nodes(given: GivenCard) -> tuple[str, ...]:
    """The card's device nodes, if this plugin passes them to the container; else an empty tuple."""
    by_us = given.by == "nodes" or (given.by == "environment" and given.use.pass_nodes)
    return given.access.nodes if by_us else ()


def container_grant(uses: Sequence[GivenCard], *, annotate: bool) -> Grant:
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
