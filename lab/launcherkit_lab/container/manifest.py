"""A DaemonSet's pod, out of manifests: its container with what it mounts and is told."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet", "Pod")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class BadManifest(Exception):
    """There is no pod in them that could be started here; the text names the file or object, and the field."""


class Pod(NamedTuple):
    """A pod with one container, as a kubelet would get it."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]
    container: Mapping[str, Any]
    maps: Mapping[str, Mapping[str, Any]]
    """The ConfigMaps of its namespace, by name."""

    def __str__(self) -> str:
        return f"container {self.container.get('name', '?')} of {self.namespace}/{self.name}"


def read_pod(files: Sequence[Path], name: str | None = None) -> Pod:
    """As `pod_of`, of files in YAML or JSON with any number of objects each."""
    return pod_of([one for file in files for one in _objects(file)], name)


def pod_of(objects: Sequence[Mapping[str, Any]], name: str | None = None) -> Pod:
    """The pod of the only DaemonSet, or else of the only other workload.

    Args:
        objects: it and its ConfigMaps; others don't matter.
        name: of the container, if the pod has several.

    Raises:
        BadManifest: there is none, or it wants what isn't here.
    """
    workload = _workload(objects)
    metadata, spec = workload.get("metadata") or {}, workload.get("spec") or {}
    labels = metadata.get("labels") or {}
    if workload["kind"] != "Pod":
        labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
        spec = (spec.get("template") or {}).get("spec") or {}
    where = f"{workload['kind']} {metadata.get('name', '?')}"
    if spec.get("initContainers"):
        raise BadManifest(f"{where}: initContainers: they aren't run here; take them out, and do what they do before")
    namespace = str(metadata.get("namespace", "default"))
    maps = {
        str(one["metadata"]["name"]): one
        for one in objects
        if one["kind"] == "ConfigMap" and str(one["metadata"].get("namespace", namespace)) == namespace
    }
    container = _container(spec.get("containers") or [], name, where)
    return Pod(str(metadata.get("name", "pod")), namespace, labels, spec, container, maps)


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


