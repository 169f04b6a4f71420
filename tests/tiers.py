"""Which tiers of tests there are, what each needs from the machine, and where to get it.

Standard library only: ``./dev`` reads this before there is an environment, and ``tests/conftest.py`` when tests run.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple


class Tier(NamedTuple):
    """A kind of test that needs more than Python. ``name`` is its pytest marker too."""

    name: str
    needs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Program, and the Debian or Ubuntu packages that have it: the first that the release knows."""
    module: str = ""
    """A Python module that the environment must have; `./dev` compiles it with what `builds` names."""
    builds: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What is needed to compile the module, programs and files, and the packages that have it."""
    variable: str = ""
    """A variable that names a folder with a program that no package has. Not everybody can have one: who asks for every
    tier leaves this one out by its name."""
    in_folder: str = ""
    """The name of that program."""
    architecture: str = ""
    """Of the only machines that can run it; empty: any."""
    root: bool = False
    """Whether only root can run it."""

    def program(self) -> Path | None:
        """The program that the variable leads to; None where there is no variable, or it is not set."""
        folder = os.environ.get(self.variable) if self.variable else None
        return Path(folder, self.in_folder) if folder else None

    def has_no_folder(self) -> bool:
        """Whether the tier needs a folder that nobody has named."""
        return bool(self.variable) and self.program() is None

    def missing(self) -> list[str]:
        """The programs that are not there, though they should be."""
        if self.has_no_folder():
            return [self.variable]
        own = self.program()
        lost = [str(own)] if own and not os.access(own, os.X_OK) else []
        if self.architecture and os.uname().machine != self.architecture:
            lost.append(f"{self.architecture} machine")
        if self.root and os.geteuid() != 0:
            lost.append("root")
        if self.module and find_spec(self.module) is None:
            lost.append(f"Python module {self.module}")
        return lost + [program for program, _ in self.needs if find_program(program) is None]

    def packages(self) -> list[tuple[str, ...]]:
        """The packages of the missing programs; of each tuple the first that the release knows is the one."""
        if self.has_no_folder():
            return []
        wanted = dict.fromkeys(packages for program, packages in self.needs if find_program(program) is None)
        wanted |= dict.fromkeys(packages for what, packages in self.builds if not _is_there(what))
        return list(wanted)

    def how_to_get(self) -> str:
        """The command that makes the tier run."""
        if self.variable:
            return f"{self.variable}=FOLDER, where FOLDER/{self.in_folder} is a program: see docs/explanation/tests.md"
        names = " ".join(packages[0] for packages in self.packages())
        return "./dev test --all as root" + (f", or: apt-get install --no-install-recommends {names}" if names else "")


BASE = "unit, property, golden"
"""The tests without a tier's marker: they need nothing outside the process."""

LIBVIRT = Tier(
    "libvirt",
    needs=(
        # Not libvirt-daemon-system: the tests start a private daemon, and no service or network is wanted.
        ("libvirtd", ("libvirt-daemon",)),
        ("virsh", ("libvirt-clients",)),
        ("qemu-system-x86_64", ("qemu-system-x86",)),
        ("qemu-system-aarch64", ("qemu-system-arm",)),
        ("qemu-system-ppc64", ("qemu-system-ppc",)),
        ("qemu-system-s390x", ("qemu-system-s390x", "qemu-system-misc")),
    ),
)

GUEST = Tier(
    "guest",
    needs=(
        ("libvirtd", ("libvirt-daemon",)),
        ("virtlogd", ("libvirt-daemon",)),
        ("virsh", ("libvirt-clients",)),
        ("qemu-system-x86_64", ("qemu-system-x86",)),
        ("unshare", ("util-linux",)),
        ("gcc", ("gcc",)),
    ),
    module="libvirt",
    builds=(
        ("/usr/include/stdio.h", ("libc6-dev",)),
        ("pkg-config", ("pkg-config", "pkgconf")),
        ("/usr/include/libvirt/libvirt.h", ("libvirt-dev",)),
        # Of the Python that runs ./dev; only a distribution's comes without.
        (
            os.path.join(sysconfig.get_path("include"), "Python.h"),
            (f"libpython{sys.version_info[0]}.{sys.version_info[1]}-dev", "libpython3-dev"),
        ),
    ),
)

LIBVIRT_SOCKET = "LAUNCHERKIT_TEST_LIBVIRT_SOCKET"
"""Names the socket of a libvirtd that the libvirt tier talks to instead of its own. What that one has is left alone."""

ENVIRONMENT = "DEV_VENV"
"""Names the folder that `./dev` makes its environment in instead of `.venv`: for another Python, or where the checkout
can't be written to. A relative path begins in the checkout."""

EXAMPLES = "LAUNCHERKIT_TEST_EXAMPLES"
"""How many examples the tests take that make them at random."""

IDLE = "LAUNCHERKIT_TEST_IDLE"
"""For how many seconds a test of the tier api looks on to see that nothing is written."""

