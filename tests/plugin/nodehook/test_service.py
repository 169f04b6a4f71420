"""The node hook: what virt-handler says of VMs makes vGPUs be there sooner, and go sooner, and never wrongly."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from grpclib import GRPCError, Status

from launcherkit.errors import BAD_VMI, SeveralErrors
from launcherkit.rpc.client import unix_channel
from launcherkit.rpc.methods import call
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.model.device import NO_USAGE, Holder, Usage
from launcherkit_plugin.model.errors import PLUGIN_SOCKET_IN_USE, PLUGIN_SOCKET_NOT_MADE, VGPU_NOT_MADE
from launcherkit_plugin.nodehook import service
from launcherkit_plugin.nodehook.proto.nodehook_v1alpha1_pb2 import ExecuteNodeHookRequest
from launcherkit_plugin.nodehook.service import NodeHook, pod_of, read_vm, serving_node_hook
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.plugin.kubelet.parts import Lines
from tests.support.errors import raises_code

ONE = "nvidia.com/GRID_T4-1Q"
POD = "default/virt-launcher-vm-abcde"


def vmi(name: str = "vm", uid: str = "uid-1", devices: int = 1, pods: Sequence[str] = ()) -> bytes:
    gpus = [{"name": f"gpu{number}", "deviceName": ONE} for number in range(devices)]
    document = {
        "metadata": {"namespace": "default", "name": name, "uid": uid},
        "spec": {"domain": {"devices": {"gpus": gpus}}},
        "status": {"activePods": dict.fromkeys(pods, "node-1")},
    }
    return json.dumps(document).encode()


def usage(**pods: Sequence[str]) -> Usage:
    held = {
        device: Holder(f"default/{pod.replace('_', '-')}", "compute") for pod, ids in pods.items() for device in ids
    }
    return Usage("pod-resources", {ONE: held})


class Answers(Allocator):
    """Advertises one resource, all of whose devices are there unless there is an error."""

    names = frozenset({ONE})

    def __init__(self) -> None:
        super().__init__(Reservations(), lambda: 0.0)
        self.checked: list[tuple[str, tuple[str, ...]]] = []
        self.error: Exception | None = None

    async def check(self, resource: str, ids: Sequence[str]) -> None:
        self.checked.append((resource, tuple(ids)))
        if self.error is not None:
            raise self.error


EXECUTE_NODE_HOOK = NodeHook.service.methods_by_name["ExecuteNodeHook"]


class Handler:
    """virt-handler, and the plugin that it calls."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "hook.sock")
        self.answers = Answers()
        self.stopped = Stopped()
        self.usage = usage(virt_launcher_vm_abcde=["u1"])
        self.woken = 0
        self.log = Lines()

    def wake(self) -> None:
        self.woken += 1

    async def read(self) -> Usage:
        return self.usage

    def does(self, *calls: tuple[str, bytes]) -> None:
        async def all_of_them() -> None:
            node = NodeHook(self.answers, self.read, self.stopped, self.wake, Reporter(self.log))
            async with serving_node_hook(self.path, node):
                channel = unix_channel(self.path)
                try:
                    for point, document in calls:
                        request = ExecuteNodeHookRequest(hookPoint=point, vmi=document)
                        await call(channel, EXECUTE_NODE_HOOK, request)
                finally:
                    channel.close()

        asyncio.run(all_of_them())

    def freed(self) -> set[str]:
        return set(self.stopped.without(self.usage)[1])


@pytest.fixture
def handler(tmp_path: Path) -> Handler:
    return Handler(tmp_path)


def test_before_a_vm_starts_what_its_pod_has_is_looked_at(handler: Handler) -> None:
    handler.does(("PreVMStart", vmi()))
    assert handler.answers.checked == [(ONE, ("u1",))]
    assert handler.freed() == set()


