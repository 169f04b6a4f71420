"""What can be wrong with the partitions of a board, as errors."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit_plugin.fabric.partitions import Board, Partition
from launcherkit_plugin.model.errors import (
    FABRIC_MISFIT,
    NO_PARTITION,
    PARTITION_LOST,
    PARTITION_NOT_CHANGED,
    PARTITION_OF_OTHERS,
)


def misfit(board: Board, switches: Sequence[PciAddress]) -> LauncherkitError | None:
    """Why partitions of this board can't be given to pods; None if they can.

    Args:
        board: as it was read.
        switches: the NVSwitches that are bound to VFIO.
    """
    if switches:
        return FABRIC_MISFIT(
            f"NVSwitches are bound to VFIO for a VM that has the whole board: {names(switches)}",
            "Fabric Manager of the host needs them with NVIDIA's driver. For full passthrough, where one VM has all "
            "cards and switches and runs Fabric Manager itself, leave out `fabric`.",
            key="fabric",
        )
    if not board.partitions:
        return FABRIC_MISFIT(
            "Fabric Manager lists no partition",
            "Run it with FABRIC_MODE=1, or FABRIC_MODE=2 for vGPUs, on a board with NVSwitches, and see "
            "/var/log/fabricmanager.log on the node. On a node without such a board leave out `fabric`.",
            key="fabric",
        )
    if board.unmatched:
        return FABRIC_MISFIT(
            f"fabric.modules: the cards with these module IDs are unknown: {', '.join(map(str, board.unmatched))}",
            "Fabric Manager doesn't report their addresses. `nvidia-smi -q` shows the module ID of each card while it "
            'has the driver of the host; write them down: `modules: {"1": "0000:1b:00.0"}`.',
            key="fabric.modules",
        )
    return None


def no_partition(resource: str, cards: Collection[PciAddress], board: Board) -> LauncherkitError:
    """Some cards that a container asks for are no partition."""
    sizes = ", ".join(map(str, sorted({len(partition.gpus) for partition in board.partitions}))) or "none"
    return NO_PARTITION(
        f"{resource}: no fabric partition has exactly {names(cards)}; there are partitions of these sizes: {sizes}",
        "A pod that fails so is created again, and may get other cards. Ask for one device of the resource whose name "
        "ends with the number of cards, such as -x2: the scheduler counts these.",
        resource=resource,
        device=names(cards),
    )


def of_others(partitions: Sequence[Partition]) -> LauncherkitError:
    """Partitions are active that this plugin hasn't activated."""
    numbers = ", ".join(str(partition.number) for partition in partitions)
    cards = names(frozenset[PciAddress]().union(*(partition.cards for partition in partitions)))
    return PARTITION_OF_OTHERS(
        f"active, and not activated by this plugin: fabric partition {numbers}, with {cards}",
        "It is left alone, and no pod gets its cards. If nobody needs it: `fmpm -d ID` of NVIDIA's "
        "Fabric-Manager-Client.",
        device=cards,
    )


def lost(cards: Collection[PciAddress]) -> LauncherkitError:
    """Pods have cards that are in no active partition."""
    return PARTITION_LOST(
        f"in no active fabric partition, though a pod has them: {names(cards)}",
        "Fabric Manager was started again, or something else has deactivated the partition. NVLink between the cards "
        "of that VM doesn't work: shut the VM down and start it again.",
        device=names(cards),
    )


def not_changed(partition: Partition, action: str) -> LauncherkitError:
    """Fabric Manager said that it has changed a partition, and its state is another."""
    return PARTITION_NOT_CHANGED(
        f"fabric partition {partition.number} was to be {action}, Fabric Manager said that it is, and it isn't",
        "See /var/log/fabricmanager.log on the node.",
        device=names(partition.cards),
    )


def names(cards: Collection[PciAddress]) -> str:
    """Addresses in order, with commas."""
    return ", ".join(map(str, sorted(cards)))
