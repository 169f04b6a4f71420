"""The examples of CI services on the lab's page: the scripts in them, as the services give them to a shell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from tests.support.pages import ROOT, blocks


def examples() -> dict[str, Mapping[str, Any]]:
    """The job of GitHub Actions and that of GitLab."""
    found = [block for block in blocks(ROOT / "docs/how-to/lab.md") if block.reported.get("is") == "a job of CI"]
    github, gitlab = (yaml.safe_load(block.text) for block in found)
    return {"github": github["jobs"]["devices"], "gitlab": gitlab["devices"]}


def scripts(name: str) -> list[str]:
    """What a job has a shell do, one shell after the other.

    GitHub Actions runs each step by ``bash -e`` (its workflow syntax, ``steps[*].shell``); GitLab what is before a
    script and the script by one shell, and what is after it by another (its CI/CD YAML, ``after_script``).
    """
    job = examples()[name]
    if name == "github":
        return [step["run"] for step in job["steps"] if "run" in step]
    return ["\n".join(job["before_script"] + job["script"]), "\n".join(job["after_script"])]
