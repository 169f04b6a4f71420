"""What containerd does with the CDI devices of a container: it finds their files, and merges what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

VENDOR = r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
CLASS = r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
NAME = r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
QUALIFIED = re.compile(rf"(?P<kind>{VENDOR}/{CLASS})=(?P<name>{NAME})")

_VERSIONS = ((0, 3, 0), (0, 4, 0), (0, 5, 0), (0, 6, 0), (0, 7, 0), (0, 8, 0), (1, 0, 0))
_SPEC = {"cdiVersion", "kind", "devices", "containerEdits", "annotations"}
_DEVICE = {"name", "containerEdits", "annotations"}
_EDITS = {"env", "deviceNodes", "mounts", "hooks", "additionalGids", "intelRdt"}
_NODE = {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}
_MOUNT = {"hostPath", "containerPath", "options", "type"}


class NotCreated(Exception):
    """The container can't be created: a device has no file, or a file is invalid."""


class Container(NamedTuple):
    """What a container has in the end."""

    env: Mapping[str, str]
    nodes: Mapping[str, str]
    """Path in the container to path on the host."""
    mounts: Mapping[str, Path]
    """Path in the container to what is mounted there."""

    def read(self, path: str) -> str:
        """A file that is mounted."""
        return self.mounts[path].read_text()


class Runtime:
    """A runtime that looks for CDI files in some folders."""

    def __init__(self, *folders: Path, host: Path = Path("/")) -> None:
        """``host`` is where the paths of CDI files are: device nodes and mounts."""
        self.folders = folders
        self._host = host

    def create(self, ids: Iterable[str]) -> Container:
        """A container with these CDI devices.

        Raises:
            NotCreated: see there.
        """
        wanted = list(dict.fromkeys(ids))
        specs = self._specs()
        env: dict[str, str] = {}
        nodes: dict[str, str] = {}
        mounts: dict[str, Path] = {}
        seen: set[int] = set()
        for qualified in wanted:
            found = [
                (spec, device)
                for spec in specs
                for device in spec["devices"]
                if f"{spec['kind']}={device['name']}" == qualified
            ]
            if len(found) != 1:  # a name in two files of one folder is a conflict, and resolves to nothing
                raise NotCreated(f"unresolvable CDI devices {qualified}: {len(found)} files have it")
            ((spec, device),) = found
            edits = [device["containerEdits"]]
            if id(spec) not in seen:
                edits.append(spec.get("containerEdits", {}))
                seen.add(id(spec))
            for edit in edits:
                env |= dict(one.split("=", 1) for one in edit.get("env", ()))  # the last one of a name counts
                nodes |= self._nodes(edit)
                mounts |= self._mounts(edit)
        return Container(env, nodes, mounts)

    def _nodes(self, edit: Mapping[str, Any]) -> dict[str, str]:
        found = {}
        for node in edit.get("deviceNodes", ()):
            path = node.get("hostPath", node["path"])
            if not self._on_host(path).exists():
                raise NotCreated(f"failed to stat CDI host device {path!r}")
            found[node["path"]] = path
        return found

    def _mounts(self, edit: Mapping[str, Any]) -> dict[str, Path]:
        found = {}
        for mount in edit.get("mounts", ()):
            path = self._on_host(mount["hostPath"])
            if not path.exists():
                raise NotCreated(f"{path}: nothing there to be mounted")
            found[mount["containerPath"]] = path
        return found

    def _on_host(self, path: str) -> Path:
        """Files that a test has made have their whole path; those of the host's tree are below it."""
        whole = Path(path)
        return whole if whole.is_relative_to(self._host) or whole.exists() else self._host / path.lstrip("/")

    def names(self) -> set[str]:
        """The qualified names of all devices that there are."""
        return {f"{spec['kind']}={device['name']}" for spec in self._specs() for device in spec["devices"]}

    def _specs(self) -> list[dict[str, Any]]:
        files = [path for folder in self.folders if folder.is_dir() for path in sorted(folder.iterdir())]
        found = []
        for path in files:
            if path.suffix not in (".json", ".yaml") or path.name.startswith("."):
                continue
            try:
                spec = json.loads(path.read_text())
            except ValueError as problem:
                raise NotCreated(f"{path}: {problem}") from problem
            if wrong := wrong_in(spec):
                raise NotCreated(f"{path}: {wrong}")
            found.append(spec)
        return found


def wrong_in(spec: Any) -> str:
    """What a CDI library refuses in a file; empty: nothing. It is read strictly: keys must be known."""
    if not isinstance(spec, dict) or not spec.keys() <= _SPEC or not spec.get("devices"):
        return f"no CDI file: {spec if not isinstance(spec, dict) else sorted(spec)}"
    version = tuple(int(part) for part in str(spec.get("cdiVersion", "0")).split(".") if part.isdigit())
    if version not in _VERSIONS:
        return f"cdiVersion {spec.get('cdiVersion')!r}"
    if not re.fullmatch(f"{VENDOR}/{CLASS}", spec.get("kind", "")):
        return f"kind {spec.get('kind')!r}"
    names = [device.get("name", "") for device in spec["devices"]]
    if len(set(names)) != len(names):
        return f"a name more than once: {names}"
    for device in spec["devices"]:
        if not device.keys() <= _DEVICE or not re.fullmatch(NAME, device.get("name", "")):
            return f"device {device}"
    edits = [device.get("containerEdits", {}) for device in spec["devices"]]
    wrong = next(filter(None, map(_wrong_in_edits, [*edits, spec.get("containerEdits", {})])), "")
    if not all(edits):
        wrong = wrong or "a device that edits nothing"
    if not wrong and version < (needed := _version_needed(spec)):
        wrong = f"cdiVersion {version} where {needed} is needed"
    return wrong


def _wrong_in_edits(edits: Mapping[str, Any]) -> str:
    if not edits.keys() <= _EDITS:
        return f"edits {sorted(edits)}"
    for one in edits.get("env", ()):
        if not re.match("[^=]+=", one):
            return f"env {one!r}"
    for node in edits.get("deviceNodes", ()):
        if not node.keys() <= _NODE or not node.get("path", "").startswith("/"):
            return f"node {node}"
        if not set(node.get("permissions", "rwm")) <= set("rwm"):
            return f"permissions {node}"
    for mount in edits.get("mounts", ()):
        if not mount.keys() <= _MOUNT or not mount.get("hostPath") or not mount.get("containerPath"):
            return f"mount {mount}"
    return ""


def _version_needed(spec: Mapping[str, Any]) -> tuple[int, int, int]:
    edits = [spec.get("containerEdits", {}), *(device.get("containerEdits", {}) for device in spec["devices"])]
    if any({"additionalGids", "intelRdt"} & edit.keys() for edit in edits):
        return (0, 7, 0)
    if "annotations" in spec or "." in spec["kind"].partition("/")[2]:
        return (0, 6, 0)
    names = [device["name"] for device in spec["devices"]]
    if any(name[0].isdigit() for name in names) or any(
        "hostPath" in node for edit in edits for node in edit.get("deviceNodes", ())
    ):
        return (0, 5, 0)
    return (0, 4, 0) if any("type" in mount for edit in edits for mount in edit.get("mounts", ())) else (0, 3, 0)
