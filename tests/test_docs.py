"""The documentation tells the truth: its examples run and give what it says, its tables name what there is."""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import launcherkit_plugin.model.errors  # noqa: F401  # its codes are of the same series
from launcherkit.cli.main import COMMANDS
from launcherkit.errors import BadConfig
from launcherkit.model.policy import POLICY_KEYS
from launcherkit.process.arguments import variable_of
from launcherkit.process.variables import KNOWN
from launcherkit.request.policy import policy_schema
from launcherkit_lab.packages import CACHE as CACHE_OF_THE_LAB
from launcherkit_plugin.__main__ import COMMANDS as PLUGIN_COMMANDS
from launcherkit_plugin.cli.options import KNOWN as PLUGIN_KNOWN
from launcherkit_plugin.cli.options import variable_of as variable_of_plugin
from tests.support.command_lines import arguments_of
from tests.support.imports import PLUGIN, TRANSLATOR, Package, package_of
from tests.support.pages import (
    COMMENTS,
    ELSEWHERE,
    FROM_A_CHECKOUT,
    ROOT,
    Block,
    Shell,
    all_pages,
    anchors,
    blocks,
    links,
    matches,
    name_of,
    sections,
    steps,
)
from tests.systems.roots import CACHE, MIRROR
from tests.tiers import API, CLUSTER, EXAMPLES, IDLE, KILLS, LIBVIRT_SOCKET, RESTARTS

PAGES = all_pages()
DOCS = ROOT / "docs"
OF_THE_TESTS = {
    API.variable,
    CLUSTER.variable,
    CACHE_OF_THE_LAB,
    LIBVIRT_SOCKET,
    EXAMPLES,
    IDLE,
    KILLS,
    RESTARTS,
    CACHE,
    MIRROR,
}
OF_PROGRAMS = {"LAUNCHERKIT_PHYSFN", "LAUNCHERKIT_ADDRESSES", "LAUNCHERKIT_RESOURCE"}
"""What a program has that cleans a device, or prepares virtual functions: see tests/plugin/binding."""
LANGUAGES = {"console", "python", "yaml", "json", "xml", "text", "toml", "ini", "dockerfile", "sh", "promql"}
"""Of fenced blocks. Commands are in ``console`` blocks, so that they run here."""


RUN = [page for page in PAGES if any(block.language in ("console", "python") for block in blocks(page))]


def test_a_block_is_in_a_language_and_its_comments_are_known() -> None:
    for page in PAGES:
        for block in blocks(page):
            where = f"{name_of(page)}, line {block.line}"
            assert block.language in LANGUAGES, f"{where}: a block is one of {sorted(LANGUAGES)}"
            assert set(block.reported) <= COMMENTS | {"file"}, f"{where}: what a reader needs is not in a comment"
            assert "prints" not in block.reported or page in RUN, f"{where}: nothing on the page prints it"


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in RUN])
def test_every_example_of_a_page_gives_what_the_page_says(page: Path, tmp_path: Path) -> None:
    folder, aside = tmp_path / "page", tmp_path / "aside"
    folder.mkdir()
    aside.mkdir()
    with Shell(folder, aside, in_checkout=name_of(page) in FROM_A_CHECKOUT) as shell:
        run_examples(page, shell)


def run_examples(page: Path, shell: Shell) -> None:
    """Run the blocks of a page in their order, and compare."""
    printed: list[str] = []
    for block in blocks(page):
        where = f"{name_of(page)}, line {block.line}"
        needed = block.reported.get("needs")
        if needed and not os.access(needed, os.R_OK):
            continue
        if file := block.reported.get("file"):
            shell.write(file, block.text)
        elif block.language == "console":
            run_commands(block, shell, where)
        elif block.language == "python":
            outcome = shell.python(block.text)
            assert outcome.code == 0, f"{where}:\n" + "\n".join(outcome.lines)
            printed = outcome.lines
        elif "prints" in block.reported:
            assert matches(block.text.splitlines(), printed), f"{where}: it prints\n" + "\n".join(printed)


