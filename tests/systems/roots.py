"""Roots of other releases of Debian, beside this machine's own: made by mmdebstrap, kept in a cache folder.

Standard library only: ``./dev`` reads this before there is an environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.systems.virtqemud import HOOK

SYSTEMS = ("trixie", "sid")
"""The releases, as Debian calls them; sid is the one of the day on which its root was made."""

BARE = ("bare-bookworm", "bare-trixie")
"""Roots with nothing but what the README asks for, of the releases with the oldest Python and a new one."""
_BARE_PACKAGES = ("ca-certificates", "git", "python3")

SIGNATURES = "skopeo-trixie"
"""A root with a skopeo that verifies signatures as cosign does: Debian 12's comes without."""

CACHE = "LAUNCHERKIT_SYSTEMS_CACHE"
"""Names the folder in which the roots are kept."""
MIRROR = "LAUNCHERKIT_DEBIAN_MIRROR"
"""The address of a mirror of Debian, for a machine whose own apt has none."""

PACKAGES = (
    *("apt", "busybox-static", "ca-certificates", "dmsetup", "e2fsprogs", "gcc", "git", "kmod", "libc6-dev"),
    "libpython3-dev",
    # From libvirt 10 on the daemon's package comes without the driver.
    *("libvirt-clients", "libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-dev"),
    *("make", "nvme-cli", "ovmf", "pkg-config", "python3", "python3-venv", "qemu-efi-aarch64"),
    *("qemu-guest-agent", "qemu-system-arm", "qemu-system-ppc", "qemu-system-s390x", "qemu-system-x86", "util-linux"),
)
"""All that the tiers need which a root can run, so that nothing is installed later on."""

_OPTIONS = (
    "--variant=minbase",
    "--components=main",
    '--aptopt=Acquire::Check-Valid-Until "false"',  # a mirror that stands still is good enough
    '--aptopt=APT::Install-Recommends "false"',
    "--dpkgopt=force-unsafe-io",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")),
)
_MORE = {"trixie": (HOOK,)}
"""What a release's root has besides: of libvirt's two daemons the tests take the modular one where it is."""
_STAMP = ".launcherkit"
_SECONDS = 1800
_SAYS_BARE = "python3 --version; git --version"
_SAYS_SIGNATURES = "skopeo --version"
_SAYS = (
    "python3 --version; virtqemud --version 2>/dev/null || libvirtd --version; qemu-system-x86_64 --version | head -n1"
)


class CannotMake(Exception):
    """A root can't be had; the text says why, and what to do."""


def cache_folder(env: Mapping[str, str]) -> Path:
    """Where the roots are; may be lost at any time."""
    if own := env.get(CACHE):
        return Path(own).absolute()
    base = env.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "launcherkit", "systems")


@contextmanager
def root_of(system: str, env: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """The root of a system and what is in it, ``Python 3.13.5, libvirtd (libvirt) 11.3.0, ...``; nobody replaces it.

    Made where the cache has none, or not the one that this recipe makes, or one whose programs don't run.

    Raises:
        CannotMake: no root user, no mirror, no network.
        OSError: the cache can't be written.
    """
    if os.geteuid() != 0:
        raise CannotMake("a root of another system is made, and entered, by root alone: say it with sudo")
    cache = cache_folder(env)
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / system
    with open(cache / f"{system}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        programs = _what_is_in(system, root)
        if not programs:
            fcntl.flock(lock, fcntl.LOCK_EX)
            programs = _what_is_in(system, root) or _make(system, root, env)  # somebody else may have made it meanwhile
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield root, programs


def _what_is_in(system: str, root: Path) -> str:
    """The programs that tests are about, with their versions; empty where this is no root that can be used."""
    try:
        if (root / _STAMP).read_text() != _recipe(system):
            return ""
    except OSError:
        return ""
    says = _SAYS_SIGNATURES if system == SIGNATURES else _SAYS_BARE if system in BARE else _SAYS
    done = subprocess.run(["chroot", root, "sh", "-ec", says], capture_output=True, text=True, check=False)
    return "" if done.returncode else ", ".join(done.stdout.splitlines())


def _recipe(system: str) -> str:
    return hashlib.sha256("\n".join(_options(system)).encode()).hexdigest()


def _options(system: str) -> tuple[str, ...]:
    packages = ("skopeo",) if system == SIGNATURES else _BARE_PACKAGES if system in BARE else PACKAGES
    return *_OPTIONS, f"--include={','.join(packages)}", *_MORE.get(system, ())


def _make(system: str, root: Path, env: Mapping[str, str]) -> str:
    mirror = env.get(MIRROR) or _mirror()
    with tempfile.TemporaryDirectory(prefix=f"{system}-", dir=root.parent, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch, "root")
        command = ["mmdebstrap", "--quiet", *_options(system), system.rpartition("-")[2], str(made), mirror]
        _run(command, f"the root of {system} can't be made; it comes from {mirror}: is there a network?")
        (made / _STAMP).write_text(_recipe(system))
        if not (programs := _what_is_in(system, made)):
            raise CannotMake(f"the root of {system} was made, but its programs don't run")
        remove(root)
        made.rename(root)
        return programs


def remove(root: Path) -> None:
    """Remove a root, and nothing that might be mounted in it."""
    subprocess.run(["rm", "--recursive", "--force", "--one-file-system", root], check=True)


def _mirror() -> str:
    """The mirror of Debian that this machine's own apt asks."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)", "Created-By: Packages"]
    return mirror_in(_run(command, "apt doesn't say where it gets packages").splitlines())


def mirror_in(targets: Sequence[str]) -> str:
    """The first mirror of Debian among apt's lines of address and component.

    Raises:
        CannotMake: there is none, as on Ubuntu.
    """
    for line in targets:
        address, _, component = line.rpartition(" ")
        if component == "main" and address.rstrip("/").endswith("/debian"):
            return address
    raise CannotMake(f"this machine's apt knows no mirror of Debian; name one: {MIRROR}=http://.../debian")


def _run(command: Sequence[str], else_say: str) -> str:
    if shutil.which(command[0]) is None:
        raise CannotMake(f"no {command[0]} here; apt-get install {command[0].removesuffix('-get')}")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as late:
        raise CannotMake(f"{else_say} `{command[0]}` has not ended after {_SECONDS} s") from late
    if done.returncode:
        raise CannotMake("\n".join([else_say, *done.stderr.strip().splitlines()[-10:]]))
    return done.stdout
