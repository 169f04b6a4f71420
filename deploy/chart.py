#!/usr/bin/env python3
"""Makes the Helm chart in ``deploy/helm`` of the manifests in ``deploy/plugin``: ``.venv/bin/python -m deploy.chart``.

The manifests are what is written by hand. A component is a switch of the chart's values, and what its patch adds to the
DaemonSet stands between an ``if`` and an ``end``; so the chart gives what kustomize does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from deploy.render import DEPLOY
from launcherkit import __version__

PLUGIN = DEPLOY / "plugin"
CHART = DEPLOY / "helm" / "launcherkit-plugin"
IMAGE = "registry.example/launcherkit-plugin"
MERGE_KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}
"""Lists that a strategic merge patch merges, with what tells their items apart."""


class Part(NamedTuple):
    """A value that is there always, where ``when`` is empty, or if one of these components is switched on."""

    value: Tree
    when: tuple[str, ...] = ()
    instead: tuple[tuple[str, Tree], ...] = ()
    """What a component puts in its place."""


Tree: TypeAlias = "dict[str, Part] | list[Part] | Any"


def switch(component: str) -> str:
    """The name of a component in the chart's values: ``nodeHook``."""
    first, *rest = component.split("-")
    return first + "".join(word.capitalize() for word in rest)


def parts(value: Any, when: tuple[str, ...] = ()) -> Part:
    """A document as a tree of parts, all of which are there at the same time."""
    if isinstance(value, dict):
        return Part({key: parts(item) for key, item in value.items()}, when)
    return Part([parts(item) for item in value], when) if isinstance(value, list) else Part(value, when)


def patched(part: Part, patch: Any, component: str, field: str = "") -> Part:
    """A tree with a component's patch, as kustomize merges it where the component is switched on."""
    if isinstance(patch, dict) and isinstance(part.value, dict):
        merged = dict(part.value)
        for key, item in patch.items():
            merged[key] = _added(merged.get(key), item, component, key)
        return part._replace(value=merged)
    if isinstance(patch, list) and isinstance(part.value, list):
        items = list(part.value)
        key = MERGE_KEYS.get(field)
        for item in patch:
            same = [at for at, there in enumerate(items) if _identity(there, key) == _identity(parts(item), key)]
            if same:
                items[same[0]] = _added(items[same[0]], item, component, "")
            else:
                items.append(parts(item, (component,)))
        return part._replace(value=items)
    if part.value == patch:
        return part
    return part._replace(instead=(*part.instead, (component, patch)))


def _added(part: Part | None, patch: Any, component: str, field: str) -> Part:
    if part is None:
        return parts(patch, (component,))
    if part.when and component not in part.when:
        part = part._replace(when=(*part.when, component))
    return patched(part, patch, component, field)


def _identity(part: Part, key: str | None) -> object:
    return part.value[key].value if key and isinstance(part.value, dict) else part.value


def lines(part: Part, indent: int = 0) -> Iterator[str]:
    """A tree as lines of a template of YAML."""
    blank = "  " * indent
    if isinstance(part.value, dict):
        for key, item in part.value.items():
            yield from _conditional(item, _entry(f"{blank}{key}:", item, indent))
    elif isinstance(part.value, list):
        for item in part.value:
            first, *rest = lines(item, indent + 1)
            yield from _conditional(item, [f"{blank}- {first.strip()}", *rest])
    else:
        yield f"{blank}{_scalar(part.value)}"


def _entry(key: str, part: Part, indent: int) -> list[str]:
    if isinstance(part.value, dict | list) and part.value:
        return [key, *lines(part, indent + 1)]
    chosen = [f"{key} {_scalar(part.value)}"]
    for component, value in part.instead:
        chosen = [_if([component]), f"{key} {_scalar(value)}", "{{- else }}", *chosen, "{{- end }}"]
    return chosen


def _conditional(part: Part, text: Iterable[str]) -> list[str]:
    return [_if(part.when), *text, "{{- end }}"] if part.when else list(text)


