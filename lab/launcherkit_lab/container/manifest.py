"""A DaemonSet's pod, out of manifests: its container with what it mounts and is told."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from launcherkit_lab.container.objects import (
    WORKLOADS,
    BadManifest,
    ConfigMap,
    Container,
    HostPath,
    MapVolume,
    Mount,
    PodSpec,
    Projection,
    Source,
    ValueSource,
    Variable,
    Volume,
    named,
    read_config_map,
    read_workload,
)

_AUTHORITY = "kube-root-ca.crt"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class Identity(NamedTuple):
    """What a pod needs to ask the API server."""

    host: str
    port: int
    token: str
    """Of its service account."""
    authority: bytes
    """The certificate by which it knows the server."""


class Pod(NamedTuple):
    """A pod, as a kubelet would get it."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    spec: PodSpec
    containers: Sequence[Container]
    """Those that are started, and go on."""
    maps: Mapping[str, ConfigMap] = {}
    """The ConfigMaps of its namespace, by name."""
    node: str = ""
    """The name of its node; empty: that of the machine."""
    identity: Identity | None = None
    """None: there is no API server for it."""

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}"

    @property
    def has_token(self) -> bool:
        """Whether its containers get the service account's token without asking."""
        return self.identity is not None and self.spec.automount_service_account_token

    @property
    def first(self) -> Sequence[Container]:
        """The init containers that end before the others begin."""
        return [one for one in self.spec.init_containers if one.restart_policy != "Always"]


def read_pod(files: Sequence[Path], names: Sequence[str] = ()) -> Pod:
    """As `pod_of`, of files in YAML or JSON with any number of objects each."""
    return pod_of([one for file in files for one in _objects(file)], names)


