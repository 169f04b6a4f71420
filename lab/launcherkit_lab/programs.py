"""The programs that a machine is made with."""

from __future__ import annotations

import os
import shutil

_NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "apt-get": "apt",
    "dpkg": "dpkg",
    "depmod": "kmod",
    "setsid": "util-linux",
}
"""What a machine is started with, and the packages of Debian and Ubuntu that have it."""
_TO_BUILD = {"make": "make", "gcc": "gcc"}
"""What the mdev driver is built with besides."""


def find_program(name: str) -> str | None:
    """The path of a program; daemons too, whose directories a user's PATH may lack."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which(name, path=os.pathsep.join([path, "/usr/local/sbin", "/usr/sbin", "/sbin"]))


def lacks(builds: bool) -> str:
    """What stands against a machine here, with the command that gets it; empty: nothing.

    Args:
        builds: whether it has a driver that must be built.
    """
    if (architecture := os.uname().machine) != "x86_64":
        return f"the machine is x86_64, with that kernel's packages; this one is {architecture}"
    needed = _NEEDED | (_TO_BUILD if builds else {})
    packages = {program: package for program, package in needed.items() if find_program(program) is None}
    if not packages:
        return ""
    return f"no {', '.join(packages)} here: apt-get install --no-install-recommends {' '.join(packages.values())}"
