"""What a runtime makes of CDI devices, by the files of its folder (CNCF's Container Device Interface)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
        Unmet: a device isn't in exactly one file. A file that can't be read is in nobody's way, as with the runtimes
            (container-device-interface, pkg/cdi/cache.go), but is named here.
    """
    common: dict[Path, Edits] = {}
    by_name: dict[str, list[tuple[Path, Edits]]] = {}
    unread: list[str] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix in (".json", ".yaml"):
            try:
                spec = _parsed(path)
                own = [(f"{spec['kind']}={one['name']}", _checked(one["containerEdits"])) for one in spec["devices"]]
                common[path] = _checked(spec.get("containerEdits") or {})
            except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
                unread.append(f"; a runtime can't read {path}: {type(error).__name__}: {error}")
                continue
            for name, device in own:
                by_name.setdefault(name, []).append((path, device))
    named: list[tuple[Path, Edits]] = []
    for name in dict.fromkeys(names):
        if len(by_name.get(name, ())) != 1:
            raise Unmet(f"{len(by_name.get(name, ()))} files of {folder} have the CDI device {name}{''.join(unread)}")
        named += by_name[name]
    return [*(common[path] for path in dict.fromkeys(path for path, _ in named)), *(own for _, own in named)]


def _parsed(path: Path) -> dict[str, Any]:
    """A file's document, whose scalars are texts: an address such as ``0000:01:00.0`` is no number of YAML's to Go.

    JSON is read first, because PyYAML takes no tabs, with which Go's encoder may indent.
    """
    text = path.read_text()
    try:
        document = json.loads(text)
    except ValueError:
        document = yaml.load(text, yaml.BaseLoader)  # it makes nothing but texts, lists and mappings
    return dict(document)


def _checked(container_edits: Mapping[str, Any]) -> Edits:
    """Edits as a file has them, if they have the form in which they are read here."""
    own = dict(container_edits)
    for read in (nodes_of, variables_of, mounts_of):
        read([own])
    return own


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
