"""What KubeVirt asks of hooks on the target of a migration, as its source says: docs/reference/migration.md.

There the launcher makes a domain of the VMI with no hostdev but the one mdev that was allocated on the target. It calls
OnDefineDomain and MutateDomain with it, drops the answers, and gives up on an error.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from grpclib import GRPCError

from tests.hooks.test_exec_hook import HOOK
from tests.support import forked
from tests.support.facts import UUID
from tests.support.hooks import VERSIONS, Client, call, hook_process
from tests.support.hosttree import HostTree

VMI = json.dumps(
    {
        "metadata": {"name": "moving", "namespace": "render"},
        "spec": {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": "nvidia.com/GRID_T4-1Q"}]}}},
        "status": {"migrationState": {"targetPod": "virt-launcher-moving-fghij"}},
    }
)
EMPTY = '<domain type="kvm"><os><type arch="x86_64" machine="q35">hvm</type></os><devices></devices></domain>'
MDEV = f"""<hostdev mode="subsystem" type="mdev" managed="no" model="vfio-pci" display="on" ramfb="on">
      <source><address uuid="{UUID}"></address></source><alias name="ua-gpu-gpu1"></alias></hostdev>"""
DOMAIN = EMPTY.replace("</devices>", f'<graphics type="vnc"></graphics>{MDEV}</devices>')


@pytest.fixture
def target(tmp_path: Path) -> HostTree:
    """The target's node, as a sidecar there sees it: a vGPU of a card."""
    tree = HostTree(tmp_path / "target", nodes=False)
    tree.function("0000:3b:00.0", driver="nvidia", group=30)
    tree.mdev_type("0000:3b:00.0", "nvidia-222", name="GRID T4-1Q", device_api="vfio-pci", available_instances="2")
    tree.mdev("0000:3b:00.0", "nvidia-222", UUID, group=90)
    return tree


def exec_hook(target: HostTree, domain: str) -> subprocess.CompletedProcess[bytes]:
    command = [HOOK, "--vmi", VMI, "--domain", domain]
    env = {"LAUNCHERKIT_HOST": str(target.root)}
    return forked.run(command, env=env, capture_output=True, check=False, stdin=subprocess.DEVNULL)


def test_every_hook_answers_for_the_targets_vgpu_and_adds_no_second_hostdev(target: HostTree, sockets: Path) -> None:
    """KubeVirt's own hook refuses to migrate a domain with more than one hostdev."""
    done = exec_hook(target, DOMAIN)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"<hostdev ") == 1
    assert UUID.encode() in done.stdout
    flags = ("--socket-dir", sockets, "--plugin-dir", sockets, "--domain-hook", "gpus", "--host", target.root)
    with hook_process(*flags, serves=("the hook sidecar", "the domain hook of gpus")):

        async def each(client: Client) -> list[bytes]:
            return await asyncio.gather(
                *(client.define(DOMAIN.encode(), VMI.encode(), version) for version in sorted(VERSIONS))
            )

        assert set(call(sockets / "hook.sock", each)) == {done.stdout}
        mutated = call(
            sockets / "gpus" / "launcherkit.sock",
            lambda client: client.mutate(DOMAIN.encode(), VMI.encode(), context="MigrationTarget"),
        )
        assert mutated == done.stdout


def test_an_error_on_the_target_keeps_the_vm_where_it_is(target: HostTree, sockets: Path) -> None:
    """A VMI whose device KubeVirt doesn't hand out on the target would bring the source's address with it."""
    done = exec_hook(target, EMPTY)
    assert (done.returncode, done.stdout) == (65, b"")
    assert b"error[LK201]" in done.stderr
    flags = ("--plugin-dir", sockets, "--domain-hook", "gpus", "--host", target.root)
    with hook_process(*flags, serves=("the domain hook of gpus",)), pytest.raises(GRPCError, match="LK201"):
        call(
            sockets / "gpus" / "launcherkit.sock",
            lambda client: client.mutate(EMPTY.encode(), VMI.encode(), context="MigrationTarget"),
        )
