"""Which tiers of tests there are, what each needs from the machine, and where to get it.

Standard library only: ``./dev`` reads this before there is an environment, and ``tests/conftest.py`` when tests run.
"""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple


class Tier(NamedTuple):
    """A kind of test that needs more than Python. ``name`` is its pytest marker too."""

    name: str
    needs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Program, and the Debian or Ubuntu packages that have it: the first that the release knows."""
    later: str = ""
    """Why there are no tests in this tier yet."""

    def missing(self) -> list[str]:
        """The programs that are not there."""
        return [program for program, _ in self.needs if find_program(program) is None]

    def packages(self) -> list[tuple[str, ...]]:
        """The packages of the missing programs; of each tuple the first that the release knows is the one."""
        wanted = dict.fromkeys(packages for program, packages in self.needs if find_program(program) is None)
        return list(wanted)

    def how_to_get(self) -> str:
        """The command that makes the tier run."""
        names = " ".join(packages[0] for packages in self.packages())
        return f"./dev test --all as root, or: apt-get install --no-install-recommends {names}"


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

TIERS = (
    LIBVIRT,
    Tier("kubelet", later="comes with the device plugin"),
    Tier("kernel", later="comes with the machine that has an IOMMU"),
)


def find_program(name: str) -> str | None:
    """The path of a program; daemons too, whose directories a user's PATH may lack."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which(name, path=os.pathsep.join([path, "/usr/local/sbin", "/usr/sbin", "/sbin"]))
