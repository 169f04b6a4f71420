"""A driver that is a pod: its containers are started, killed and ended by runc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from launcherkit_lab.conformance.driver import CannotStartDriver, Driver
from launcherkit_lab.container.image import ImageConfig, unpack
from launcherkit_lab.container.manifest import Pod, make_volumes
from launcherkit_lab.container.objects import BadManifest, Container
from launcherkit_lab.container.oci import Extras, specification
from launcherkit_lab.programs import find_program

FOLDER = Path("/run/launcherkit-lab/container")
"""Where the machine has its layers, in memory."""
ALL = ""
"""In place of a container's name: every one that has no image of its own."""


class _Started(Driver):
    """A container, whose own layer is empty at each start, as when a kubelet starts it again.

    Args:
        runc: the program.
        name: by which runc knows it.
        bundle: its folder, with ``config.json``.
        image: the folder with its image's files.
        log: see `Driver`; what it has is kept.
    """

    def __init__(self, runc: str, name: str, bundle: Path, image: Path, log: Path) -> None:
        super().__init__([runc, "run", "--bundle", str(bundle), name], log)
        self._runc, self._name, self._bundle, self._image = runc, name, bundle, image

    def start(self) -> None:
        """See `Driver.start`.

        Raises:
            CannotStartDriver: its layers can't be mounted.
        """
        if self.running:
            return
        self.remove()
        for part in ("upper", "work"):
            shutil.rmtree(self._bundle / part, ignore_errors=True)
        for part in ("upper", "work", "rootfs"):
            (self._bundle / part).mkdir(exist_ok=True)
        upper, work = self._bundle / "upper", self._bundle / "work"
        layers = f"lowerdir={self._image},upperdir={upper},workdir={work}"
        mount("-t", "overlay", "-o", layers, "overlay", str(self._bundle / "rootfs"))
        super().start()

    def kill(self) -> None:
        """See `Driver.kill`."""
        self.remove()
        super().kill()

    def run(self) -> int:
        """Start it and wait for its end; its exit code."""
        self.start()
        assert self._process is not None
        return self._process.wait()

    def _ask_to_end(self) -> None:
        subprocess.run([self._runc, "kill", self._name, "TERM"], capture_output=True, check=False)

    def remove(self) -> None:
        """Kill all of its processes, wherever they are, and unmount its layers."""
        subprocess.run([self._runc, "delete", "--force", self._name], capture_output=True, check=False)
        root = self._bundle / "rootfs"
        with suppress(subprocess.CalledProcessError):
            while os.path.ismount(root):
                subprocess.run(["umount", "--lazy", str(root)], capture_output=True, check=True)


class ContainerDriver(Driver):
    """The containers of a pod; those that have ended are started again, after the init containers the first time.

    Args:
        pod: from `read_pod`.
        archives: the image of each container, by its name, or that of `ALL`.
        kubelet_dir: has the node's seccomp profiles.
        log: the file that gets all that they say, of every start.
        folder: for its layers and volumes, in memory; what another one has made there is gone.

    Raises:
        BadManifest: a container has no image here, or an image no container.
        CannotStartDriver: there is no runc.
    """

    def __init__(
        self, pod: Pod, archives: Mapping[str, Path], kubelet_dir: Path, log: Path, folder: Path = FOLDER
    ) -> None:
        if (runc := find_program("runc")) is None:
            raise CannotStartDriver("no runc here: apt-get install --no-install-recommends runc")
        super().__init__([runc], log)
        self._runc = runc
        self._pod, self._kubelet_dir, self._folder = pod, kubelet_dir, folder
        self._archives = archives_of(pod, archives)
        self._containers: list[_Started] = []

    @property
    def running(self) -> bool:
        return bool(self._containers) and all(one.running for one in self._containers)

    def start(self) -> None:
        """See `Driver.start`. The first time it unpacks the images, makes volumes of what the kubelet has by then, and
        runs the init containers.

        Raises:
            CannotStartDriver: layers can't be mounted, or an init container has failed.
            BadImage, BadManifest: see `unpack`, `make_volumes` and `specification`.
        """
        if not self._containers:
            self._containers = self._make()
        for one in self._containers:
            one.start()

    def kill(self) -> None:
        """See `Driver.kill`."""
        for one in self._containers:
            one.kill()

    def end(self, seconds: float) -> int | None:
        """See `Driver.end`: of several the first code that isn't 0."""
        codes = [one.end(seconds) for one in self._containers]
        return None if None in codes else next(filter(None, codes), 0)

    def _make(self) -> list[_Started]:
        if os.path.ismount(self._folder):
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        # Layers can't be stacked on layers, as the root of the lab's machine is.
        mount("-t", "tmpfs", "-o", "mode=700,size=75%", "container", str(self._folder))
        subprocess.run(["modprobe", "overlay"], check=False)  # it may be part of the kernel
        images: dict[Path, tuple[Path, ImageConfig]] = {}
        for archive in self._archives.values():
            if archive not in images:
                root = self._folder / f"image-{len(images)}"
                images[archive] = root, unpack(archive, root)
        extras = Extras(make_volumes(self._pod, self._folder / "volumes"), kubelet_dir=self._kubelet_dir)
        for one in self._pod.first:
            code = self._container(one, *images[self._archives[one.name]], extras).run()
            if code:
                raise CannotStartDriver(f"the init container {one.name} has ended with {code}: {self.said_since(0, 5)}")
        return [self._container(one, *images[self._archives[one.name]], extras) for one in self._pod.containers]

    def _container(self, one: Container, root: Path, image: ImageConfig, extras: Extras) -> _Started:
        specified = specification(self._pod, one, image, root, extras)
        bundle = self._folder / f"bundle-{one.name}"
        specified["root"]["path"] = str(bundle / "rootfs")
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(specified))
        return _Started(self._runc, f"lab-{self._pod.name}-{one.name}", bundle, root, self.log)


def archives_of(pod: Pod, archives: Mapping[str, Path]) -> dict[str, Path]:
    """The image of each container of a pod by its name.

    Raises:
        BadManifest: one has none, or there is no such container.
    """
    names = [one.name for one in (*pod.first, *pod.containers)]
    if unknown := sorted(archives.keys() - {ALL, *names}):
        raise BadManifest(
            f"{pod}: no container {', '.join(unknown)}, of which an image is given; it has {', '.join(names)}"
        )
    own = {name: archives.get(name, archives.get(ALL)) for name in names}
    if missing := [name for name, archive in own.items() if archive is None]:
        raise BadManifest(f"{pod}: no image is given for {', '.join(missing)}: --image {missing[0]}=ARCHIVE")
    return {name: archive for name, archive in own.items() if archive is not None}


def mount(*words: str) -> None:
    """Mount something.

    Raises:
        CannotStartDriver: it can't be mounted.
    """
    done = subprocess.run(["mount", *words], capture_output=True, text=True)
    if done.returncode:
        raise CannotStartDriver(f"its files can't be mounted: {done.stderr.strip()}")
