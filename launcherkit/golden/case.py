"""A golden case as people write it: a directory with ``case.yaml``, ``domain.xml`` and what else it needs."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from launcherkit.errors import BAD_GOLDEN_CASE, UNREADABLE_FILE
from launcherkit.request.documents import LARGE, parse_document, validate_document
from launcherkit.request.fields import read_file
from launcherkit.request.policy import policy_schema

if TYPE_CHECKING:  # which knows no class that is made of a table
    PolicySchema = BaseModel
else:
    PolicySchema = policy_schema()

CASE_FILE = "case.yaml"
DOMAIN_FILE = "domain.xml"
HOST_FILE = "host.json"
DRA_FOLDER = "dra"
VMI_FILES = ("vmi.json", "vmi.yaml")
REMEDY = "`launcherkit explain golden` lists all keys."


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    if " " not in text or not text.endswith("."):
        raise ValueError("say what the case shows in a sentence, with a full stop")
    return text


def _quoted(value: object) -> object:
    """YAML reads yes as a boolean and 1:4 as a number; the text can't be recovered afterwards."""
    if value is not None and not isinstance(value, str | list | dict):
        raise ValueError("put it in quotes: YAML doesn't read it as text")
    return value


Sentence = Annotated[str, AfterValidator(_sentence)]
Text = Annotated[str, BeforeValidator(_quoted)]
Words = Annotated[str, Field(min_length=1), BeforeValidator(_quoted)]
VersionText = Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?$"), BeforeValidator(_quoted)]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LibvirtTier(_Schema):
    """What launcherkit's own tests on a real libvirt do with the case; `launcherkit golden` doesn't look at it."""

    skip: Words | None = Field(None, description="Leave the case out, and why.")
    min_version: VersionText | None = Field(
        None, alias="minVersion", description='The first libvirt that takes it, such as "11.0".'
    )
    why: Words | None = Field(None, description="Why an older libvirt does not take it.")

    @model_validator(mode="after")
    def _one_of_two(self) -> LibvirtTier:
        if (self.skip is None) == (self.min_version is None) or (self.min_version is None) != (self.why is None):
            raise ValueError("say either skip, or minVersion and why")
        return self


class CaseSchema(_Schema):
    """One golden case of launcherkit: what is translated, beside the files in its directory."""

    description: Sentence = Field(description="What the case shows, a sentence.")
    env: dict[str, Text] = Field(
        default_factory=dict,
        description="The variables of the container; LAUNCHERKIT_* among them act as for `launcherkit translate`.",
    )
    policy: PolicySchema | None = Field(None, description="A policy, as in a policy file.")
    flags: tuple[Text, ...] = Field(
        (), description="Further flags of `launcherkit translate`; relative names of files are relative to the case."
    )
    libvirt: LibvirtTier | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A case that has been read; its directory is absolute."""

    directory: str
    yaml: CaseSchema
    """Its ``case.yaml``."""
    vmi: str | None
    """The name of the VMI's file in the directory; None if there is none."""
    has_host: bool

    def policy_values(self) -> dict[str, Any] | None:
        """The policy as in a policy file."""
        policy = self.yaml.policy
        return None if policy is None else policy.model_dump(by_alias=True, exclude_none=True)


def name_of(directory: str) -> str:
    """The name of a case: the last part of its directory's path."""
    return os.path.basename(os.path.abspath(directory))


def find_cases(directory: str) -> tuple[str, ...]:
    """The names of the cases in a directory, sorted: its directories whose names don't begin with ``.`` or ``_``.

    Raises:
        UnreadableFile: the directory can't be read.
        BAD_GOLDEN_CASE: there is no case in it.
    """
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] not in "._")
    except OSError as problem:
        raise UNREADABLE_FILE(
            f"{directory}: {problem.strerror}", "Give the directory above the cases.", file=directory
        ) from problem
    if os.path.exists(os.path.join(directory, CASE_FILE)):
        parent, name = os.path.split(os.path.abspath(directory))
        raise BAD_GOLDEN_CASE(
            f"{directory} is a case, not a directory of cases", f"Give {parent} and --case {name}.", file=directory
        )
    if not names:
        raise BAD_GOLDEN_CASE(
            f"{directory} holds no case",
            f"A case is a directory in it, with {CASE_FILE} and {DOMAIN_FILE}. {REMEDY}",
            file=directory,
        )
    return tuple(names)


def case_named(directory: str, names: tuple[str, ...], name: str) -> str:
    """The directory of a case, by its name.

    Args:
        directory: the one above the cases.
        names: from `find_cases`.
        name: the case's.

    Raises:
        BAD_GOLDEN_CASE: there is no such case.
    """
    if name in names:
        return os.path.join(directory, name)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"; the nearest is {nearest[0]}" if nearest else ""
    remedy = f"`launcherkit golden list {directory}` names them all."
    raise BAD_GOLDEN_CASE(f"{directory} holds no case {name!r}{hint}", remedy, file=directory)


def read_case(directory: str) -> Case:
    """Read a case's ``case.yaml``, and find the files beside it.

    Raises:
        BAD_GOLDEN_CASE, SeveralErrors: everything that is wrong in it.
        UnreadableFile: ``case.yaml`` can't be read.
    """
    directory = os.path.abspath(directory)
    path = os.path.join(directory, CASE_FILE)
    if not os.path.exists(path):
        raise BAD_GOLDEN_CASE(f"{path} is not there", f"A case needs one that describes it. {REMEDY}", file=path)
    values = parse_document(read_file(path), path, BAD_GOLDEN_CASE, REMEDY, LARGE)
    content = validate_document(CaseSchema, values, path, BAD_GOLDEN_CASE, REMEDY)
    vmis = [name for name in VMI_FILES if os.path.exists(os.path.join(directory, name))]
    if len(vmis) > 1:
        raise BAD_GOLDEN_CASE(
            f"{directory}/{vmis[0]} and {vmis[1]} are both there", "Remove one of them.", file=directory
        )
    return Case(directory, content, vmis[0] if vmis else None, os.path.exists(os.path.join(directory, HOST_FILE)))
