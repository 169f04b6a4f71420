"""The running kernel."""

from __future__ import annotations

import re

from launcherkit.compatibility import Version
from launcherkit.host.tree import Tree


def read_kernel(tree: Tree) -> Version | None:
    """The version of Linux, without the distribution's suffix; None if the tree has no ``proc``."""
    release = re.match(rb"(\d{1,3}(?:\.\d{1,3}){1,2})", tree.read("proc/sys/kernel/osrelease") or b"")
    return tuple(map(int, release[1].split(b"."))) if release else None