def pod_of(objects: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Pod:
    """The pod of the only DaemonSet, or else of the only other workload.

    Args:
        objects: it and its ConfigMaps; others don't matter.
        names: of the containers that matter; empty: all do.

    Raises:
        BadManifest: there is none, it has another shape than Kubernetes', or it wants what isn't here.
    """
    workload = _workload(objects)
    metadata, template = read_workload(workload)
    namespace = metadata.namespace or "default"
    maps = map(read_config_map, (one for one in objects if one["kind"] == "ConfigMap"))
    return Pod(
        metadata.name,
        namespace,
        template.metadata.labels,
        template.spec,
        _containers(template.spec, names, named(workload)),
        {one.metadata.name: one for one in maps if one.metadata.namespace in ("", namespace)},
    )


def _objects(file: Path) -> Iterator[dict[str, Any]]:
    try:
        documents = list(yaml.safe_load_all(file.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadManifest(f"{file}: {error}") from error
    for document in documents:
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else [document]
        for item in items or ():
            if isinstance(item, dict) and isinstance(item.get("kind"), str):
                yield item
            elif item is not None:
                raise BadManifest(f"{file}: it has something else than objects of Kubernetes")


def _workload(objects: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    every = [one for one in objects if one["kind"] in WORKLOADS]
    chosen = [one for one in every if one["kind"] == "DaemonSet"] or every
    if len(chosen) != 1:
        names = ", ".join(map(named, chosen))
        raise BadManifest(f"one {' or '.join(WORKLOADS)} is started, and the manifests have {names or 'none'}")
    return chosen[0]


def _containers(spec: PodSpec, names: Sequence[str], where: str) -> Sequence[Container]:
    """All that go on, sidecars among the init containers first."""
    every = [*(one for one in spec.init_containers if one.restart_policy == "Always"), *spec.containers]
    chosen = [one for one in every if not names or one.name in names]
    missing = [name for name in names if name not in [one.name for one in every]]
    if missing or not chosen:
        names = ", ".join(one.name for one in every) or "none"
        raise BadManifest(f"{where}: containers: {', '.join(missing) or 'one'} is not there; there are {names}")
    return chosen


# What the container is told


def arguments(
    container: Container, entrypoint: Sequence[str], command: Sequence[str], env: Mapping[str, str]
) -> list[str]:
    """A container's command line: ``command`` takes the place of the image's both, ``args`` that of the latter.

    Args:
        entrypoint, command: the image's.
        env: its variables, which ``$(NAME)`` stands for.
    """
    own, args = container.command, container.args
    words = [*(own or entrypoint), *(args if args is not None else () if own else command)]
    return [_expanded(word, env) for word in words]


def variables(pod: Pod, container: Container, image: Sequence[str]) -> dict[str, str]:
    """A container's variables, those of the image first.

    Raises:
        BadManifest: one comes from what isn't here, and isn't optional.
    """
    env = dict(word.partition("=")[::2] for word in image)
    if pod.identity is not None:
        env |= {"KUBERNETES_SERVICE_HOST": pod.identity.host, "KUBERNETES_SERVICE_PORT": str(pod.identity.port)}
    for source in container.env_from:
        data = _map(pod, source.config_map_ref, source.secret_ref, "envFrom").data
        env |= {f"{source.prefix}{key}": value for key, value in data.items()}
    for one in container.env:
        value = _expanded(one.value, env) if one.value_from is None else _from(pod, one, one.value_from)
        if value is not None:
            env[one.name] = value
    return env


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """A text with ``$(NAME)`` replaced; of an unknown name it stays as it is, and ``$$`` is ``$``."""
    return _REFERENCE.sub(lambda match: "$" if match[1] is None else env.get(match[1], match[0]), text)


def _from(pod: Pod, variable: Variable, source: ValueSource) -> str | None:
    where = f"env {variable.name}"
    if source.field_ref is not None:
        return _field(pod, source.field_ref.field_path, where)
    key = source.config_map_key_ref or source.secret_key_ref
    if key is None:
        raise _missing(pod, where, ", ".join(source.model_extra or ()) or "its value")
    value = _map(pod, source.config_map_key_ref, source.secret_key_ref, where).data.get(key.key)
    if value is None and not key.optional:
        raise BadManifest(f"{pod}: {where}: {key.name} has no {key.key}")
    return value


def _field(pod: Pod, path: str, where: str) -> str:
    label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
    if label:
        return pod.labels.get(label[1], "")
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": "00000000-0000-4000-8000-000000000001",
        "spec.nodeName": pod.node or os.uname().nodename,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": "127.0.0.1",
        "status.podIP": "127.0.0.1",
    }
    if path not in fields:
        raise _missing(pod, where, path)
    return fields[path]


def _map(pod: Pod, source: Source | None, secret: Source | None, where: str) -> ConfigMap:
    """A ConfigMap, which is empty if it is optional and missing, as every Secret is here."""
    if source is not None and source.name in pod.maps:
        return pod.maps[source.name]
    missing = source or secret
    if missing is None or not missing.optional:
        raise _missing(pod, where, f"{'ConfigMap' if source else 'Secret'} {missing.name if missing else '?'}")
    return ConfigMap()


def _missing(pod: Pod, where: str, name: str) -> BadManifest:
    return BadManifest(f"{pod}: {where}: {name} isn't in the manifests, and there is no API server to ask")


# What it mounts

TOKEN_MOUNT = Mount.model_validate(
    {"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
)
"""Where programs look for the token (Kubernetes' documentation, "Accessing the Kubernetes API from a Pod")."""
_TOKEN = Volume.model_validate(
    {
        "name": TOKEN_MOUNT.name,
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"configMap": {"name": _AUTHORITY}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]
        },
    }
)


def make_volumes(pod: Pod, folder: Path) -> dict[str, Path]:
    """Make the volumes that a pod's containers mount; their paths by name.

    Args:
        folder: for those that are not the node's own paths.

    Raises:
        BadManifest: one is of a kind that isn't here, or a path of the node is missing.
    """
    mounted = {mount.name for one in (*pod.first, *pod.containers) for mount in one.volume_mounts}
    volumes = {volume.name: volume for volume in pod.spec.volumes if volume.name in mounted}
    if missing := sorted(mounted - volumes.keys()):
        raise BadManifest(f"{pod}: volumeMounts: the pod has no volume {', '.join(missing)}")
    if pod.has_token:
        volumes[TOKEN_MOUNT.name] = _TOKEN
    return {name: _volume(pod, volume, folder / name) for name, volume in volumes.items()}


def _volume(pod: Pod, volume: Volume, own: Path) -> Path:
    where = f"volume {volume.name}"
    if volume.host_path is not None:
        return _host_path(pod, volume.host_path, where)
    own.mkdir(parents=True)
    group = pod.spec.security_context.fs_group
    if volume.config_map is not None:
        _write_files(_map_files(pod, volume.config_map, where), own, group)
    elif volume.projected is not None:
        for source in volume.projected.sources:
            _write_files(_projected(pod, source, where), own, group)
    elif volume.empty_dir is None:
        raise _unknown_kind(pod, where, volume.model_extra or ())
    elif group is not None:
        os.chown(own, -1, group)
        own.chmod(0o2777)
    else:
        own.chmod(0o777)
    return own


def _unknown_kind(pod: Pod, where: str, kinds: Iterable[str]) -> BadManifest:
    made = "hostPath, emptyDir, configMap, and of projected ones serviceAccountToken, configMap and downwardAPI"
    return BadManifest(f"{pod}: {where}: {', '.join(kinds) or 'no kind'}: what is made here is {made}")


def _projected(pod: Pod, source: Projection, where: str) -> dict[str, bytes]:
    """The files of a part of a projected volume."""
    if source.service_account_token is not None:
        if pod.identity is None:
            raise _missing(pod, where, "serviceAccountToken")
        return {source.service_account_token.path: pod.identity.token.encode()}
    if source.config_map is not None:
        return _map_files(pod, source.config_map, where)
    if source.downward_api is not None:
        items = source.downward_api.items
        return {item.path: _field(pod, item.field_ref.field_path, where).encode() for item in items}
    raise _unknown_kind(pod, where, source.model_extra or ())


def _map_files(pod: Pod, source: MapVolume, where: str) -> dict[str, bytes]:
    """A ConfigMap's files; every namespace has one with the server's certificate."""
    if pod.identity is not None and source.name == _AUTHORITY:
        content = {"ca.crt": pod.identity.authority}
    else:
        content = _map(pod, source, None, where).content()
    if missing := sorted({item.key for item in source.items} - content.keys()):
        raise BadManifest(f"{pod}: {where}: {source.name} has no {', '.join(missing)}")
    return {item.path: content[item.key] for item in source.items} or content


def _host_path(pod: Pod, volume: HostPath, where: str) -> Path:
    path = Path(volume.path)
    if volume.type in ("", "DirectoryOrCreate") and not path.exists():
        path.mkdir(parents=True)
    elif volume.type == "FileOrCreate":
        path.touch()
    elif not path.exists():
        raise BadManifest(f"{pod}: {where}: {path} isn't here, and its type {volume.type} wants it")
    return path


def _write_files(content: Mapping[str, bytes], own: Path, group: int | None) -> None:
    """Write them, for the pod's group to read if it has one, else for everybody, as a kubelet does."""
    for path, text in content.items():
        file = own / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
        if group is not None:
            os.chown(file, -1, group)
