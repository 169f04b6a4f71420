"""What goes with a release: bills of materials, held against the pins, and where the files come from."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from hatch_build import address_of
from launcherkit import __version__
from tools.release.build import CannotBuild, has_bill, source_of
from tools.release.provenance import Source, sha256, statement
from tools.release.sbom import SUBJECTS, WrongBill, bill, check, parts_of

ROOT = Path(__file__).parents[1]


def document(**versions: str) -> str:
    """A bill as cyclonedx-py writes it, with the names that packages give themselves."""
    licences = [{"license": {"id": "MIT"}}]
    parts = [{"name": name, "version": version, "licenses": licences} for name, version in versions.items()]
    return json.dumps({"components": parts})


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_bill_must_list_every_pin_of_what_is_shipped_and_our_own(name: str) -> None:
    parts = parts_of(SUBJECTS[name])
    pins = [(ROOT / "tools" / "requirements" / file).read_text() for file in SUBJECTS[name].pins]
    assert {f"{each}=={version}" for each, version in parts.items() if each not in SUBJECTS[name].own} == {
        line.split()[0] for text in pins for line in text.splitlines() if re.match(r"\w", line)
    }
    assert {each: parts[each] for each in SUBJECTS[name].own} == dict.fromkeys(SUBJECTS[name].own, __version__)


def test_a_bill_of_what_is_pinned_is_right_whatever_way_its_names_are_written() -> None:
    check(document(PyYAML="6.0", typing_extensions="4.1"), {"pyyaml": "6.0", "typing-extensions": "4.1"})


@pytest.mark.parametrize("parts", [{"a": "1"}, {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "2.1"}])
def test_a_bill_of_anything_else_than_what_is_pinned_is_an_error(parts: dict[str, str]) -> None:
    with pytest.raises(WrongBill, match=r"other versions are installed than are pinned: [bc]$"):
        check(document(a="1", b="2"), parts)


def test_a_package_whose_licence_nobody_has_looked_at_is_an_error() -> None:
    text = document(new="1", protobuf="7").replace('"licenses"', '"unlicensed"')
    with pytest.raises(WrongBill, match="no licence is declared by new: look"):
        check(text, {"new": "1", "protobuf": "7"})


@pytest.mark.skipif(find_spec("cyclonedx_py") is None, reason="`./dev build` has it")
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_bill_is_the_same_each_time_and_is_about_its_distribution(name: str) -> None:
    text = bill(name)
    assert text == bill(name)
    about = json.loads(text)["metadata"]["component"]
    assert (about["name"], about["version"]) == (name, __version__)
    assert "file:" not in text


@pytest.mark.parametrize(
    ("place", "has"), [("dist-info/sboms/a.cdx.json", True), ("dist-info/licenses/LICENSE", False)]
)
def test_a_wheel_without_a_bill_is_noticed(place: str, has: bool, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr(f"a-1.{place}", "")
    assert has_bill(tmp_path / "a.whl") == has


def test_the_provenance_names_files_source_and_builder(tmp_path: Path) -> None:
    built = [tmp_path / "b.whl", tmp_path / "a.tar.gz"]
    for path in built:
        path.write_text(path.name)
    pins = ROOT / "tools" / "requirements" / "build.txt"
    made = statement(built, Source("https://e.org/p", "c0ffee"), pins, "https://ci.e.org/1", {"hatchling": "1.2"})
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert made["subject"] == [
        {"name": path.name, "digest": {"sha256": sha256(path)}} for path in (tmp_path / "a.tar.gz", tmp_path / "b.whl")
    ]
    text = json.dumps(made)
    for part in ('"gitCommit": "c0ffee"', "git+https://e.org/p", "https://ci.e.org/1", sha256(pins)):
        assert part in text


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@e.org")
    return subprocess.run(
        ["git", "-C", folder, *who, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_what_no_commit_has_gets_no_provenance(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    with pytest.raises(CannotBuild, match="git"):
        source_of(tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=a")
    assert source_of(tmp_path) == Source(address_of(ROOT)["home"], git(tmp_path, "rev-parse", "HEAD"))
    (tmp_path / "new").touch()
    with pytest.raises(CannotBuild, match="changes that no commit has"):
        source_of(tmp_path)
