"""Drivers of PCI functions: loading their modules, and the steps of binding, each of which accesses one sysfs file."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from launcherkit.errors import NotInstalled
from launcherkit.host.identity import text
from launcherkit.model.address import PciAddress
from launcherkit_plugin.host.worker import Late, ProcessWorker, Worker
from launcherkit_plugin.model.errors import NO_VFIO_DRIVER, STEP_FAILED, STEP_HANGS

T = TypeVar("T")

STEP_SECONDS = 30.0
"""How long one step may take. The driver of a large GPU takes about ten seconds to shut it down."""


class Power(NamedTuple):
    """The power management of a function. None: there is no such file, or any value will do."""

    d3cold: str | None
    """``d3cold_allowed``: ``1`` or ``0``."""
    control: str | None
    """``power/control``: ``auto`` or ``on``."""


AWAKE = Power("0", "on")
"""For functions that are passed through: some don't wake up from D3cold."""
_POWER_FILES = ("d3cold_allowed", "power/control")


class Sysfs:
    """PCI devices and drivers below ``<root>/sys``.

    Methods that may block say so, and must be called within `holding`. They raise `StepFailed` if the kernel refuses,
    and `STEP_HANGS` if it doesn't return in time.
    """

    def __init__(
        self,
        root: str = "/",
        seconds: float = STEP_SECONDS,
        *,
        make_worker: Callable[[Sequence[int]], Worker] = ProcessWorker,
    ) -> None:
        """Use the files below a root.

        Args:
            root: the directory that contains ``sys``.
            seconds: how long one step may take.
            make_worker: returns a worker that performs the steps and keeps the given file descriptors open.
        """
        self.root = root
        self._bus = os.path.join(root, "sys/bus/pci")
        self._seconds = seconds
        self._make_worker = make_worker
        self._worker: Worker | None = None

    @contextmanager
    def holding(self, locks: Sequence[int]) -> Iterator[None]:
        """Use a worker that keeps these file descriptors open, so that an abandoned step still holds the locks."""
        assert self._worker is None
        self._worker = self._make_worker(locks)
        try:
            yield
        finally:
            self._worker.close()
            self._worker = None

    def exists(self, address: PciAddress) -> bool:
        """Whether the function exists."""
        return os.path.exists(f"{self._bus}/devices/{address}")

    def driver(self, address: PciAddress) -> str | None:
        """The driver of the function; None if it has none. Doesn't block: it is a symbolic link.

        Raises:
            StepFailed: it can't be read (T2).
        """
        path = f"{self._bus}/devices/{address}/driver"
        try:
            return os.path.basename(os.readlink(path))
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise STEP_FAILED(
                f"reading {path}: {problem.strerror}", _remedy(problem), device=str(address), file=path
            ) from problem

    def has_driver(self, name: str) -> bool:
        """Whether a driver is loaded."""
        return os.path.isdir(f"{self._bus}/drivers/{name}")

    def may_write(self) -> bool:
        """Whether this process may bind functions at all."""
        return os.access(f"{self._bus}/drivers_probe", os.W_OK)

    def override(self, address: PciAddress) -> str | None:
        """The only driver that may bind the function; None: any. May block: reading it takes the device's lock."""
        path = f"{self._bus}/devices/{address}/driver_override"
        return text(self._read(path))

    def set_override(self, address: PciAddress, name: str | None) -> None:
        """Let only this driver bind the function; None: any that supports it. May block."""
        self._put(f"devices/{address}/driver_override", name or "\n")

    def power(self, address: PciAddress) -> Power:
        """The function's power management. May block."""
        values = []
        for name in _POWER_FILES:
            path = f"{self._bus}/devices/{address}/{name}"
            there = os.path.exists(path)
            values.append(text(self._read(path)) if there else None)
        return Power(*values)

    def set_power(self, address: PciAddress, power: Power) -> None:
        """Set the function's power management where it differs. May block: this may wake the device up."""
        for name, value, present in zip(_POWER_FILES, power, self.power(address), strict=True):
            if value is not None and present not in (None, value):
                self._put(f"devices/{address}/{name}", value)

    def unbind(self, address: PciAddress, name: str) -> None:
        """Unbind the function from its driver. May block."""
        self._put(f"drivers/{name}/unbind", str(address))

    def bind(self, address: PciAddress, name: str) -> None:
        """Bind the function, which has no driver, to this one. May block."""
        self._put(f"drivers/{name}/bind", str(address))

    def probe(self, address: PciAddress) -> None:
        """Let the kernel find a driver for the function. May block."""
        self._put("drivers_probe", str(address))

    def _read(self, path: str) -> bytes | None:
        return self._step(path, f"reading {path}", lambda worker: worker.read(path, self._seconds))

    def _put(self, name: str, content: str) -> None:
        path = f"{self._bus}/{name}"
        step = f"writing {content.strip() or 'an empty line'} to {path}"
        self._step(path, step, lambda worker: worker.write(path, content, self._seconds))

    def _step(self, path: str, step: str, do: Callable[[Worker], T]) -> T:
        assert self._worker is not None
        try:
            return do(self._worker)
        except OSError as problem:
            raise STEP_FAILED(f"{step}: {problem.strerror or problem}", _remedy(problem), file=path) from problem
        except Late as late:
            raise STEP_HANGS(
                f"{step} has not returned within {self._seconds:g} s; process {late.pid} still waits for the driver",
                "End what uses the device (for NVIDIA: nvidia-persistenced, dcgm, X, CUDA processes; `fuser -v "
                "/dev/nvidia*`); the step then goes through, and the next `bind` or `unbind` of the device cleans up. "
                "If nothing uses it, the kernel's log says more.",
                file=path,
            ) from late


