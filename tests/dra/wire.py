"""The messages of the kubelet's DRA interfaces, from their description alone: the driver's own stubs play no part.

They live in a pool of their own, so that a wrong field number on either side shows.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCALARS = {"string": 9, "bool": 8, "int64": 3}
_ENUM, _MESSAGE = 14, 11
_OPTIONAL, _REPEATED = 1, 3

_DRA = {
    "Claim": ("string namespace 1", "string uid 2", "string name 3"),
    "NodePrepareResourcesRequest": ("repeated Claim claims 1",),
    "NodePrepareResourcesResponse": ("map NodePrepareResourceResponse claims 1",),
    "NodePrepareResourceResponse": ("repeated Device devices 1", "string error 2"),
    "NodeUnprepareResourcesRequest": ("repeated Claim claims 1",),
    "NodeUnprepareResourcesResponse": ("map NodeUnprepareResourceResponse claims 1",),
    "NodeUnprepareResourceResponse": ("string error 1",),
}
_DEVICE = (
    "repeated string request_names 1",
    "string pool_name 2",
    "string device_name 3",
    "repeated string cdi_device_ids 4",
)
_HEALTH = {
    "NodeWatchResourcesRequest": (),
    "NodeWatchResourcesResponse": ("repeated DeviceHealth devices 1",),
    "DeviceIdentifier": ("string pool_name 1", "string device_name 2"),
    "DeviceHealth": (
        "DeviceIdentifier device 1",
        "enum health 2",
        "int64 last_updated_time 3",
        "int64 health_check_timeout_seconds 4",
        "string message 5",
    ),
}
_PACKAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "pluginregistration": {
        "InfoRequest": (),
        "PluginInfo": ("string type 1", "string name 2", "string endpoint 3", "repeated string supported_versions 4"),
        "RegistrationStatus": ("bool plugin_registered 1", "string error 2"),
        "RegistrationStatusResponse": (),
    },
    "k8s.io.kubelet.pkg.apis.dra.v1": {**_DRA, "Device": (*_DEVICE, "string share_id 5")},
    "k8s.io.kubelet.pkg.apis.dra.v1beta1": {**_DRA, "Device": _DEVICE},
    "v1alpha1": _HEALTH,
    "v1": _HEALTH,
}


def _file(package: str, messages: dict[str, tuple[str, ...]]) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    health = file.enum_type.add(name="HealthStatus")
    for number, name in enumerate(("UNKNOWN", "HEALTHY", "UNHEALTHY")):
        health.value.add(name=name, number=number)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for text in fields:
            _add_field(package, message, text.split())
    return file


def _add_field(package: str, message: descriptor_pb2.DescriptorProto, words: list[str]) -> None:
    *repeated, kind, name, number = words
    field: Any = message.field.add(name=name, number=int(number), label=_REPEATED if repeated else _OPTIONAL)
    field.type = _SCALARS.get(kind, _ENUM if kind == "enum" else _MESSAGE)
    if kind not in _SCALARS:
        field.type_name = f".{package}.{'HealthStatus' if kind == 'enum' else kind}"


def _with_maps(messages: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """A map is a list of entries on the wire."""
    made: dict[str, tuple[str, ...]] = {}
    for name, fields in messages.items():
        made[name] = tuple(
            text.replace(f"map {text.split()[1]}", f"repeated {text.split()[1]}Entry")
            if text.startswith("map")
            else text
            for text in fields
        )
        for text in fields:
            if text.startswith("map"):
                value = text.split()[1]
                made[f"{value}Entry"] = ("string key 1", f"{value} value 2")
    return made


_POOL = descriptor_pool.DescriptorPool()
for _package, _messages in _PACKAGES.items():
    _POOL.Add(_file(_package, _with_maps(_messages)))


def message(package: str, name: str) -> Any:
    """The class of a message; what is a map there is a list of entries, ``key`` and ``value``, here."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{package}.{name}"))


DRA = "k8s.io.kubelet.pkg.apis.dra"
REGISTRATION = "pluginregistration"
UNKNOWN, HEALTHY, UNHEALTHY = range(3)
