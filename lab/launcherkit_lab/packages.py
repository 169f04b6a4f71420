"""The machine's kernel: the distribution's own packages, unpacked into a cache folder and never installed.

Works for any user: apt gets lists and a cache of its own, and reads nothing of the system's but where to ask.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab.driver import iommufd
from launcherkit_lab.driver.build import CannotBuild
from launcherkit_lab.programs import find_program

CACHE = "LAUNCHERKIT_KERNEL_CACHE"
"""Names the folder in which the machine's kernel is kept."""

_WANTED = (
    # Debian's names, then Ubuntu's. Headers too, for the driver that the tests build.
    ("linux-image-amd64", "linux-headers-amd64"),
    ("linux-image-generic", "linux-headers-generic"),
)
_OF_THE_KERNEL = re.compile(r"linux-(base|binary|image|modules|modules-extra|headers|kbuild)-\d[^ ]*")
_SECONDS = 900


class CannotFetch(Exception):
    """The packages could not be had; the text says what apt or dpkg said."""


class Kernel(NamedTuple):
    """A kernel with modules and headers."""

    folder: Path
    """What the packages hold, at the paths they have below ``/``."""
    release: str
    """``6.1.0-56-amd64``."""

    @property
    def image(self) -> Path:
        beside_modules = self.modules / "vmlinuz"  # Debian's, from 7.0 on
        return beside_modules if beside_modules.exists() else self.folder / "boot" / f"vmlinuz-{self.release}"

    @property
    def modules(self) -> Path:
        return self.folder / "lib" / "modules" / self.release

    @property
    def headers(self) -> Path:
        """Their makefiles have paths in them that begin at ``/``."""
        return self.folder / "usr" / "src" / f"linux-headers-{self.release}"


def cache_folder(env: Mapping[str, str]) -> Path:
    """Where fetched and built things are kept; may be lost at any time."""
    if own := env.get(CACHE):
        return Path(own).absolute()
    base = env.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "launcherkit", "kernel")


def fetch(cache: Path) -> Kernel:
    """The kernel in the cache; fetched, half a minute, where there is none.

    Raises:
        CannotFetch: no network, or no distribution that has these packages.
        OSError: the cache can't be written.
    """
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / "kernel"
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as scratch:
                _unpack(Path(scratch)).rename(folder)
    return _kernel_in(folder)


def _kernel_in(folder: Path) -> Kernel:
    releases = sorted(path.name for path in (folder / "lib" / "modules").iterdir())
    if len(releases) != 1:
        raise CannotFetch(f"{folder} has kernels {', '.join(releases) or 'none'}; remove it, it is fetched again")
    return Kernel(folder, releases[0])


def _unpack(scratch: Path) -> Path:
    archives, root = scratch / "archives", scratch / "root"
    for folder in (archives, root, scratch / "lists" / "partial", scratch / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True)
    apt = [
        *("-o", f"Dir::State::Lists={scratch / 'lists'}", "-o", f"Dir::Cache={scratch / 'cache'}"),
        *("-o", "APT::Sandbox::User=root"),  # else root's apt complains that its own user can't write here
    ]
    _run(["apt-get", "--quiet", *apt, "update"], scratch)
    names = _names(apt, scratch)
    _run(["apt-get", "--quiet", *apt, "download", *names], archives)
    for archive in sorted(archives.iterdir()):
        _run(["dpkg", "-x", str(archive), str(root)], scratch)
    if not (root / "lib" / "modules").exists():  # a distribution without /lib
        (root / "lib").symlink_to("usr/lib")
    kernel = _kernel_in(root)
    release = kernel.release
    if iommufd.is_missing(kernel.modules):
        _add_iommufd(kernel, apt, scratch)
    _run([find_program("depmod") or "depmod", "--basedir", str(root), release], scratch)
    return root


def _add_iommufd(kernel: Kernel, apt: Sequence[str], scratch: Path) -> None:
    """Give it to a kernel that was configured without it; a minute."""
    package = f"linux-source-{'.'.join(kernel.release.split('.')[:2])}"
    folder = scratch / "sources"
    folder.mkdir()
    _run(["apt-get", "--quiet", *apt, "download", package], folder)
    (archive,) = folder.iterdir()
    _run(["dpkg", "-x", str(archive), str(folder)], scratch)
    try:
        iommufd.add(kernel.modules, kernel.headers, folder / "usr" / "src" / f"{package}.tar.xz", folder / "build")
    except CannotBuild as error:
        raise CannotFetch(f"the kernel has no iommufd, and it can't be built: {error}") from error


def _names(apt: Sequence[str], scratch: Path) -> list[str]:
    """The packages with files in them that the first known pair of names leads to."""
    for pair in _WANTED:
        known_names = dict.fromkeys(name for name in pair if _depends(name, apt, scratch) is not None)
        if len(known_names) < len(pair):
            continue
        for name in (queue := list(known_names)):
            more = [more for more in _depends(name, apt, scratch) or () if more not in queue]
            queue.extend(dict.fromkeys(more))
        return [name for name in queue if _OF_THE_KERNEL.fullmatch(name)]
    raise CannotFetch(f"apt knows none of {', '.join(names[0] for names in _WANTED)}")


def _depends(package: str, apt: Sequence[str], scratch: Path) -> list[str] | None:
    """The kernel's packages among those that a package needs; None where apt has no such package."""
    command = ["apt-cache", *apt, "show", "--no-all-versions", package]
    done = subprocess.run(command, capture_output=True, text=True, cwd=scratch, timeout=_SECONDS)
    if done.returncode or not done.stdout.strip():
        return None
    return list(_named_in(done.stdout))


def _named_in(stanza: str) -> Iterator[str]:
    for line in re.findall(r"^(?:Pre-)?Depends: (.*)$", stanza, re.MULTILINE):
        for clause in line.split(", "):
            if match := _OF_THE_KERNEL.match(clause):
                yield match[0]


def _run(command: Sequence[str], folder: Path) -> None:
    if shutil.which(command[0]) is None:
        raise CannotFetch(f"no {command[0]} here: the kernel comes in Debian's or Ubuntu's packages")
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as late:
        raise CannotFetch(f"`{' '.join(command)}` has not ended after {_SECONDS} s") from late
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines()[-10:]
        raise CannotFetch("\n".join([f"`{' '.join(command)}` failed:", *said]))
