"""Every option of both programs is named by a test, or by an example of a page that runs, and means what it says."""

from __future__ import annotations

import argparse
import re

import pytest

from launcherkit.cli.main import COMMANDS
from launcherkit.inputs.arguments import add_policy_arguments, policy_flags
from launcherkit.model.policy import Policy
from launcherkit.sources.settings import VARIABLES, resolve_policy
from launcherkit_plugin.__main__ import COMMANDS as PLUGIN_COMMANDS
from launcherkit_plugin.cli.options import add_place_arguments, pod_resources_of, proc_of
from tests.support.pages import ROOT, all_pages, blocks, steps
from tests.test_docs import actions_of, parser_of

PROGRAMS = {"launcherkit": COMMANDS, "launcherkit_plugin": PLUGIN_COMMANDS}


def test_every_option_is_named_by_a_test_or_an_example_that_runs() -> None:
    tests = [path.read_text() for path in (ROOT / "tests").rglob("*") if path.suffix in (".py", ".yaml", ".sh")]
    examples = [
        step.command
        for page in all_pages()
        for block in blocks(page)
        if block.language == "console" and "runs" not in block.reported
        for step in steps(block)
    ]
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", "\n".join(tests + examples)))
    unnamed = {
        f"{package} {command} {'/'.join(action.option_strings)}"
        for package, commands in PROGRAMS.items()
        for command in commands
        for action in actions_of(parser_of(command, {}, package))
        if action.option_strings and named.isdisjoint(action.option_strings)
    }
    assert sorted(unnamed) == []


DECISIONS: list[tuple[str, str | None, Policy]] = [
    ("--siblings", "none", Policy(siblings="none")),
    ("--pairing", "positional", Policy(pairing="positional")),
    ("--managed", "yes", Policy(managed=True)),
    ("--annotations", "no", Policy(annotations=False)),
    ("--topology", "strict", Policy(topology="strict")),
    ("--iommufd", "yes", Policy(iommufd="yes")),
    ("--generic-initiators", "yes", Policy(generic_initiators=True)),
    ("--node-check", "always", Policy(node_check="always")),
    ("--no-node-check", None, Policy(node_check="never")),
]


@pytest.mark.parametrize(("option", "value", "policy"), DECISIONS)
def test_an_option_decides_what_it_names_and_comes_before_its_variable(
    option: str, value: str | None, policy: Policy
) -> None:
    parser = argparse.ArgumentParser()
    add_policy_arguments(parser)
    flags = policy_flags(parser.parse_args([option, *([value] if value else [])]))
    other = {"LAUNCHERKIT_TOPOLOGY": "flat", "LAUNCHERKIT_IOMMUFD": "no", "LAUNCHERKIT_PAIRING": "class"}
    other |= {"LAUNCHERKIT_SIBLINGS": "group", "LAUNCHERKIT_MANAGED": "no", "LAUNCHERKIT_ANNOTATIONS": "yes"}
    other |= {"LAUNCHERKIT_GENERIC_INITIATORS": "no", "LAUNCHERKIT_NODE_CHECK": "auto"}
    variable = "LAUNCHERKIT_" + option.removeprefix("--no-").lstrip("-").upper().replace("-", "_")
    assert variable in VARIABLES
    assert resolve_policy(flags, {}, None, None) == policy
    assert resolve_policy(flags, {variable: other[variable]}, None, None) == policy


def test_every_option_of_the_policy_is_among_them() -> None:
    parser = argparse.ArgumentParser()
    add_policy_arguments(parser)
    declared = {option for action in actions_of(parser) for option in action.option_strings}
    assert declared - {"-h", "--help", "--policy"} == {option for option, *_ in DECISIONS}


@pytest.mark.parametrize(
    ("words", "proc", "pod_resources"),
    [
        ([], "/proc", "/var/lib/kubelet/pod-resources/kubelet.sock"),
        (["--host", "/node", "--kubelet-dir", "/k"], "/node/proc", "/k/pod-resources/kubelet.sock"),
        (["--host", "/node", "--proc", "/p", "--kubelet-dir", "/k", "--pod-resources", "/s"], "/p", "/s"),
    ],
)
def test_a_place_of_its_own_comes_before_the_folder_it_is_in(words: list[str], proc: str, pod_resources: str) -> None:
    parser = argparse.ArgumentParser()
    add_place_arguments(parser, {})
    args = parser.parse_args(words)
    assert (proc_of(args), pod_resources_of(args)) == (proc, pod_resources)
