"""From pod to guest: a machine with a graphics card becomes a node, and a pod's guest gets the card.

`./dev demo --full` runs this; so does test_pod_to_guest.py.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab.devices import graphics_card
from launcherkit_lab.guest.build import build_kernel
from launcherkit_lab.machine import Machine, Outcome
from launcherkit_lab.packages import CannotFetch, cache_folder
from tests.kernel.pod.inside import DESCRIBED
from tests.kernel.pod.store import CannotUnpack, disk_of, disk_with
from tests.support.images import archived, built, configuration
from tests.support.imports import ROOT
from tests.tiers import CLUSTER, IMAGES
from tools.release.images import CannotBuild

_SECONDS = 2400
"""Several times what it takes on two processors that emulate."""
_IMAGES = ("plugin", "launcher")


class NoCluster(Exception):
    """There is no cluster to start in the machine; the text says what is missing."""


class Made(NamedTuple):
    """What a machine is given to be a node."""

    described: Mapping[str, object]
    """For `tests.kernel.pod.inside`."""
    disks: Sequence[Path]
    memory_mib: int


def pod_to_guest(
    results: Path, env: Mapping[str, str], tell: Callable[[str], None], cluster: Path | None = None
) -> Outcome:
    """Run all of it.

    Args:
        results: a folder for what is seen, and for logs.
        tell: gets each line that is said.
        cluster: the program that starts Kubernetes; without one a double of the kubelet and runc stand for it.

    Raises:
        NoCluster: its programs can't be found.
        CannotFetch, CannotBuild, CannotUnpack, OSError: the machine can't be made here.
    """
    if lacks := IMAGES.missing():
        raise CannotBuild(f"images can't be built here: no {', '.join(lacks)}")
    with tempfile.TemporaryDirectory(prefix="lk-images-") as place:
        began = time.monotonic()
        sizes = ", ".join(f"{image} {built(image).size / 1e6:.0f} MB" for image in _IMAGES)
        kernel = build_kernel(results)
        tell(f"{time.monotonic() - began:6.1f} s  the images are built: {sizes}")
        began = time.monotonic()
        made = _with_cluster(cluster, Path(place)) if cluster else _bare(Path(place))
        (results / DESCRIBED).write_text(json.dumps(made.described))
        tell(f"{time.monotonic() - began:6.1f} s  they are unpacked on the machine's disk")
        machine = Machine(
            cache_folder(env), ROOT, memory_mib=made.memory_mib, devices=graphics_card(1), disks=made.disks
        )
        command: list[str | Path] = [sys.executable, "-m", "tests.kernel.pod.inside", kernel]
        return machine.run(command, results, _SECONDS, tell, {"PYTHONPATH": "plugin"})


def _with_cluster(program: Path, place: Path) -> Made:
    binaries = binaries_of(program)
    disk = disk_with([archived(image, place) for image in _IMAGES], binaries, place)
    return Made({"cluster": [str(program.resolve()), str(binaries)], "disk": "/dev/vda"}, [disk], 5120)


def _bare(place: Path) -> Made:
    described = {
        "images": {image: configuration(image) for image in _IMAGES},
        "disks": dict(zip(_IMAGES, ("/dev/vda", "/dev/vdb"), strict=True)),
    }
    return Made(described, [disk_of(image, place) for image in _IMAGES], 2048)


def binaries_of(program: Path) -> Path:
    """Where the cluster has its programs; it gets them where it hasn't yet."""
    reported = subprocess.run([program, "env"], capture_output=True, text=True, check=True).stdout
    places = dict(word.partition("=")[::2] for line in reported.splitlines() for word in shlex.split(line))
    if "CLUSTER_BIN" not in places:
        raise NoCluster(f"`{program} env` doesn't tell CLUSTER_BIN, where its programs are")
    binaries = Path(places["CLUSTER_BIN"])
    if not binaries.exists():
        subprocess.run([program, "install"], check=True, stdout=subprocess.DEVNULL)
    return binaries


def show(line: str) -> None:
    """Print a line of the run, and none of the kernel's own."""
    if not line.startswith("["):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def main() -> int:
    """The demonstration."""
    with tempfile.TemporaryDirectory(prefix="lk-pod-to-guest-") as folder:
        began = time.monotonic()
        try:
            outcome = pod_to_guest(Path(folder), os.environ, show, CLUSTER.program())
        except (NoCluster, CannotFetch, CannotBuild, CannotUnpack, OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"this can't be shown here: {error}\n")
            return 69
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  in all\n")
        return 1 if outcome.code is None else outcome.code


if __name__ == "__main__":
    sys.exit(main())
