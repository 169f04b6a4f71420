"""The public API: its names, what is said of them, and what the type checkers of a project outside see of it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import launcherkit
from launcherkit import AliasPrefixes, Note, Plan, Policy, Translation
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciDetail
from launcherkit.model.plan import PlannedFunction
from tests.support.pages import ROOT, blocks, sections
from tests.support.wheels import PROJECTS, build, run

PROJECT = ROOT / "tests" / "outside"
PAGES = [
    ROOT / "docs" / name for name in ("how-to/library.md", "how-to/library-examples.md", "reference/python-api.md")
]
"""The pages whose programs are checked too."""


def public_names() -> dict[str, set[str]]:
    """The names of each public module, by the page of the Python API."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", sections(PAGES[2])["Modules"], re.MULTILINE)
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}


PUBLIC = public_names()


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    assert PUBLIC["launcherkit"] == set(launcherkit.__all__)
    for module, names in PUBLIC.items():
        there = import_module(module)
        for name in names - {"__version__"}:
            value = getattr(there, name)
            assert not isinstance(value, type) or (value.__doc__ or "").strip(), f"{module}.{name} says nothing"


def values_within_reach() -> set[type]:
    """The classes of all that `translate`, a `Policy` and a `Host` give."""
    roots = {Translation, Policy, Note, HostFacts}
    found, todo = set[type](roots), list[type](roots)
    while todo:
        hints = get_type_hints(todo.pop()).values()
        new = {part for hint in hints for part in _parts(hint)} - found
        found |= new
        todo += new
    return found


def test_the_type_of_whatever_is_within_reach_is_public() -> None:
    public = {name for names in PUBLIC.values() for name in names}
    assert {value.__name__ for value in values_within_reach()} - public == set()


def test_help_says_what_each_field_of_a_public_value_is() -> None:
    values = {value: getattr(value, "_fields", ()) for value in values_within_reach()}
    assert {PciAddress, Plan, PlannedFunction, PciDetail, AliasPrefixes} <= values.keys()
    silent = [
        f"{value.__name__}.{name}" for value, names in values.items() for name in names if _is_silent(value, name)
    ]
    assert silent == []


def _is_silent(value: type, field: str) -> bool:
    """Whether neither the field nor the docstring of its class says what it is."""
    own = getattr(value, field).__doc__ or "Alias for field"
    return own.startswith("Alias for field") and f"    {field}: " not in (value.__doc__ or "")


def _parts(hint: object) -> Iterator[type]:
    """The classes of launcherkit in a type."""
    if isinstance(hint, type) and hint.__module__.startswith("launcherkit."):
        yield hint
    for argument in get_args(hint):
        yield from _parts(argument)


def test_the_project_uses_every_public_name() -> None:
    used: dict[str, set[str]] = {}
    for file in (PROJECT / "gpu_launcher").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                used.setdefault(node.module, set()).update(alias.name for alias in node.names)
    unused = {module: names - used.get(module, set()) for module, names in PUBLIC.items()}
    assert {module: names for module, names in unused.items() if names} == {}


def test_a_program_of_a_page_has_at_most_forty_lines() -> None:
    """Examples that nobody reads to the end explain nothing."""
    for page in PAGES:
        assert [
            block.line for block in blocks(page) if block.language == "python" and block.text.count("\n") > 40
        ] == []


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with both wheels; what they depend on is lent by the tests' own."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder)
    made = folder / "bin" / "python"
    wheels = [build("wheel", project, tmp_path_factory.mktemp("wheel")) for project in PROJECTS]
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", made)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", *wheels, cwd=folder)
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    (site_packages / "lent.pth").write_text(sysconfig.get_path("purelib"))
    return made


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project where no checkout is near, with the programs of the pages."""
    folder = tmp_path_factory.mktemp("outside") / "project"
    shutil.copytree(PROJECT, folder)
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                (folder / f"{page.stem.replace('-', '_')}_line_{block.line}.py").write_text(block.text)
    return folder


@pytest.mark.slow
def test_mypy_in_strict_mode_has_nothing_against_the_project(python: Path, project: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "mypy", "--python-executable", python, "--cache-dir", tmp_path, ".", cwd=project)


pyright_is_here = pytest.mark.skipif(find_spec("pyright") is None, reason="`./dev test slow` installs pyright")


def pyright(python: Path, project: Path, *arguments: str) -> dict[str, Any]:
    """What pyright reports of an environment, as JSON."""
    env = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", str(python), "--outputjson", *arguments],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow
@pyright_is_here
def test_pyright_in_strict_mode_has_nothing_against_the_project(python: Path, project: Path) -> None:
    report = pyright(python, project, ".")
    assert report["generalDiagnostics"] == []
    assert report["summary"]["filesAnalyzed"] >= len(list(project.rglob("*.py")))


@pytest.mark.slow
@pyright_is_here
def test_the_type_of_every_public_name_is_written_down(python: Path, project: Path) -> None:
    """Then no checker has to guess, and guess otherwise than another. A package of all these names is measured."""
    (site_packages,) = python.parents[1].glob("lib/python3*/site-packages")
    package = site_packages / "every_name"
    package.mkdir()
    (package / "py.typed").touch()
    public = [(module, name) for module, names in PUBLIC.items() for name in sorted(names - {"__version__"})]
    lines = [f"from {module} import {name} as {name}\n" for module, name in public]
    (package / "__init__.py").write_text("".join(lines))
    report = pyright(python, project, "--verifytypes", package.name)["typeCompleteness"]
    assert [symbol for symbol in report["symbols"] if not symbol["isTypeKnown"]] == []
    assert {f"{package.name}.{name}" for _, name in public} <= {symbol["name"] for symbol in report["symbols"]}