def test_before_a_vm_migrates_here_what_its_new_pod_has_is_looked_at_and_it_is_freed_when_the_vm_ends_here(
    handler: Handler,
) -> None:
    """PreVMStart isn't called on the target, whose node never saw the VM start; its pods on both nodes are active."""
    arriving = vmi(pods=("source-uid", "target-uid"))
    handler.usage = usage(virt_launcher_vm_fghij=["u2"])
    handler.does(("PreMigrationTarget", arriving), ("PostVMStop", arriving))
    assert handler.answers.checked == [(ONE, ("u2",))]
    assert (handler.freed(), handler.woken) == ({"u2"}, 1)


def test_a_vm_whose_vgpu_cant_be_made_does_not_migrate_here(handler: Handler) -> None:
    handler.answers.error = VGPU_NOT_MADE("0000:01:00.0: it can't be made", "See dmesg.")
    with pytest.raises(GRPCError, match="LK731"):
        handler.does(("PreMigrationTarget", vmi()))


def test_a_vm_whose_vgpu_cant_be_made_does_not_start(handler: Handler) -> None:
    handler.answers.error = VGPU_NOT_MADE("0000:01:00.0: it can't be made", "See dmesg.")
    with pytest.raises(GRPCError, match="LK731") as caught:
        handler.does(("PreVMStart", vmi()))
    assert caught.value.status is Status.FAILED_PRECONDITION
    assert handler.log.lines == ["error: LK731: 0000:01:00.0: it can't be made. See dmesg."]


def test_a_bug_is_told_to_the_log_and_not_to_who_calls(handler: Handler) -> None:
    handler.answers.error = ZeroDivisionError("in check")
    with pytest.raises(GRPCError, match="the log of the device plugin has more") as caught:
        handler.does(("PreVMStart", vmi()))
    assert caught.value.status is Status.INTERNAL
    assert handler.log.lines == ["error: internal error in PreVMStart: ZeroDivisionError: in check"]


def test_a_vm_whose_pod_has_too_few_does_not_start(handler: Handler) -> None:
    with pytest.raises(
        GRPCError, match=r"asks for 2 of nvidia.com/GRID_T4-1Q, and its pod default/virt-launcher-vm-abcde"
    ):
        handler.does(("PreVMStart", vmi(devices=2)))


def test_a_vm_starts_where_usage_is_unknown_or_no_pod_is_found(handler: Handler) -> None:
    for known in (NO_USAGE, usage(virt_launcher_other_abcde=["u1"])):
        handler.usage = known
        handler.does(("PreVMStart", vmi(devices=2)))
        (line,) = handler.log.lines
        assert line.endswith(" starts, and the kubelet lists no pod, or more than one, that could be its")
        handler.log.lines.clear()
    assert handler.answers.checked == []


def test_a_vm_that_asks_for_nothing_of_ours_is_none_of_our_business(handler: Handler) -> None:
    handler.usage = NO_USAGE
    handler.does(("PreVMStart", vmi(devices=0)), ("PostVMStop", vmi(devices=0)))
    assert (handler.answers.checked, handler.woken) == ([], 0)


def test_what_a_vm_asks_of_other_plugins_is_none_of_our_business(handler: Handler) -> None:
    document = json.loads(vmi())
    document["spec"]["domain"]["devices"]["hostDevices"] = [{"name": "nic", "deviceName": "other.org/NIC"}]
    handler.does(("PreVMStart", json.dumps(document).encode()))
    assert handler.answers.checked == [(ONE, ("u1",))]


