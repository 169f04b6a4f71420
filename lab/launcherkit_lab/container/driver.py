"""A driver that is a container: started, killed and ended by runc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab.conformance.driver import CannotStartDriver, Driver
from launcherkit_lab.container.image import unpack
from launcherkit_lab.container.manifest import Pod, make_volumes
from launcherkit_lab.container.oci import Extras, specification
from launcherkit_lab.programs import find_program

FOLDER = Path("/run/launcherkit-lab/container")
"""Where the machine has its layers, in memory."""


class Bundle(NamedTuple):
    """What runc starts a container of."""

    folder: Path
    name: str


def make_bundle(pod: Pod, archive: Path, kubelet_dir: Path, folder: Path = FOLDER) -> Bundle:
    """Unpack the image, make the volumes, and write the container's specification.

    Args:
        folder: for all of it, in memory; what an earlier call has made there is gone.

    Raises:
        BadImage, BadManifest: see `unpack` and `make_volumes`.
        CannotStartDriver: there is no runc.
    """
    if (runc := find_program("runc")) is None:
        raise CannotStartDriver("no runc here: apt-get install --no-install-recommends runc")
    bundle = Bundle(folder / "bundle", f"lab-{pod.name}")
    _remove(runc, bundle)
    if os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.mkdir(parents=True, exist_ok=True)
    # Layers can't be stacked on layers, as the root of the lab's machine is.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=75%", "container", str(folder)], check=True)
    image = unpack(archive, folder / "image")
    extras = Extras(make_volumes(pod, folder / "volumes"), kubelet_dir=kubelet_dir)
    bundle.folder.mkdir()
    root = bundle.folder / "rootfs"
    specified = specification(pod, image, folder / "image", extras)
    specified["root"]["path"] = str(root)
    (bundle.folder / "config.json").write_text(json.dumps(specified))
    return bundle


class ContainerDriver(Driver):
    """A container, whose own layer is empty at each start, as when a kubelet starts it again.

    Args:
        bundle: from `make_bundle`.
        log: the file that gets all it says, of every start.
    """

    def __init__(self, bundle: Bundle, log: Path) -> None:
        self._runc = find_program("runc") or "runc"
        self._bundle = bundle
        super().__init__([self._runc, "run", "--bundle", str(bundle.folder), bundle.name], log)

    def start(self) -> None:
        """See `Driver.start`; also raises it where the layers can't be mounted."""
        if self.running:
            return
        _remove(self._runc, self._bundle)
        folder = self._bundle.folder
        for part in ("upper", "work"):
            shutil.rmtree(folder / part, ignore_errors=True)
        for part in ("upper", "work", "rootfs"):
            (folder / part).mkdir(exist_ok=True)
        subprocess.run(["modprobe", "overlay"], check=False)  # it may be part of the kernel
        layers = f"lowerdir={folder.parent / 'image'},upperdir={folder / 'upper'},workdir={folder / 'work'}"
        mount = ["mount", "-t", "overlay", "-o", layers, "overlay", str(folder / "rootfs")]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode:
            raise CannotStartDriver(f"its layers can't be mounted: {done.stderr.strip()}")
        super().start()

    def kill(self) -> None:
        """See `Driver.kill`."""
        _remove(self._runc, self._bundle)
        super().kill()

    def _ask_to_end(self) -> None:
        subprocess.run([self._runc, "kill", self._bundle.name, "TERM"], capture_output=True, check=False)


def _remove(runc: str, bundle: Bundle) -> None:
    """Kill all of its processes, wherever they are, and unmount its layers."""
    subprocess.run([runc, "delete", "--force", bundle.name], capture_output=True, check=False)
    root = bundle.folder / "rootfs"
    with suppress(OSError):
        while os.path.ismount(root):
            subprocess.run(["umount", "--lazy", str(root)], capture_output=True, check=True)
