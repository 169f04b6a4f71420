"""What goes with a release: bills of materials made of the pins, and where the files come from."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from tomllib import loads

import pytest

from hatch_build import address_of
from release.build import CannotBuild, source_of
from release.provenance import Source, sha256, statement
from release.sbom import LICENCES, SUBJECTS, Pin, Subject, UnknownLicence, bill, bills, read_pins

ROOT = Path(__file__).parents[1]


def test_the_committed_bills_are_what_the_pins_give() -> None:
    found = {subject.path: (ROOT / subject.path).read_text() for subject in SUBJECTS}
    assert found == bills(), "run `.venv/bin/python -m release.sbom`"


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_bill_has_every_pin_of_what_is_shipped_with_its_licence(subject: Subject) -> None:
    made = json.loads((ROOT / subject.path).read_text())
    pinned = set[Pin]().union(
        *(read_pins((ROOT / "tools" / "requirements" / name).read_text()) for name in subject.pins)
    )
    listed = {Pin(part["name"], part["version"]) for part in made["components"]}
    assert pinned <= listed
    assert {pin.name for pin in listed - pinned} == set(subject.own)
    assert [part["name"] for part in made["components"] if not part["licenses"]] == []
    names = [part["name"] for part in made["components"]]
    assert names == sorted(set(names))


def test_a_licence_is_what_the_package_itself_says() -> None:
    licences: dict[str, str] = loads(LICENCES.read_text())
    shipped = {part["name"] for text in bills().values() for part in json.loads(text)["components"]}
    assert set(licences) == shipped
    for name, licence in licences.items():
        try:
            said = metadata(name)
        except PackageNotFoundError:
            continue
        (expression,) = said.get_all("License-Expression") or said.get_all("License") or [""]
        if expression in licences.values():  # older metadata has free text there
            assert licence == expression, name


def test_a_package_whose_licence_nobody_has_written_down_is_an_error() -> None:
    with pytest.raises(UnknownLicence, match="no licence of new-thing"):
        bill(SUBJECTS[0], {Pin("new-thing", "1")}, {"launcherkit": "Apache-2.0"})


def test_a_bill_changes_its_number_with_its_contents_and_only_then() -> None:
    licences = {"launcherkit": "Apache-2.0", "a": "MIT"}
    one, same, other = (
        bill(SUBJECTS[0], {Pin("a", version)}, licences)["serialNumber"] for version in ("1.0", "1.0", "1.1")
    )
    assert one == same != other


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
