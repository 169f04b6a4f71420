"""From pod to guest: a machine with a graphics card becomes a node, and a pod's guest gets the card.

`./dev demo --full` runs this; so does test_pod_to_guest.py.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from release.images import CannotBuild
from tests.kernel.devices import graphics_card
from tests.kernel.machine import Machine, Outcome
from tests.kernel.packages import CannotFetch, cache_folder
from tests.kernel.pod.store import CannotUnpack, disk_with
from tests.libvirt.pod import build_kernel
from tests.support.images import archived, built
from tests.tiers import CLUSTER, IMAGES

_MEMORY_MIB = 5120
_SECONDS = 1200
"""Several times what it takes on two processors that emulate."""


class NoCluster(Exception):
    """There is no cluster to start in the machine; the text says what is missing."""


def pod_to_guest(results: Path, env: Mapping[str, str], tell: Callable[[str], None]) -> Outcome:
    """Run all of it.

    Args:
        results: a folder for what is seen, and for logs.
        tell: gets each line that is said.

    Raises:
        NoCluster: LAUNCHERKIT_TEST_CLUSTER names none.
        CannotFetch, CannotBuild, CannotUnpack, OSError: the machine can't be made here.
    """
    program = CLUSTER.program()
    if program is None:
        raise NoCluster(f"{CLUSTER.variable} is not set: say {CLUSTER.how_to_get()}")
    if lacks := IMAGES.missing():
        raise CannotBuild(f"images can't be built here: no {', '.join(lacks)}")
    binaries = binaries_of(program)
    with tempfile.TemporaryDirectory(prefix="lk-images-") as place:
        began = time.monotonic()
        images = [archived(target, Path(place)) for target in ("plugin", "launcher")]
        kernel = build_kernel(results)
        sizes = ", ".join(f"{target} {built(target).size / 1e6:.0f} MB" for target in ("plugin", "launcher"))
        tell(f"{time.monotonic() - began:6.1f} s  the images are built: {sizes}")
        began = time.monotonic()
        disk = disk_with(images, binaries, Path(place))
        tell(f"{time.monotonic() - began:6.1f} s  they are unpacked on the machine's disk")
        machine = Machine(cache_folder(env), memory_mib=_MEMORY_MIB, devices=graphics_card(1), disk=disk)
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "tests.kernel.pod.inside",
            kernel,
            program.resolve(),
            binaries,
        ]
        return machine.run(command, results, _SECONDS, tell, {"PYTHONPATH": "plugin"})


def binaries_of(program: Path) -> Path:
    """Where the cluster has its programs; it gets them where it hasn't yet."""
    told = subprocess.run([program, "env"], capture_output=True, text=True, check=True).stdout
    places = dict(word.partition("=")[::2] for line in told.splitlines() for word in shlex.split(line))
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
            outcome = pod_to_guest(Path(folder), os.environ, show)
        except (NoCluster, CannotFetch, CannotBuild, CannotUnpack, OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"this can't be shown here: {error}\n")
            return 69
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  in all\n")
        return 1 if outcome.code is None else outcome.code


if __name__ == "__main__":
    sys.exit(main())
