"""Makes and removes vGPUs in sysfs, and verifies it: mdevs by their UUID, VFs by their type (G2, G4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from launcherkit.errors import Collector
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.function import VgpuVf
from launcherkit.model.host import Mdev
from launcherkit.resolve.viability import check_nodes, check_viability, needed_nodes, touched_groups
from launcherkit.sources.detail import vgpu_of
from launcherkit.sources.identity import number
from launcherkit.sources.mdev import read_mdev
from launcherkit.sources.needed import read_needed
from launcherkit_plugin.host.files import KernelFiles
from launcherkit_plugin.model.errors import NoVgpuRoom, VgpuNotMade, VgpuNotRemoved, WrongVgpu

if TYPE_CHECKING:
    from launcherkit.sources.tree import Tree

PATIENCE_SECONDS = 10.0
"""How long a change may take to be visible."""

_PAUSES = (0.001, 0.01, 0.05, 0.2)


class Maker:
    """Makes and removes, one thing a call. Calls block; each is safe to repeat at any time, and says whether it did it.

    Args:
        files: of the host.
        clock: seconds, monotonic.
        sleep: waits so many seconds.
        patience: seconds for a new vGPU to be visible.
        removal_patience: the same for one that is removed; short where the caller looks again anyway.
    """

    def __init__(
        self,
        files: KernelFiles,
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
        """See that an mdev is there, with its IOMMU group and device node; one that is there already is fine.

        Raises:
            WrongVgpu: the UUID is taken by something else.
            NoVgpuRoom: the parent can't have another one of that type now.
            VgpuNotMade: the driver refuses, or doesn't do it.
        """
        made = False
        if not self._is_there(parent, type_id, uuid):
            try:
                self.files.write(f"{_type_folder(parent, type_id)}/create", f"{uuid}\n")
                made = True
            except FileExistsError:
                pass  # somebody was quicker; it is looked at below
            except OSError as problem:
                raise self._not_made(parent, type_id, uuid, problem) from problem
        if not self._seen(
            lambda tree: self._is_there(parent, type_id, uuid, tree) and _has_node(uuid, tree), self._patience
        ):
            raise VgpuNotMade(
                f"{parent}: mdev {uuid} of type {type_id} was requested, and there is none with an IOMMU group and a "
                f"device node after {self._patience:g} s",
                "See `dmesg` on the node for what the vGPU driver says; modprobe vfio_mdev, where the kernel has it.",
                device=uuid,
            )
        return made

    def remove(self, uuid: str) -> bool:
        """See that an mdev isn't there any more. Who calls has seen that nobody uses it.

        Raises:
            VgpuNotRemoved: the driver refuses, or doesn't do it.
        """
        if self._is_gone(uuid):
            return False
        try:
            self.files.write(f"{_MDEVS}/{uuid}/remove", "1\n")
        except OSError as problem:
            if not self._is_gone(uuid):
                raise VgpuNotRemoved(f"mdev {uuid} can't be removed: {_why(problem)}", _BUSY, device=uuid) from problem
        if not self._seen(lambda tree: not tree.exists(f"{_MDEVS}/{uuid}"), self._removal_patience):
            raise VgpuNotRemoved(f"mdev {uuid} is still there after {self._removal_patience:g} s", _BUSY, device=uuid)
        return True

    def _is_there(self, parent: str, type_id: str, uuid: str, tree: Tree | None = None) -> bool:
        """Whether the mdev is there, and the one that is meant."""
        mdev = self.mdev(uuid) if tree is None else read_mdev(tree, uuid)
        if mdev is None:
            return False
        if (mdev.parent, mdev.type_id) != (parent, type_id):
            raise WrongVgpu(
                f"mdev {uuid} is of type {mdev.type_id} on {mdev.parent}, not of type {type_id} on {parent}",
                f"launcherkit didn't create it. If nothing uses it, remove it on the node: "
                f"echo 1 > /{_MDEVS}/{uuid}/remove",
                device=uuid,
            )
        return True

    def mdev(self, uuid: str) -> Mdev | None:
        """An mdev, as it is at this moment."""
        with self.files.tree() as tree:
            return read_mdev(tree, uuid)

    def available(self, parent: str, type_id: str) -> int | None:
        """How many more of a type the parent would make at this moment."""
        with self.files.tree() as tree:
            return number(tree.read(f"{_type_folder(parent, type_id)}/available_instances"))

    def _is_gone(self, uuid: str) -> bool:
        with self.files.tree() as tree:
            return not tree.exists(f"{_MDEVS}/{uuid}")

    def _not_made(self, parent: str, type_id: str, uuid: str, problem: OSError) -> NoVgpuRoom | VgpuNotMade:
        if self.available(parent, type_id) == 0:
            return NoVgpuRoom(
                f"{parent} has no room for an mdev of type {type_id}: {_why(problem)}",
                "The card has as many vGPUs as it can, or some of another type, which must go first: "
                "`launcherkit-plugin vgpu list` shows them, and who has them.",
                device=parent,
            )
        return VgpuNotMade(
            f"{parent}: mdev {uuid} of type {type_id} can't be created: {_why(problem)}",
            "See `dmesg` on the node for what the vGPU driver says. In a container, /sys must be mounted writable.",
            device=uuid,
        )

    # VFs

    def vf(self, address: PciAddress) -> VgpuVf | None:
        """The vGPU side of a VF, as it is at this moment; None where it has none."""
        with self.files.tree() as tree, tree.below(f"sys/bus/pci/devices/{address}") as directory:
            return vgpu_of(directory)

    def set_type(self, address: PciAddress, type_number: int) -> bool:
        """See that a VF has a type; one that has it already is fine. 0 takes its type away.

        Raises:
            WrongVgpu: the VF has another type, and 0 has to come first.
            NoVgpuRoom: the card can't place another one of that type.
            VgpuNotMade, VgpuNotRemoved: the driver refuses, or doesn't do it.
        """
        before = self.vf(address)
        if before is None:
            raise VgpuNotMade(
                f"{address} has no vGPU side: there is no nvidia/current_vgpu_type",
                "Load the vGPU driver on the node and enable SR-IOV on the card.",
                device=str(address),
            )
        if before.current_type == type_number:
            return False
        if before.current_type != 0 and type_number != 0:
            raise WrongVgpu(
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
            raise (VgpuNotMade if type_number else VgpuNotRemoved)(message, _DMESG)
        return True

    def _not_set(
        self, address: PciAddress, type_number: int, problem: OSError
    ) -> NoVgpuRoom | VgpuNotMade | VgpuNotRemoved:
        if type_number == 0:
            return VgpuNotRemoved(
                f"{address}: its vGPU type can't be taken back: {_why(problem)}", _BUSY, device=str(address)
            )
        after = self.vf(address)
        if after is not None and type_number not in dict(after.creatable):
            offered = ", ".join(f"{key} {name}" for key, name in after.creatable) or "none"
            return NoVgpuRoom(
                f"{address} can't have vGPU type {type_number}: {_why(problem)}; possible types: {offered}",
                "The card combines vGPUs only as its vGPU mode allows: free those in the way, "
                "or ask for one of the types that are left.",
                device=str(address),
            )
        return VgpuNotMade(
            f"{address}: vGPU type {type_number} can't be set: {_why(problem)}", _DMESG, device=str(address)
        )

    def nodes(self, address: PciAddress | MdevAddress, *, iommufd: bool) -> tuple[str, ...]:
        """The device nodes of a vGPU, which are there.

        Raises:
            LauncherkitError: QEMU couldn't have it (V1, V2).
        """
        with self.files.tree() as tree:
            facts = read_needed(tree, *(([address], ()) if isinstance(address, PciAddress) else ((), [address])))
        nodes = needed_nodes([address], facts, iommufd=iommufd).nodes
        errors = (*check_viability(touched_groups([address], facts), (), facts), *check_nodes(nodes, facts))
        Collector(errors).raise_if_any()
        return nodes

    def _seen(self, check: Callable[[Tree], object], patience: float) -> bool:
        """Look until it is so, for so many seconds."""
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
    """Whether QEMU could open it; in a tree without ``dev/`` that is unknown, and counts as yes."""
    mdev = read_mdev(tree, uuid)
    if mdev is None or mdev.iommu_group is None:
        return False
    return not tree.exists("dev") or tree.exists(f"dev/vfio/{mdev.iommu_group}")


def _why(problem: OSError) -> str:
    return problem.strerror or str(problem) or type(problem).__name__
