"""A kernel with vGPU drivers, in memory: sysfs to read, and writes that do, and refuse, what drivers do and refuse.

mdevs as the mdev core and NVIDIA's driver have them; VFs as NVIDIA's vendor-specific VFIO framework has them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from launcherkit.host.facts import scan_all
from launcherkit.host.tree import PAGE
from launcherkit.host.umockdev import Directory, MemoryTree
from launcherkit.model.host import HostFacts
from launcherkit_plugin.host.files import DiskFiles

if TYPE_CHECKING:
    from launcherkit.host.tree import Tree


class Kind(NamedTuple):
    """A type of vGPU."""

    id: str
    name: str
    mib: int


T4_1Q = Kind("nvidia-222", "GRID T4-1Q", 1024)
T4_2Q = Kind("nvidia-223", "GRID T4-2Q", 2048)
A2_4Q = Kind("nvidia-742", "NVIDIA A2-4Q", 4096)
A2_8Q = Kind("nvidia-743", "NVIDIA A2-8Q", 8192)


class Gpu:
    """The memory of a card, and what has been given of it."""

    def __init__(self, address: str, kinds: Iterable[Kind], mib: int, *, mixed: bool, describe: bool) -> None:
        self.address = address
        self.kinds = {kind.id: kind for kind in kinds}
        self.mib = mib
        self.mixed = mixed
        self.describe = describe
        self.given: dict[str, Kind] = {}
        """By UUID, or BDF of a VF."""
        self.instances: int | None = None
        """With MIG: how many GPU instances there are, each for one vGPU."""
        self.places: dict[str, int] = {}
        """Where the vGPUs of VFs are."""

    def room(self, kind: Kind) -> int:
        given = list(self.given.values())  # a copy: cards are changed beside each other, by threads
        if self.instances is not None and len(given) >= self.instances:
            return 0
        if not self.mixed and any(other != kind for other in given):
            return 0
        return (self.mib - sum(other.mib for other in given)) // kind.mib


class _Read(MemoryTree):
    """A tree that tells what is read of it."""

    __slots__ = ("_reads",)

    def __init__(self, root: Directory, base: tuple[str, ...] = (), *, reads: Callable[[str], None]) -> None:
        super().__init__(root, base)
        self._reads = reads

    def read(self, path: str, limit: int = PAGE, offset: int = 0) -> bytes | None:
        self._reads("/".join((*self._base, path)))
        return super().read(path, limit, offset)

    def below(self, path: str) -> MemoryTree:
        return _Read(self._root, (*self._base, *path.split("/")), reads=self._reads)


class Kernel(DiskFiles):
    """The files of a host in memory, which change as a vGPU driver changes them."""

    def __init__(self) -> None:
        super().__init__("/nonexistent")
        self._top: Directory = {}
        self.gpus: dict[str, Gpu] = {}
        """By the name of what is written to: a parent, or a VF."""
        self._made: dict[str, tuple[str, str]] = {}
        """Parent and type by UUID."""
        self._groups: dict[str, int] = {}
        self.open: set[str] = set()
        """Nodes that a process has open."""
        self.taken: list[str] = []
        """What was removed, or lost its type, by a write."""
        self.touched: Callable[[str], None] = lambda _: None
        """Called before each write and after it, with its path; may raise."""
        self.ignores: Callable[[str], bool] = lambda _: False
        """Whether a write to a path is accepted, and nothing comes of it."""
        self.reads: Callable[[str], None] = lambda _: None
        """Called with the path of each file that is read; may block."""
        self.read: Callable[[], None] = lambda: None
        """Called whenever something is going to be read; may raise."""
        for path in ("sys/bus/pci/devices", "sys/bus/mdev/devices", "sys/class/mdev_bus", "dev/vfio"):
            self._folder(path)
        self._put("dev/vfio/vfio", b"")

    # What there is

    def card(
        self,
        address: str,
        kinds: Iterable[Kind] = (T4_1Q, T4_2Q),
        *,
        mib: int = 4096,
        mixed: bool = False,
        describe: bool = False,
        numa: int = 0,
    ) -> Gpu:
        """A card that mdevs are made on; ``describe``: the driver says how many there can be at most."""
        gpu = Gpu(address, kinds, mib, mixed=mixed, describe=describe)
        self._function(address, "nvidia", numa)
        self._parent(address, gpu)
        return gpu

    def card_of_mdev_vfs(self, address: str, vfs: int, kinds: Iterable[Kind], *, mib: int) -> Gpu:
        """A card each VF of which takes one mdev."""
        gpu = Gpu(address, kinds, mib, mixed=False, describe=True)
        self._function(address, "nvidia", 0)
        for vf in self._vfs(address, vfs):
            self._parent(vf, gpu)
        return gpu

    def card_of_vfs(self, address: str, vfs: int, kinds: Iterable[Kind], *, mib: int, mixed: bool = False) -> Gpu:
        """A card whose VFs become vGPUs by a type that is written to them (G4)."""
        gpu = Gpu(address, kinds, mib, mixed=mixed, describe=False)
        self._function(address, "nvidia", 0)
        for group, vf in enumerate(self._vfs(address, vfs), 100 + len(self._groups)):
            self.gpus[vf] = gpu
            self._put(f"sys/bus/pci/devices/{vf}/iommu_group", f"../../../../kernel/iommu_groups/{group}")
            self._put(f"sys/kernel/iommu_groups/{group}/devices/{vf}", f"../../../../bus/pci/devices/{vf}")
            self._put(f"dev/vfio/{group}", b"")
            self._groups[vf] = group
        self._count()
        return gpu

    def _vfs(self, address: str, number: int) -> list[str]:
        found = [f"{address[:-4]}{index // 8 + 1:02x}.{index % 8}" for index in range(number)]
        for index, vf in enumerate(found):
            self._function(vf, "nvidia", 0)
            self._put(f"sys/bus/pci/devices/{vf}/physfn", f"../{address}")
            self._put(f"sys/bus/pci/devices/{address}/virtfn{index}", f"../{vf}")
        self._put(f"sys/bus/pci/devices/{address}/sriov_numvfs", str(number).encode())
        return found

    def _function(self, address: str, driver: str, numa: int) -> None:
        uevent = (
            f"DRIVER={driver}\nPCI_CLASS=30200\nPCI_ID=10DE:1EB8\nPCI_SUBSYS_ID=10DE:12A2\nPCI_SLOT_NAME={address}\n"
        )
        self._put(f"sys/bus/pci/devices/{address}/uevent", uevent.encode())
        self._put(f"sys/bus/pci/devices/{address}/numa_node", str(numa).encode())

    def _parent(self, name: str, gpu: Gpu) -> None:
        self.gpus[name] = gpu
        self._put(f"sys/class/mdev_bus/{name}", f"../../bus/pci/devices/{name}")
        for kind in gpu.kinds.values():
            folder = f"sys/bus/pci/devices/{name}/mdev_supported_types/{kind.id}"
            self._put(f"{folder}/name", kind.name.encode())
            self._put(f"{folder}/device_api", b"vfio-pci")
            self._put(f"{folder}/create", b"")
            if gpu.describe:
                text = f"num_heads=4, framebuffer={kind.mib}M, max_instance={gpu.mib // kind.mib}"
                self._put(f"{folder}/description", text.encode())
        self._count()

    def _count(self) -> None:
        """Every type's count of what could be made, every VF's table."""
        for name, gpu in self.gpus.items():
            taken = any(parent == name for parent, _ in [*self._made.values()])  # other threads make vGPUs too
            for kind in gpu.kinds.values():
                room = gpu.room(kind)
                if name in self._groups:
                    continue
                if name != gpu.address:
                    room = min(room, 0 if taken else 1)
                path = f"sys/bus/pci/devices/{name}/mdev_supported_types/{kind.id}/available_instances"
                self._put(path, f"{room}\n".encode())
            if name in self._groups:
                current = gpu.given.get(name)
                number = _number(current) if current else 0
                rows = [kind for kind in gpu.kinds.values() if current is None and gpu.room(kind)]
                table = "ID    : vGPU Name\n" + "".join(f"{_number(kind):<6}: {kind.name}\n" for kind in rows)
                self._put(f"sys/bus/pci/devices/{name}/nvidia/current_vgpu_type", f"{number}\n".encode())
                self._put(f"sys/bus/pci/devices/{name}/nvidia/creatable_vgpu_types", table.encode())
                self._place(name, gpu, kind=current)

    def _place(self, vf: str, gpu: Gpu, kind: Kind | None) -> None:
        """What the driver says of a vGPU's place; without a vGPU reading it is an error, as if it weren't there."""
        if kind is None:
            gpu.places.pop(vf, None)
        index = gpu.places.setdefault(vf, min({*range(64)} - {*gpu.places.values()})) if kind else None
        values = {"placement_id": index, "gpu_instance_id": 0xFFFFFFFF if gpu.instances is None else index}
        folder = self._folder(f"sys/bus/pci/devices/{vf}/nvidia")
        for name, value in values.items():
            folder.pop(name, None)
            if kind is not None:
                folder[name] = f"{value}\n".encode()

    # What can be done

    def recount(self) -> None:
        """The room of cards has changed by something else than a write."""
        self._count()

    def facts(self) -> HostFacts:
        return scan_all(self.tree())

    def tree(self) -> Tree:
        self.read()
        return _Read(self._top, reads=self.reads)

    def write(self, path: str, text: str) -> None:
        self.touched(path)
        if self.ignores(path):
            return
        parts = path.split("/")
        if parts[-1] == "create" and parts[3] in self.gpus and parts[5] in self.gpus[parts[3]].kinds:
            self.make(parts[3], parts[5], text.removesuffix("\n"))
        elif parts[-1] == "remove" and parts[:3] == ["sys", "bus", "mdev"] and parts[4] in self._made:
            self._refuse_open(self._groups[parts[4]])
            self.taken.append(parts[4])
            self.unmake(parts[4])
        elif parts[-1] == "current_vgpu_type" and parts[4] in self._groups:
            self._set_type(parts[4], int(text))
        else:
            raise _refused(errno.ENOENT)
        self.touched(path)

    def make(self, parent: str, type_id: str, uuid: str) -> None:
        """What a write to ``create`` does, by whomever."""
        try:
            known = str(UUID(uuid))
        except ValueError:
            raise _refused(errno.EINVAL) from None
        gpu = self.gpus[parent]
        kind = gpu.kinds[type_id]
        if known in self._made:
            raise _refused(errno.EEXIST)
        one_each = parent != gpu.address and any(other == parent for other, _ in [*self._made.values()])
        if one_each or not gpu.room(kind):
            raise _refused(errno.ENOSPC)
        group = next(number for number in range(20, 2000) if number not in self._groups.values())
        self._made[known] = parent, type_id
        self._groups[known] = group
        gpu.given[known] = kind
        folder = f"sys/bus/pci/devices/{parent}/{known}"
        self._put(f"{folder}/mdev_type", f"../mdev_supported_types/{type_id}")
        self._put(f"{folder}/iommu_group", f"../../../../../kernel/iommu_groups/{group}")
        self._put(f"{folder}/remove", b"")
        self._put(f"sys/bus/mdev/devices/{known}", f"../../../bus/pci/devices/{parent}/{known}")
        self._put(f"dev/vfio/{group}", b"")
        self._count()

    def unmake(self, uuid: str) -> None:
        """An mdev goes, by whatever."""
        parent, _ = self._made.pop(uuid)
        self.drop(f"sys/bus/mdev/devices/{uuid}")
        self.drop(f"sys/bus/pci/devices/{parent}/{uuid}")
        self.drop(f"dev/vfio/{self._groups.pop(uuid)}")
        del self.gpus[parent].given[uuid]
        self._count()

    def reboot(self) -> None:
        """Nothing that was made survives."""
        self.open.clear()
        for uuid in list(self._made):
            self.unmake(uuid)
        for name, gpu in self.gpus.items():
            gpu.given.pop(name, None)
        self._count()

    def _set_type(self, vf: str, number: int) -> None:
        gpu = self.gpus[vf]
        self._refuse_open(self._groups[vf])
        if number == 0:
            self.taken.append(vf)
            gpu.given.pop(vf, None)
        else:
            kind = next((kind for kind in gpu.kinds.values() if _number(kind) == number), None)
            if kind is None or vf in gpu.given:
                raise _refused(errno.EINVAL)
            if not gpu.room(kind):
                raise _refused(errno.ENOSPC)
            gpu.given[vf] = kind
        self._count()

    def _refuse_open(self, group: int) -> None:
        if f"/dev/vfio/{group}" in self.open:
            raise _refused(errno.EBUSY)

    def is_open(self, nodes: Iterable[str]) -> bool:
        return not self.open.isdisjoint(nodes)

    def node(self, device: str) -> str:
        return f"/dev/vfio/{self._groups[device]}"

    @property
    def mdevs(self) -> dict[str, tuple[str, str]]:
        return dict(self._made)

    def _folder(self, path: str) -> Directory:
        at = self._top
        for part in path.split("/"):
            below = at.setdefault(part, {})
            assert isinstance(below, dict)
            at = below
        return at

    def _put(self, path: str, content: bytes | str) -> None:
        folder, _, name = path.rpartition("/")
        self._folder(folder)[name] = content

    def drop(self, path: str) -> None:
        """A file or folder is gone, without a write."""
        folder, _, name = path.rpartition("/")
        del self._folder(folder)[name]


def _number(kind: Kind) -> int:
    return int(kind.id.removeprefix("nvidia-"))


def _refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))
