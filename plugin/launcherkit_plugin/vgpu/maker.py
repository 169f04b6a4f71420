"""Creates and removes vGPUs in sysfs, and verifies the result: mdevs by UUID, VFs by type (G2, G4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from launcherkit.choose.nodes import check_node_set, needed_nodes
from launcherkit.choose.viability import check_viability, touched_groups
from launcherkit.errors import Collector, NoPlace
from launcherkit.host.functions import number, vgpu_of
from launcherkit.host.query import read_mdev, read_needed
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import Mdev, VgpuVf
from launcherkit_plugin.host.files import DiskFiles
from launcherkit_plugin.model.errors import NO_VGPU_ROOM, VGPU_NOT_MADE, VGPU_NOT_REMOVED, WRONG_VGPU, StepFailed

if TYPE_CHECKING:
    from launcherkit.host.tree import Tree

PATIENCE_SECONDS = 10.0
"""How many seconds it may take until a change is visible."""

_PAUSES = (0.001, 0.01, 0.05, 0.2)


class Maker:
    """Creates or removes one vGPU in each call. Calls block, are idempotent, and return whether they changed something.

    Args:
        files: of the host.
        clock: seconds, monotonic.
        sleep: sleeps for the given seconds.
        patience: how many seconds to wait for a new vGPU to appear.
        removal_patience: how many seconds to wait for one to disappear; short if the caller looks again anyway.
    """

    def __init__(
        self,
        files: DiskFiles,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        patience: float = PATIENCE_SECONDS,
        removal_patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.files = files
        self.clock = clock
        self._sleep = sleep
        self._patience = patience
        self._removal_patience = removal_patience

    # mdevs

    def make(self, parent: str, type_id: str, uuid: str) -> bool:
        """Create an mdev unless it exists, and wait for its IOMMU group and device node.

        Raises:
            WRONG_VGPU: another mdev has this UUID.
            NO_VGPU_ROOM: the parent has no room for another one of that type now.
            VGPU_NOT_MADE: the driver refuses, or the mdev doesn't appear.
        """
        made = False
        if not self._is_there(parent, type_id, uuid):
            try:
                self.files.write(f"{_type_folder(parent, type_id)}/create", f"{uuid}\n")
                made = True
            except FileExistsError:
                pass  # somebody else has just created it; it is verified below
            except OSError as problem:
                raise self._not_made(parent, type_id, uuid, problem) from problem
        if not self._seen(
            lambda tree: self._is_there(parent, type_id, uuid, tree) and _has_node(uuid, tree), self._patience
        ):
            raise VGPU_NOT_MADE(
                f"{parent}: mdev {uuid} of type {type_id} was requested, and there is none with an IOMMU group and a "
                f"device node after {self._patience:g} s",
                "See `dmesg` on the node for what the vGPU driver says; modprobe vfio_mdev, where the kernel has it.",
                device=uuid,
            )
        return made

    def remove(self, uuid: str) -> bool:
        """Remove an mdev if it exists. The caller has checked that it isn't in use.

        Raises:
            VGPU_NOT_REMOVED: the driver refuses, or the mdev doesn't disappear.
        """
        if self._is_gone(uuid):
            return False
        try:
            self.files.write(f"{_MDEVS}/{uuid}/remove", "1\n")
        except OSError as problem:
            if not self._is_gone(uuid):
                raise VGPU_NOT_REMOVED(
                    f"mdev {uuid} can't be removed: {_why(problem)}", _BUSY, device=uuid
                ) from problem
        if not self._seen(lambda tree: not tree.exists(f"{_MDEVS}/{uuid}"), self._removal_patience):
            raise VGPU_NOT_REMOVED(f"mdev {uuid} is still there after {self._removal_patience:g} s", _BUSY, device=uuid)
        return True

    def _is_there(self, parent: str, type_id: str, uuid: str, tree: Tree | None = None) -> bool:
        """Whether the mdev exists; raises WRONG_VGPU if its parent or type is another one."""
        mdev = self.mdev(uuid) if tree is None else read_mdev(tree, uuid)
        if mdev is None:
            return False
        if (mdev.parent, mdev.type_id) != (parent, type_id):
            raise WRONG_VGPU(
                f"mdev {uuid} is of type {mdev.type_id} on {mdev.parent}, not of type {type_id} on {parent}",
                f"launcherkit didn't create it. If nothing uses it, remove it on the node: "
                f"echo 1 > /{_MDEVS}/{uuid}/remove",
                device=uuid,
            )
        return True

    def mdev(self, uuid: str) -> Mdev | None:
        """The present state of an mdev; None if it doesn't exist."""
        with self.files.tree() as tree:
            return read_mdev(tree, uuid)

    def available(self, parent: str, type_id: str) -> int | None:
        """How many more mdevs of a type the parent has room for now; None if unknown."""
        with self.files.tree() as tree:
            return number(tree.read(f"{_type_folder(parent, type_id)}/available_instances"))

    def _is_gone(self, uuid: str) -> bool:
        with self.files.tree() as tree:
            return not tree.exists(f"{_MDEVS}/{uuid}")

    def _not_made(self, parent: str, type_id: str, uuid: str, problem: OSError) -> NoPlace | StepFailed:
        if self.available(parent, type_id) == 0:
            return NO_VGPU_ROOM(
                f"{parent} has no room for an mdev of type {type_id}: {_why(problem)}",
                "The card has as many vGPUs as it can, or some of another type, which must go first: "
                "`launcherkit-plugin vgpu list` shows them, and who has them.",
                device=parent,
            )
        return VGPU_NOT_MADE(
            f"{parent}: mdev {uuid} of type {type_id} can't be created: {_why(problem)}",
            "See `dmesg` on the node for what the vGPU driver says. In a container, /sys must be mounted writable.",
            device=uuid,
        )

    # VFs

    def vf(self, address: PciAddress) -> VgpuVf | None:
        """The present vGPU state of a VF; None if it has none."""
        with self.files.tree() as tree, tree.below(f"sys/bus/pci/devices/{address}") as directory:
            return vgpu_of(directory)

    def set_type(self, address: PciAddress, type_number: int) -> bool:
        """Set the type of a VF unless it has it already; 0 resets the type.

        Raises:
            WRONG_VGPU: the VF has another type, which must be reset first.
            NO_VGPU_ROOM: the card can't place another one of that type.
            VGPU_NOT_MADE, VGPU_NOT_REMOVED: the driver refuses, or the type doesn't change.
        """
        before = self.vf(address)
        if before is None:
            raise VGPU_NOT_MADE(
                f"{address} has no vGPU side: there is no nvidia/current_vgpu_type",
                "Load the vGPU driver on the node and enable SR-IOV on the card.",
                device=str(address),
            )
        if before.current_type == type_number:
            return False
        if before.current_type != 0 and type_number != 0:
            raise WRONG_VGPU(
                f"{address} has vGPU type {before.current_type}, not {type_number}",
                "It has to be given back first: `launcherkit-plugin vgpu list` shows who has it.",
                device=str(address),
            )
        try:
            self.files.write(f"sys/bus/pci/devices/{address}/nvidia/current_vgpu_type", f"{type_number}\n")
        except OSError as problem:
            raise self._not_set(address, type_number, problem) from problem
        patience = self._patience if type_number else self._removal_patience
        if not self._seen(
            lambda _: (now := self.vf(address)) is not None and now.current_type == type_number, patience
        ):
            message = (
                f"{address}: vGPU type {type_number} was written, and {patience:g} s later the VF still has another"
            )
            raise (VGPU_NOT_MADE if type_number else VGPU_NOT_REMOVED)(message, _DMESG)
        return True

    def _not_set(self, address: PciAddress, type_number: int, problem: OSError) -> NoPlace | StepFailed:
        if type_number == 0:
            return VGPU_NOT_REMOVED(
                f"{address}: its vGPU type can't be taken back: {_why(problem)}", _BUSY, device=str(address)
            )
        after = self.vf(address)
        if after is not None and type_number not in dict(after.creatable):
            offered = ", ".join(f"{key} {name}" for key, name in after.creatable) or "none"
            return NO_VGPU_ROOM(
                f"{address} can't have vGPU type {type_number}: {_why(problem)}; possible types: {offered}",
                "The card combines vGPUs only as its vGPU mode allows: free those in the way, or ask for one of the "
                "types that are left. It mixes sizes in heterogeneous mode; MIG-backed types need a GPU instance.",
                device=str(address),
            )
        return VGPU_NOT_MADE(
            f"{address}: vGPU type {type_number} can't be set: {_why(problem)}", _DMESG, device=str(address)
        )

    def nodes(self, address: PciAddress | MdevAddress, *, iommufd: bool) -> tuple[str, ...]:
        """The device nodes of a vGPU; they exist.

        Raises:
            LauncherkitError: QEMU couldn't open it (V1, V2).
        """
        with self.files.tree() as tree:
            facts = read_needed(tree, *(([address], ()) if isinstance(address, PciAddress) else ((), [address])))
        needed = needed_nodes([address], facts, iommufd=iommufd)
        errors = (*check_viability(touched_groups([address], facts), (), facts), *check_node_set(needed, facts))
        Collector(errors).raise_if_any()
        return needed.nodes

    def _seen(self, check: Callable[[Tree], object], patience: float) -> bool:
        """Repeat a check until it succeeds, for at most ``patience`` seconds; returns whether it did."""
        deadline = self.clock() + patience
        pauses = iter(_PAUSES)
        pause = 0.0
        while True:
            with self.files.tree() as tree:
                if check(tree):
                    return True
            if self.clock() >= deadline:
                return False
            pause = next(pauses, pause)
            self._sleep(pause)


_MDEVS = "sys/bus/mdev/devices"
_BUSY = "Something has it open, or the driver is stuck: see `fuser -v /dev/vfio/*` and `dmesg` on the node."
_DMESG = "See `dmesg` on the node for what the vGPU driver says."


def _type_folder(parent: str, type_id: str) -> str:
    return f"sys/class/mdev_bus/{parent}/mdev_supported_types/{type_id}"


def _has_node(uuid: str, tree: Tree) -> bool:
    """Whether the mdev has a group with a device node. In a tree without ``dev`` this is unknown and counts as yes."""
    mdev = read_mdev(tree, uuid)
    if mdev is None or mdev.iommu_group is None:
        return False
    return not tree.exists("dev") or tree.exists(f"dev/vfio/{mdev.iommu_group}")


def _why(problem: OSError) -> str:
    return problem.strerror or str(problem) or type(problem).__name__
