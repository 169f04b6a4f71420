"""What goes between the daemon and the process that reads its configuration."""

from __future__ import annotations

import json

import launcherkit_plugin.model.errors  # noqa: F401  # its codes are among all codes then
from launcherkit.errors import LauncherkitError, SeveralErrors
from launcherkit_plugin.config.plain import dump, load
from launcherkit_plugin.config.result import Reading


def decode_answer(answer: bytes) -> Reading:
    """What `answer_of` has written.

    Raises:
        LauncherkitError: what went wrong over there.
    """
    document = json.loads(answer)
    if isinstance(document, dict):
        codes = LauncherkitError.codes()
        found = [codes[error["code"]](error["message"], error["help"]) for error in document["errors"]]
        raise found[0] if len(found) == 1 else SeveralErrors(found)
    return load(document)


def answer_of(asked: bytes) -> bytes:
    """What the other process answers: a `Reading`, or errors as the log has them."""
    from launcherkit_plugin.config.reading import read_config

    try:
        return dump(read_config(**json.loads(asked))).encode()
    except LauncherkitError as error:
        leaves = [{"code": leaf.code, "message": leaf.message, "help": leaf.remedy} for leaf in error.leaves()]
        return json.dumps({"errors": leaves}).encode()
