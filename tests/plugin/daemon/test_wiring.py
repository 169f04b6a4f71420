"""What a configuration makes of the daemon: what it reads of the host, and whether it changes that."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.host.source import Host
from launcherkit_plugin.daemon.wiring import Setup, Wiring, assemble
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import Config, PciRule, Selector
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.support.hosttree import HostTree
from tests.support.waiting import PATIENCE

VMS = PciRule(select=(Selector(),), name="nvidia.com/GPU")
CONTAINERS = PciRule(select=(Selector(),), name="nvidia.com/gpu", use="container")


def assembled(folder: Path, config: Config) -> Setup:
    root = str(HostTree(folder).root)
    return assemble(
        config, Wiring(Host.from_sysfs(root), root, Reporter(), WorkQueue(stall=PATIENCE), Stopped(), proc=root)
    )


@pytest.mark.parametrize(
    ("rule", "reads_vgpus", "changes_host"),
    [(VMS, False, False), (CONTAINERS, True, False), (VMS._replace(bind=True), False, True)],
)
def test_vgpus_are_read_where_they_keep_containers_from_cards(
    tmp_path: Path, rule: PciRule, reads_vgpus: bool, changes_host: bool
) -> None:
    """K10. Nobody else pays for reading them."""
    setup = assembled(tmp_path, Config(pci=(rule,)))
    assert (setup.vgpu, setup.changes_host) == (reads_vgpus, changes_host)
