"""What a runtime makes of CDI devices, by the files of its folder (CNCF's Container Device Interface)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from launcherkit_lab.conformance.expectation import Unmet

FOLDER = Path("/var/run/cdi")
"""Where runtimes look for files that come and go."""
Edits = dict[str, Any]
"""``containerEdits`` as a file has them."""


class DeviceNode(NamedTuple):
    """A device node of a container."""

    path: str
    host_path: str
    permissions: str


def edits(folder: Path, names: Iterable[str]) -> list[Edits]:
    """What a container gets by the names of CDI devices: of each file what it has for all, then what is each device's.

    Raises:
        Unmet: a device isn't in exactly one file, or a file is none of YAML.
    """
    common: dict[Path, Edits] = {}
    by_name: dict[str, list[tuple[Path, Edits]]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix in (".json", ".yaml"):
            try:
                spec = yaml.safe_load(path.read_text())
            except yaml.YAMLError as error:
                raise Unmet(f"a runtime can't read {path}: {error}") from error
            common[path] = spec.get("containerEdits") or {}
            for one in spec["devices"]:
                by_name.setdefault(f"{spec['kind']}={one['name']}", []).append((path, one["containerEdits"]))
    named: list[tuple[Path, Edits]] = []
    for name in dict.fromkeys(names):
        if len(by_name.get(name, ())) != 1:
            raise Unmet(f"{len(by_name.get(name, ()))} files of {folder} have the CDI device {name}")
        named += by_name[name]
    return [*(common[path] for path in dict.fromkeys(path for path, _ in named)), *(own for _, own in named)]


def variables_of(named: Iterable[Edits]) -> dict[str, str]:
    """The variables that edits set."""
    return dict(variable.partition("=")[::2] for edit in named for variable in edit.get("env") or ())


def nodes_of(named: Iterable[Edits]) -> list[DeviceNode]:
    """The device nodes that edits make."""
    return [
        DeviceNode(one["path"], one.get("hostPath") or one["path"], one.get("permissions") or "rwm")
        for edit in named
        for one in edit.get("deviceNodes") or ()
    ]


def mounts_of(named: Iterable[Edits]) -> list[str]:
    """The paths of the host that edits mount."""
    return [mount["hostPath"] for edit in named for mount in edit.get("mounts") or ()]
