"""``golden new`` makes a case of what is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.cli.main import run
from launcherkit.errors import BAD_GOLDEN_CASE
from launcherkit.golden.run import check_case
from tests.support.errors import raises_code
from tests.support.imports import ROOT

DEMO = ROOT / "launcherkit" / "demo_data"
VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090"


def new(folder: Path, name: str, *more: str, description: str = "Two GPUs on a node.", **env: str) -> int:
    inputs = [f"--domain={DEMO / 'domain.xml'}", f"--vmi={DEMO / 'vmi.json'}", f"--host={DEMO / 'host.json'}"]
    return run(["golden", "new", str(folder), name, *inputs, "--description", description, *more], env)


def test_the_case_holds_what_was_given_and_passes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert new(tmp_path, "two", "--env-file", str(DEMO / "env.txt")) == 0
    assert {path.name for path in (tmp_path / "two").iterdir()} == {
        *("case.yaml", "domain.xml", "vmi.json", "host.json", "expected.xml")
    }
    assert check_case(tmp_path / "two").ok
    assert capfd.readouterr().out.splitlines()[-1] == "wrote    two: expected.xml"


def test_of_this_containers_variables_those_of_devices_are_taken(tmp_path: Path) -> None:
    assert new(tmp_path, "one", **{VARIABLE: "0000:e1:00.0,0000:01:00.0", "PASSWORD": "x"}) == 0
    text = (tmp_path / "one" / "case.yaml").read_text()
    assert f'{VARIABLE}: "0000:e1:00.0,0000:01:00.0"' in text
    assert "PASSWORD" not in text


def test_a_translation_that_fails_is_recorded_as_its_error(tmp_path: Path) -> None:
    assert new(tmp_path, "none") == 0
    assert (tmp_path / "none" / "expected.error").read_text().startswith("LK201: ")


@pytest.mark.parametrize("name", ["two", "_two", "a/b", ".."])
def test_what_is_there_is_not_touched_and_a_name_is_one_of_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "two").mkdir()
    with raises_code(BAD_GOLDEN_CASE):
        new(tmp_path, name)
    assert list(tmp_path.rglob("*")) == [tmp_path / "two"]


def test_a_description_that_is_no_sentence_leaves_nothing_behind(tmp_path: Path) -> None:
    with raises_code(BAD_GOLDEN_CASE, match="sentence"):
        new(tmp_path, "two", description="Two")
    assert list(tmp_path.iterdir()) == []


def test_in_ci_nothing_is_recorded(tmp_path: Path) -> None:
    assert new(tmp_path, "two", CI="true") == 2
    assert list(tmp_path.iterdir()) == []
