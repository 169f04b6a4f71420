"""vGPUs by ``launcherkit-plugin serve`` as a process, on a built host, with a strict kubelet and a virt-handler."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcherkit.rpc.client import unix_channel
from launcherkit.rpc.methods import call
from launcherkit_lab.kubelet import Kubelet, NotAdmitted, running_kubelet
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.nodehook.proto.nodehook_v1alpha1_pb2 import ExecuteNodeHookRequest
from tests.plugin.daemon.test_serve import Node
from tests.plugin.nodehook.test_service import EXECUTE_NODE_HOOK, vmi
from tests.support.facts import UUID
from tests.support.waiting import until

CARD, FIRST, SECOND = "0000:41:00.0", "0000:41:01.0", "0000:41:01.1"
ONE, TWO = "nvidia.com/NVIDIA_A40-1B", "nvidia.com/NVIDIA_A40-2B"
CONFIGURATION = {
    "rescanSeconds": 1,
    "vgpu": {"virtualFunctions": [{"types": ["NVIDIA A40-*"], "mode": "dynamic"}]},
}


@pytest.fixture
def node() -> Iterator[Node]:
    """With a card of two VFs, whose files take a type as the driver's do."""
    with tempfile.TemporaryDirectory(prefix="node-") as folder:
        node = Node(Path(folder))
        node.tree.function(CARD, class_code=0x030200, driver="nvidia", group=40)
        for number, vf in enumerate((FIRST, SECOND)):
            node.tree.vf(CARD, vf, vgpu="0", class_code=0x030200, driver="nvidia", group=41 + number)
            node.tree.node(f"vfio/{41 + number}")
        node.configure(CONFIGURATION)
        yield node


@pytest.fixture
def kubelet(node: Node) -> Iterator[Kubelet]:
    with running_kubelet(node.kubelet_dir) as kubelet:
        yield kubelet


def kind(node: Node, vf: str) -> str:
    return (node.tree.path(vf) / "nvidia/current_vgpu_type").read_text().strip()


def test_a_pod_gets_a_vf_with_the_type_that_it_asked_for(node: Node, kubelet: Kubelet) -> None:
    with node.serving():
        kubelet.wait_for(ONE, {FIRST: True, SECOND: True})
        kubelet.wait_for(TWO, {FIRST: True, SECOND: True})
        (holding,) = kubelet.admit("vm", [("compute", TWO, 1)])
        given = holding.answer.envs["PCI_RESOURCE_NVIDIA_COM_NVIDIA_A40-2B"]
        other = ({FIRST, SECOND} - {given}).pop()
        assert (kind(node, given), kind(node, other)) == ("558", "0")
        paths = {device.container_path for device in holding.answer.devices}
        assert paths == {"/dev/vfio/vfio", f"/dev/vfio/{41 if given == FIRST else 42}"}
        kubelet.wait_for(ONE, {given: False, other: True})
        with pytest.raises(NotAdmitted):
            kubelet.admit("vm-2", [("compute", ONE, 2)])


@pytest.mark.slow
def test_a_card_goes_from_a_container_to_a_vgpu_and_back(node: Node, kubelet: Kubelet) -> None:
    """The card keeps its driver; never do both have it (K10)."""
    card, cuda, vgpus = "0000:51:00.0", "example.com/CUDA", "example.com/VGPU"
    node.tree.function(card, class_code=0x030200, driver="nvidia", group=60)
    screen = node.tree.path(card) / "drm/card1"
    screen.mkdir(parents=True)
    (screen / "dev").write_text("226:1\n")
    (screen / "uevent").write_text("DEVNAME=dri/card1\n")
    node.tree.mdev_type(card, "nvidia-222", name="GRID T4-1Q", device_api="vfio-pci", available_instances="0")
    node.tree.mdev(card, "nvidia-222", UUID, group=61)
    node.tree.node("vfio/61")
    rule = {"name": cuda, "select": [{"addresses": [card]}], "use": "container", "container": {"by": "nodes"}}
    vgpu = {"mediatedDevices": [{"name": vgpus, "types": ["GRID T4-1Q"]}]}
    node.configure({"rescanSeconds": 1, "resources": [rule], "vgpu": vgpu})
    with node.serving():
        for _ in range(2):
            kubelet.wait_for(vgpus, {UUID: True})
            kubelet.wait_for(cuda, {card: True})
            (holding,) = kubelet.admit("container", [("cuda", cuda, 1)])
            assert [device.container_path for device in holding.answer.devices] == ["/dev/dri/card1"]
            with pytest.raises(NotAdmitted):
                kubelet.admit("vm", [("compute", vgpus, 1)])
            kubelet.wait_for(vgpus, {UUID: False})
            kubelet.delete("container")
            kubelet.wait_for(vgpus, {UUID: True})
            (holding,) = kubelet.admit("vm", [("compute", vgpus, 1)])
            assert dict(holding.answer.envs) == {"MDEV_PCI_RESOURCE_EXAMPLE_COM_VGPU": UUID}
            with pytest.raises(NotAdmitted):
                kubelet.admit("container", [("cuda", cuda, 1)])
            kubelet.wait_for(cuda, {card: False})
            kubelet.delete("vm")