def _if(components: Iterable[str]) -> str:
    names = [f".Values.components.{switch(component)}" for component in components]
    return "{{- if " + (names[0] if len(names) == 1 else f"or {' '.join(names)}") + " }}"


def _scalar(value: Any) -> str:
    if value == IMAGE:
        return '"{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}"'
    return json.dumps(value)  # which is YAML


def chart(components: Mapping[str, Path]) -> dict[str, str]:
    """The files of the chart by name."""
    daemon_set = parts(_one(PLUGIN / "base" / "daemonset.yaml"))
    templates = {path.stem: _text(path) for path in _resources(PLUGIN / "base") if path.stem != "daemonset"}
    for name, folder in components.items():
        for path in _resources(folder):
            templates[f"{name}-{path.stem}"] = f"{_if([name])}\n{_text(path)}{{{{- end }}}}\n"
        if (folder / "daemonset.yaml").exists():
            daemon_set = patched(daemon_set, _one(folder / "daemonset.yaml"), name)
    needs = [_need(name, other) for name, others in NEEDS.items() for other in others]
    templates["daemonset"] = "".join(f"{line}\n" for line in [*needs, *lines(daemon_set)])
    templates["configmap"] = _CONFIG_MAP
    settings = {"apiVersion": "v2", "name": "launcherkit-plugin", "version": __version__, "appVersion": __version__}
    settings["description"] = "The device plugin of launcherkit: PCI devices and vGPUs for VMs"
    return {
        "Chart.yaml": _MADE + yaml.safe_dump(settings, sort_keys=False),
        "values.yaml": _values(components),
        **{f"templates/{name}.yaml": _MADE + text for name, text in templates.items()},
    }


_MADE = "# Made by `python -m deploy.chart` of deploy/plugin: change that.\n"
_CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: launcherkit-plugin
  namespace: launcherkit
data:
  plugin.yaml: |
    {{- .Values.config | nindent 4 }}
"""
NEEDS = {
    "dra": ("cluster",),
    "node-record": ("cluster",),
    "page": ("cluster", "metrics"),
    "pod-ends": ("cluster",),
}
"""The components whose containers others change."""
_INSTALLED = ("cluster", "metrics", "node-events")
"""The components of deploy/all."""


def _need(name: str, other: str) -> str:
    """A line that refuses a component without another, which the API server would do in other words."""
    text = f"components.{switch(name)} needs components.{switch(other)}"
    condition = f"and .Values.components.{switch(name)} (not .Values.components.{switch(other)})"
    return f"{{{{- if {condition} }}}}{{{{ fail {json.dumps(text)} }}}}{{{{- end }}}}"


def _values(components: Mapping[str, Path]) -> str:
    text = [f"{_MADE}image:\n  name: {IMAGE}\n  # Empty: the version of the chart.\n  tag: ''\nconfig: |"]
    text += [f"  {line}" for line in (PLUGIN / "base" / "plugin.yaml").read_text().splitlines()]
    text.append("# docs/how-to/device-plugin.md says what each is for.\ncomponents:")
    text += [f"  {switch(name)}: {str(name in _INSTALLED).lower()}" for name in components]
    return "\n".join(text) + "\n"


def _resources(folder: Path) -> list[Path]:
    named = _one(folder / "kustomization.yaml").get("resources", [])
    return [folder / name for name in named]


def _text(path: Path) -> str:
    """A manifest without its comments; what Prometheus fills in is not for Helm."""
    text = re.sub(r"^ *#.*\n", "", path.read_text(), flags=re.MULTILINE)
    return re.sub(r"\{\{.*?\}\}", lambda match: f"{{{{`{match[0]}`}}}}", text)


def _one(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def components() -> dict[str, Path]:
    """The folders of the components by name."""
    return {path.name: path for path in sorted((PLUGIN / "components").iterdir())}


def main() -> None:
    """Write the chart, and remove what is no part of it any more."""
    made = {CHART / name: text for name, text in chart(components()).items()}
    for stale in {path for path in CHART.rglob("*") if path.is_file()} - made.keys():
        stale.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