KILLS = "LAUNCHERKIT_TEST_KILLS"
"""How often the tests that kill a daemon at changes chosen at random do so."""

RESTARTS = "LAUNCHERKIT_TEST_RESTARTS"
"""How often the tests of the kubelet tier restart a VM that asks for the device that it had."""

# The machine is Debian's kernel on QEMU, with the root of the machine that runs it.
KERNEL = Tier(
    "kernel",
    needs=(
        *GUEST.needs,
        ("apt-get", ("apt",)),
        ("dpkg", ("dpkg",)),
        ("depmod", ("kmod",)),
        ("busybox", ("busybox-static",)),
        ("qemu-ga", ("qemu-guest-agent",)),
        ("setpriv", ("util-linux",)),
        ("make", ("make",)),
        ("dmsetup", ("dmsetup",)),
        ("mkfs.ext4", ("e2fsprogs",)),
        ("nvme", ("nvme-cli",)),
    ),
    module=GUEST.module,
    builds=GUEST.builds,
    architecture="x86_64",
)

IMAGES = Tier(
    "images",
    needs=(
        ("buildah", ("buildah",)),
        ("mmdebstrap", ("mmdebstrap",)),
        ("apt-get", ("apt",)),
        # From pod to guest they are on a disk, and runc starts them.
        ("mke2fs", ("e2fsprogs",)),
        ("runc", ("runc",)),
        # A release is pushed by the one, and its signatures are verified by both.
        ("skopeo", ("skopeo",)),
        ("openssl", ("openssl",)),
    ),
    root=True,
)

# Debian's; Ubuntu's package is a snap, which needs a snapd.
BROWSER = Tier("browser", needs=(("chromium", ("chromium",)),))

# promtool comes with it. On a machine with systemd its package starts it, too.
PROMETHEUS = Tier("prometheus", needs=(("prometheus", ("prometheus",)), ("promtool", ("prometheus",))))

CLUSTER = Tier("cluster", variable="LAUNCHERKIT_TEST_CLUSTER", in_folder="cluster")
# The API of a Kubernetes that has admission policies in CEL; the same program may serve both, one at a time.
API = Tier("api", variable="LAUNCHERKIT_TEST_API", in_folder="cluster")
# The cluster's kubelet, with the same program; the plugin on it is its image.
KUBELET = Tier("kubelet", needs=IMAGES.needs, variable=CLUSTER.variable, in_folder=CLUSTER.in_folder, root=True)

# Ten thousand calls, twenty restarts, kills at every moment: it needs nothing but time.
SLOW = Tier("slow")

TIERS = (
    SLOW,
    LIBVIRT,
    GUEST,
    API,
    IMAGES,
    BROWSER,
    PROMETHEUS,
    CLUSTER,
    KUBELET,
    KERNEL,
)

IN_SYSTEMS = tuple(tier.name for tier in (SLOW, LIBVIRT, GUEST, KERNEL))
"""The tiers that can run with the programs of another system: those that need no cluster."""

FULL_DEMO_MIB = 3072
"""The memory that `./dev demo --full` takes."""
FULL_DEMO_CLUSTER_MIB = 6144
"""The same where it starts a cluster."""
FULL_DEMO_DISK_MIB = 6144
"""The disk space, most of it for images and the kernel."""


def full_demo_mib() -> int:
    """The memory that `./dev demo --full` takes here."""
    return FULL_DEMO_CLUSTER_MIB if CLUSTER.program() else FULL_DEMO_MIB


def full_demo_lacks(uid: int, available_mib: int, free_mib: int, machine: str) -> list[str]:
    """What `./dev demo --full` needs and can't get by itself; empty: it can run.

    Args:
        uid: of the user.
        available_mib: memory that can be had.
        free_mib: disk space that can be had.
        machine: the architecture.
    """
    program = CLUSTER.program()
    lacks = []
    if program is not None and not os.access(program, os.X_OK):
        lacks.append(f"{CLUSTER.variable}: {program} is no program")
    if machine != KERNEL.architecture:
        lacks.append(f"this machine is {machine}, not {KERNEL.architecture}")
    if uid != 0:
        lacks.append("it has to be root: sudo ./dev demo --full")
    if find_program("apt-get") is None:
        lacks.append("there is no apt-get: run it on Debian or Ubuntu")
    if available_mib < full_demo_mib():
        lacks.append(f"{available_mib} MiB of memory can be had, it takes {full_demo_mib()}")
    if free_mib < FULL_DEMO_DISK_MIB:
        lacks.append(f"{free_mib} MiB of disk space can be had in /var, it takes {FULL_DEMO_DISK_MIB}")
    return lacks


def find_program(name: str) -> str | None:
    """The path of a program; daemons too, whose directories a user's PATH may lack."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which(name, path=os.pathsep.join([path, "/usr/local/sbin", "/usr/sbin", "/sbin"]))


def _is_there(what: str) -> bool:
    """Whether a file, given by its whole path, or else a program is on this machine."""
    return os.path.exists(what) if what.startswith("/") else find_program(what) is not None
