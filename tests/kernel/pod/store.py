"""The node's images, unpacked before its machine starts: in an emulated one that takes minutes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.images import Container, built
from tests.tiers import find_program

_SECONDS = 180
_DISK = "4G"
"""Of which only what is written takes space."""
# Its own plugin for Kubernetes is of no use here, and would look for a network; the other makes /opt/containerd.
_CONFIGURATION = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{folder}/containerd.sock"
"""


class CannotUnpack(Exception):
    """The images can't be unpacked; the text is what containerd said."""


def disk_with(archives: Sequence[Path], binaries: Path, folder: Path) -> Path:
    """A file system with containerd's root folder, in which the kubelet's containerd finds the images unpacked.

    Args:
        archives: of the images.
        binaries: where the cluster has its own programs; what is not there is this machine's.
        folder: for the file.

    Raises:
        CannotUnpack: by containerd or mke2fs.
    """
    env = os.environ | {"PATH": f"{binaries}:{os.environ.get('PATH', os.defpath)}"}
    disk = folder / "images.ext4"
    with _containerd(folder, env):
        for archive in archives:
            ctr = ("ctr", "--address", f"{folder}/containerd.sock", "--namespace", "k8s.io")
            _run(*ctr, "images", "import", "--snapshotter", "overlayfs", str(archive), env=env)
    _make_disk(folder / "containerd", disk, env)
    return disk


def disk_of(image: str, folder: Path) -> Path:
    """A file system with an image's files, as a container finds them.

    Raises:
        CannotUnpack: by mke2fs.
    """
    disk = folder / f"{image}.ext4"
    container = Container(built(image).name)
    try:
        _make_disk(container.root, disk, dict(os.environ))
    finally:
        container.close()
    return disk


def _make_disk(files: Path, disk: Path, env: dict[str, str]) -> None:
    mke2fs = find_program("mke2fs") or "mke2fs"
    _run(mke2fs, "-q", "-t", "ext4", "-d", str(files), str(disk), _DISK, env=env)


@contextmanager
def _containerd(folder: Path, env: dict[str, str]) -> Iterator[None]:
    configuration, log = folder / "containerd.toml", folder / "containerd.log"
    configuration.write_text(_CONFIGURATION.format(folder=folder))
    with open(log, "wb") as file:
        command = ["containerd", "--config", str(configuration)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env)
    try:
        deadline = time.monotonic() + _SECONDS
        while not (folder / "containerd.sock").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise CannotUnpack("\n".join(log.read_text(errors="replace").splitlines()[-10:]))
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def _run(*command: str, env: dict[str, str]) -> None:
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotUnpack(f"`{' '.join(command)}`: {(done.stderr or done.stdout).strip()}")