def test_what_a_pod_was_given_stays_through_the_plugins_restart(node: Node, kubelet: Kubelet) -> None:
    with node.serving():
        kubelet.wait_for(TWO, {FIRST: True, SECOND: True})
        (holding,) = kubelet.admit("vm", [("compute", TWO, 2)])
    assert {kind(node, FIRST), kind(node, SECOND)} == {"558"}
    with node.serving():
        kubelet.wait_for(TWO, {FIRST: True, SECOND: True})
        kubelet.wait_for(ONE, {FIRST: False, SECOND: False})
    assert holding.answer.envs
    assert {kind(node, FIRST), kind(node, SECOND)} == {"558"}


def test_virt_handler_is_answered_at_the_socket_that_was_named(node: Node, kubelet: Kubelet) -> None:
    path = node.folder / "hook.sock"

    async def before_start() -> None:
        channel = unix_channel(str(path))
        try:
            request = ExecuteNodeHookRequest(hookPoint="PreVMStart", vmi=vmi())
            await call(channel, EXECUTE_NODE_HOOK, request)
        finally:
            channel.close()

    with node.serving("--config", node.config, "--node-hook", path) as process:
        until(path.exists, "the socket of the node hook")
        kubelet.wait_for(ONE, {FIRST: True, SECOND: True})
        asyncio.run(before_start())
        assert process.end() == 0
    assert not path.exists()


def test_discover_shows_the_same_without_a_kubelet(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["discover", "--config", str(node.config), "-o", "json", "--host", str(node.tree.root)], {}) == 0
    document = json.loads(capfd.readouterr().out)
    found = {each["name"]: [device["id"] for device in each["devices"]] for each in document["resources"]}
    assert found == {ONE: [FIRST, SECOND], TWO: [FIRST, SECOND]}


@pytest.mark.slow  # the time that the card has to answer
def test_a_driver_that_hangs_keeps_no_other_card_from_its_pod(node: Node, kubelet: Kubelet) -> None:
    """An mdev's ``create`` that doesn't come back; the configuration changes, and changes again (K9)."""
    sick, gpu, mdevs = "0000:51:00.0", "nvidia.com/GPU", "nvidia.com/T4-1Q"
    node.tree.function(sick, class_code=0x030200, driver="nvidia", group=60)
    folder = node.tree.mdev_type(sick, "nvidia-222", name="GRID T4-1Q", available_instances="1")
    os.mkfifo(folder / "create")  # to open it hangs until somebody reads
    node.tree.card("0000:01:00", group=10)
    rules = {
        "rescanSeconds": 1,
        "resources": [{"name": gpu, "select": [{"addresses": ["0000:01:00.*"]}]}],
        "vgpu": {"mediatedDevices": [{"name": mdevs, "types": ["GRID T4-1Q"], "mode": "dynamic"}]},
    }
    node.configure(rules)
    with node.serving() as process, ThreadPoolExecutor() as pool:
        kubelet.wait_for(gpu, {"0000:01:00.0": True})
        kubelet.wait(lambda: mdevs in kubelet.resources() and list(kubelet.devices(mdevs).values()) == [True])
        (slot,) = kubelet.devices(mdevs)
        tasks = Path(f"/proc/{process.process.pid}/task")
        threads = len(list(tasks.iterdir()))
        waiting = pool.submit(kubelet.call_allocate, mdevs, [slot])
        until(lambda: len(list(tasks.iterdir())) > threads, "the thread that hangs")
        for seconds in (2, 3, 4):
            node.configure(rules | {"rescanSeconds": seconds})
            assert kubelet.call_allocate(gpu, ["0000:01:00.0"]).container_responses
            assert not waiting.done()
        with pytest.raises(NotAdmitted, match=r"UNAVAILABLE: error\[LK750\]"):
            waiting.result(60)
        kubelet.wait_for(mdevs, {slot: False})
        assert kubelet.call_allocate(gpu, ["0000:01:00.0"]).container_responses
