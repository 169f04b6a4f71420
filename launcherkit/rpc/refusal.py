"""Errors as a gRPC caller gets them."""

from __future__ import annotations

from collections.abc import Iterable

from grpclib import GRPCError, Status

from launcherkit.errors import (
    BadAnnotation,
    LauncherkitError,
    MessageTooLarge,
    UnknownDomainType,
    UnreadableFile,
    on_one_line,
)

MESSAGE_LIMIT = 4096
"""Characters of a gRPC message, which is sent as a header; Kubernetes cuts events at 1024."""


def refusal(error: LauncherkitError, status: Status | None = None) -> GRPCError:
    """An error for gRPC: all errors with their remedies on one bounded line, and a status, by default by the cause."""
    leaves = list(error.leaves())
    texts: list[str] = []
    for leaf in leaves:
        text = " ".join(f"error[{leaf.code}]: {leaf.message}; help: {on_one_line(leaf.remedy)}".split())
        if texts and sum(map(len, texts)) + len(text) > MESSAGE_LIMIT:
            texts.append(f"and {len(leaves) - len(texts)} more, in the log of launcherkit")
            break
        texts.append(text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 3] + "...")
    text = "; ".join(texts).encode("utf-8", "backslashreplace").decode()  # grpclib can't send lone surrogates
    return GRPCError(status or _status(leaves), text)


def _status(leaves: Iterable[LauncherkitError]) -> Status:
    """INVALID_ARGUMENT for a wrong request, FAILED_PRECONDITION if host or configuration are in the way."""
    first = next(iter(leaves))
    if isinstance(first, MessageTooLarge):
        return Status.RESOURCE_EXHAUSTED
    asked_wrongly = first.code.startswith("LK1") and not isinstance(first, UnreadableFile)
    if asked_wrongly or isinstance(first, BadAnnotation | UnknownDomainType):
        return Status.INVALID_ARGUMENT
    return Status.FAILED_PRECONDITION
