"""Injections: what is added to which pods. The admission policies in ``deploy/`` are generated from the same files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema, model_validator

from launcherkit.errors import Collector, shown
from launcherkit.request.documents import LARGE, parse_document, validate_document
from launcherkit.request.fields import read_file
from launcherkit_plugin.config.fields import Schema
from launcherkit_plugin.model.errors import BAD_INJECTIONS

PARAMETER = re.compile(r"\$\{([A-Za-z]+)\}")
"""Stands for a parameter. It must be the whole string."""
_REMEDY = "`launcherkit explain injections` has every key."


def _with_a_name(item: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(item.get("name"), str):
        raise ValueError("it has no name")
    if not isinstance(item.get("resources"), dict | None):
        raise ValueError("its resources are not an object")
    return item


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=63)]
NamedItem = Annotated[
    dict[str, Any], AfterValidator(_with_a_name), WithJsonSchema({"type": "object", "required": ["name"]})
]


class ConditionSchema(Schema):
    """Which pods are meant; all that is written must hold."""

    labels: dict[str, str] = Field({}, description="Labels that the pod has, with these values.")
    volume: str = Field("", description="A volume that the pod has.")
    runtime_classes: str = Field(
        "",
        alias="runtimeClasses",
        description="Names of RuntimeClasses with blanks between; the pod has one of them.",
    )
    resources: str = Field(
        "", description="Beginnings of resources' names with blanks between; a container asks for one."
    )
    wanted: str = Field(
        "",
        description="A label that decides in place of `resources` where a pod has it: `true` is yes, all else no.",
    )


class AdditionsSchema(Schema):
    """What a pod gets, as in a pod's `spec`."""

    init_containers: list[NamedItem] = Field(
        [], alias="initContainers", description="Init containers; a native sidecar is one."
    )
    containers: list[NamedItem] = Field([], description="Containers.")
    volumes: list[NamedItem] = Field([], description="Volumes.")


class Injection(Schema):
    """Something to be added to some pods. A string that is ``${KEY}`` stands for a key of the parameters."""

    name: Name = Field(description="Its own, that of its parameters and of the webhook's path.")
    parameters: dict[str, str] = Field({}, description="What the ConfigMap with the parameters begins with.")
    when: ConditionSchema
    claims: str = Field("", description="A container whose claims each added container gets too.")
    add: AdditionsSchema

    @model_validator(mode="after")
    def _knows_its_parameters(self) -> Injection:
        used = set(PARAMETER.findall(f"{self.when} {self.add}"))
        if unknown := used - self.parameters.keys():
            raise ValueError(f"${{{min(unknown)}}} is not among its parameters")
        for text in _strings([self.when.model_dump(), self.add.model_dump()]):
            if PARAMETER.search(text) and not PARAMETER.fullmatch(text):
                raise ValueError(f"a parameter is a part of {shown(text)}; it must be the whole string")
        return self

    def additions(self) -> dict[str, list[dict[str, Any]]]:
        """The containers and volumes to add, by the field of a pod's spec; empty fields are left out."""
        fields: dict[str, list[dict[str, Any]]] = self.add.model_dump(by_alias=True)
        return {field: items for field, items in fields.items() if items}


def _strings(value: Any) -> Iterator[str]:
    """The strings in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


ParameterValues: TypeAlias = Mapping[str, str]


def read_injections(folder: Path) -> dict[str, Injection]:
    """The injections in a folder, one in each ``*.yaml``, by name.

    Raises:
        BAD_INJECTIONS, SeveralErrors: there is none, one is wrong, or two have the same name.
        UnreadableFile: one can't be read.
    """
    errors, injections = Collector(), dict[str, Injection]()
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise BAD_INJECTIONS(f"{folder}: there is no *.yaml in it", _REMEDY, file=str(folder))
    for path in paths:
        with errors:
            injection = _read(path)
            if injection.name in injections:
                raise BAD_INJECTIONS(
                    f"{path}, name: {injection.name} is another's too", _REMEDY, file=str(path), key="name"
                )
            injections[injection.name] = injection
    errors.raise_if_any()
    return injections


def _read(path: Path) -> Injection:
    document = parse_document(read_file(str(path), LARGE + 1), str(path), BAD_INJECTIONS, _REMEDY, LARGE)
    return validate_document(Injection, document, str(path), BAD_INJECTIONS, _REMEDY)


def read_parameters(folder: Path) -> ParameterValues | None:
    """The keys of a ConfigMap that is mounted as a folder; None if there is no such ConfigMap.

    Keys of its ``binaryData`` that are no text are left out: to the admission policy, too, they are no parameters.

    Raises:
        OSError: a key can't be read.
    """
    if not folder.is_dir():
        return None
    # If an optional ConfigMap is missing, its folder is empty. Names that begin with `..` belong to the kubelet.
    values = {}
    for path in folder.iterdir():
        if not path.name.startswith(".."):
            with suppress(UnicodeDecodeError):
                values[path.name] = path.read_text(encoding="utf-8")
    return values or None
