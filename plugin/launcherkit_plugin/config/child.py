"""Reads the configuration in another process, so that this one needs neither pydantic nor YAML, which take 20 MB.

Question and answer (`launcherkit_plugin.host.child`) are JSON. The answer is a `Reading`, written and read by the
types of its fields (`launcherkit_plugin.codec`); or errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launcherkit.errors import LauncherkitError, SeveralErrors, Unavailable
from launcherkit_plugin.codec import decode, encode
from launcherkit_plugin.host.child import NoAnswer, answer_with, ask, command_of
from launcherkit_plugin.model.config import Auto, Reading
from launcherkit_plugin.model.errors import CONFIG_NOT_READ

COMMAND = command_of("launcherkit_plugin.config.child")
READ_SECONDS = 60.0
"""How many seconds it may take. It usually takes 0.2, but a node that is starting up may be slow."""


async def read_config_in_child(
    path: str,
    auto: Auto | None = None,
    kubevirt: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    dra: bool = False,
    command: tuple[str, ...] = COMMAND,
    patience: float = READ_SECONDS,
) -> Reading:
    """Run `launcherkit_plugin.config.reading.read_config` in a short-lived process.

    Args:
        path: YAML or JSON.
        auto: overrides the file's.
        kubevirt: the configuration of the cluster's KubeVirt.
        labels: of this node.
        dra: every rule has ``dra``.
        command: the command line of the process.
        patience: how many seconds it may take.

    Raises:
        LauncherkitError: from `read_config`.
        CONFIG_NOT_READ: the process failed.
    """
    asked = json.dumps({"path": path, "auto": auto, "kubevirt": kubevirt, "labels": dict(labels or {}), "dra": dra})
    try:
        answer = await ask(command, asked.encode(), patience)
    except NoAnswer as problem:
        raise _not_read(path, str(problem)) from problem
    try:
        return decode_answer(answer)
    except (LookupError, TypeError, ValueError) as problem:
        raise _not_read(path, "its answer can't be understood") from problem


def _not_read(path: str, reason: str) -> Unavailable:
    return CONFIG_NOT_READ(
        f"{path}: the process that reads it failed: {reason}",
        "Check memory limits, and that pydantic and PyYAML, which come with launcherkit, are installed. It is retried.",
        file=path,
    )


def decode_answer(answer: bytes) -> Reading:
    """The reading in an answer of `answer_of`.

    Raises:
        LauncherkitError: the errors in the answer.
    """
    document = json.loads(answer)
    if "errors" in document:
        codes = LauncherkitError.codes()
        errors = [
            codes[error["code"]](error["message"], error["help"], **error["facts"]) for error in document["errors"]
        ]
        raise errors[0] if len(errors) == 1 else SeveralErrors(errors)
    return decode(Reading, document)


def answer_of(asked: bytes) -> bytes:
    """The answer of the other process: a `Reading`, or errors in the form of the log."""
    from launcherkit_plugin.config.reading import read_config

    try:
        return dump(read_config(**json.loads(asked))).encode()
    except LauncherkitError as error:
        leaves = [
            {"code": leaf.code, "message": leaf.message, "help": leaf.remedy, "facts": leaf.facts}
            for leaf in error.leaves()
        ]
        return json.dumps({"errors": leaves}).encode()


def dump(reading: Reading) -> str:
    """The JSON of a reading."""
    return json.dumps(encode(reading))


if __name__ == "__main__":
    answer_with(answer_of)
