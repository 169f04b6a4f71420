"""A kernel that does with a `HostTree` what Linux does when files of ``/sys/bus/pci`` are written to."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from launcherkit.model.address import PciAddress
from launcherkit_plugin.binding.in_use import Holders
from launcherkit_plugin.host.drivers import Late
from tests.support.hosttree import HostTree

VFIO = "vfio-pci"


class Sriov(NamedTuple):
    """What a physical function can make (Linux: drivers/pci/iov.c)."""

    total: int
    model: tuple[int, int]
    """Vendor and device ID of its virtual functions."""
    group: int
    """The IOMMU group of the first one; the others have the next ones."""
    class_code: int = 0x020000


def is_vfio(driver: str | None) -> bool:
    """Whether a driver is vfio-pci or a variant."""
    return driver is not None and driver.endswith(("vfio-pci", "vfio_pci"))


class Killed(BaseException):
    """SIGKILL: nothing of the process runs after it."""


class AskedHolders(Holders):
    """Asks a test whether functions are free; by default they are."""

    def __init__(self, ask: Callable[[], object] = lambda: None) -> None:
        self._ask = ask

    def check(self, addresses: Sequence[PciAddress], *, giving_back: bool) -> None:
        self._ask()


class FakeKernel:
    """The drivers of a host, and the `launcherkit_plugin.host.drivers.Worker` by which a process reaches them.

    Args:
        tree: is changed as sysfs and ``/dev/vfio`` would be.
        drivers: those that are loaded, in this order, each with the ``(vendor, device)`` that it knows.
    """

    def __init__(self, tree: HostTree, drivers: Mapping[str, Collection[tuple[int, int]]]) -> None:
        self.tree = tree
        self._devices = f"{tree.root}/sys/bus/pci/devices"  # paths are texts here: with pathlib it takes twice as long
        self.drivers: dict[str, Collection[tuple[int, int]]] = {**drivers, VFIO: ()}
        for name in self.drivers:
            tree.driver(name)
        (tree.root / "sys/bus/pci/drivers_probe").touch()
        self.moments = 0
        """Two for each file that was read or written: before and after."""
        self.die_at: int | None = None
        """The moment at which the process is killed."""
        self.busy: set[str] = set()
        """Functions whose driver doesn't let go of them: who unbinds one waits, and holds the device's lock."""
        self.clinging: set[str] = set()
        """Functions that their driver has again as soon as they are unbound."""
        self.locked: set[str] = set()
        self.probe_fails: set[tuple[str, str]] = set()
        """Driver and function."""
        self.refuses: dict[tuple[str, str], int] = {}
        """File name and function, with the error that writing gives."""
        self.open_groups: set[int] = set()
        self.resets: list[str] = []
        """Functions that were reset, in order."""
        self.sriov: dict[str, Sriov] = {}
        """Physical functions."""
        self.without_sriov: set[str] = set()
        """Drivers that know nothing of it."""
        self.enables: int | None = None
        """How many virtual functions a driver makes at most, whatever it is asked for."""

    def load(self, name: str) -> None:
        """A driver that takes functions only by ``driver_override`` is loaded, as a variant of vfio-pci."""
        self.drivers[name] = ()
        self.tree.driver(name)

    # What a process sees

    def read(self, path: str, seconds: float = 1) -> bytes:
        """Read a file."""
        with self._step():
            self._wait_for_lock(os.path.basename(os.path.dirname(path)))
            with open(path, "rb") as file:
                return file.read()

    def write(self, path: str, text: str, seconds: float = 1) -> None:
        """Write to a file."""
        with self._step():
            directory, name = os.path.split(path)
            if not os.path.isdir(directory):
                raise _error(errno.ENOENT)
            address = os.path.basename(directory) if name in _OF_FUNCTION else text
            if (name, address) in self.refuses:
                raise _error(self.refuses[name, address])
            if name == "driver_override":
                self._wait_for_lock(address)
                value = text.partition("\n")[0]
                _write(path, (value or "(null)") + "\n")
            elif name in ("d3cold_allowed", "control"):
                _write(path, text + "\n")
            elif name == "reset":
                self._wait_for_lock(address)
                self.resets.append(address)
            elif name == "sriov_drivers_autoprobe":
                _write(path, f"{int(text)}\n")
            elif name == "sriov_numvfs":
                self._wait_for_lock(address)
                self._set_numvfs(address, int(text))
            elif name == "drivers_probe":
                self._probe(text)
            elif name == "unbind":
                self._unbind(text, os.path.basename(directory))
            elif name == "bind":
                self._bind(text, os.path.basename(directory))
            else:
                raise _error(errno.EACCES)

    @contextmanager
    def _step(self) -> Iterator[None]:
        self.moment()
        try:
            yield
        finally:
            self.moment()

    def moment(self) -> None:
        """The process may be killed now; whatever it does after that, it does not do."""
        self.moments += 1
        if self.die_at is not None and self.moments >= self.die_at:
            raise Killed

    def new_process(self, die_at: int | None = None) -> None:
        """Another one starts."""
        self.moments = 0
        self.die_at = die_at

    def close(self) -> None:
        """A hand is closed."""

    def hand(self, keep: Sequence[int]) -> FakeKernel:
        """A new hand."""
        return self

    def can_make(self, physfn: str, sriov: Sriov) -> None:
        """A function has SR-IOV."""
        self.sriov[physfn] = sriov
        files = {"sriov_numvfs": 0, "sriov_totalvfs": sriov.total, "sriov_drivers_autoprobe": 1}
        for name, value in files.items():
            if not os.path.exists(f"{self._device(physfn)}/{name}"):
                _write(f"{self._device(physfn)}/{name}", f"{value}\n")

    def vfs(self, physfn: str) -> list[str]:
        """The virtual functions of a function, in order."""
        device = self._device(physfn)
        number = int(_read(f"{device}/sriov_numvfs"))
        return [os.path.basename(os.readlink(f"{device}/virtfn{at}")) for at in range(number)]

    def _set_numvfs(self, physfn: str, number: int) -> None:
        sriov, there = self.sriov[physfn], self.vfs(physfn)
        if number > sriov.total:
            raise _error(errno.ERANGE)
        if number == len(there):
            return
        if self.driver(physfn) in (None, *self.without_sriov):
            raise _error(errno.ENOENT)
        if number and there:
            raise _error(errno.EBUSY)
        for vf in there:
            if vf in self.busy or (self.driver(vf) == VFIO and self._group(vf) in self.open_groups):
                self.locked.add(physfn)  # vfio-pci waits until the VM has closed it
                self._wait_for_lock(physfn)
        for at, vf in enumerate(there):
            self.set_driver(vf, None)
            directory = self.tree.path(vf)
            self.unplug(vf)
            shutil.rmtree(directory)
            os.unlink(f"{self._device(physfn)}/virtfn{at}")
        number = number if self.enables is None else min(number, self.enables)
        base = PciAddress.parse(physfn)
        for at in range(number):
            vf = f"{base.domain:04x}:{base.bus:02x}:{0x10 + at // 8:02x}.{at % 8}"
            vendor, device = sriov.model
            group = sriov.group + at
            self.tree.vf(physfn, vf, group=group, vendor=vendor, device=device, class_code=sriov.class_code)
        for name, value in (("sriov_numvfs", number), ("sriov_totalvfs", sriov.total)):
            _write(f"{self._device(physfn)}/{name}", f"{value}\n")
        if _read(f"{self._device(physfn)}/sriov_drivers_autoprobe") == "1\n":
            for vf in self.vfs(physfn):
                self._probe(vf)

    # What it does

    def driver(self, address: str) -> str | None:
        """The driver of a function."""
        return _link_name(f"{self._device(address)}/driver")

    def override(self, address: str) -> str:
        return _read(f"{self._device(address)}/driver_override").strip()

    def let_go(self, address: str) -> None:
        """The driver lets go of a function after all, and what waited for it goes on."""
        self.busy.discard(address)
        self.locked.discard(address)
        self.set_driver(address, None)

    def unplug(self, address: str) -> None:
        """The function is gone."""
        group = self._group(address)
        if group is not None:
            os.unlink(f"{self.tree.root}/sys/kernel/iommu_groups/{group}/devices/{address}")
        os.unlink(self._device(address))

    def _device(self, address: str) -> str:
        return f"{self._devices}/{address}"

    def _group(self, address: str) -> int | None:
        name = _link_name(f"{self._device(address)}/iommu_group")
        return None if name is None else int(name)

    def _wait_for_lock(self, address: str) -> None:
        if address in self.locked:
            raise Late(4711)

    def _unbind(self, address: str, driver: str) -> None:
        if not os.path.exists(self._device(address)) or self.driver(address) != driver:
            raise _error(errno.ENODEV)
        self._wait_for_lock(address)
        if address in self.busy or (is_vfio(driver) and self._group(address) in self.open_groups):
            self.locked.add(address)
            self._wait_for_lock(address)
        if address not in self.clinging:
            self.set_driver(address, None)

    def _bind(self, address: str, driver: str) -> None:
        if not os.path.exists(self._device(address)) or not self._matches(address, driver):
            raise _error(errno.ENODEV)
        if self.driver(address) is not None:
            raise _error(errno.EBUSY)
        self._attach(address, driver)

    def _probe(self, address: str) -> None:
        if not os.path.exists(self._device(address)):
            raise _error(errno.ENODEV)
        self._wait_for_lock(address)
        if self.driver(address) is None:
            for name in self.drivers:
                if self._matches(address, name):
                    try:
                        self._attach(address, name)
                    except OSError:
                        continue  # the kernel's log has it, the writer does not
                    break

    def _matches(self, address: str, driver: str) -> bool:
        override = self.override(address)
        if override != "(null)":
            return override == driver
        if not self.drivers[driver]:
            return False
        ids = (_read(f"{self._device(address)}/{name}") for name in ("vendor", "device"))
        return tuple(int(each, 16) for each in ids) in self.drivers[driver]

    def _attach(self, address: str, driver: str) -> None:
        if (driver, address) in self.probe_fails:
            raise _error(errno.EINVAL)
        if not is_vfio(driver) and self._group(address) in self.open_groups:
            raise _error(errno.EBUSY)  # the group's DMA is a guest's
        self.set_driver(address, driver)

    def set_driver(self, address: str, driver: str | None) -> None:
        """A function has another driver, or none, without a write."""
        device, root = self._device(address), self.tree.root
        control = f"{device}/power/control"
        # vfio_pci_core_register_device, and unregister
        if os.path.exists(control) and (is_vfio(driver) or is_vfio(self.driver(address))):
            _write(control, "auto\n" if is_vfio(driver) else "on\n")
        self.tree.bind(address, driver)
        rest = [line for line in _read(f"{device}/uevent").splitlines() if not line.startswith("DRIVER=")]
        _write(f"{device}/uevent", "\n".join([f"DRIVER={driver}"] * (driver is not None) + rest) + "\n")
        group = self._group(address)
        if group is not None:
            members = os.listdir(f"{root}/sys/kernel/iommu_groups/{group}/devices")
            if is_vfio(driver) or any(is_vfio(self.driver(member)) for member in members):
                self.tree.node(f"vfio/{group}")
            else:
                with suppress(FileNotFoundError):
                    os.unlink(f"{root}/dev/vfio/{group}")


_OF_FUNCTION = ("driver_override", "reset", "sriov_numvfs", "sriov_drivers_autoprobe")
"""Files of a function that are written to, in its own folder."""


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _link_name(path: str) -> str | None:
    """The name that a link leads to; None where there is none."""
    try:
        return os.path.basename(os.readlink(path))
    except FileNotFoundError:
        return None


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
