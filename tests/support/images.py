"""The images of deploy/images, built once in a session of tests, whichever tier asks first."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tools.release.images import CONTAINERFILE, Image, build, name_of, save_image

IMAGES = CONTAINERFILE.parent


@cache
def built(target: str) -> Image:
    """An image of deploy/images, in buildah's store.

    Raises:
        tools.release.images.CannotBuild: with the builder's words.
    """
    (image,) = build([target])
    return image


def archived(target: str, folder: Path) -> Path:
    """An image as a file that containerd takes."""
    archive = folder / f"{target}.tar"
    save_image(built(target).name, archive)
    return archive


class Container:
    """A container of an image, without a runtime: its files, and programs started with them as their root."""

    def __init__(self, image: str) -> None:
        self._name = _buildah("from", "--pull-never", image).strip()
        self.root = Path(_buildah("mount", self._name).strip())

    def run(self, *command: str) -> str:
        """What a program prints; it is the image's user, with the image's variables."""
        return _buildah("run", "--isolation=chroot", self._name, "--", *command)

    def close(self) -> None:
        _buildah("rm", self._name)


def container_maker() -> Iterator[Callable[[str], Container]]:
    """One container for each image, for all tests."""
    made: dict[str, Container] = {}

    def make(target: str) -> Container:
        if target not in made:
            made[target] = Container(built(target).name)
        return made[target]

    try:
        yield make
    finally:
        for container in made.values():
            container.close()


def with_shim(folder: Path) -> str:
    """The name of an image of shim.Containerfile, on the sidecar's and with a shim that is a stand-in for KubeVirt's.

    ``folder`` is where that is made.
    """
    shim, image = "localhost/launcherkit-test-shim", "localhost/launcherkit-test-with-shim"
    (folder / "sidecar-shim").write_text('#!/bin/sh\nexec onDefineDomain "$@"\n')
    (folder / "Containerfile").write_text("FROM scratch\nCOPY --chmod=0755 sidecar-shim /usr/bin/sidecar-shim\n")
    _buildah("build", "--isolation=chroot", f"--tag={shim}", str(folder))
    given = (f"--build-arg=SHIM_IMAGE={shim}", f"--build-arg=SIDECAR_IMAGE={built('sidecar').name}")
    file = IMAGES / "shim.Containerfile"
    _buildah("build", "--isolation=chroot", "--pull=never", f"--file={file}", f"--tag={image}", *given, str(folder))
    return image


def configuration(target: str) -> dict[str, Any]:
    """What an image says of itself: user, entry point, labels."""
    found: dict[str, Any] = json.loads(_buildah("inspect", "--type=image", name_of(target)))["OCIv1"]["config"]
    return found


def _buildah(*arguments: str) -> str:
    done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"buildah {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout
