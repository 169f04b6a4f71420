"""What the kubelet asks about devices, and what it is answered (K2)."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from launcherkit_lab.kubelet import Kubelet, NotAdmitted
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from tests.plugin.kubelet.parts import NAME, SICK, Plugin, provoked, resource, until
from tests.support.hooks import BareClient

SERVICE = "/v1beta1.DevicePlugin/"


@pytest.fixture
def served(kubelet: Kubelet, plugin: Plugin) -> Kubelet:
    """A kubelet that knows a resource with healthy devices and one that isn't."""
    plugin.advertise(resource("a", "b", "c", "a bug", "ill", sick=["ill"]))
    kubelet.wait_for(NAME)
    return kubelet


@pytest.fixture
def path(served: Kubelet, plugin: Plugin) -> Path:
    """The resource's socket."""
    return served.plugins / resource("a").socket


@pytest.fixture
def channel(path: Path) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        yield channel


# Allocate


def test_a_container_gets_the_variable_the_nodes_and_the_names_for_cdi(served: Kubelet) -> None:
    (answer,) = served.call_allocate(NAME, ["b", "a"]).container_responses
    assert dict(answer.envs) == {f"PCI_RESOURCE_{NAME.upper()}": "b,a"}
    assert [(node.container_path, node.host_path, node.permissions) for node in answer.devices] == [
        ("/dev/vfio/vfio", "/host/dev/vfio/vfio", "mrw"),
        ("/dev/vfio/0", "/host/dev/vfio/0", "mrw"),
        ("/dev/vfio/1", "/host/dev/vfio/1", "mrw"),
    ]
    assert [device.name for device in answer.cdi_devices] == ["x.io/y=b", "x.io/y=a"]
    assert not answer.mounts
    assert not answer.annotations


def test_each_container_gets_its_own(served: Kubelet) -> None:
    answers = served.call_allocate(NAME, ["a"], ["b", "c"]).container_responses
    assert [list(answer.envs.values()) for answer in answers] == [["a"], ["b,c"]]
    assert [len(answer.devices) for answer in answers] == [2, 3]


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        (["gone"], r"NOT_FOUND: error\[LK712\]: .*there is no device 'gone'; help: Ask for another\."),
        (["a", "ill"], rf"FAILED_PRECONDITION: error\[LK713\]: .*ill is Unhealthy: {SICK.text}; help: Mend it\."),
        ([], r"INVALID_ARGUMENT: error\[LK718\]: .*an Allocate without a device"),
        (["a", "a"], r"INVALID_ARGUMENT: error\[LK718\]: .*asks for 'a' more than once"),
        (["a bug"], "INTERNAL: internal error in Allocate: ZeroDivisionError; the log of the device plugin has more"),
    ],
)
def test_a_refusal_has_a_status_the_code_and_the_help(served: Kubelet, ids: list[str], wanted: str) -> None:
    with pytest.raises(NotAdmitted, match=wanted):
        served.call_allocate(NAME, ids)
    assert served.call_allocate(NAME, ["a"]).container_responses, "it goes on"


@pytest.mark.parametrize(
    ("ids", "outcome"), [("gone", "refused"), ("ill", "refused"), ("a bug", "failed"), ("stuck", "failed")]
)
def test_what_has_failed_is_told_from_what_is_refused(kubelet: Kubelet, plugin: Plugin, ids: str, outcome: str) -> None:
    """The alert on allocations that fail counts the former."""
    plugin.advertise(resource("a bug", "stuck", "ill", sick=["ill"]))
    kubelet.wait_for(NAME)
    with pytest.raises(NotAdmitted):
        kubelet.call_allocate(NAME, [ids])
    assert plugin.metrics.outcomes == [outcome]


def test_one_device_for_two_containers_is_refused_as_a_whole(served: Kubelet) -> None:
    with pytest.raises(NotAdmitted, match="LK718"):
        served.call_allocate(NAME, ["a"], ["b", "a"])


def test_a_refusal_is_logged(served: Kubelet, plugin: Plugin) -> None:
    with pytest.raises(NotAdmitted):
        served.call_allocate(NAME, [])
    assert any(line.startswith(f"error: LK718: {provoked('LK718')}. No kubelet") for line in plugin.log.lines)


# The other calls


