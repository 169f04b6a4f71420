"""Every option of both programs is named by a test, or by an example of a page that runs, and means what it says."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from launcherkit.cli.main import COMMANDS
from launcherkit.cli.main import run as main
from launcherkit.errors import LauncherkitError
from launcherkit.inputs import add_policy_arguments, policy_flags
from launcherkit.model.policy import POLICY_KEYS, Policy
from launcherkit.model.policy_key import PolicyKey
from launcherkit.request.policy import policy_of, resolve_policy
from launcherkit_plugin.__main__ import COMMANDS as PLUGIN_COMMANDS
from launcherkit_plugin.cli.options import add_place_arguments, pod_resources_of, proc_of
from tests.support.command_lines import arguments_of, commands_in
from tests.support.pages import ROOT, all_pages, blocks, steps
from tests.test_docs import parser_of

COMMANDS_OF = {"launcherkit": COMMANDS, "launcherkit-plugin": PLUGIN_COMMANDS}
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
TESTED_FOR_ALL = {"-h", "--help"}
"""By tests that go through every command there is."""

OF_THE_INPUTS = ["translate", "define", "run", "explain", "doctor", "topology"]
"""The commands that read a domain and what goes into it."""
WITH_A_POLICY = [*OF_THE_INPUTS, "rehearse", "hook"]


def options_of(program: str, command: str) -> Iterator[tuple[str, ...]]:
    """The options of a command, each with its names."""
    for action in arguments_of(parser_of(command, {}, program.replace("-", "_"))):
        if action.option_strings:
            yield tuple(action.option_strings)


def test_every_option_of_every_command_is_named_by_a_test_of_that_command_or_an_example_that_runs() -> None:
    named = {(program, command): set(TESTED_FOR_ALL) for program, all_ in COMMANDS_OF.items() for command in all_}
    for path in {*(ROOT / "tests").rglob("*.py")} - {Path(__file__)}:
        text = path.read_text()
        options = set(OPTION.findall(text))
        for program, command in commands_named(text) & named.keys():
            named[program, command] |= options
    for case in (ROOT / "tests" / "golden").glob("*/case.yaml"):
        named["launcherkit", "translate"] |= set(OPTION.findall(case.read_text()))
    for words in commands_of_examples():
        command = next(word for word in words if word in COMMANDS_OF[words[0]])
        named[words[0], command] |= {word.partition("=")[0] for word in words}
    for command in WITH_A_POLICY:
        named["launcherkit", command] |= {option for option, *_ in DECISIONS}
    for command in OF_THE_INPUTS:
        named["launcherkit", command] |= {option for options, _ in SCENES.values() for option in options[::2]}
    unnamed = {
        f"{program} {command} {'/'.join(names)}"
        for program, command in named
        for names in options_of(program, command)
        if named[program, command].isdisjoint(names)
    }
    assert unnamed == set()


def commands_named(text: str) -> set[tuple[str, str]]:
    """The commands that a test's text names: as an argument, after the program's name, or by their modules."""
    words = set(re.findall(r"""["']([a-z][a-z-]*)["']""", text))
    modules = re.findall(r"\bcli\.(\w+)", text) + re.findall(r"\w+", " ".join(re.findall(r"\.cli import (.*)", text)))
    words |= {module.replace("_", "-") for module in modules}
    return {(program, word) for word in words for program in COMMANDS_OF} | {
        (program, command) for program, command in re.findall(r"\b(launcherkit(?:-plugin)?) ([a-z][a-z-]*)", text)
    }


def commands_of_examples() -> Iterator[list[str]]:
    """Our commands in the examples that run."""
    for page in all_pages():
        for block in blocks(page):
            if block.language == "console" and "runs" not in block.reported:
                for step in steps(block):
                    yield from (words for words in commands_in(step.command) if words[0] in COMMANDS_OF)


def decisions() -> Iterator[tuple[str, str | None, PolicyKey, Policy]]:
    """The options of the policy with each of their values but the default, and what they make of a policy."""
    for key in POLICY_KEYS:
        for word, choice in key.kind.words.items():
            if choice != key.default:
                yield key.option, word, key, policy_of({key.field: choice})
        if key.off:
            yield key.off_option, None, key, policy_of({key.field: key.off})


DECISIONS = list(decisions())


@pytest.mark.parametrize(("option", "word", "key", "policy"), DECISIONS)
def test_an_option_decides_what_it_names_and_comes_before_its_variable(
    option: str, word: str | None, key: PolicyKey, policy: Policy
) -> None:
    parser = argparse.ArgumentParser()
    add_policy_arguments(parser)
    flags = policy_flags(parser.parse_args([option, *([word] if word else [])]))
    assert resolve_policy(flags, {}, None, None) == policy
    assert resolve_policy(flags, {key.variable: key.default_word}, None, None) == policy
    assert resolve_policy({}, {key.variable: word} if word else {key.off_variable: "yes"}, None, None) == policy


def test_the_options_of_the_policy_and_their_variables_keep_their_names() -> None:
    names = "siblings pairing managed node-check annotations topology iommufd generic-initiators"
    expected = {f"--{name}": "LAUNCHERKIT_" + name.upper().replace("-", "_") for name in names.split()}
    assert {key.option: key.variable for key in POLICY_KEYS}.items() >= expected.items()
    assert ("--no-node-check", "LAUNCHERKIT_NO_NODE_CHECK") in {
        (key.off_option, key.off_variable) for key in POLICY_KEYS
    }


def test_node_checks_are_switched_off_or_set_and_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_policy_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--node-check", "always", "--no-node-check"])
    assert "--no-node-check: not allowed with argument --node-check" in capsys.readouterr().err


@pytest.mark.parametrize("command", WITH_A_POLICY)
def test_each_command_that_attaches_devices_has_the_options_of_the_policy(command: str) -> None:
    bare = argparse.ArgumentParser()
    add_policy_arguments(bare)
    needed = {"rehearse": ["vm.yaml", "--nodes", "nodes"], "hook": ["serve"], "doctor": [], "topology": []}
    for option, value, _, _ in DECISIONS:
        words = [option, *([value] if value else [])]
        args = parser_of(command, {}).parse_args([*needed.get(command, ["--domain", "d.xml"]), *words])
        assert policy_flags(args) == policy_flags(bare.parse_args(words))


WITH_LIBVIRT = {"define", "run"}
"""Those that go on to libvirt, perhaps this machine's own, where nothing is wrong."""
ONE_CELL = """<cpu><numa><cell id='0' cpus='0-3' memory='8' unit='GiB'/></numa></cpu>
<numatune><memnode cellid='0' mode='strict' nodeset='0'/></numatune>"""
SCENES: dict[str, tuple[list[str], str]] = {
    "an annotation within another policy": (["--siblings", "none"], "LK106"),
    "another annotation within another policy": (["--pairing", "positional"], "LK106"),
    "an annotation": (["--annotations", "no"], "LK108"),
    "a cell on one node": (["--topology", "strict"], "LK341"),
    "no device node of iommufd": (["--iommufd", "yes"], "/dev/iommu"),
    "no device node": (["--node-check", "always"], r"/dev/vfio/44 (is missing| *not here)"),
    "a wrong policy": (["--policy", "wrong.yaml"], "LK401"),
    "no network status": (["--network-status", "none.json"], "none.json"),
    "a claim": (["--dra-dir", "metadata"], "metadata/resourceclaims/its-claim/gpu"),
    "a wrong file of variables": (["--env-file", "wrong.yaml"], "LK105"),
}
"""What is there, an option under which it can't be, and what a command says then and not without it."""


@pytest.mark.parametrize("scene", SCENES)
def test_an_option_of_the_inputs_counts_in_each_command(
    scene: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options, expected = SCENES[scene]
    env = {"LAUNCHERKIT_NODE_CHECK": "never"} if "--node-check" in options else {}
    monkeypatch.chdir(tmp_path)
    main(["demo", "--dir", "."], {})
    Path("wrong.yaml").write_text("sibling: none\n")
    vmi = json.loads(Path("vmi.json").read_text())
    if "annotation" in scene:
        key = "pairing: class" if "--pairing" in options else "siblings: slot"
        vmi["metadata"]["annotations"] = {"launcherkit.io/policy": key}
    if scene == "a claim":
        vmi["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "its-claim"}]
        vmi["spec"]["domain"]["devices"]["gpus"] = [{"name": "gpu1", "claimName": "card", "requestName": "gpu"}]
    Path("vmi.json").write_text(json.dumps(vmi))
    if scene == "a cell on one node":
        domain = Path("domain.xml")
        domain.write_text(domain.read_text().replace("<cpu mode='host-passthrough'/>", ONE_CELL))
    if scene == "no device node":
        Path("host.json").write_text(json.dumps(json.loads(Path("host.json").read_text()) | {"nodes": []}))
    for command in OF_THE_INPUTS:
        for given in (options, []) if command not in WITH_LIBVIRT else (options,):
            variables = [] if "--env-file" in given else ["--env-file", "env.txt"]
            capfd.readouterr()
            shown = said([command, *given, *variables], env) + "".join(capfd.readouterr())
            assert bool(re.search(expected, shown)) == bool(given), command


def said(words: list[str], env: dict[str, str]) -> str:
    """The error that a command ends with; what it prints comes to that."""
    command, *options = words
    with suppress(SystemExit):
        try:
            main([command, "--domain", "domain.xml", "--vmi", "vmi.json", "--host", "host.json", *options], env)
        except LauncherkitError as error:
            return "".join(f"{leaf.code}: {leaf}" for leaf in error.leaves())
    return ""


def test_every_option_of_the_policy_is_among_them() -> None:
    parser = argparse.ArgumentParser()
    add_policy_arguments(parser)
    declared = {option for action in arguments_of(parser) for option in action.option_strings}
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


def _defaults(command: str, flag: str, env: dict[str, str]) -> list[object]:
    return [action.default for action in arguments_of(parser_of(command, env)) if flag in action.option_strings]


def _is_set_by(command: str, flag: str, variable: str) -> bool:
    try:
        return _defaults(command, flag, {variable: "7"}) != _defaults(command, flag, {})
    except LauncherkitError:  # it takes only other values
        return True


def test_the_reference_names_every_command_that_a_variable_sets() -> None:
    """Except the policy's file, which no option's default shows."""
    text = (ROOT / "docs/reference/configuration.md").read_text().partition("## Files and output")[2]
    rows = re.findall(r"^\| .* \| `(--[a-z-]+)` \| `(LAUNCHERKIT_\w+)`.* \| (.*) \|$", text, re.M)
    said = {flag: set(commands.split(", ")) for flag, variable, commands in rows if flag != "--policy"}
    assert len(said) > 20
    assert said == {
        flag: {command for command in COMMANDS if _is_set_by(command, flag, variable)}
        for flag, variable, _ in rows
        if flag != "--policy"
    }
