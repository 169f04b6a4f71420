"""A driver that is a container: started, killed and ended by runc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from launcherkit_lab.conformance.driver import CannotStartDriver, Driver
from launcherkit_lab.container.image import unpack
from launcherkit_lab.container.manifest import Pod, make_volumes
from launcherkit_lab.container.oci import Extras, specification
from launcherkit_lab.programs import find_program

FOLDER = Path("/run/launcherkit-lab/container")
"""Where the machine has its layers, in memory."""


class ContainerDriver(Driver):
    """The container of a pod, whose own layer is empty at each start, as when a kubelet starts it again.

    Args:
        pod: from `read_pod`.
        archive: its image.
        kubelet_dir: has the node's seccomp profiles.
        log: the file that gets all it says, of every start.
        folder: for its layers and volumes, in memory; what another one has made there is gone.

    Raises:
        CannotStartDriver: there is no runc.
    """

    def __init__(self, pod: Pod, archive: Path, kubelet_dir: Path, log: Path, folder: Path = FOLDER) -> None:
        if (runc := find_program("runc")) is None:
            raise CannotStartDriver("no runc here: apt-get install --no-install-recommends runc")
        self._runc = runc
        self._pod, self._archive, self._kubelet_dir, self._folder = pod, archive, kubelet_dir, folder
        self._name = f"lab-{pod.name}"
        self._bundle = folder / "bundle"
        self._is_made = False
        super().__init__([runc, "run", "--bundle", str(self._bundle), self._name], log)

    def start(self) -> None:
        """See `Driver.start`. The first time it unpacks the image, and makes volumes of what the kubelet has by then.

        Raises:
            CannotStartDriver: its layers can't be mounted.
            BadImage, BadManifest: see `unpack`, `make_volumes` and `specification`.
        """
        if self.running:
            return
        self._remove()
        if not self._is_made:
            self._make()
            self._is_made = True
        for part in ("upper", "work"):
            shutil.rmtree(self._bundle / part, ignore_errors=True)
        for part in ("upper", "work", "rootfs"):
            (self._bundle / part).mkdir(exist_ok=True)
        subprocess.run(["modprobe", "overlay"], check=False)  # it may be part of the kernel
        upper, work = self._bundle / "upper", self._bundle / "work"
        layers = f"lowerdir={self._folder / 'image'},upperdir={upper},workdir={work}"
        self._mount("-t", "overlay", "-o", layers, "overlay", str(self._bundle / "rootfs"))
        super().start()

    def kill(self) -> None:
        """See `Driver.kill`."""
        self._remove()
        super().kill()

    def _ask_to_end(self) -> None:
        subprocess.run([self._runc, "kill", self._name, "TERM"], capture_output=True, check=False)

    def _make(self) -> None:
        if os.path.ismount(self._folder):
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        # Layers can't be stacked on layers, as the root of the lab's machine is.
        self._mount("-t", "tmpfs", "-o", "mode=700,size=75%", "container", str(self._folder))
        image = unpack(self._archive, self._folder / "image")
        extras = Extras(make_volumes(self._pod, self._folder / "volumes"), kubelet_dir=self._kubelet_dir)
        specified = specification(self._pod, image, self._folder / "image", extras)
        specified["root"]["path"] = str(self._bundle / "rootfs")
        self._bundle.mkdir()
        (self._bundle / "config.json").write_text(json.dumps(specified))

    def _mount(self, *words: str) -> None:
        done = subprocess.run(["mount", *words], capture_output=True, text=True)
        if done.returncode:
            raise CannotStartDriver(f"its files can't be mounted: {done.stderr.strip()}")

    def _remove(self) -> None:
        """Kill all of its processes, wherever they are, and unmount its layers."""
        subprocess.run([self._runc, "delete", "--force", self._name], capture_output=True, check=False)
        root = self._bundle / "rootfs"
        with suppress(subprocess.CalledProcessError):
            while os.path.ismount(root):
                subprocess.run(["umount", "--lazy", str(root)], capture_output=True, check=True)
