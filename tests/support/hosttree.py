"""Builds a fake host below a directory: ``sys/`` and ``dev/`` as the kernel lays them out, links included."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from launcherkit.model.address import PciAddress

BAR = "0x{:016x} 0x{:016x} 0x{:016x}\n".format
_NO_BAR = BAR(0, 0, 0)


class HostTree:
    """A host to be read by ``Host.from_sysfs(tree.root)``.

    >>> tree = HostTree(tmp_path)
    >>> tree.card("0000:e1:00", group=44)            # GPU and audio, bound to vfio-pci
    >>> tree.function("0000:02:00.0", class_code=0x010802, driver="nvme", group=12)
    """

    def __init__(self, root: Path, *, nodes: bool = True) -> None:
        """Without ``nodes`` there is no ``dev/``, as in a copy of sysfs alone."""
        self.root = root
        self._real = str(root.resolve())
        for path in ("sys/bus/pci/devices", "sys/bus/pci/drivers", "sys/kernel/iommu_groups", "sys/devices"):
            (root / path).mkdir(parents=True, exist_ok=True)
        if nodes:
            self.node("vfio/vfio")

    def modules_alias(self, text: str, release: str = "6.12.0-test") -> None:
        """The aliases of the running kernel's modules, and its release."""
        for path, content in (
            ("proc/sys/kernel/osrelease", release + "\n"),
            (f"lib/modules/{release}/modules.alias", text),
        ):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(content)

    def path(self, address: str) -> Path:
        """The directory of a function, by its real path below ``sys/devices``."""
        return (self.root / "sys/bus/pci/devices" / address).resolve()

    def function(
        self,
        address: str,
        *,
        vendor: int = 0x10DE,
        device: int = 0x2204,
        subsystem: tuple[int, int] = (0x1458, 0x403B),
        class_code: int = 0x030000,
        driver: str | None = None,
        module: str | None = None,
        group: int | None = None,
        numa: int = -1,
        parents: Iterable[str] | None = None,
        header_type: int | None = None,
        power_state: str | None = "D0",
        vfio_dev: str | None = None,
        files: Mapping[str, str | bytes | None] = {},
    ) -> Path:
        """Add a PCI function; ``files`` adds files, replaces the usual ones, or with None takes them away."""
        pci = PciAddress.parse(address)
        above = (
            list(parents)
            if parents is not None
            else [f"pci{pci.domain:04x}:00", f"{pci.domain:04x}:00:{pci.bus % 32:02x}.0"]
        )
        below = "/".join(["sys/devices", *above, address])
        directory = (
            f"{self._real}/{below}"  # paths are texts here: of thousands of functions, pathlib takes half the time
        )
        os.makedirs(directory)
        written = _files_of(address, vendor, device, subsystem, class_code, driver)
        written |= {"numa_node": f"{numa}\n", "power_state": f"{power_state}\n" if power_state else None}
        written["config"] = _config(vendor, device, _header_type(class_code) if header_type is None else header_type)
        for name, content in (written | dict(files)).items():
            if content is not None:
                if "/" in name:
                    os.makedirs(os.path.dirname(f"{directory}/{name}"), exist_ok=True)
                with open(f"{directory}/{name}", "wb", buffering=0) as file:  # quicker, and there are many
                    file.write(content if isinstance(content, bytes) else content.encode())
        self._link(f"sys/bus/pci/devices/{address}", below)
        if driver:
            self.driver(driver, module)
            self._link_driver(below, address, driver)
        if group is not None:
            self._join(group, address, below)
            if driver == "vfio-pci" and os.path.isdir(f"{self._real}/dev"):
                self.node(f"vfio/{group}")
        if vfio_dev:
            os.makedirs(f"{directory}/vfio-dev/{vfio_dev}")
            self.node(f"vfio/devices/{vfio_dev}")
        return self.root / below

    def _join(self, group: int, address: str, below: str) -> None:
        members = f"sys/kernel/iommu_groups/{group}/devices"
        os.makedirs(f"{self._real}/{members}", exist_ok=True)
        self._link(f"{below}/iommu_group", os.path.dirname(members))
        self._link(f"{members}/{address}", below)

    def noiommu(self, address: str, group: int) -> None:
        """Let VFIO have made the group of a function that has no IOMMU, in its no-IOMMU mode (Linux: vfio/group.c)."""
        self._join(group, address, self.path(address).relative_to(self._real).as_posix())
        (self.root / f"sys/kernel/iommu_groups/{group}/name").write_text("vfio-noiommu\n")
        self.node(f"vfio/noiommu-{group}")

    def card(self, slot: str, *, group: int, driver: str | None = "vfio-pci", numa: int = 0) -> None:
        """A graphics card: display at function 0, audio at function 1, both in one group."""
        self.function(f"{slot}.0", driver=driver, group=group, numa=numa)
        self.function(f"{slot}.1", device=0x1AEF, class_code=0x040300, driver=driver, group=group, numa=numa)

    def vf(self, physfn: str, address: str, *, vgpu: str | None = None, **function: object) -> Path:
        """Add a virtual function of a function that is there already, beside it.

        Args:
            vgpu: content of ``nvidia/current_vgpu_type``, which makes it a VF of an SR-IOV vGPU card.
        """
        parent = self.path(physfn)
        above = parent.relative_to((self.root / "sys/devices").resolve()).parts[:-1]
        files: dict[str, str | bytes | None] = {}
        if vgpu is not None:
            files["nvidia/current_vgpu_type"] = vgpu + "\n"
            files["nvidia/creatable_vgpu_types"] = "ID    : vGPU Name\n557   : NVIDIA A40-1B\n558   : NVIDIA A40-2B\n"
        directory = self.function(address, parents=above, files=files, **function)  # type: ignore[arg-type]
        count = sum(1 for _ in parent.glob("virtfn*"))
        (directory / "physfn").symlink_to(f"../{physfn}")
        (parent / f"virtfn{count}").symlink_to(f"../{address}")
        (parent / "sriov_numvfs").write_text(f"{count + 1}\n")
        (parent / "sriov_totalvfs").write_text("64\n")
        return directory

    def usb(
        self,
        name: str,
        ids: str,
        *,
        number: int,
        controller: str = "0000:00:14.0",
        speed: str = "480",
        **files: str | None,
    ) -> Path:
        """Plug in a USB device, ``1-1.3`` with ``0529:0001``; its root hub is there, too, with this speed.

        Args:
            number: its device number.
            files: of its directory, such as ``serial``.
        """
        bus, _, ports = name.partition("-")
        hub = self.root / "sys/devices/pci0000:00" / controller / f"usb{bus}"
        above = hub.joinpath(*(f"{bus}-{'.'.join(ports.split('.')[:n])}" for n in range(1, ports.count(".") + 1)))
        vendor, _, product = ids.partition(":")
        self._usb(hub, "1d6b", "0002", int(bus), 1, {"speed": speed, "bDeviceClass": "09"})
        return self._usb(above / name, vendor, product, int(bus), number, {"speed": speed, "version": " 2.00", **files})

    def _usb(
        self, directory: Path, vendor: str, product: str, bus: int, number: int, files: Mapping[str, str | None]
    ) -> Path:
        written = {"idVendor": vendor, "idProduct": product, "busnum": str(bus), "devnum": str(number)}
        minor, node = (bus - 1) * 128 + number - 1, f"bus/usb/{bus:03d}/{number:03d}"
        written |= {"authorized": "1", "bDeviceClass": "00", "dev": f"189:{minor}", "uevent": f"DEVNAME={node}"}
        directory.mkdir(parents=True, exist_ok=True)
        for file, content in {**written, **files}.items():
            if content is not None:
                (directory / file).write_text(f"{content}\n")
        devices = self.root / "sys/bus/usb/devices"
        devices.mkdir(parents=True, exist_ok=True)
        if not (devices / directory.name).is_symlink():
            self.link(f"sys/bus/usb/devices/{directory.name}", directory)
        self.node(node)
        return directory

    def unplug(self, name: str) -> None:
        """Take a USB device away."""
        directory = (self.root / "sys/bus/usb/devices" / name).resolve()
        (self.root / "dev" / (directory / "uevent").read_text().strip().partition("=")[2]).unlink()
        (self.root / "sys/bus/usb/devices" / name).unlink()
        shutil.rmtree(directory)

    def driver(self, name: str, module: str | None = None) -> None:
        """Add a driver; its module's name is its own unless told otherwise."""
        directory, target = f"sys/bus/pci/drivers/{name}", f"sys/module/{module or name.replace('-', '_')}"
        if not os.path.islink(f"{self._real}/{directory}/module"):
            os.makedirs(f"{self._real}/{directory}", exist_ok=True)
            os.makedirs(f"{self._real}/{target}", exist_ok=True)
            self._link(f"{directory}/module", target)

    def bind(self, address: str, driver: str | None) -> None:
        """Let a function have this driver, which is there, and no other: links in both directions."""
        directory = os.path.realpath(f"{self._real}/sys/bus/pci/devices/{address}")
        link = f"{directory}/driver"
        if os.path.islink(link):
            with suppress(FileNotFoundError):
                os.unlink(f"{directory}/{os.readlink(link)}/{address}")
            os.unlink(link)
        if driver is not None:
            self._link_driver(os.path.relpath(directory, self._real), address, driver)

    def _link_driver(self, below: str, address: str, driver: str) -> None:
        self._link(f"{below}/driver", f"sys/bus/pci/drivers/{driver}")
        self._link(f"sys/bus/pci/drivers/{driver}/{address}", below)

    def mdev_type(self, parent: str, type_id: str, **files: str) -> Path:
        """Let a PCI function offer a type of mdev; ``files`` are ``name``, ``device_api`` and so on."""
        directory = self.path(parent) / "mdev_supported_types" / type_id
        (directory / "devices").mkdir(parents=True)
        for name, content in files.items():
            (directory / name).write_text(content + "\n")
        entry = self.root / "sys/class/mdev_bus" / parent
        if not entry.is_symlink():
            entry.parent.mkdir(parents=True, exist_ok=True)
            self.link(str(entry.relative_to(self.root)), self.path(parent))
        return directory

    def mdev(self, parent: str, type_id: str, uuid: str, *, group: int | None = None) -> None:
        """Add a mediated device of a type that is there."""
        directory = self.path(parent) / uuid
        directory.mkdir()
        (directory / "mdev_type").symlink_to(f"../mdev_supported_types/{type_id}")
        of_type = self.path(parent) / "mdev_supported_types" / type_id / "devices"
        if of_type.is_dir():
            (of_type / uuid).symlink_to(f"../../../{uuid}")
        (self.root / "sys/bus/mdev/devices").mkdir(parents=True, exist_ok=True)
        self.link(f"sys/bus/mdev/devices/{uuid}", directory)
        if group is not None:
            members = self.root / f"sys/kernel/iommu_groups/{group}/devices"
            members.mkdir(parents=True)
            self.link(str((directory / "iommu_group").relative_to(self.root)), members.parent)
            self.link(str((members / uuid).relative_to(self.root)), directory)
            self.node(f"vfio/{group}")

    def node(self, name: str) -> None:
        """Add a device node, as a plain file: ``vfio/44``, ``iommu``."""
        path = f"{self._real}/dev/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab"):
            pass

    def link(self, path: str, target: Path) -> None:
        """A link at ``path`` below the root, relative as the kernel's are; on the way to either there is none."""
        real = self._real if target.is_relative_to(self._real) else self.root
        self._link(path, target.relative_to(real).as_posix())

    def _link(self, path: str, target: str) -> None:
        """The same with both below the root."""
        at, to = path.split("/")[:-1], target.split("/")
        same = next(
            (i for i, pair in enumerate(zip(at, to, strict=False)) if pair[0] != pair[1]), min(len(at), len(to))
        )
        os.symlink("/".join([*[".."] * (len(at) - same), *to[same:]]), f"{self._real}/{path}")


