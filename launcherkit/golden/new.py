"""Makes a golden case from what is at hand: a domain, a VMI, the container's variables, and the host."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from launcherkit.atomic import write_atomically
from launcherkit.errors import BadGoldenCase, UnwritableFile
from launcherkit.golden.case import CASE_FILE, DOMAIN_FILE, HOST_FILE, REMEDY, VMI_FILES, CaseSchema
from launcherkit.host.snapshot import dump
from launcherkit.host.source import open_host
from launcherkit.request.documents import validate_document
from launcherkit.request.environment import Environment


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
        BadGoldenCase: the name is in use or not valid.
        UnwritableFile: the folder or a file in it can't be written.
        LauncherkitError: as `open_host` does.
    """
    folder = os.path.join(directory, name)
    if os.path.basename(name) != name or name[:1] in ("", ".", "_"):
        raise BadGoldenCase(
            f"{name!r} can't be the name of a case", "Give a folder's name that begins with a letter.", file=directory
        )
    variables = {key: inputs.env[key] for key in Environment(inputs.env).variables}
    content = {"description": inputs.description, "env": variables}
    validate_document(CaseSchema, content, f"{folder}/{CASE_FILE}", BadGoldenCase, REMEDY)
    files = {CASE_FILE: _case_text(inputs.description, variables).encode(), DOMAIN_FILE: inputs.domain}
    if inputs.vmi is not None:
        files[VMI_FILES[inputs.vmi_is_yaml]] = inputs.vmi
    if inputs.host is not None:
        files[HOST_FILE] = dump(open_host(inputs.host).scan(), None).encode()
    try:
        os.makedirs(folder)
    except FileExistsError:
        raise BadGoldenCase(
            f"{folder} is there already", "Give another name, or remove it first.", file=folder
        ) from None
    except OSError as problem:
        raise UnwritableFile(
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
