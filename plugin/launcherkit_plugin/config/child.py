"""A configuration that another process reads, so that this one needs neither pydantic nor YAML: they are 20 MB."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from launcherkit_plugin.config.answer import decode_answer
from launcherkit_plugin.config.result import Reading
from launcherkit_plugin.model.config import Auto
from launcherkit_plugin.model.errors import ConfigNotRead

COMMAND = (sys.executable, "-P", "-m", "launcherkit_plugin.config")
PATIENCE = 60.0
"""Seconds. It takes a fifth of one; a node that is starting up may be slow."""


async def read_config_in_child(
    path: str,
    auto: Auto | None = None,
    kubevirt: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    command: tuple[str, ...] = COMMAND,
    patience: float = PATIENCE,
) -> Reading:
    """As `launcherkit_plugin.config.reading.read_config`, in a process that ends when it has read.

    Args:
        path: YAML or JSON.
        auto: in the place of the file's.
        kubevirt: the configuration of the cluster's KubeVirt.
        labels: of this node.
        command: the process; its last argument is the process ID of this one, with which it ends.
        patience: seconds that it may take.

    Raises:
        LauncherkitError: what `read_config` raises.
        ConfigNotRead: the process did not do its work.
    """
    asked = json.dumps({"path": path, "auto": auto, "kubevirt": kubevirt, "labels": dict(labels or {})})
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, str(os.getpid()), stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as problem:
        raise _not_read(path, problem.strerror or str(problem)) from problem
    try:
        answer, complaint = await asyncio.wait_for(process.communicate(asked.encode()), patience)
    except TimeoutError as problem:
        raise _not_read(path, f"no answer within {patience:g} s") from problem
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise _not_read(path, f"it ended with {process.returncode}" + (f": {last}" if last else ""))
    try:
        return decode_answer(answer)
    except (LookupError, TypeError, ValueError) as problem:
        raise _not_read(path, "its answer can't be understood") from problem


def _not_read(path: str, why: str) -> ConfigNotRead:
    return ConfigNotRead(
        f"{path}: the process that reads it failed: {why}",
        "Look for memory limits and missing packages: pydantic and PyYAML come with launcherkit. It is tried again.",
    )
