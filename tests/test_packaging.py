"""The distributions: their metadata, their bytes, and pip alone installs the wheel into an empty environment."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from hatch_build import address_of
from launcherkit import __version__
from launcherkit.errors import LauncherkitError
from tests.support.pages import links
from tests.support.wheels import PROJECTS, build, run
from tools.release.build import unpack
from tools.release.man import parser_of

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow  # both are built


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution, by its name."""
    built = [build("wheel", project, tmp_path_factory.mktemp("wheel")) for project in PROJECTS]
    return {path.name.partition("-")[0]: path for path in built}


@pytest.fixture(scope="module")
def sdists(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each sdist, unpacked, by the name of its distribution."""
    folder = tmp_path_factory.mktemp("unpacked")
    for project in PROJECTS:
        unpack(build("sdist", project, tmp_path_factory.mktemp("sdist")), folder)
    return {path.name.partition("-")[0]: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def wheel(wheels: dict[str, Path]) -> Path:
    return wheels["launcherkit"]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The ``bin`` of a new environment with the wheel in it.

    Where every tier was asked for, pip fetches what it depends on by the pins; else that is lent by the tests' own
    environment, for a test should not need a network.
    """
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check")
    if request.config.getoption("--all-tiers"):
        run(*pip, "--require-hashes", "-r", ROOT / "tools" / "requirements" / "runtime.txt", cwd=folder)
        run(*pip, "--no-index", wheel, cwd=folder)
    else:
        run(*pip, "--no-deps", "--no-index", wheel, cwd=folder)
        (site_packages,) = folder.glob("lib/python3*/site-packages")
        (site_packages / "lent.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def metadata_of(wheel: Path) -> Message:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(archive.read(name).decode())


every_distribution = pytest.mark.parametrize("name", ["launcherkit", "launcherkit_plugin", "launcherkit_lab"])


@every_distribution
def test_a_wheel_is_pure_and_typed_and_has_its_licence(wheels: dict[str, Path], name: str) -> None:
    names = zipfile.ZipFile(wheels[name]).namelist()
    assert wheels[name].name.endswith("-py3-none-any.whl")
    assert f"{name}/py.typed" in names
    reported = f"{name}-{__version__}.dist-info"
    assert f"{reported}/licenses/LICENSE" in names
    places = {path.partition("/")[0] for path in names if "/data/share/man/man1/" not in path}
    assert places == {name, reported}


def test_the_wheel_has_the_data_of_the_demonstration(wheel: Path) -> None:
    assert any(name.startswith("launcherkit/demo_data/") for name in zipfile.ZipFile(wheel).namelist())


def test_the_distributions_have_one_version_and_the_plugin_wants_the_translator_of_just_that(
    wheels: dict[str, Path],
) -> None:
    assert {metadata_of(wheel)["Version"] for wheel in wheels.values()} == {__version__}
    wanted = metadata_of(wheels["launcherkit_plugin"]).get_all("Requires-Dist", [])
    assert [line for line in wanted if line.startswith("launcherkit")] == [f"launcherkit[sidecar]=={__version__}"]


def test_the_addresses_of_all_come_from_one_setting(wheels: dict[str, Path]) -> None:
    home = address_of(ROOT)["home"]
    reported = [sorted(metadata_of(wheel).get_all("Project-URL", [])) for wheel in wheels.values()]
    assert reported[0] == reported[1] == reported[2]
    assert {line.partition(", ")[0] for line in reported[0]} == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert [line for line in reported[0] if not line.partition(", ")[2].startswith(home)] == []
    others = [
        path for path in (*ROOT.glob("*"), *(ROOT / "plugin").glob("*"), *(ROOT / "lab").glob("*")) if path.is_file()
    ]
    assert {path.name for path in others if home in path.read_text()} <= {"pyproject.toml", "PKG-INFO"}


@every_distribution
def test_the_links_of_a_long_description_lead_to_files_of_this_version(
    wheels: dict[str, Path], name: str, tmp_path: Path
) -> None:
    metadata = metadata_of(wheels[name])
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = tmp_path / "page.md"
    page.write_text(str(metadata.get_payload()))
    begin = f"{address_of(ROOT)['home']}/blob/v{__version__}/"
    inside = [link.removeprefix(begin).partition("#")[0] for link in links(page) if link.startswith(begin)]
    assert len(inside) > 3
    assert [path for path in inside if not (ROOT / path).exists()] == []
    assert [link for link in links(page) if not link.startswith(("https://", "#"))] == []


@every_distribution
def test_a_wheel_has_the_same_bytes_wherever_and_whenever_it_is_built(
    wheels: dict[str, Path], sdists: dict[str, Path], name: str, tmp_path: Path
) -> None:
    for path in sdists[name].rglob("*"):
        os.utime(path, (0, 0))
    umask = os.umask(0o077)
    try:
        again = build("wheel", sdists[name], tmp_path)
    finally:
        os.umask(umask)
    assert again.read_bytes() == wheels[name].read_bytes()


def test_the_sdist_has_all_of_the_checkout_so_that_it_can_test_itself(sdists: dict[str, Path]) -> None:
    folder = sdists["launcherkit"]
    for path in (
        "dev",
        ".ci/run",
        "plugin/pyproject.toml",
        "tools/requirements/dev.txt",
        "tests/conftest.py",
        "docs/README.md",
    ):
        assert (folder / path).read_bytes() == (ROOT / path).read_bytes(), path
    assert os.access(folder / "dev", os.X_OK)
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/model", "--base", cwd=folder)


def test_the_wheel_has_a_page_for_every_error(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert [code for code in LauncherkitError.codes() if f"launcherkit/_pages/errors/{code}.md" not in names] == []


@every_distribution
def test_a_wheel_has_a_man_page_for_the_program_and_each_command(
    wheels: dict[str, Path], name: str, tmp_path: Path
) -> None:
    parser = parser_of(name.replace("_", "-"))
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    archive = zipfile.ZipFile(wheels[name])
    pages = {each.rpartition("/")[2]: each for each in archive.namelist() if "/data/share/man/man1/" in each}
    assert set(pages) >= {f"{each}.1" for each in (parser.prog, *(f"{parser.prog}-{one}" for one in commands.choices))}
    for page in pages.values():
        (tmp_path / "page.1").write_bytes(archive.read(page))
        for reader in (["man", "--warnings", "-E", "UTF-8", "-l"], ["mandoc", "-T", "lint", "-W", "warning"]):
            if shutil.which(reader[0]):
                reported = subprocess.run([*reader, "page.1"], cwd=tmp_path, capture_output=True, text=True)
                assert (reported.returncode, reported.stderr) == (0, ""), page
                assert reader[0] == "man" or not reported.stdout, page


def test_the_hook_needs_nothing_but_what_is_declared(wheel: Path) -> None:
    needed = metadata_of(wheel).get_all("Requires-Dist", [])
    always = [line for line in needed if "extra ==" not in line]
    assert {re.split(r"[^\w-]", line)[0].lower() for line in always} == {"jinja2", "lxml", "pydantic", "pyyaml"}


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("launcherkit --version", "launcherkit"),
        ("launcherkit demo --help", "demo"),
        ("launcherkit demo", "hostdev"),
        ("launcherkit explain LK204", "LK204"),
        ("launcherkit templates list", "q35"),
        ("onDefineDomain --help", "--domain"),
    ],
)
def test_a_command_runs_from_the_installed_wheel(installed: Path, tmp_path: Path, command: str, shown: str) -> None:
    program, *arguments = command.split()
    assert shown in run(installed / program, *arguments, cwd=tmp_path)
