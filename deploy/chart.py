#!/usr/bin/env python3
"""Makes the Helm chart in ``deploy/helm`` of the manifests in ``deploy/plugin``: ``.venv/bin/python -m deploy.chart``.

The manifests are what is written by hand. A component is a switch of the chart's values, and what its patch adds to the
DaemonSet stands between an ``if`` and an ``end``; so the chart gives what kustomize does. What else the values change,
and what they are called, is in `VALUES` and in ``templates/deploy/chart``.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from deploy.chart_values import rows_of, schema_of, values_of
from deploy.render import DEPLOY, TEMPLATES
from launcherkit import __version__
from tools.release.images import REGISTRY

PLUGIN = DEPLOY / "plugin"
CHART = DEPLOY / "helm" / "launcherkit-plugin"
SOURCES = TEMPLATES / "chart"
"""What the chart has beside the manifests."""
IMAGE = f"{REGISTRY}/launcherkit-plugin"
NAMESPACE = "launcherkit"
MERGE_KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}
"""Lists that a strategic merge patch merges, with what tells their items apart."""
Path_: TypeAlias = tuple[str, ...]
_POD = ("spec", "template", "spec")
VALUES: Mapping[Path_, str] = {
    ("spec", "updateStrategy"): "updateStrategy",
    **{(*_POD, name): name for name in ("nodeSelector", "affinity", "tolerations")},
}
"""Fields of the DaemonSet that are values of the chart; their defaults are what the manifest has."""
ADDED: Mapping[Path_, tuple[str, str]] = {
    ("spec", "template", "metadata"): ("annotations", "podAnnotations"),
    _POD: ("imagePullSecrets", "imagePullSecrets"),
}
"""Further fields of these, and the values that they have."""
ACCOUNT = '{{ include "launcherkit-plugin.serviceAccountName" . }}'
FROM_VALUES = {
    "namespace": "{{ .Release.Namespace | quote }}",
    "serviceAccountName": ACCOUNT,
    "image": '{{ include "launcherkit-plugin.image" . | quote }}',
    "imagePullPolicy": "{{ .Values.image.pullPolicy }}",
    "priorityClassName": "{{ .Values.priorityClassName | quote }}",
}
"""What fields of these names have, wherever they are in the DaemonSet."""
CONTAINERS = {"plugin": "", "cluster": "sidecars.cluster.", "web": "sidecars.web."}
"""Where the values of each container are."""
NEEDS = {
    "binding-conditions": ("cluster", "dra"),
    "claim-parameters": ("cluster", "dra"),
    "dra": ("cluster",),
    "fabric": ("binding",),
    "node-record": ("cluster",),
    "page": ("cluster", "metrics"),
    "pod-ends": ("cluster",),
    "same-device": ("cluster", "state"),
    "variant-drivers": ("binding",),
}
"""The components whose containers others change."""
SINCE = {
    "binding-conditions": "1.36",
    "claim-parameters": "1.34",
    "dra": "1.34",
    "node-events": "1.32",
    "node-record": "1.32",
}
"""The first Kubernetes that has what a component is made of."""
_INSTALLED = ("cluster", "metrics", "node-events")
"""The components of deploy/all."""
_MADE = "# Made by `python -m deploy.chart` of deploy/plugin and templates/deploy/chart: change those.\n"


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


def lines(part: Part, path: Path_ = (), indent: int = 0) -> Iterator[str]:
    """A tree as lines of a template of YAML.

    Args:
        path: of the tree in its document; an item of a list that has a name is called by it.
    """
    blank = "  " * indent
    if isinstance(part.value, dict):
        for key, item in part.value.items():
            yield from _conditional(item, _entry(key, item, (*path, key), indent))
        if path in ADDED:
            key, value = ADDED[path]
            yield from _given(f".Values.{value}", key, indent)
    elif isinstance(part.value, list):
        for item in part.value:
            name = str(_identity(item, "name")) if isinstance(item.value, dict) and "name" in item.value else ""
            first, *rest = lines(item, (*path, name), indent + 1)
            yield from _conditional(item, [f"{blank}- {first.strip()}", *rest])
    else:
        yield f"{blank}{_scalar(part.value)}"


def _entry(key: str, part: Part, path: Path_, indent: int) -> list[str]:
    blank = "  " * indent
    if path in VALUES:
        return _given(f".Values.{VALUES[path]}", key, indent)
    if path == ("metadata", "labels"):
        return [
            f"{blank}labels:",
            f'{blank}  {{{{- include "launcherkit-plugin.labels" . | nindent {len(blank) + 2} }}}}',
        ]
    if isinstance(part.value, dict | list) and part.value:
        return [f"{blank}{key}:", *_with_values(key, list(lines(part, path, indent + 1)), path, indent + 1)]
    text = f"{blank}{key}:"
    chosen = [f"{text} {_scalar(part.value)}"]
    if key in FROM_VALUES:
        chosen = [f"{text} {FROM_VALUES[key]}"]
    for component, value in part.instead:
        chosen = [_if([component]), f"{text} {_scalar(value)}", "{{- else }}", *chosen, "{{- end }}"]
    return chosen


def _with_values(key: str, inner: list[str], path: Path_, indent: int) -> list[str]:
    """The lines of a field with what the values add to it, or put in its place."""
    if path == ("spec", "template", "metadata", "labels"):
        return [*inner, *_more(".Values.podLabels", indent)]
    if path[:-2] != (*_POD, "containers") or path[-2] not in CONTAINERS:
        return inner
    values = f".Values.{CONTAINERS[path[-2]]}"
    match key:
        case "args":
            return [*inner, *_more(f"{values}extraArgs", indent)]
        case "env":
            return [*inner, *_more(f"{values}extraEnv", indent)]
        case "resources" if path[-2] == "plugin":
            return _more(f"{values}resources", indent)
        case "resources":
            more = _more(f"{values}resources", indent)
            return [*more[:-1], "{{- else }}", *inner, "{{- end }}"]
    return inner


def _given(value: str, key: str, indent: int) -> list[str]:
    """A field that has a value's content, and isn't there if that is empty."""
    start, *more = _more(value, indent + 1)
    return [start, f"{'  ' * indent}{key}:", *more]


def _more(value: str, indent: int) -> list[str]:
    return [f"{{{{- with {value} }}}}", f"{'  ' * indent}{{{{- toYaml . | nindent {2 * indent} }}}}", "{{- end }}"]


def _conditional(part: Part, text: Iterable[str]) -> list[str]:
    return [_if(part.when), *text, "{{- end }}"] if part.when else list(text)


def _if(components: Iterable[str]) -> str:
    names = [f".Values.components.{switch(component)}" for component in components]
    return "{{- if " + (names[0] if len(names) == 1 else f"or {' '.join(names)}") + " }}"


def _scalar(value: Any) -> str:
    return json.dumps(value)  # which is YAML


def chart(components: Mapping[str, Path]) -> dict[str, str]:
    """The files of the chart by name."""
    manifest = _one(PLUGIN / "base" / "daemonset.yaml")
    daemon_set = parts(manifest)
    resources = [path for path in _resources(PLUGIN / "base") if path.stem not in ("daemonset", "namespace")]
    templates = {path.stem: _text(path) for path in resources}
    for name, folder in components.items():
        for path in _resources(folder):
            templates[f"{name}-{path.stem}"] = f"{_if([name])}\n{_text(path)}{{{{- end }}}}\n"
        if (folder / "daemonset.yaml").exists():
            daemon_set = patched(daemon_set, _one(folder / "daemonset.yaml"), name)
    templates["daemonset"] = "".join(f"{line}\n" for line in [*_refusals(), *lines(daemon_set)])
    templates["configmap"] = _labelled(_CONFIG_MAP)
    declaration = _one(SOURCES / "values.yaml")
    about = {switch(name): _comment(folder / "kustomization.yaml") for name, folder in components.items()}
    schema = schema_of(declaration, about, _defaults(manifest, components))
    readme = (SOURCES / "README.md").read_text()
    return {
        "Chart.yaml": _MADE + yaml.safe_dump(_metadata(), sort_keys=False, width=1000),
        "README.md": readme + "".join(f"{row}\n" for row in rows_of(schema)),
        "values.yaml": _MADE + "".join(f"{line}\n" for line in values_of(schema)),
        "values.schema.json": json.dumps(schema, indent=2) + "\n",
        "templates/NOTES.txt": (SOURCES / "NOTES.txt").read_text(),
        "templates/_helpers.tpl": (SOURCES / "_helpers.tpl").read_text(),
        **{f"templates/{name}.yaml": _MADE + text for name, text in templates.items()},
    }


_CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: launcherkit-plugin
  namespace: {{ .Release.Namespace | quote }}
data:
  plugin.yaml: |
    {{- if kindIs "string" .Values.config }}
    {{- .Values.config | nindent 4 }}
    {{- else }}
    {{- toYaml .Values.config | nindent 4 }}
    {{- end }}
"""


