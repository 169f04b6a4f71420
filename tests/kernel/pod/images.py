"""The images of deploy/images, made of what this machine and the checkout's environment have: no network, no builder.

As small as they can be, for an emulated machine is to unpack them: of libvirt's drivers QEMU's, of QEMU one emulator
without displays and disks over a network, of Python what is imported.
"""

from __future__ import annotations

import compileall
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path

from tests.kernel.machine import ROOT
from tests.kernel.pod.archive import write_archive
from tests.kernel.pod.files import (
    Content,
    Folder,
    Link,
    Text,
    at_their_paths,
    busybox,
    merged,
    tree,
    with_libraries,
)
from tests.tiers import find_program

LAUNCHER = "registry.example/launcherkit-launcher:test"

_HOME = "/opt/launcherkit"
_SITE = f"{_HOME}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
_ENV = {
    "PATH": f"{_HOME}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)
_NOT_OF_PYTHON = re.compile(
    r"(.*/)?(test|tests|_test.*|_tkinter.*|idlelib|tkinter|turtledemo|ensurepip|lib2to3|pydoc_data|distutils|sqlite3"
    r"|_sqlite3.*|_curses.*|curses|(site|dist)-packages|config-.*)|.*\.opt-[12]\.pyc"
)
_USERS = "root:x:0:0:root:/root:/bin/sh\nlibvirt-qemu:x:107:107::/var/lib/libvirt:/bin/false\n"
_GROUPS = "root:x:0:\nlibvirt-qemu:x:107:\n"
_LIBVIRT_DRIVER = "libvirt/connection-driver/libvirt_driver_qemu.so"
_FIRMWARE = ("bios-256k.bin", "kvmvapic.bin", "multiboot_dma.bin", "linuxboot_dma.bin")


class CannotBuild(Exception):
    """This machine lacks what an image is made of."""


def write_launcher(archive: Path) -> None:
    """Target ``launcher`` of deploy/images/Containerfile.

    Raises:
        CannotBuild: no libvirt or QEMU here.
    """
    files = merged(
        _base(),
        _python("runtime.txt", ["libvirt-python"]),
        [(f"/etc/libvirt/{path.name}", path) for path in (ROOT / "deploy/images/libvirt").iterdir()],
        at_their_paths(*map(_program, ("libvirtd", "virtlogd", "qemu-system-x86_64"))),
        at_their_paths(_library(_LIBVIRT_DRIVER), _library("qemu/accel-tcg-x86_64.so")),
        tree(Path("/usr/share/libvirt"), "/usr/share/libvirt"),
        at_their_paths(*map(_firmware, _FIRMWARE)),
        # deploy/launcher-pod.yaml mounts a volume at each of these.
        [
            (path, Folder())
            for path in ("/etc/libvirt/qemu", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt")
        ],
    )
    write_archive(archive, LAUNCHER, with_libraries(files), ["launcherkit", "run"], _ENV)


def _base() -> Iterator[tuple[str, Content]]:
    yield from busybox()
    yield "/etc/passwd", Text(_USERS)
    yield "/etc/group", Text(_GROUPS)
    yield "/tmp", Folder(0o1777)
    for path in ("/dev", "/proc", "/sys", "/root", "/run/lock", "/var/lib"):
        yield path, Folder()
    yield "/var/run", Link("/run")
    yield "/var/lock", Link("/run/lock")


def _python(requirements: str, more: Sequence[str]) -> Iterator[tuple[str, Content]]:
    """An environment like that of the Containerfile: the packages that are pinned in a file, and some more."""
    interpreter = Path(sys.executable).resolve()
    yield str(interpreter), interpreter
    stdlib = sysconfig.get_path("stdlib")
    yield from tree(Path(stdlib), stdlib, lambda relative: not _NOT_OF_PYTHON.fullmatch(relative))
    yield f"{_HOME}/bin/python", Link(str(interpreter))
    yield f"{_HOME}/pyvenv.cfg", Text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
    for name in (*_PINNED.findall((ROOT / "requirements" / requirements).read_text()), *more):
        for file in distribution(name).files or ():
            path = Path(os.path.normpath(file.locate()))
            if ".." not in file.parts and path.is_file():
                yield f"{_SITE}/{file}", path
    compileall.compile_dir(ROOT / "launcherkit", quiet=2)
    yield from tree(ROOT / "launcherkit", f"{_SITE}/launcherkit")
    start = f"#!{_HOME}/bin/python\nimport sys\nfrom launcherkit.cli.main import main\nsys.exit(main())\n"
    yield f"{_HOME}/bin/launcherkit", Text(start, 0o755)


def _program(name: str) -> str:
    found = find_program(name)
    if found is None:
        raise CannotBuild(f"no {name} here, which the launcher's image has")
    return found


def _library(name: str) -> Path:
    """A module that a program loads by its path below its distribution's folder of libraries."""
    for folder in (Path("/usr/lib") / str(sysconfig.get_config_var("MULTIARCH")), Path("/usr/lib"), Path("/usr/lib64")):
        if (folder / name).exists():
            return folder / name
    raise CannotBuild(f"no {name} in /usr/lib")


def _firmware(name: str) -> Path:
    """Where this QEMU finds a file of its firmware."""
    folders = subprocess.check_output([_program("qemu-system-x86_64"), "-L", "help"], text=True).split()
    for folder in folders:
        if (found := Path(folder, name)).exists():
            return found
    raise CannotBuild(f"no {name} in {', '.join(folders)}")
