"""Services are served and called by their descriptions."""

from __future__ import annotations

import pytest

from launcherkit.rpc.methods import Servicer
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire


class Half(Servicer):
    """A device plugin that lacks all methods but one."""

    service = wire.DESCRIPTOR.services_by_name["DevicePlugin"]

    async def GetDevicePluginOptions(self, stream: object) -> None: ...


class Whole(Half):
    async def ListAndWatch(self, stream: object) -> None: ...

    GetPreferredAllocation = Allocate = PreStartContainer = ListAndWatch


def test_the_methods_are_those_of_the_proto_file_with_their_types_and_what_streams() -> None:
    methods = Whole().__mapping__()
    assert {path: (each.cardinality.name, each.request_type, each.reply_type) for path, each in methods.items()} == {
        "/v1beta1.DevicePlugin/GetDevicePluginOptions": ("UNARY_UNARY", wire.Empty, wire.DevicePluginOptions),
        "/v1beta1.DevicePlugin/ListAndWatch": ("UNARY_STREAM", wire.Empty, wire.ListAndWatchResponse),
        "/v1beta1.DevicePlugin/GetPreferredAllocation": (
            "UNARY_UNARY",
            wire.PreferredAllocationRequest,
            wire.PreferredAllocationResponse,
        ),
        "/v1beta1.DevicePlugin/Allocate": ("UNARY_UNARY", wire.AllocateRequest, wire.AllocateResponse),
        "/v1beta1.DevicePlugin/PreStartContainer": (
            "UNARY_UNARY",
            wire.PreStartContainerRequest,
            wire.PreStartContainerResponse,
        ),
    }


def test_a_servicer_that_lacks_a_method_is_not_served() -> None:
    with pytest.raises(AttributeError, match="ListAndWatch"):
        Half().__mapping__()
