"""What matters of Kubernetes' workloads and ConfigMaps where a container is started here; other fields are ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from launcherkit_lab.validation import lines_of

WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet", "Pod")


class BadManifest(Exception):
    """There is no pod in them that could be started here; the text names the file or object, and the field."""


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, document: object) -> object:
        """A field that is null is one that isn't there (Kubernetes' API conventions, "Optional vs. Required")."""
        if not isinstance(document, dict):
            return document
        return {key: value for key, value in document.items() if value is not None}


class Meta(_Part):
    """An object's name, or that of what a template makes."""

    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = {}


class _Named(Meta):
    name: str


class Source(_Part):
    """A ConfigMap or Secret."""

    name: str = ""
    optional: bool = False


class KeySource(Source):
    """A key of a ConfigMap or Secret."""

    key: str


class FieldSource(_Part):
    """A field of the pod's own."""

    field_path: str


class ValueSource(_Part):
    """Where a variable's value comes from: one of these, or what is only known by its name."""

    model_config = ConfigDict(extra="allow")

    field_ref: FieldSource | None = None
    config_map_key_ref: KeySource | None = None
    secret_key_ref: KeySource | None = None


class Variable(_Part):
    """A variable of a container."""

    name: str
    value: str = ""
    value_from: ValueSource | None = None


class Variables(_Part):
    """Variables that a ConfigMap or Secret has."""

    prefix: str = ""
    config_map_ref: Source | None = None
    secret_ref: Source | None = None


class Capabilities(_Part):
    """Added and dropped ones, without ``CAP_``, or ``ALL``."""

    add: Sequence[str] = ()
    drop: Sequence[str] = ()


class Seccomp(_Part):
    """A profile, which has a file if it is the node's."""

    type: str
    localhost_profile: str = ""


class Security(_Part):
    """A pod's security context, and a container's."""

    privileged: bool = False
    allow_privilege_escalation: bool = True
    read_only_root_filesystem: bool = False
    capabilities: Capabilities = Capabilities()
    run_as_user: int | None = None
    run_as_group: int | None = None
    supplemental_groups: Sequence[int] = ()
    fs_group: int | None = None
    seccomp_profile: Seccomp | None = None

    def overridden(self, own: Security) -> Security:
        """A pod's with what a container says itself."""
        return self.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


class Mount(_Part):
    """A volume in a container."""

    name: str
    mount_path: str
    sub_path: str = ""
    read_only: bool = False
    mount_propagation: str = "None"


class Container(_Part):
    """A container of a pod."""

    name: str
    command: Sequence[str] = ()
    args: Sequence[str] | None = None
    working_dir: str = ""
    env: Sequence[Variable] = ()
    env_from: Sequence[Variables] = ()
    security_context: Security = Security()
    volume_mounts: Sequence[Mount] = ()
    restart_policy: str = ""
    """``Always`` of an init container that goes on beside the others."""


class HostPath(_Part):
    """A path of the node."""

    path: str
    type: str = ""


class Item(_Part):
    """A key of a ConfigMap, and the file that it becomes."""

    key: str
    path: str


class MapVolume(Source):
    """A volume with a ConfigMap's files."""

    items: Sequence[Item] = ()


class PodItem(_Part):
    """A field of the pod, and the file that it becomes."""

    path: str
    field_ref: FieldSource


class PodItems(_Part):
    """Fields of the pod as files."""

    items: Sequence[PodItem] = ()


class Token(_Part):
    """A token of the pod's service account, as a file."""

    path: str


class Projection(_Part):
    """A part of a projected volume: one of these, or what is only known by its name."""

    model_config = ConfigDict(extra="allow")

    service_account_token: Token | None = None
    config_map: MapVolume | None = None
    downward_api: Annotated[PodItems | None, Field(alias="downwardAPI")] = None


class Projected(_Part):
    """Files of several sources in one volume."""

    sources: Sequence[Projection] = ()


class Volume(_Part):
    """A volume of a pod: one of these, or what is only known by its name."""

    model_config = ConfigDict(extra="allow")

    name: str
    host_path: HostPath | None = None
    config_map: MapVolume | None = None
    empty_dir: Mapping[str, Any] | None = None
    projected: Projected | None = None


class PodSpec(_Part):
    """What a pod consists of."""

    containers: Sequence[Container] = ()
    init_containers: Sequence[Container] = ()
    volumes: Sequence[Volume] = ()
    security_context: Security = Security()
    service_account_name: str = "default"
    automount_service_account_token: bool = True
    host_network: bool = False
    host_ipc: Annotated[bool, Field(alias="hostIPC")] = False
    host_pid: Annotated[bool, Field(alias="hostPID")] = False


class PodTemplate(_Part):
    """The pods that a workload makes."""

    metadata: Meta = Meta()
    spec: PodSpec


class _WorkloadSpec(_Part):
    template: PodTemplate


class _Workload(_Part):
    metadata: _Named
    spec: _WorkloadSpec


class _SinglePod(_Part):
    metadata: _Named
    spec: PodSpec


class ConfigMap(_Part):
    """A ConfigMap."""

    metadata: Meta = Meta()
    data: Mapping[str, str] = {}
    binary_data: Mapping[str, Annotated[Base64Bytes, Field(strict=False)]] = {}

    def content(self) -> dict[str, bytes]:
        """All that it has, by key."""
        return {**{key: text.encode() for key, text in self.data.items()}, **self.binary_data}


_PartT = TypeVar("_PartT", bound=_Part)


def read_workload(document: Mapping[str, Any]) -> tuple[Meta, PodTemplate]:
    """The metadata of a workload, and the template of its pods; of a pod, itself.

    Raises:
        BadManifest: it has another shape than Kubernetes'; a line for each field.
    """
    if document["kind"] == "Pod":
        pod = _read(_SinglePod, document)
        return pod.metadata, PodTemplate(metadata=pod.metadata, spec=pod.spec)
    workload = _read(_Workload, document)
    return workload.metadata, workload.spec.template


def read_config_map(document: Mapping[str, Any]) -> ConfigMap:
    """A ConfigMap.

    Raises:
        BadManifest: it has another shape than Kubernetes'; a line for each field.
    """
    return _read(ConfigMap, document)


def _read(part: type[_PartT], document: Mapping[str, Any]) -> _PartT:
    try:
        return part.model_validate(document)
    except ValidationError as error:
        raise BadManifest(lines_of(error, named(document))) from None


def named(document: Mapping[str, Any]) -> str:
    """An object's kind and name, as far as it has one."""
    metadata = document.get("metadata")
    return f"{document['kind']} {metadata.get('name', '?') if isinstance(metadata, dict) else '?'}"
