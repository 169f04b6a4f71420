"""The examples of CI services on the lab's page have the form that the services document."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from launcherkit_lab.programs import lacks
from tests.support.ci_jobs import examples, scripts
from tests.support.command_lines import commands_in, parse
from tests.support.pages import ROOT, blocks

# https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-syntax
_WORKFLOW = {"name", "run-name", "on", "permissions", "env", "defaults", "concurrency", "jobs"}
_JOB = {"name", "runs-on", "needs", "if", "env", "defaults", "steps", "timeout-minutes", "strategy", "container"}
_STEP = {"id", "if", "name", "uses", "run", "working-directory", "shell", "with", "env", "timeout-minutes"}
# https://docs.gitlab.com/ci/yaml/
_GITLAB = {
    "image",
    "timeout",
    "variables",
    "cache",
    "before_script",
    "script",
    "after_script",
    "artifacts",
    "stage",
    "tags",
}


def test_the_job_of_github_has_keys_that_there_are_and_steps_that_do_one_thing() -> None:
    (text,) = (
        block.text
        for block in blocks(ROOT / "docs/how-to/lab.md")
        if "runs-on:" in block.text and block.language == "yaml"
    )
    workflow = yaml.load(text, yaml.BaseLoader)  # for which `on` is no truth value
    assert workflow.keys() <= _WORKFLOW
    assert workflow.keys() >= {"on", "jobs"}
    job = examples()["github"]
    assert job.keys() <= _JOB
    assert isinstance(job["runs-on"], str)
    for step in job["steps"]:
        assert step.keys() <= _STEP
        assert len({"uses", "run"} & step.keys()) == 1
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v1"))
        assert "with" not in step or "uses" in step


def test_the_job_of_gitlab_has_keys_that_there_are_and_lists_of_commands() -> None:
    job = examples()["gitlab"]
    assert job.keys() <= _GITLAB
    for key in ("before_script", "script", "after_script"):
        assert all(isinstance(line, str) for line in job[key]), key
    assert all(not path.startswith("/") for path in job["cache"]["paths"])


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_a_job_installs_what_the_lab_misses_on_a_machine_that_has_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcherkit_lab.programs.find_program", lambda _: None)
    monkeypatch.setattr("launcherkit_lab.programs.os.uname", lambda: type("", (), {"machine": "x86_64"}))
    wanted = set(lacks(True).rpartition("recommends ")[2].split())
    essential = {"apt", "dpkg", "util-linux", *(["kmod"] if name == "github" else [])}  # of the image or the runner
    (words,) = (words for script in scripts(name) for words in commands_in(script) if words[-1] == "gcc")
    assert wanted - essential <= set(words)


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_a_jobs_commands_are_commands(name: str) -> None:
    for script in scripts(name):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        ours = [words for words in commands_in(script) if words[0].endswith("launcherkit-lab")]
        for words in ours:
            inner = words[words.index("--") + 1 :] if "run" in words else words
            assert parse(["launcherkit-lab", *words[1:]])
            assert parse(["launcherkit-lab", *inner[1:]])
