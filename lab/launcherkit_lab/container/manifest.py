"""A DaemonSet's pod, out of manifests: its container with what it mounts and is told."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from launcherkit_lab.container.objects import (
    WORKLOADS,
    BadManifest,
    ConfigMap,
    Container,
    HostPath,
    PodSpec,
    Source,
    ValueSource,
    Variable,
    Volume,
    named,
    read_config_map,
    read_workload,
)

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class Pod(NamedTuple):
    """A pod with one container, as a kubelet would get it."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    spec: PodSpec
    container: Container
    maps: Mapping[str, ConfigMap] = {}
    """The ConfigMaps of its namespace, by name."""

    def __str__(self) -> str:
        return f"container {self.container.name} of {self.namespace}/{self.name}"


def read_pod(files: Sequence[Path], name: str | None = None) -> Pod:
    """As `pod_of`, of files in YAML or JSON with any number of objects each."""
    return pod_of([one for file in files for one in _objects(file)], name)


def pod_of(objects: Sequence[Mapping[str, Any]], name: str | None = None) -> Pod:
    """The pod of the only DaemonSet, or else of the only other workload.

    Args:
        objects: it and its ConfigMaps; others don't matter.
        name: of the container, if the pod has several.

    Raises:
        BadManifest: there is none, it has another shape than Kubernetes', or it wants what isn't here.
    """
    workload = _workload(objects)
    metadata, template = read_workload(workload)
    if template.spec.init_containers:
        raise BadManifest(
            f"{named(workload)}: initContainers: they aren't run here; take them out, and do what they do before"
        )
    namespace = metadata.namespace or "default"
    maps = map(read_config_map, (one for one in objects if one["kind"] == "ConfigMap"))
    return Pod(
        metadata.name,
        namespace,
        template.metadata.labels,
        template.spec,
        _container(template.spec.containers, name, named(workload)),
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


def _container(containers: Sequence[Container], name: str | None, where: str) -> Container:
    chosen = [one for one in containers if name in (None, one.name)]
    if len(chosen) != 1:
        names = ", ".join(one.name for one in containers)
        raise BadManifest(f"{where}: containers: one is started, by --container NAME; there are {names or 'none'}")
    return chosen[0]


# What the container is told


def arguments(pod: Pod, entrypoint: Sequence[str], command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The container's command line: ``command`` takes the place of the image's both, ``args`` that of the latter.

    Args:
        entrypoint, command: the image's.
        env: its variables, which ``$(NAME)`` stands for.
    """
    own, args = pod.container.command, pod.container.args
    words = [*(own or entrypoint), *(args if args is not None else () if own else command)]
    return [_expanded(word, env) for word in words]


def variables(pod: Pod, image: Sequence[str]) -> dict[str, str]:
    """The container's variables, those of the image first.

    Raises:
        BadManifest: one comes from what isn't here, and isn't optional.
    """
    env = dict(word.partition("=")[::2] for word in image)
    for source in pod.container.env_from:
        data = _map(pod, source.config_map_ref, source.secret_ref, "envFrom").data
        env |= {f"{source.prefix}{key}": value for key, value in data.items()}
    for one in pod.container.env:
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
        "spec.nodeName": os.uname().nodename,
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


def make_volumes(pod: Pod, folder: Path) -> dict[str, Path]:
    """Make the pod's volumes that the container mounts; their paths by name.

    Args:
        folder: for those that are not the node's own paths.

    Raises:
        BadManifest: one is of a kind that isn't here, or a path of the node is missing.
    """
    mounted = {mount.name for mount in pod.container.volume_mounts}
    volumes = {volume.name: volume for volume in pod.spec.volumes if volume.name in mounted}
    if missing := sorted(mounted - volumes.keys()):
        raise BadManifest(f"{pod}: volumeMounts: the pod has no volume {', '.join(missing)}")
    return {name: _volume(pod, volume, folder / name) for name, volume in volumes.items()}


def _volume(pod: Pod, volume: Volume, own: Path) -> Path:
    where = f"volume {volume.name}"
    if volume.host_path is not None:
        return _host_path(pod, volume.host_path, where)
    own.mkdir(parents=True)
    if volume.config_map is not None:
        content, items = _map(pod, volume.config_map, None, where).content(), volume.config_map.items
        if missing := sorted({item.key for item in items} - content.keys()):
            raise BadManifest(f"{pod}: {where}: {volume.config_map.name} has no {', '.join(missing)}")
        _write_map({item.path: content[item.key] for item in items} or content, own)
    elif volume.empty_dir is None:
        kinds = ", ".join(volume.model_extra or ()) or "no kind"
        raise BadManifest(f"{pod}: {where}: {kinds}: only hostPath, emptyDir and configMap are made here")
    return own


def _host_path(pod: Pod, volume: HostPath, where: str) -> Path:
    path = Path(volume.path)
    if volume.type in ("", "DirectoryOrCreate") and not path.exists():
        path.mkdir(parents=True)
    elif volume.type == "FileOrCreate":
        path.touch()
    elif not path.exists():
        raise BadManifest(f"{pod}: {where}: {path} isn't here, and its type {volume.type} wants it")
    return path


def _write_map(content: Mapping[str, bytes], own: Path) -> None:
    for path, text in content.items():
        file = own / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