def _workload(objects: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    every = [one for one in objects if one["kind"] in WORKLOADS]
    chosen = [one for one in every if one["kind"] == "DaemonSet"] or every
    if len(chosen) != 1:
        names = ", ".join(f"{one['kind']} {(one.get('metadata') or {}).get('name', '?')}" for one in chosen)
        raise BadManifest(f"one {' or '.join(WORKLOADS)} is started, and the manifests have {names or 'none'}")
    return chosen[0]


def _container(containers: Sequence[Mapping[str, Any]], name: str | None, where: str) -> Mapping[str, Any]:
    chosen = [one for one in containers if name in (None, one.get("name"))]
    if len(chosen) != 1:
        names = ", ".join(str(one.get("name")) for one in containers)
        raise BadManifest(f"{where}: containers: one is started, by --container NAME; there are {names or 'none'}")
    return chosen[0]


# What the container is told


def arguments(pod: Pod, entrypoint: Sequence[str], command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The container's command line: ``command`` takes the place of the image's both, ``args`` that of the latter.

    Args:
        entrypoint, command: the image's.
        env: its variables, which ``$(NAME)`` stands for.
    """
    own, args = pod.container.get("command"), pod.container.get("args")
    words = [*(own or entrypoint), *(args if args is not None else () if own else command)]
    return [_expanded(str(word), env) for word in words]


def variables(pod: Pod, image: Sequence[str]) -> dict[str, str]:
    """The container's variables, those of the image first.

    Raises:
        BadManifest: one comes from what isn't here, and isn't optional.
    """
    env = dict(word.partition("=")[::2] for word in image)
    for source in pod.container.get("envFrom") or ():
        reference = source.get("configMapRef") or source.get("secretRef") or {}
        prefix = source.get("prefix", "")
        data = _map(pod, reference, "envFrom", secret="secretRef" in source)
        env |= {f"{prefix}{key}": str(value) for key, value in (data.get("data") or {}).items()}
    for one in pod.container.get("env") or ():
        value = _from(pod, one) if one.get("valueFrom") else _expanded(str(one.get("value") or ""), env)
        if value is not None:
            env[one["name"]] = value
    return env


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """A text with ``$(NAME)`` replaced; of an unknown name it stays as it is, and ``$$`` is ``$``."""
    return _REFERENCE.sub(lambda match: "$" if match[1] is None else env.get(match[1], match[0]), text)


def _from(pod: Pod, variable: Mapping[str, Any]) -> str | None:
    source, where = variable["valueFrom"], f"env {variable['name']}"
    if "fieldRef" in source:
        return _field(pod, str(source["fieldRef"].get("fieldPath")), where)
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if kind in source:
            reference = source[kind]
            data = (_map(pod, reference, where, secret=kind == "secretKeyRef").get("data") or {}).get(reference["key"])
            if data is None and not reference.get("optional"):
                raise BadManifest(f"{pod}: {where}: {reference.get('name')} has no {reference['key']}")
            return None if data is None else str(data)
    raise _missing(pod, where, ", ".join(source))


def _field(pod: Pod, path: str, where: str) -> str:
    label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
    if label:
        return str(pod.labels.get(label[1], ""))
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": "00000000-0000-4000-8000-000000000001",
        "spec.nodeName": os.uname().nodename,
        "spec.serviceAccountName": str(pod.spec.get("serviceAccountName", "default")),
        "status.hostIP": "127.0.0.1",
        "status.podIP": "127.0.0.1",
    }
    if path not in fields:
        raise _missing(pod, where, path)
    return fields[path]


def _map(pod: Pod, reference: Mapping[str, Any], where: str, *, secret: bool = False) -> Mapping[str, Any]:
    """A ConfigMap; one that is optional may be missing."""
    name = str(reference.get("name"))
    if not secret and name in pod.maps:
        return pod.maps[name]
    if not reference.get("optional"):
        raise _missing(pod, where, f"{'Secret' if secret else 'ConfigMap'} {name}")
    return {}


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
    mounted = {mount["name"] for mount in pod.container.get("volumeMounts") or ()}
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes") or () if volume["name"] in mounted}
    if missing := sorted(mounted - volumes.keys()):
        raise BadManifest(f"{pod}: volumeMounts: the pod has no volume {', '.join(missing)}")
    return {name: _volume(pod, volume, folder / name) for name, volume in volumes.items()}


def _volume(pod: Pod, volume: Mapping[str, Any], own: Path) -> Path:
    where = f"volume {volume['name']}"
    if "hostPath" in volume:
        path, kind = Path(volume["hostPath"]["path"]), str(volume["hostPath"].get("type", ""))
        if kind in ("", "DirectoryOrCreate") and not path.exists():
            path.mkdir(parents=True)
        elif kind == "FileOrCreate":
            path.touch()
        elif not path.exists():
            raise BadManifest(f"{pod}: {where}: {path} isn't here, and its type {kind} wants it")
        return path
    own.mkdir(parents=True)
    if "configMap" in volume:
        data, source = _map(pod, volume["configMap"], where), volume["configMap"]
        if missing := {item["key"] for item in source.get("items") or ()} - _content(data).keys():
            raise BadManifest(f"{pod}: {where}: {source.get('name')} has no {', '.join(sorted(missing))}")
        _write_map(_content(data), source, own)
    elif "emptyDir" not in volume:
        kinds = ", ".join(key for key in volume if key != "name")
        raise BadManifest(f"{pod}: {where}: {kinds}: only hostPath, emptyDir and configMap are made here")
    return own


def _content(data: Mapping[str, Any]) -> dict[str, bytes]:
    content = {key: str(text).encode() for key, text in (data.get("data") or {}).items()}
    return content | {key: base64.b64decode(text) for key, text in (data.get("binaryData") or {}).items()}


def _write_map(content: Mapping[str, bytes], source: Mapping[str, Any], own: Path) -> None:
    paths = {item["key"]: item["path"] for item in source.get("items") or ()} or {key: key for key in content}
    for key, path in paths.items():
        file = own / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content[key])