def run_commands(block: Block, shell: Shell, where: str) -> None:
    """Run a console block and compare; one that says that it runs elsewhere may hold only what can't run here."""
    if (elsewhere := block.reported.get("runs")) is not None:
        beginning, _ = ELSEWHERE[elsewhere]
        assert all(step.command.startswith(beginning) for step in steps(block)), f"{where}: these can run here"
        return
    for step in steps(block):
        outcome = shell.run(step.command)
        shown = "\n".join([f"{where}: $ {step.command}", *outcome.lines])
        assert step.expected != ["..."], f"{where}: something of an output is always the same"
        if step.command != "./dev shell":  # it says that it is one
            assert matches(step.expected or [], outcome.lines), shown
        expected_code = int(block.reported.get("exits", 0)) if step == steps(block)[-1] else 0
        assert outcome.code == expected_code, f"{shown}\nexit code {outcome.code}, not {expected_code}"


def test_every_link_of_a_page_leads_somewhere() -> None:
    for page, link in [(each, link) for each in PAGES for link in links(each)]:
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{name_of(page)}: {link}"
        assert ROOT in target.resolve().parents, f"{name_of(page)}: {link} leads out of the repository"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)}: {link} is not one of {sorted(anchors(target))}"


def test_every_page_is_reached_from_the_index() -> None:
    reached: set[Path] = set()
    ahead = [DOCS / "README.md"]
    while ahead:
        page = ahead.pop()
        if page.suffix == ".md" and page not in reached:
            reached.add(page)
            files = [link.partition("#")[0] for link in links(page) if "://" not in link]
            ahead += [(page.parent / file).resolve() for file in files if file]
    assert sorted(map(name_of, set(DOCS.rglob("*.md")) - reached)) == []
    assert "docs/README.md" in links(ROOT / "README.md")


def test_the_page_of_the_policy_tells_of_every_key() -> None:
    page = (DOCS / "reference" / "policy.md").read_text()
    reported = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    assert reported == set(keys_of(policy_schema().model_json_schema()))


DOCS_GENERATOR = runpy.run_path(str(DOCS / "generate.py"))


@pytest.mark.parametrize("name", DOCS_GENERATOR["TABLES"])
def test_the_tables_of_the_reference_are_as_they_are_made(name: str) -> None:
    written = (DOCS / "reference" / name).read_text()
    assert written == DOCS_GENERATOR["page_text"](name), "stale: run python docs/generate.py"


def keys_of(schema: dict[str, object], name: str = "") -> Iterator[str]:
    """The keys of a policy, inner ones as ``aliasPrefixes.gpu``."""
    shapes = schema.get("$defs", {})
    assert isinstance(shapes, dict)
    properties = schema["properties"]
    assert isinstance(properties, dict)
    for key, value in properties.items():
        shape = re.search(r"#/\$defs/(\w+)", json.dumps(value))
        if shape:
            yield from keys_of(shapes[shape[1]], f"{key}.")
        else:
            yield name + key


def parser_of(command: str, env: dict[str, str], package: str = "launcherkit") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=command)
    import_module(f"{package}.cli.{command.replace('-', '_')}").add_arguments(parser, env)
    return parser


def flags_on(section: str) -> set[str]:
    """The flags that the table in a section of the page of the commands is about."""
    rows = re.findall(r"^\| (`-.*?) \|", sections(DOCS / "reference" / "cli.md")[section], re.MULTILINE)
    return set(re.findall(r"`(--[a-z0-9-]+)`", " ".join(rows)))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_the_commands_tells_of_every_flag_and_no_other(command: str) -> None:
    flags = {flag for action in arguments_of(parser_of(command, {})) for flag in action.option_strings}
    known = {flag for flag in flags if flag.startswith("--")} - {"--help"}
    of_policy = {option for key in POLICY_KEYS for option in (key.option, key.off_option)} - {""}
    shared = of_policy & known  # told once for those that have them
    if {"--env-file", "--siblings"} <= known:
        shared = flags_on("Inputs and policy")
    assert flags_on(f"launcherkit {command}") | shared == known


def known_variables() -> set[str]:
    """Every ``LAUNCHERKIT_*`` that the code reads: named in it, or made of a flag's name."""
    code = "".join(path.read_text() for path in (ROOT / "launcherkit").rglob("*.py"))
    named = set(re.findall(r"""["'](LAUNCHERKIT_[A-Z0-9_]+[A-Z0-9])["']""", code))
    for command in COMMANDS:
        for action in arguments_of(parser_of(command, {})):
            for flag in action.option_strings:
                if flag.startswith("--") and default_of(command, action, {variable_of(flag): "yes"}) != action.default:
                    named.add(variable_of(flag))
    return named | {variable for key in POLICY_KEYS for variable in (key.variable, key.off_variable)} - {""}