def _header_type(class_code: int) -> int:
    return 0x01 if class_code >> 8 == 0x0604 else 0x80


def _config(vendor: int, device: int, header_type: int) -> bytes:
    """Config space, as far as anybody reads it."""
    config = bytearray(64)
    config[0:4] = vendor.to_bytes(2, "little") + device.to_bytes(2, "little")
    config[14] = header_type
    return bytes(config)


def _files_of(
    address: str, vendor: int, device: int, subsystem: tuple[int, int], class_code: int, driver: str | None
) -> dict[str, str | bytes | None]:
    """What the kernel writes of any function."""
    uevent = f"DRIVER={driver}\n" if driver else ""
    uevent += f"PCI_CLASS={class_code:X}\nPCI_ID={vendor:04X}:{device:04X}\n"
    uevent += f"PCI_SUBSYS_ID={subsystem[0]:04X}:{subsystem[1]:04X}\nPCI_SLOT_NAME={address}\n"
    uevent += f"MODALIAS=pci:v0000{vendor:04X}d0000{device:04X}\n"
    return {
        "uevent": uevent,
        "vendor": f"0x{vendor:04x}\n",
        "device": f"0x{device:04x}\n",
        "subsystem_vendor": f"0x{subsystem[0]:04x}\n",
        "subsystem_device": f"0x{subsystem[1]:04x}\n",
        "class": f"0x{class_code:06x}\n",
        "revision": "0xa1\n",
        "driver_override": "(null)\n",
        "resource": BAR(0xF0000000, 0xF0FFFFFF, 0x40200) + _NO_BAR * 12,
    }
