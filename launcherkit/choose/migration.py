"""Which devices can migrate with a running guest, by the drivers that have them: an answer without asking the device.

VFIO leaves it to the driver (``VFIO_DEVICE_FEATURE_MIGRATION``). The table is from Linux, ``drivers/vfio``; see
docs/reference/migration.md. Whether a device really can, only the device itself says: `launcherkit.host.vfio`.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, Mdev, PciFunction, is_vfio_name, is_vgpu_vf

KernelVersion: TypeAlias = tuple[int, ...]


class Migration(NamedTuple):
    """Whether a device can migrate.

    Attributes:
        can: None if that isn't known.
        why: Why, or why not, in words.
    """

    can: bool | None
    why: str

    def __str__(self) -> str:
        return f"{_WORDS[self.can]}: {self.why}"


_WORDS = {True: "yes", False: "no", None: "not known"}


class _Driver(NamedTuple):
    """A driver that can save a device's state, of its VFs only."""

    since: KernelVersion
    """The first Linux whose driver can."""
    provided: str = ""
    """What else it takes, in words."""


_DRIVERS: Mapping[str, _Driver | None] = {
    "vfio_pci": None,
    "mlx5_vfio_pci": _Driver((5, 18), "if the VF was made migratable (`devlink port function set`)"),
    "hisi_acc_vfio_pci": _Driver((5, 18), "of an accelerator from version 3 on"),
    "pds_vfio_pci": _Driver((6, 6)),
    "qat_vfio_pci": _Driver((6, 10)),
    "virtio_vfio_pci": _Driver((6, 13), "if the card has virtio's commands for it"),
    "xe_vfio_pci": _Driver((6, 19)),
    "nvgrace_gpu_vfio_pci": None,
    "ism_vfio_pci": None,
}
"""The kernel's VFIO drivers of PCI functions, with underscores; None for those that can't migrate anything."""

_MDEV_DRIVERS: Mapping[str, KernelVersion | None] = {"mtty": (6, 7), "i915": None, "vfio_ap": None, "vfio_ccw": None}
"""The kernel's drivers of mediated devices, as a type's ID begins: with its parent's driver."""

_NVIDIA = "NVIDIA's driver decides: both nodes need the same vGPU manager and ECC setting"


def migration_of(source: HostAddress, host: HostFacts, kernel: KernelVersion | None = None) -> Migration:
    """Whether a device can migrate; ``kernel`` is the version of its Linux, None if it isn't known."""
    if isinstance(source, PciAddress):
        function = host.functions.get(source)
        if function is not None:
            return _of_function(function, host, kernel)
    elif isinstance(source, MdevAddress):
        mdev = host.mdevs.get(source.uuid)
        if mdev is not None:
            return _of_mdev(mdev, kernel)
    else:
        return Migration(None, "libvirt lets a guest with it go, and the guest finds another USB device")
    return Migration(None, "nothing is known of it")


def migration_of_all(sources: Iterable[HostAddress], host: HostFacts, kernel: KernelVersion | None = None) -> Migration:
    """Whether all functions of a device can migrate: the answer for the first that can't, or else isn't known.

    Its address is named unless it is the primary, the first of ``sources``.
    """
    answers = [(source, migration_of(source, host, kernel)) for source in sources]
    source, answer = min(answers, key=lambda answered: (False, None, True).index(answered[1].can))
    return answer if source == answers[0][0] else Migration(answer.can, f"{source}: {answer.why}")


def _of_function(function: PciFunction, host: HostFacts, kernel: KernelVersion | None) -> Migration:
    detail = host.details.get(function.address)
    if is_vgpu_vf(detail):
        return Migration(None, _NVIDIA)
    bound = function.driver if detail is None or is_vfio_name(function.driver) else detail.driver_module
    if bound is None or not is_vfio_name(bound):
        return Migration(None, "it isn't bound to VFIO, and which driver it will have isn't known")
    name = bound.replace("-", "_")
    if name not in _DRIVERS:
        return Migration(None, f"{bound} isn't one of Linux' own drivers")
    driver = _DRIVERS[name]
    if driver is None:
        return Migration(False, f"{bound} can't save a device's state")
    if not function.is_vf:
        return Migration(False, f"{bound} saves the state of VFs, and this is none")
    answer = _by_kernel(bound, driver.since, kernel)
    return answer._replace(why=f"{answer.why}, {driver.provided}") if answer.can and driver.provided else answer


def _of_mdev(mdev: Mdev, kernel: KernelVersion | None) -> Migration:
    driver = (mdev.device_api or "").replace("-", "_")
    if driver not in _MDEV_DRIVERS:
        driver = mdev.type_id.partition("-")[0]
    if driver == "nvidia":
        return Migration(None, _NVIDIA)
    if driver not in _MDEV_DRIVERS:
        return Migration(None, f"nothing is known of the mediated devices of {driver}")
    since = _MDEV_DRIVERS[driver]
    if since is None:
        return Migration(False, f"{driver} can't save a mediated device's state")
    return _by_kernel(driver, since, kernel)


def _by_kernel(driver: str, since: KernelVersion, kernel: KernelVersion | None) -> Migration:
    first = ".".join(map(str, since))
    if kernel is None or kernel >= since:
        return Migration(True, f"{driver} can, from Linux {first} on")
    return Migration(False, f"{driver} can only from Linux {first} on, and this is {'.'.join(map(str, kernel))}")
