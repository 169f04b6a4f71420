"""`launcherkit-plugin` on a kernel that is emulated: ``python -m tests.kubelet.emulated serve --host TREE ...``.

Drivers are bound in the tree of the host, and no process has anything open.
"""

from __future__ import annotations

import sys
from pathlib import Path

from launcherkit_plugin.__main__ import main
from launcherkit_plugin.daemon import wiring
from launcherkit_plugin.host import open_files
from launcherkit_plugin.host.drivers import SpareProcess
from launcherkit_plugin.host.processes import OpenNodes
from tests.kubelet.host import HOST_DRIVER, SWITCHED_MODEL, StandInHost
from tests.support.kernel import FakeKernel


def emulate(root: Path) -> None:
    """Let what this process writes to sysfs have its effect in a tree."""
    kernel = FakeKernel(StandInHost(root), {HOST_DRIVER: {SWITCHED_MODEL}})
    SpareProcess.worker = lambda _, keep=(): kernel.hand(keep)  # type: ignore[method-assign,assignment]
    for module in (wiring, open_files):  # the daemon's own, and its helper's, which is forked
        module.read_open_nodes = lambda *_: OpenNodes({}, "")  # type: ignore[attr-defined]


if __name__ == "__main__":
    emulate(Path(sys.argv[sys.argv.index("--host") + 1]))
    sys.exit(main())