def _remedy(problem: OSError) -> str:
    if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Binding needs root and a writable /sys: in a container, a privileged one."
    return "The kernel's log (dmesg) says more."


LOAD_SECONDS = 60.0

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where modprobe is; not every user has this in PATH."""


def require_driver(name: str, sysfs: Sysfs, load: Callable[[str], None]) -> None:
    """Load a driver unless it is loaded.

    Args:
        name: of the driver: ``vfio-pci``.
        sysfs: knows which drivers are loaded.
        load: loads a module by the name of its driver, like `modprobe`.

    Raises:
        NO_VFIO_DRIVER: it could not be loaded.
    """
    if sysfs.has_driver(name):
        return
    load(name)
    if not sysfs.has_driver(name):
        raise NO_VFIO_DRIVER(
            f"there is no driver {name} after its module was loaded",
            f"See the kernel's log (dmesg), and check that the kernel has the module: modinfo {name}",
            driver=name,
        )


def modprobe(name: str) -> None:
    """Load a module with ``modprobe``.

    Raises:
        NO_VFIO_DRIVER: modprobe fails or isn't installed.
    """
    program = shutil.which("modprobe", path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")
    if program is None:
        raise _not_loaded(name, "modprobe is not installed")
    try:
        done = subprocess.run(  # noqa: S603  # no shell; the name is behind a --
            [program, "--", name], stdin=subprocess.DEVNULL, capture_output=True, timeout=LOAD_SECONDS, check=False
        )
    except OSError as problem:
        raise _not_loaded(name, f"modprobe can't be started: {problem.strerror or problem}") from problem
    except subprocess.TimeoutExpired as problem:
        raise _not_loaded(name, f"modprobe has not ended within {LOAD_SECONDS:g} s") from problem
    if done.returncode != 0:
        complaint = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise _not_loaded(name, complaint or f"modprobe ended with exit code {done.returncode}")


def no_modprobe(name: str) -> None:
    """In place of `modprobe` for a host that is not this machine.

    Raises:
        NO_VFIO_DRIVER: always.
    """
    raise _not_loaded(name, "modules can only be loaded on this machine, and --host names another one")


def _not_loaded(name: str, why: str) -> NotInstalled:
    return NO_VFIO_DRIVER(
        f"the driver {name} is not loaded and can't be: {why}",
        f"On the node: modprobe {name}; and for every boot: echo {name} > /etc/modules-load.d/vfio.conf",
        driver=name,
    )
