"""The wheel: pip alone installs it into an empty environment, and the commands run there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from launcherkit.errors import LauncherkitError
from tests.tiers import TIERS

ROOT = Path(__file__).parents[1]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


def run(*command: str | Path, cwd: Path) -> str:
    # Neither the environment of the tests nor its settings may help.
    foreign = ("PYTHON", "LAUNCHERKIT", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("launcherkit-*.whl")
    return built


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
        run(*pip, "--require-hashes", "-r", ROOT / "requirements" / "runtime.txt", cwd=folder)
        run(*pip, "--no-index", wheel, cwd=folder)
    else:
        run(*pip, "--no-deps", "--no-index", wheel, cwd=folder)
        (site_packages,) = folder.glob("lib/python3*/site-packages")
        (site_packages / "lent.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def test_the_wheel_is_pure_and_typed_and_has_its_data_and_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "launcherkit/py.typed" in names
    assert any(name.startswith("launcherkit/demo_data/") for name in names)
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"launcherkit"}


def test_the_wheel_has_a_page_for_every_error(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert [code for code in LauncherkitError.codes() if f"launcherkit/_pages/errors/{code}.md" not in names] == []


def test_the_hook_needs_nothing_but_what_is_declared(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    needed = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
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


def pins(path: Path) -> dict[str, str]:
    """Package, with its marker where it has one, to version."""
    found = re.findall(r"^([\w.-]+)==(\S+)(.*?)\\?$", path.read_text(), re.MULTILINE)
    return {name + marker.strip(): version for name, version, marker in found}


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_every_pin_has_hashes_and_tells_nothing_of_where_it_was_made(path: Path) -> None:
    entries = re.split(r"^(?=\w)", path.read_text(), flags=re.MULTILINE)[1:]
    assert [entry.partition(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"://|^-|--index|--find-links|file:|@ ", path.read_text(), re.MULTILINE) == []


def test_what_users_install_is_what_is_tested() -> None:
    tested = pins(ROOT / "requirements" / "dev.txt")
    for name in ("runtime.txt", "build.txt"):
        assert pins(ROOT / "requirements" / name).items() <= tested.items()


def test_ci_runs_every_tier() -> None:
    markers = re.search(r"--all -- -m '(.*)'", (ROOT / ".ci" / "run").read_text())
    assert markers is not None
    assert set(markers.group(1).split(" or ")) == {tier.name for tier in TIERS}