def _metadata() -> dict[str, Any]:
    """What Chart.yaml says."""
    icon = base64.b64encode((SOURCES / "icon.svg").read_bytes()).decode()
    return {
        "apiVersion": "v2",
        "name": "launcherkit-plugin",
        "version": __version__,
        "appVersion": __version__,
        "type": "application",
        "description": "The device plugin of launcherkit: PCI devices and vGPUs for VMs",
        # The oldest that was tried; some components need a newer one: SINCE.
        "kubeVersion": ">=1.20.0-0",
        "keywords": ["device-plugin", "dra", "gpu", "kubevirt", "pci-passthrough", "sr-iov", "vfio", "vgpu"],
        "icon": f"data:image/svg+xml;base64,{icon}",
        "annotations": {
            "artifacthub.io/category": "integration-delivery",
            "artifacthub.io/license": "Apache-2.0",
        },
    }


def _defaults(manifest: dict[str, Any], components: Iterable[str]) -> dict[str, Any]:
    """What the values are by default, as the manifests have it."""
    defaults = {f"components.{switch(name)}": name in _INSTALLED for name in components}
    for path, value in VALUES.items():
        item: Any = manifest
        for key in path:
            item = item[key]
        defaults[value] = item
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return defaults | {
        "image.repository": IMAGE,
        "image.pullPolicy": container["imagePullPolicy"],
        "priorityClassName": pod["priorityClassName"],
        "resources": container["resources"],
        "config": (PLUGIN / "base" / "plugin.yaml").read_text(),
    }