def plugin_variables() -> set[str]:
    """Every ``LAUNCHERKIT_PLUGIN_*`` that stands in for a flag."""
    parsers = (parser_of(command, {}, "launcherkit_plugin") for command in PLUGIN_COMMANDS)
    flags = (flag for parser in parsers for action in arguments_of(parser) for flag in action.option_strings)
    return {variable_of_plugin(flag) for flag in flags if flag.startswith("--")}


def default_of(command: str, action: argparse.Action, env: dict[str, str]) -> object:
    others = arguments_of(parser_of(command, env))
    return next(other.default for other in others if other.option_strings == action.option_strings)


def test_the_page_of_the_configuration_tells_of_every_variable_and_no_other() -> None:
    reported = set(re.findall(r"LAUNCHERKIT_[A-Z0-9_]+[A-Z0-9]", (DOCS / "reference" / "configuration.md").read_text()))
    assert reported == known_variables()


def test_no_variable_that_is_read_is_taken_for_a_misspelt_one() -> None:
    assert known_variables() == KNOWN
    settable = set()
    for command in PLUGIN_COMMANDS:
        for action in arguments_of(parser_of(command, {}, "launcherkit_plugin")):
            for flag in action.option_strings:
                env = {variable_of_plugin(flag): "yes"}
                try:
                    others = arguments_of(parser_of(command, env, "launcherkit_plugin"))
                except BadConfig as refused:  # it is read, and has other values
                    settable.add(refused.variable)
                    continue
                default = next(other.default for other in others if other.option_strings == action.option_strings)
                if flag.startswith("--") and default != action.default:
                    settable.add(variable_of_plugin(flag))
    assert settable == PLUGIN_KNOWN - KNOWN


def test_no_page_names_a_variable_or_a_code_that_is_not_there() -> None:
    from launcherkit.errors import LauncherkitError

    codes = set(LauncherkitError.codes())
    variables = known_variables() | plugin_variables() | OF_THE_TESTS | OF_PROGRAMS
    for page in PAGES:
        text = page.read_text()
        assert set(re.findall(r"LAUNCHERKIT_[A-Z0-9_]+[A-Z0-9]", text)) <= variables, name_of(page)
        assert set(re.findall(r"\bLK\d{3}\b", text)) <= codes, name_of(page)


def code() -> str:
    """All of the package's source."""
    return "".join(path.read_text() for path in sorted((ROOT / "launcherkit").rglob("*.py")))


def test_the_page_of_the_rules_has_every_number_that_the_code_cites() -> None:
    cited = set(re.findall(r"\b[EQCSVPXKG][1-9]\b", code()))
    assert cited <= set(re.findall(r"\b[EQCSVPXKG][1-9]\b", (DOCS / "reference" / "rules.md").read_text()))


def test_the_page_of_the_plan_has_every_topic_of_a_note_and_every_key() -> None:
    from launcherkit import Host, translate
    from launcherkit.model.host import NO_FACTS
    from launcherkit.show.documents import plan_document

    page = (DOCS / "reference" / "plan.md").read_text()
    topics = set(re.findall(r'\bNote\(\s*"([a-z0-9-]+)"', code()))
    reported = page.partition("| topic |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z0-9-]+)`", reported)) == topics
    domain = "<domain type='kvm'><devices/></domain>"
    translation = translate(domain, env={"PCI_RESOURCE_A": "01:00.0,01:00.1"}, host=Host.none())
    document = plan_document(translation, NO_FACTS)
    (device,) = document["devices"]
    for key in [*document, *device, *device["request"], *device["functions"][0], *device["functions"][1]]:
        assert f"`{key}`" in page, key


def test_the_page_of_the_library_has_every_name() -> None:
    import launcherkit

    page = (DOCS / "reference" / "python-api.md").read_text()
    assert [name for name in launcherkit.__all__ if name not in page] == []


@pytest.mark.parametrize(
    ("section", "package"),
    [
        ("The translator", TRANSLATOR),
        ("The device plugin", PLUGIN),
    ],
)
def test_how_it_works_says_what_every_package_is_for_and_names_files_that_are_there(
    section: str, package: Package
) -> None:
    page = (DOCS / "explanation" / "how-it-works.md").read_text()
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    packages = {package_of(module) for module in package.modules} - {"", "__main__"}
    assert {name for name in packages if f"`{name}`" not in text and f"`{name}.py`" not in text} == set()
    files = re.findall(r"`([a-z_]+/[a-z_]+\.py)`", text)
    assert files
    assert {file.removesuffix(".py").replace("/", ".") for file in files} <= set(package.modules)
