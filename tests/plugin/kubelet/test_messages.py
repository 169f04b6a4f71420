"""What goes over the wire to the kubelet, byte by byte where it matters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from google.protobuf.message import Message
from grpclib import Status
from hypothesis import given
from hypothesis import strategies as st

from launcherkit_plugin.kubelet import messages
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from launcherkit_plugin.model.device import Device, Grant
from launcherkit_plugin.model.errors import BAD_KUBELET_REQUEST, GROUP_SPLIT
from tests.plugin.kubelet.parts import NAME, resource
from tests.plugin.resources import CountedId
from tests.support.errors import raises_code

NODES = wire.TopologyInfo(nodes=[wire.NUMANode(ID=1), wire.NUMANode()])
MANY = 10_000
IDS = st.lists(st.text(min_size=1, max_size=5), max_size=5)


@pytest.mark.parametrize(
    ("message", "bytes_"),
    [
        (
            wire.RegisterRequest(
                version="v",
                endpoint="e",
                resource_name="r",
                options=messages.options(resource("a")._replace(made_at_start=True)),
            ),
            b'\n\x01v\x12\x01e\x1a\x01r"\x04\x08\x01\x10\x01',
        ),
        (
            wire.ListAndWatchResponse(devices=[wire.Device(ID="d", health="h", topology=NODES)]),
            b"\n\x0e\n\x01d\x12\x01h\x1a\x06\n\x02\x08\x01\n\x00",
        ),
        (
            wire.PreferredAllocationRequest(
                container_requests=[
                    wire.ContainerPreferredAllocationRequest(
                        available_deviceIDs=["a"], must_include_deviceIDs=["m"], allocation_size=2
                    )
                ]
            ),
            b"\n\x08\n\x01a\x12\x01m\x18\x02",
        ),
        (
            wire.PreferredAllocationResponse(
                container_responses=[wire.ContainerPreferredAllocationResponse(deviceIDs=["a"])]
            ),
            b"\n\x03\n\x01a",
        ),
        (wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=["a"])]), b"\n\x03\n\x01a"),
        (
            wire.ContainerAllocateResponse(
                envs={"k": "v"},
                mounts=[wire.Mount(container_path="c", host_path="h", read_only=True)],
                devices=[wire.DeviceSpec(container_path="c", host_path="h", permissions="p")],
                annotations={"a": "b"},
                cdi_devices=[wire.CDIDevice(name="n")],
            ),
            b'\n\x06\n\x01k\x12\x01v\x12\x08\n\x01c\x12\x01h\x18\x01\x1a\t\n\x01c\x12\x01h\x1a\x01p"\x06\n\x01a\x12\x01b*\x03\n\x01n',
        ),
        (wire.PreStartContainerRequest(devices_ids=["a"]), b"\n\x01a"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else "",
)
def test_a_message_is_these_bytes_on_the_wire(message: Message, bytes_: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == bytes_


def test_devices_are_reported_in_one_order_with_their_health_and_node() -> None:
    one, other = messages.device_list(resource("b", "a", sick=["a"])).devices
    assert [(one.ID, one.health), (other.ID, other.health)] == [("a", "Unhealthy"), ("b", "Healthy")]
    assert not one.HasField("topology")


def test_node_0_is_a_node_and_no_node_is_none() -> None:
    known = resource("a")._replace(devices={"a": Device("a", numa_node=0), "b": Device("b")})
    one, other = messages.device_list(known).devices
    assert ([node.ID for node in one.topology.nodes], other.HasField("topology")) == ([0], False)


def test_a_prefix_stands_before_the_path_on_the_host_alone() -> None:
    (answer,) = messages.allocation([Grant({"A": "b"}, ("/dev/vfio/7",))], "/host").container_responses
    assert [(node.host_path, node.container_path) for node in answer.devices] == [("/host/dev/vfio/7", "/dev/vfio/7")]


def test_the_kubelet_is_to_call_before_the_start_of_a_container_only_where_that_makes_something() -> None:
    for made in (False, True):
        reported = messages.options(resource("a")._replace(made_at_start=made))
        assert (reported.pre_start_required, reported.get_preferred_allocation_available) == (made, True)


def test_the_names_of_cdi_devices_go_into_the_answer_and_where_it_is_wanted_into_an_annotation() -> None:
    names = ("launcherkit.io/vfio=0000:e1:00.0", "launcherkit.io/vfio=0000:e2:00.0")
    grant = Grant({"A": "b"}, (), names, {"cdi.k8s.io/x": ",".join(names)})
    (answer,) = messages.allocation([grant], "").container_responses
    assert [device.name for device in answer.cdi_devices] == list(names)
    assert dict(answer.annotations) == {"cdi.k8s.io/x": ",".join(names)}


@given(st.lists(IDS, max_size=4))
def test_an_allocate_is_taken_if_it_names_each_device_once_and_one_for_each_container(
    containers: list[list[str]],
) -> None:
    asked = [wire.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    request = wire.AllocateRequest(container_requests=asked)
    every = [device for ids in containers for device in ids]
    if containers and all(containers) and len(set(every)) == len(every):
        assert messages.wanted(NAME, request, MANY) == containers
    else:
        with raises_code(BAD_KUBELET_REQUEST):
            messages.wanted(NAME, request, MANY)


@given(IDS, IDS, st.integers(-1, 8))
def test_a_preference_is_taken_if_it_can_be_had(available: list[str], must: list[str], size: int) -> None:
    asked = wire.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    request = wire.PreferredAllocationRequest(container_requests=[asked])
    if len(must) <= size <= len(available) and set(must) <= set(available):
        assert messages.preferences(NAME, request, MANY) == [(available, must, size)]
    else:
        with raises_code(BAD_KUBELET_REQUEST):
            messages.preferences(NAME, request, MANY)


FLOOD = [f"{number:06}" for number in range(100_000)]


def test_more_devices_than_the_kubelet_was_told_of_are_refused() -> None:
    containers = [wire.ContainerAllocateRequest(devices_ids=["0", "1", *FLOOD, "0"])]
    with raises_code(BAD_KUBELET_REQUEST, match="an Allocate of 100003 devices, where there are 256 at most"):
        messages.wanted(NAME, wire.AllocateRequest(container_requests=containers), 256)
    asked = wire.ContainerPreferredAllocationRequest(available_deviceIDs=FLOOD, allocation_size=1)
    with raises_code(BAD_KUBELET_REQUEST, match="a preference of 100000 devices"):
        messages.preferences(NAME, wire.PreferredAllocationRequest(container_requests=[asked]), 256)
    with raises_code(BAD_KUBELET_REQUEST, match="a PreStartContainer of 100000 devices"):
        messages.to_check(NAME, wire.PreStartContainerRequest(devices_ids=FLOOD), 256)


def test_a_refusal_names_no_other_pod() -> None:
    """The kubelet puts it into the Events of the pod that it refuses."""
    held = GROUP_SPLIT("0000:01:00.1: pod vms/other has 0000:01:00.0, which shares IOMMU group 7", "Wait for pod a/b.")
    refused = messages.refused(held)
    assert refused.message == (
        "error[LK714]: 0000:01:00.1: a pod has 0000:01:00.0, which shares IOMMU group 7; help: Wait for a pod."
    )
    assert refused.status is Status.FAILED_PRECONDITION


def test_a_device_that_is_asked_for_twice_is_found_in_one_pass() -> None:
    ids = [CountedId(name) for name in FLOOD]
    CountedId.looks = 0
    request = SimpleNamespace(container_requests=[SimpleNamespace(devices_ids=[*ids, ids[-1]])])
    with raises_code(BAD_KUBELET_REQUEST, match="'099999' more than once"):
        messages.wanted(NAME, cast("wire.AllocateRequest", request), len(ids) + 1)
    assert CountedId.looks <= 4 * len(ids)
