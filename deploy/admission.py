"""An injection, which says what is added to which pods, as the CEL expressions of a MutatingAdmissionPolicy.

An injection is a mapping with the keys that ``launcherkit_plugin.webhook.injection`` describes; the webhook does the
same with it on clusters that have no such policies. Standard library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_TEXT_KEYS = {"limits", "requests", "labels", "annotations", "matchLabels"}
"""Fields of Kubernetes whose keys are data, not field names: they stay maps in CEL."""
_PARAMETER = re.compile(r"\$\{([A-Za-z]+)\}")


class _Expression(str):
    """CEL that is inserted as it is."""

    __slots__ = ()


def cel(value: object, type_name: str, depth: int = 0) -> str:
    """A value as a CEL expression of an admission policy, whose objects carry the name of their type.

    Args:
        value: as YAML gives it; a string ``${KEY}`` stands for that key of the parameters.
        type_name: such as ``Object.spec.containers``; lists have the type of their items.
        depth: how far it is indented, in steps of two blanks.
    """
    inner, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, _Expression):
        return str(value)
    if isinstance(value, str) and (parameter := _PARAMETER.fullmatch(value)):
        return f"params.data.{parameter[1]}"
    if isinstance(value, Mapping) and type_name.rpartition(".")[2] not in _TEXT_KEYS:
        if not value:
            return f"{type_name}{{}}"
        fields = [f"{inner}{key}: {cel(item, f'{type_name}.{key}', depth + 1)}" for key, item in value.items()]
        return f"{type_name}{{\n" + ",\n".join(fields) + f"\n{end}}}"
    if isinstance(value, list):
        return "[" + ", ".join(cel(item, type_name, depth) for item in value) + "]"
    return json.dumps(value)


def conditions(injection: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The match conditions of a policy, as name and expression."""
    when = injection["when"]
    rows = []
    if volume := when.get("volume"):
        rows.append(
            (
                "has-the-volume",
                f"has(object.spec.volumes) && object.spec.volumes.exists(v, v.name == {cel(volume, '')})",
            )
        )
    if classes := when.get("runtimeClasses"):
        rows.append(
            (
                "has-the-runtime-class",
                f'has(object.spec.runtimeClassName) && object.spec.runtimeClassName in {cel(classes, "")}.split(" ")',
            )
        )
    if resources := when.get("resources"):
        rows.append(("asks-for-the-devices", _asks(cel(resources, ""), when.get("wanted", ""))))
    rows += [(f"has-no-such-{kind}-yet", _lacks(kind, names)) for kind, names in _names(injection)]
    return rows


def _asks(prefixes: str, label: str) -> str:
    by_resources = (
        "object.spec.containers.exists(c, has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(r,\n"
        f'    {prefixes}.split(" ").exists(p, p != "" && r.startsWith(p))))'
    )
    if not label:
        return by_resources
    key = json.dumps(label)
    return (
        f"has(object.metadata.labels) && {key} in object.metadata.labels\n"
        f'  ? object.metadata.labels[{key}] == "true"\n  : {by_resources}'
    )


def _names(injection: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    add = injection["add"]
    containers = [item["name"] for field in ("initContainers", "containers") for item in add.get(field, ())]
    yield "container", containers
    if add.get("volumes"):
        yield "volume", [item["name"] for item in add["volumes"]]


def _lacks(kind: str, names: list[str]) -> str:
    fields = ("initContainers", "containers") if kind == "container" else ("volumes",)
    return "\n&& ".join(
        f"(!has(object.spec.{field}) || !object.spec.{field}.exists(i, i.name in {json.dumps(names)}))"
        for field in fields
    )


def patch(injection: Mapping[str, Any]) -> str:
    """The expression of a policy's JSON patch."""
    steps = []
    for field, items in injection["add"].items():
        if field != "containers":  # which every pod has
            empty = f'[JSONPatch{{op: "add", path: "/spec/{field}", value: []}}]'
            steps.append(f"(has(object.spec.{field}) ? [] : {empty})")
        for item in items:
            value = cel(_with_claims(item, injection) if field != "volumes" else item, f"Object.spec.{field}")
            steps.append(f'[JSONPatch{{op: "add", path: "/spec/{field}/-", value:\n{value}\n}}]')
    return " +\n".join(steps)


def _with_claims(container: Mapping[str, Any], injection: Mapping[str, Any]) -> Mapping[str, Any]:
    """A container that has the claims of another one, so that it has the files with the claims' devices too."""
    if not injection.get("claims"):
        return container
    other = f"c.name == {json.dumps(injection['claims'])} && has(c.resources) && has(c.resources.claims)"
    claims = _Expression(
        f"object.spec.containers.exists(c, {other})\n"
        f"      ? object.spec.containers.filter(c, {other})[0].resources.claims : []"
    )
    return {**container, "resources": {**container.get("resources", {}), "claims": claims}}