def test_only_so_many_vms_are_remembered_and_the_latest_are(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_VMS", 2)
    starts = [("PreVMStart", vmi(uid=f"uid-{number}")) for number in range(3)]
    handler.does(*starts, ("PostVMStop", vmi(uid="uid-0")))
    assert handler.woken == 0
    handler.does(*starts, ("PostVMStop", vmi(uid="uid-1")), ("PostVMStop", vmi(uid="uid-2")))
    assert handler.woken == 2


def test_after_a_vm_has_stopped_what_it_had_is_free_at_once(handler: Handler) -> None:
    handler.does(("PreVMStart", vmi()), ("PostVMStop", vmi()))
    assert (handler.freed(), handler.woken) == ({"u1"}, 1)
    (line,) = handler.log.lines
    assert line.endswith(" has stopped; the devices of default/virt-launcher-vm-abcde are free")


def test_what_has_gone_to_another_pod_is_not_freed(handler: Handler) -> None:
    handler.does(("PreVMStart", vmi()), ("PostVMStop", vmi()))
    handler.usage = usage(virt_launcher_vm_fghij=["u1"])
    assert handler.freed() == set()


def test_a_vm_that_was_not_seen_to_start_keeps_what_its_pod_has(handler: Handler) -> None:
    handler.does(("PreVMStart", vmi(uid="uid-2")), ("PostVMStop", vmi(uid="uid-1")))
    assert (handler.freed(), handler.woken) == (set(), 0)


def test_other_hook_points_are_heard_and_nothing_is_done(handler: Handler) -> None:
    handler.does(*((point, b"") for point in ("PostVMStart", "PreVMStop", "PreMigrationSource", "SomethingNew")))
    assert handler.answers.checked == []


def test_a_document_that_is_no_vmi_is_refused(handler: Handler) -> None:
    for document in (b"", b"{}", b"[]", b'{"metadata": {"name": "vm", "namespace": 3}, "spec": {"domain": {}}}'):
        with pytest.raises(GRPCError, match="LK111") as caught:
            handler.does(("PreVMStart", document))
        assert caught.value.status is Status.INVALID_ARGUMENT


def test_the_socket_is_for_owner_and_group_and_goes_at_the_end(handler: Handler) -> None:
    async def look() -> int:
        node = NodeHook(handler.answers, handler.read, handler.stopped, handler.wake, Reporter())
        async with serving_node_hook(handler.path, node):
            return Path(handler.path).stat().st_mode & 0o777

    assert asyncio.run(look()) == 0o660
    assert not Path(handler.path).exists()


def test_a_socket_that_somebody_serves_on_is_left_alone(handler: Handler) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(handler.path)
        other.listen()
        with raises_code(PLUGIN_SOCKET_IN_USE):
            handler.does()
    handler.path += "/nowhere/hook.sock"
    with raises_code(PLUGIN_SOCKET_NOT_MADE):
        handler.does()


# Which pod is a VM's


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        ({"virt_launcher_vm_abcde": ["u1", "u2"]}, POD),
        ({"virt_launcher_vm_2_abcde": ["u1"]}, None),
        ({"virt_launcher_vm_abcdef": ["u1"]}, None),
        ({"virt_launcher_vm": ["u1"]}, None),
        ({"virt_launcher_vm_abcde": ["u1"], "virt_launcher_vm_fghij": ["u2"]}, None),
        ({}, None),
    ],
)
def test_a_vms_pod_is_known_by_its_name_where_there_is_only_one(pods: dict[str, Any], found: str | None) -> None:
    had = pod_of(read_vm(vmi()), usage(**pods))
    assert (had.pod if had else None) == found


def test_a_vms_pod_is_known_by_its_uid_where_the_checkpoint_is_all_there_is() -> None:
    held = Usage("checkpoint", {ONE: {"u1": Holder("uid:pod-1"), "u2": Holder("uid:pod-2")}})
    had = pod_of(read_vm(vmi(pods=["pod-1"])), held)
    assert had is not None
    assert had == ("uid:pod-1", {ONE: ("u1",)})


def test_a_name_that_kubernetes_cuts_may_be_another_vms() -> None:
    name = "v" * 50
    held = Usage("pod-resources", {ONE: {"u1": Holder(f"default/virt-launcher-{name}-abcde")}})
    assert pod_of(read_vm(vmi(name=name)), held) is None


def test_a_vmi_without_identity_is_no_vmi() -> None:
    with pytest.raises(SeveralErrors) as raised:
        read_vm(b'{"metadata": {"name": "vm"}, "spec": {"domain": {}}}')
    assert [(error.code, error.message) for error in raised.value.errors] == [
        (BAD_VMI.code, f"the VMI, metadata.{key}: expected the {key} of the VM, found nothing")
        for key in ("namespace", "uid")
    ]
