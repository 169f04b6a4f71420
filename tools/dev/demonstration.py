"""``./dev demo --full``: from a pod to its guest, on real parts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.tiers import FULL_DEMO_DISK_MIB, IMAGES, KERNEL, full_demo_lacks, full_demo_mib
from tools.dev.console import UNAVAILABLE, fail, say
from tools.dev.environment import call
from tools.dev.testing import make_ready


def run_full_demo() -> int:
    """Say what it takes, or what is missing, before anything is installed; then run it."""
    free_mib = shutil.disk_usage("/var").free >> 20
    if lacks := full_demo_lacks(os.geteuid(), _available_mib(), free_mib, os.uname().machine):
        fail("\n  ".join(["demo --full can't run here:", *lacks, "docs/how-to/pod-to-guest.md says more"]), UNAVAILABLE)
    say(
        f"this takes {full_demo_mib() >> 10} GB of memory, up to {FULL_DEMO_DISK_MIB >> 10} GB of disk space and ten "
        "minutes or so, fewer the next time; packages of the distribution are installed"
    )
    make_ready([IMAGES, KERNEL])
    return call("python", "-m", "tests.kernel.pod.run")


def _available_mib() -> int:
    """The memory that can be had, as the kernel estimates it."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) >> 10