def test_a_preference_is_asked_for_each_container(served: Kubelet) -> None:
    one = wire.ContainerPreferredAllocationRequest(
        available_deviceIDs=["a", "b", "c"], must_include_deviceIDs=["a"], allocation_size=2
    )
    other = wire.ContainerPreferredAllocationRequest(available_deviceIDs=["b"], allocation_size=1)
    request = wire.PreferredAllocationRequest(container_requests=[one, other])
    answer = served.call(NAME, "GetPreferredAllocation", request, wire.PreferredAllocationResponse)
    assert [list(each.deviceIDs) for each in answer.container_responses] == [["a", "c"], ["b"]]


@pytest.mark.parametrize(
    ("available", "must", "size"), [(["a"], [], 2), (["a"], ["b"], 1), (["a", "b"], ["a", "b"], 1), (["a"], [], -1)]
)
def test_a_preference_that_nobody_can_have_is_refused(
    served: Kubelet, available: list[str], must: list[str], size: int
) -> None:
    asked = wire.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    request = wire.PreferredAllocationRequest(container_requests=[asked])
    with pytest.raises(NotAdmitted, match=r"INVALID_ARGUMENT: error\[LK718\]"):
        served.call(NAME, "GetPreferredAllocation", request, wire.PreferredAllocationResponse)


def test_before_a_container_starts_its_devices_are_looked_at_once_more(served: Kubelet, plugin: Plugin) -> None:
    (holding,) = served.admit("vm", [("compute", NAME, 1)])
    assert plugin.shelf.checked == list(holding.ids)
    plugin.shelf.resources = {NAME: resource(*holding.ids, sick=holding.ids)}
    with pytest.raises(NotAdmitted, match=r"FAILED_PRECONDITION: error\[LK713\]"):
        served.start_container(holding)


def test_a_call_that_there_is_not_is_answered_as_such(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(f"{SERVICE}Deallocate")(b"", timeout=60)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_what_is_no_message_is_refused(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(f"{SERVICE}Allocate")(b"\xff\xff", timeout=60)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# Watchers


def test_there_may_be_several_watchers(served: Kubelet, plugin: Plugin, channel: grpc.Channel) -> None:
    watch = channel.unary_stream(f"{SERVICE}ListAndWatch", response_deserializer=wire.ListAndWatchResponse.FromString)
    streams = [watch(b"") for _ in range(3)]
    assert [len(next(stream).devices) for stream in streams] == [5, 5, 5]
    plugin.advertise(resource("a"))
    served.wait_for(NAME, {"a": True})
    assert [[device.ID for device in next(stream).devices] for stream in streams] == [["a"]] * 3


def test_their_streams_end_with_the_resource(plugin: Plugin, channel: grpc.Channel) -> None:
    watch = channel.unary_stream(f"{SERVICE}ListAndWatch", response_deserializer=wire.ListAndWatchResponse.FromString)
    stream = watch(b"")
    assert len(next(stream).devices) == 5
    plugin.advertise()
    assert [len(answer.devices) for answer in stream] == [0]
    assert stream.code() is grpc.StatusCode.OK


def test_a_watcher_that_does_not_read_holds_up_nobody(served: Kubelet, plugin: Plugin, path: Path) -> None:
    with BareClient(path) as rude:
        number = rude.request(f"{SERVICE}ListAndWatch")
        rude.h2.send_data(number, b"\0\0\0\0\0", end_stream=True)
        rude.send()
        for count in range(1, 400):
            plugin.advertise(resource(*(f"{letter:04d}" for letter in range(count))))
        served.wait_for(NAME, {f"{letter:04d}": True for letter in range(399)})
        assert served.call_allocate(NAME, ["0001"]).container_responses


def test_one_that_leaves_takes_its_stream_along(served: Kubelet, plugin: Plugin, path: Path) -> None:
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with BareClient(path) as client:
            number = client.request(f"{SERVICE}ListAndWatch")
            client.h2.send_data(number, b"\0\0\0\0\0", end_stream=True)
            client.send()
            client.headers_until(number, "content-type")
    until(lambda: len(os.listdir("/proc/self/fd")) <= files)
    assert served.registrations == [NAME]


def test_nonsense_ends_a_connection_and_no_other(served: Kubelet, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as rude:
        rude.settimeout(60)
        rude.connect(str(path))
        rude.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        while rude.recv(65536):
            pass
    assert served.call_allocate(NAME, ["a"]).container_responses


# Under load


def test_many_kubelets_may_ask_at_once(served: Kubelet) -> None:
    answers: list[int] = []

    def ask() -> None:
        for _ in range(50):
            answers.append(len(served.call_allocate(NAME, ["a", "b"]).container_responses))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [1] * 400
