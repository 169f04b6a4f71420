"""Records the current results of golden cases as the expected ones."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from launcherkit.atomic import write_atomically
from launcherkit.errors import BAD_GOLDEN_CASE, UNREADABLE_FILE, UNWRITABLE_FILE
from launcherkit.golden.canonical import xml_difference
from launcherkit.golden.case import CASE_FILE, DOMAIN_FILE, HOST_FILE, REMEDY, VMI_FILES, CaseSchema, name_of
from launcherkit.golden.run import (
    EXPECTED_ERROR,
    EXPECTED_PLAN,
    EXPECTED_XML,
    CaseResult,
    Difference,
    Outcome,
    description_of,
    differences,
    plan_text,
    read_if_there,
    run_case,
)
from launcherkit.host.snapshot import dump
from launcherkit.host.source import open_host
from launcherkit.request.documents import validate_document
from launcherkit.request.environment import Environment


@dataclass(frozen=True, slots=True)
class Update:
    """How a case was updated."""

    result: CaseResult
    """What is still wrong with it."""
    written: tuple[str, ...]
    """Names of files."""
    removed: tuple[str, ...]


def update_case(directory: str | os.PathLike[str], *, plan: bool = False) -> Update:
    """Record a case's current result as the expected one.

    A file that already expects the same is left as it is.

    Args:
        directory: the case's.
        plan: write ``expected.plan.json`` even if there is none; an existing one is always updated.

    Raises:
        UnreadableFile, UnwritableFile: a file of the case can't be read or written.
    """
    path = os.path.abspath(os.fspath(directory))
    outcome = run_case(path)
    refusal = _refusal(path, outcome)
    if refusal is not None:
        return Update(CaseResult(name_of(path), description_of(outcome), (refusal,)), (), ())
    expected = _wanted(path, outcome, plan)
    written, removed = [], []
    for name, data in expected.items():
        if data is None and os.path.lexists(os.path.join(path, name)):
            _remove(os.path.join(path, name))
            removed.append(name)
        elif data is not None and not _same(name, read_if_there(path, name), data):
            write_atomically(os.path.join(path, name), data)
            written.append(name)
    result = CaseResult(name_of(path), description_of(outcome), differences(path, outcome))
    return Update(result, tuple(written), tuple(removed))


def _refusal(directory: str, outcome: Outcome) -> Difference | None:
    """Why an outcome can't be expected.

    It is a bug; in a case that doesn't expect an error, a wrong case.yaml; in one that expects a document, a file that
    can't be read or written.
    """
    error = outcome.error or ""
    if outcome.bug:
        return Difference(error)
    if outcome.case is None and read_if_there(directory, EXPECTED_ERROR) is None:
        return Difference("not updated: the case itself is wrong", error)
    of_files = tuple(f"{one.code}: " for one in (UNREADABLE_FILE, UNWRITABLE_FILE))
    if error.startswith(of_files) and read_if_there(directory, EXPECTED_XML) is not None:
        return Difference("not updated: a file can't be read or written", error)
    return None


def _wanted(directory: str, outcome: Outcome, plan: bool) -> dict[str, bytes | None]:
    """The content of each file with an expected result; None for files that must not exist."""
    wants_plan = plan or os.path.exists(os.path.join(directory, EXPECTED_PLAN))
    return {
        EXPECTED_XML: outcome.document,
        EXPECTED_ERROR: None if outcome.error is None else outcome.error.encode("utf-8", "surrogateescape") + b"\n",
        EXPECTED_PLAN: plan_text(outcome.plan) if wants_plan and outcome.plan is not None else None,
    }


def _same(name: str, before: bytes | None, after: bytes) -> bool:
    if before is None or name != EXPECTED_XML:
        return before == after
    try:
        return xml_difference(before, after, name) is None
    except ValueError:
        return False


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as problem:
        raise UNWRITABLE_FILE(f"{path}: {problem.strerror}", "Remove it by hand.", file=path) from problem


# A golden case from what is at hand: a domain, a VMI, the container's variables, and the host.


@dataclass(frozen=True, slots=True)
class CaseInputs:
    """The inputs from which a case is made."""

    description: str
    """A sentence."""
    domain: bytes
    vmi: bytes | None
    vmi_is_yaml: bool
    env: Mapping[str, str]
    """The container's; only variables of devices are taken."""
    host: str | None
    """A root, a snapshot or a recording; None for a case without a known host."""


def new_case(directory: str, name: str, inputs: CaseInputs) -> tuple[str, ...]:
    """Write the inputs of a case; `launcherkit.golden.update.update_case` then records the expected result.

    Args:
        directory: the one above the cases; it is created if it is missing.
        name: the case's; there must be no such folder yet.
        inputs: the inputs.

    Returns:
        The names of the files that were written.

    Raises:
        BAD_GOLDEN_CASE: the name is in use or not valid.
        UnwritableFile: the folder or a file in it can't be written.
        LauncherkitError: as `open_host` does.
    """
    folder = os.path.join(directory, name)
    if os.path.basename(name) != name or name[:1] in ("", ".", "_"):
        raise BAD_GOLDEN_CASE(
            f"{name!r} can't be the name of a case", "Give a folder's name that begins with a letter.", file=directory
        )
    variables = {key: inputs.env[key] for key in Environment(inputs.env).variables}
    content = {"description": inputs.description, "env": variables}
    validate_document(CaseSchema, content, f"{folder}/{CASE_FILE}", BAD_GOLDEN_CASE, REMEDY)
    files = {CASE_FILE: _case_text(inputs.description, variables).encode(), DOMAIN_FILE: inputs.domain}
    if inputs.vmi is not None:
        files[VMI_FILES[inputs.vmi_is_yaml]] = inputs.vmi
    if inputs.host is not None:
        files[HOST_FILE] = dump(open_host(inputs.host).scan(), None).encode()
    try:
        os.makedirs(folder)
    except FileExistsError:
        raise BAD_GOLDEN_CASE(
            f"{folder} is there already", "Give another name, or remove it first.", file=folder
        ) from None
    except OSError as problem:
        raise UNWRITABLE_FILE(
            f"{folder}: {problem.strerror}", "Give a folder that can be created.", file=folder
        ) from problem
    for file, data in files.items():
        write_atomically(os.path.join(folder, file), data)
    return tuple(files)


def _case_text(description: str, variables: Mapping[str, str]) -> str:
    """The text of ``case.yaml``; strings are written as JSON, which is valid YAML."""
    lines = [f"description: {json.dumps(description)}"]
    if variables:
        lines += ["env:", *(f"  {name}: {json.dumps(value)}" for name, value in variables.items())]
    return "".join(f"{line}\n" for line in lines)