def _refusals() -> Iterator[str]:
    """Lines that refuse what the API server would refuse in other words."""
    for name, others in NEEDS.items():
        for other in others:
            text = f"components.{switch(name)} needs components.{switch(other)}"
            condition = f"and .Values.components.{switch(name)} (not .Values.components.{switch(other)})"
            yield _fail(condition, json.dumps(text))
    for name, version in SINCE.items():
        here = ".Capabilities.KubeVersion.Version"
        text = f"components.{switch(name)} needs Kubernetes {version}, and this is %s: set it to false"
        condition = f'and .Values.components.{switch(name)} (semverCompare "<{version}.0-0" {here})'
        yield _fail(condition, f"(printf {json.dumps(text)} {here})")


def _fail(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}{{{{ fail {text} }}}}{{{{- end }}}}"


def _resources(folder: Path) -> list[Path]:
    named = _one(folder / "kustomization.yaml").get("resources", [])
    return [folder / name for name in named]


def _text(path: Path) -> str:
    """A manifest without its comments, as a template; what Prometheus fills in is not for Helm."""
    text = re.sub(r"^ *#.*\n", "", path.read_text(), flags=re.MULTILINE)
    text = re.sub(r"\{\{.*?\}\}", lambda match: f"{{{{`{match[0]}`}}}}", text)
    text = re.sub(rf"^( *namespace): {NAMESPACE}$", r"\1: {{ .Release.Namespace | quote }}", text, flags=re.MULTILINE)
    user = "system:serviceaccount:{}:{}".format
    text = text.replace(user(NAMESPACE, "launcherkit-plugin"), user("{{ .Release.Namespace }}", ACCOUNT))
    text = re.sub(
        r"(kind: ServiceAccount\n(?:metadata:\n)? +name: )launcherkit-plugin$", rf"\1{ACCOUNT}", text, flags=re.M
    )
    text = _labelled(text)
    if path.stem != "serviceaccount":
        return text
    text = text.replace(
        "metadata:\n", "metadata:\n" + "\n".join(_given(".Values.serviceAccount.annotations", "annotations", 1)) + "\n"
    )
    return "{{- if .Values.serviceAccount.create }}\n" + text + "{{- end }}\n"


def _labelled(text: str) -> str:
    """A template whose objects have the labels of all objects of a chart."""
    labels = '  labels:\n    {{- include "launcherkit-plugin.labels" . | nindent 4 }}\n'
    return re.sub(r"^metadata:\n", lambda match: match[0] + labels, text, flags=re.MULTILINE)


def _comment(path: Path) -> str:
    """What a file says of itself at its top."""
    comment = re.match(r"(#.*\n)+", path.read_text())
    assert comment, path
    return " ".join(word for line in comment[0].splitlines() for word in line.removeprefix("#").split())


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
