"""A guest by plain QEMU, as it would be in a container that was given functions and device nodes."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from launcherkit_lab.guest.build import CannotCompile, build_kernel
from launcherkit_lab.guest.listing import LISTED, Listing, read_listing
from launcherkit_lab.programs import find_program

_VFIO = Path("/dev/vfio")
_IOMMUFD = "/dev/iommu"
_OWN = (0x00, 0x1F)
"""The slots of q35's own functions: host bridge, and ICH9's ISA bridge, SATA and SMBus."""
MOST = 30
"""How many functions it can have."""


class NoGuest(Exception):
    """No guest can be started here; the text says why."""


class GuestRefused(Exception):
    """QEMU doesn't start the guest, or it says nothing of its bus; the text is QEMU's."""


def place(index: int) -> str:
    """The guest's address of the function that it was given as the first, 0, the second, 1, ..."""
    return f"0000:00:{index + 1:02x}.0"


def listed(addresses: Sequence[str], nodes: Mapping[str, str], seconds: float) -> Listing:
    """What a guest with these functions finds on its PCI bus, without what every guest has.

    Args:
        addresses: the functions' on the host, each in a slot of its own; see `place`.
        nodes: the container's device nodes: the path in it, and the host's.
        seconds: how long the guest may take.

    Raises:
        NoGuest: there is no QEMU or no compiler, or this is not root.
        GuestRefused: QEMU doesn't take a function or a node, or the guest doesn't come to its end.
    """
    qemu = find_program("qemu-system-x86_64")
    if qemu is None:
        raise NoGuest("no qemu-system-x86_64 here: apt-get install qemu-system-x86")
    if len(addresses) > MOST:
        raise NoGuest(f"the guest has room for {MOST} functions, not for {len(addresses)}")
    by_iommufd = _IOMMUFD in nodes and not any(Path(path).name.isdecimal() for path in nodes)  # no group's node
    if by_iommufd and "iommufd" not in _said([qemu, "-object", "help"]):
        raise NoGuest(f"{qemu} doesn't know iommufd, whose nodes alone there are")
    _said(["unshare", "--mount", "true"])
    with tempfile.TemporaryDirectory(prefix="guest-") as folder:
        kernel = Path(folder, "kernel")
        kernel.write_bytes(_kernel())
        command = [qemu, *_options(kernel, addresses, by_iommufd=by_iommufd)]
        try:
            script = with_nodes(nodes)
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-ec", script, "sh", *command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
            )
        except OSError as error:
            raise GuestRefused(f"a container can't have {error.filename}: {error.strerror}") from error
        except subprocess.TimeoutExpired as late:
            raise GuestRefused(f"the guest has not ended after {seconds:g} s") from late
    said, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace").strip()
    if done.returncode or LISTED not in said:
        raise GuestRefused(errors or f"QEMU ended with {done.returncode}, and the guest said {said[-200:]!r}")
    return {address: ids for address, ids in read_listing(said).items() if int(address[8:10], 16) not in _OWN}


def _options(kernel: Path, addresses: Sequence[str], *, by_iommufd: bool) -> Iterator[str]:
    yield from ("-nodefaults", "-no-user-config", "-machine", "q35", "-accel", "tcg", "-m", "64", "-no-reboot")
    yield from ("-display", "none", "-monitor", "none", "-serial", "stdio")
    yield from ("-kernel", str(kernel), "-append", "pci off")
    if by_iommufd:
        yield from ("-object", "iommufd,id=iommufd0")
    for index, address in enumerate(addresses):
        device = f"vfio-pci,host={address},bus=pcie.0,addr={place(index)[8:]},rombar=0"
        yield from ("-device", device + (",iommufd=iommufd0" if by_iommufd else ""))


def with_nodes(nodes: Mapping[str, str]) -> str:
    """The script by which a shell with mounts of its own has, of VFIO's nodes, these alone, and runs its arguments.

    That is what a container runtime does with the kubelet's answer.

    Args:
        nodes: the path in the container, and the host's.

    Raises:
        OSError: the host has no such node.
    """
    lines = [f"mount -t tmpfs vfio {_VFIO}"]
    for path, host in nodes.items():
        number = os.stat(host).st_rdev
        if Path(path).is_relative_to(_VFIO):
            lines.append(f"mkdir -p {shlex.quote(os.path.dirname(path))}")
            lines.append(f"mknod -m 666 {shlex.quote(path)} c {os.major(number)} {os.minor(number)}")
    if _IOMMUFD not in nodes:
        lines.append(f"[ ! -e {_IOMMUFD} ] || mount --bind /dev/null {_IOMMUFD}")
    return "\n".join([*lines, 'exec "$@"'])


@cache
def _kernel() -> bytes:
    """The guest's kernel, compiled once."""
    with tempfile.TemporaryDirectory(prefix="guest-") as folder:
        try:
            return build_kernel(Path(folder)).read_bytes()
        except CannotCompile as error:
            raise NoGuest(str(error)) from error


def _said(command: Sequence[str]) -> str:
    """What a command says.

    Raises:
        NoGuest: it fails, with what it says of that.
    """
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise NoGuest(done.stderr.strip() or f"`{shlex.join(command)}` ended with {done.returncode}")
    return done.stdout
