"""Templates: ours, other people's, and what a template may not do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcherkit.cli.main import run
from launcherkit.domain.xml import read_document
from launcherkit.errors import BAD_SETTING, BAD_TEMPLATE, BAD_TEMPLATE_VALUE, NO_SUCH_TEMPLATE, LauncherkitError
from launcherkit.request.template import Template, find_template, list_templates, read_values
from tests.support.errors import raises_code

ROOT = Path(__file__).parents[2]
PROVOKED = (ROOT / "tests" / "provoked" / "template.error").read_text().splitlines()
OURS = list_templates()


def reported(error: LauncherkitError) -> str:
    return f"{error.code}: {error.message}"


@pytest.mark.parametrize("template", OURS, ids=lambda template: template.name)
def test_ours_need_a_name_and_nothing_else(template: Template) -> None:
    root = read_document(template.render({"name": "vm"})).root
    assert root.findtext("name") == "vm"
    with raises_code(BAD_TEMPLATE_VALUE, match=f"the template {template.name} needs a value for name"):
        template.render({})


@pytest.mark.parametrize("template", OURS, ids=lambda template: template.name)
def test_ours_say_what_they_are_and_their_values_are_documented(template: Template) -> None:
    page = (ROOT / "docs" / "reference" / "templates.md").read_text()
    assert template.description.endswith(".")
    assert template.variables() <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_a_value_is_escaped_for_xml() -> None:
    value = "</name><x a='\"&"
    root = read_document(find_template("q35").render({"name": value, "disk": value})).root
    assert root.findtext("name") == value
    assert root.xpath("string(devices/disk/source/@file)") == value


def test_a_value_that_is_missing_is_reported() -> None:
    with raises_code(BAD_TEMPLATE_VALUE) as raised:
        find_template("q35").render({})
    assert reported(raised.value) in PROVOKED


def test_a_value_that_is_not_used_is_reported_with_those_that_are() -> None:
    with raises_code(BAD_TEMPLATE_VALUE, match="no value 'nam'") as raised:
        Template("t", "{{ name }}").render({"nam": "vm"})
    assert raised.value.remedy == "It has these: name."


@pytest.mark.parametrize("setting", ["name", "=vm", "a-b=c", ""])
def test_a_setting_is_key_and_value(setting: str) -> None:
    with raises_code(BAD_TEMPLATE_VALUE, match="KEY=VALUE"):
        read_values([setting])
    assert read_values(["a=1", "a=b=c", "e="]) == {"a": "b=c", "e": ""}


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ {}.update({1: 2}) }}{{ 1 / 0 }}",
        "{% include '/etc/passwd' %}",
        "{{ x.y.z }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% if %}",
    ],
)
def test_what_a_template_may_not_do_is_an_error(text: str) -> None:
    with raises_code(BAD_TEMPLATE):
        Template("t", text).render({"x": "1"} if "x" in text and "exit" not in text and "x.y" in text else {})


def test_a_syntax_error_is_reported_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("vm.xml.j2").write_text("<domain>{{ } }}</domain>")
    with raises_code(BAD_TEMPLATE) as raised:
        find_template("./vm.xml.j2").render({})
    assert reported(raised.value) in PROVOKED


def test_an_unknown_name_is_reported_with_those_that_there_are() -> None:
    with raises_code(NO_SUCH_TEMPLATE) as raised:
        find_template("q36")
    assert reported(raised.value) in PROVOKED
    assert "q35, virt-aarch64" in raised.value.remedy


def test_a_template_is_listed_and_shown(capfd: pytest.CaptureFixture[str]) -> None:
    run(["templates", "list"], {})
    assert [line.split("\t")[0] for line in capfd.readouterr().out.splitlines()] == [t.name for t in OURS]
    run(["templates", "show", "q35"], {})
    assert capfd.readouterr().out == find_template("q35").text


@pytest.mark.parametrize("given", [["run", "--grace", "soon"], ["run", "--wait", "-1"], ["run", "--grace", "nan"]])
def test_a_length_of_time_is_a_number(given: list[str]) -> None:
    with raises_code(BAD_SETTING, match="is not a number of seconds"):
        run([*given, "--template", "q35"], {})


@pytest.mark.parametrize("command", ["define", "run"])
def test_a_command_takes_a_domain_or_a_template_and_not_both(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command], {}) == 2
    assert run([command, "--domain", "x", "--template", "q35"], {}) == 2
    assert "--domain FILE or --template NAME" in capsys.readouterr().err
