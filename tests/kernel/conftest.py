"""Tests that want a kernel with VFIO run in a machine that has one, and are told here as if they had run here.

On the host the first such test starts the machine, with the names of all. In the machine pytest runs them and leaves
each report in the results' folder; here every test waits for its own. ``-k``, ``-x``, tracebacks and counts work as
ever.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest

from launcherkit_lab import sysfs
from launcherkit_lab.devices import AUDIO, DISPLAY, NVME
from launcherkit_lab.driver.build import build
from launcherkit_lab.driver.vgpus import Parent, vgpus
from launcherkit_lab.guest.build import build_kernel
from launcherkit_lab.machine import INSIDE, SHARE
from launcherkit_lab.packages import cache_folder, fetch
from tests.kernel.guests import Guests
from tests.kernel.inside import Inside, leave_report
from tests.kernel.serving import Serving, serve
from tests.libvirt.pod import Pod, pod

_IS_INSIDE = INSIDE in os.environ
_KEY = pytest.StashKey[Inside]()


def belongs_inside(item: pytest.Item) -> bool:
    """Whether a test is to run in the machine: those of the tier in this very folder, unless they are skipped."""
    here = item.path.parent == Path(__file__).parent
    return here and item.get_closest_marker("kernel") is not None and item.get_closest_marker("skip") is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if _IS_INSIDE:
        leave_report(item.config, report, SHARE)
    return report


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if _IS_INSIDE or not belongs_inside(item):
        return None
    session = item.session
    if _KEY not in session.stash:
        session.stash[_KEY] = Inside(session.config, [one for one in session.items if belongs_inside(one)])
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in session.stash[_KEY].reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # What tests before this one have set up here, and those after it don't need; the hook for it wants a test that ran.
    session._setupstate.teardown_exact(nextitem)
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    left = session.stash[_KEY].end() if _KEY in session.stash else ""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if left and reporter is not None:
        reporter.write_line("")
        reporter.write_line(left)


@pytest.fixture(scope="session")
def pod_with_libvirt() -> Iterator[Pod]:
    """One libvirt for all tests: it takes seconds to start."""
    with pod() as made:
        made.libvirtd()
        yield made
        for path in (made.folder / "log" / "qemu").glob("*.log"):
            shutil.copy(path, SHARE)


@pytest.fixture(scope="session")
def iommufd() -> None:
    """Skips where this system is older than iommufd, by versions: where a newer one lacks it the tests fail."""
    libvirt = subprocess.run(["virsh", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if sysfs.version(os.uname().release) < (6, 6) or sysfs.version(libvirt) < (12, 1):
        pytest.skip(f"iommufd needs Linux 6.6 and libvirt 12.1; these are {os.uname().release} and {libvirt}")


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_kernel(tmp_path_factory.mktemp("kernel"))


@pytest.fixture
def guests(pod_with_libvirt: Pod, kernel: Path, tmp_path: Path, bound: Callable[..., None]) -> Iterator[Guests]:
    """Starts guests; none of them stays.

    Whatever gives devices to them must come before it, so that it takes them back after: as `bound` does.
    """
    made = Guests(pod_with_libvirt, kernel, tmp_path)
    yield made
    made.clear()


@pytest.fixture
def bound() -> Iterator[Callable[..., None]]:
    """Binds functions to vfio-pci; afterwards they have the drivers they had."""
    before: dict[str, str | None] = {}

    def bind(*addresses: str) -> None:
        for address in addresses:
            before.setdefault(address, sysfs.driver(address))
            sysfs.bind(address, "vfio-pci")

    yield bind
    for address, driver in before.items():
        if (sysfs.DEVICES / address).exists():
            sysfs.unbind(address)
            if driver:
                sysfs.bind(address, driver)
                (sysfs.DEVICES / address / "driver_override").write_text("\n")


@pytest.fixture
def sound() -> Iterator[None]:
    """The audio functions are the host's, as on most hosts."""
    sysfs.modprobe("snd_hda_intel")
    audio = sysfs.having(AUDIO)
    sysfs.until(lambda: all(sysfs.driver(address) == "snd_hda_intel" for address in audio), "the sound driver")
    yield
    for address in audio:
        sysfs.unbind(address)
    subprocess.run(["modprobe", "--remove", "snd_hda_intel"], check=True)


@pytest.fixture
def vfs() -> Iterator[list[str]]:
    """Two VFs of an NVMe controller, which has no other function."""
    sysfs.modprobe("nvme")
    (physical,) = (address for address in sysfs.having(NVME) if len(sysfs.members(address)) == 1)
    (sysfs.DEVICES / physical / "sriov_drivers_autoprobe").write_text("0")
    (sysfs.DEVICES / physical / "sriov_numvfs").write_text("2")
    yield sorted(sysfs.link(path) or "" for path in (sysfs.DEVICES / physical).glob("virtfn*"))
    (sysfs.DEVICES / physical / "sriov_numvfs").write_text("0")
    (sysfs.DEVICES / physical / "sriov_drivers_autoprobe").write_text("1")


@pytest.fixture
def parents() -> Iterator[list[Parent]]:
    """The functions that vGPUs can be made on; none stays on them."""
    cache = cache_folder(os.environ)
    with vgpus(build(fetch(cache).headers, cache)) as found:
        yield found
        for parent in found:
            parent.clear()


@pytest.fixture
def tablet() -> Iterator[str]:
    """A USB device, as ``bus:device``."""
    sysfs.modprobe("xhci_pci")
    found: list[str] = []

    def look() -> bool:
        for path in Path("/sys/bus/usb/devices").glob("*/product"):
            if path.read_text().strip() == "QEMU USB Tablet":
                found.append(":".join((path.parent / name).read_text().strip() for name in ("busnum", "devnum")))
        return bool(found)

    sysfs.until(look, "the USB device")
    yield found[0]
    subprocess.run(["modprobe", "--remove", "xhci_pci"], check=True)


@pytest.fixture
def mixed() -> Iterator[tuple[str, str]]:
    """A group of which VFIO refuses one member: an NVMe controller with VFs switched on; and a display function."""
    sysfs.modprobe("nvme")
    (controller,) = (address for address in sysfs.having(NVME) if len(sysfs.members(address)) == 2)
    (other,) = (address for address in sysfs.members(controller) if address != controller)
    sysfs.until(lambda: sysfs.driver(controller) == "nvme", "the NVMe driver")
    (sysfs.DEVICES / controller / "sriov_drivers_autoprobe").write_text("0")
    (sysfs.DEVICES / controller / "sriov_numvfs").write_text("2")
    yield controller, other
    (sysfs.DEVICES / controller / "sriov_numvfs").write_text("0")
    (sysfs.DEVICES / controller / "sriov_drivers_autoprobe").write_text("1")


@pytest.fixture
def card(sound: None) -> Iterator[sysfs.Card]:
    """A card whose functions have drivers of the host."""
    sysfs.modprobe("bochs")
    found = sysfs.cards()[0]
    sysfs.bind(found.display, "bochs-drm")
    (sysfs.DEVICES / found.display / "driver_override").write_text("\n")
    yield found
    for address in sysfs.having(DISPLAY):
        sysfs.unbind(address)


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    """Starts a kubelet and the plugin; see `tests.kernel.serving.serve`."""
    return partial(serve, tmp_path)


@pytest.fixture
def empty_pod() -> Iterator[Pod]:
    with pod() as made:
        yield made
