"""``./dev build``: the files of a release, in ``dist/``.

Each wheel is built twice, from the checkout and from the sdist, and both must have the same bytes. What is written is
held against what an index wants of it, and its provenance stands beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from hatch_build import address_of
from launcherkit import __version__
from tools.release.provenance import Source, sha256, statement

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = (ROOT, ROOT / "plugin", ROOT / "lab")
PROVENANCE = f"launcherkit-{__version__}.intoto.json"


class CannotBuild(Exception):
    """The files can't be made, or are not as they should be; the text says why."""


def build(project: Path, out: Path, *targets: str) -> list[Path]:
    """Build an sdist, a wheel or both with the tools that are installed, and return what was made.

    Raises:
        CannotBuild: the build failed.
    """
    before = set(out.glob("*"))
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out)]
    done = subprocess.run(
        [*command, *(word for target in targets for word in ("--target", target))],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotBuild(f"{project.name}: {done.stdout}{done.stderr}")
    return sorted(set(out.glob("*")) - before)


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist; the folder that is in it."""
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        archive.extractall(folder)  # noqa: S202  # it was built here a moment ago
    return folder / sdist.name.removesuffix(".tar.gz")


def build_all(out: Path, projects: Sequence[Path] = PROJECTS) -> list[Path]:
    """Build sdists and wheels, the wheels twice.

    Raises:
        CannotBuild: a build failed, the two wheels differ, or have no bill of materials.
    """
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.iterdir():
        stale.unlink()
    built: list[Path] = []
    for project in projects:
        made = build(project, out, "sdist", "wheel")
        with tempfile.TemporaryDirectory() as folder:
            [again] = build(unpack(made[-1], Path(folder)), Path(folder), "wheel")[:1]
            if sha256(again) != sha256(made[0]):
                raise CannotBuild(f"{again.name}: from the sdist it has other bytes than from the checkout")
        if not has_bill(made[0]):
            raise CannotBuild(f"{made[0].name} has no bill of materials; `python -m tools.release.sbom` says why")
        built += made
    return built


def has_bill(wheel: Path) -> bool:
    """Whether a bill of materials is in a wheel."""
    return any(".dist-info/sboms/" in name for name in zipfile.ZipFile(wheel).namelist())


def test(sdist: Path) -> int:
    """Run the tests of an sdist as somebody does who has nothing else; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([unpack(sdist, Path(folder)) / "dev", "test"], check=False).returncode


def source_of(root: Path) -> Source:
    """What is checked out.

    Raises:
        CannotBuild: no commit has what lies here, so nobody could build it again.
    """
    address = address_of(root)["home"]
    if _git(root, "status", "--porcelain"):
        raise CannotBuild("there are changes that no commit has; commit them")
    return Source(address, _git(root, "rev-parse", "HEAD"))


def _source(root: Path) -> Source:
    try:
        return source_of(root)
    except CannotBuild as error:
        raise CannotBuild(f"{error}; without a commit that has all of it, build with --no-provenance") from None


def _git(root: Path, *arguments: str) -> str:
    # The checkout may be somebody else's: what is in it runs here anyhow.
    command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotBuild(f"git: {error}") from None
    if done.returncode:
        raise CannotBuild(f"git: {done.stderr.strip()}")
    return done.stdout.strip()


def parser_of_arguments() -> argparse.ArgumentParser:
    """What follows ``--``."""
    parser = argparse.ArgumentParser(prog="./dev build --", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("--builder", default="urn:launcherkit:dev-build", help="the URI of who builds, for provenance")
    parser.add_argument("--no-provenance", action="store_true", help="for a checkout with changes, or without git")
    parser.add_argument("--test", action="store_true", help="run `./dev test` in the unpacked sdist")
    return parser


def main() -> int:
    """Build, check and tell."""
    arguments = parser_of_arguments().parse_args()
    out = ROOT / "dist"
    try:
        source = None if arguments.no_provenance else _source(ROOT)
        built = build_all(out)
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)
        if source:
            tools = {name: version(name) for name in ("hatchling", "cyclonedx-bom", "argparse-manpage")} | {
                "python": platform.python_version()
            }
            said = statement(built, source, ROOT / "tools" / "requirements" / "build.txt", arguments.builder, tools)
            (out / PROVENANCE).write_text(json.dumps(said, indent=1) + "\n")
    except (CannotBuild, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"./dev build: {error}\n")
        return 1
    if arguments.test and (code := test(built[1])):
        return code
    for path in sorted(out.iterdir()):
        sys.stdout.write(f"{sha256(path)}  dist/{path.name}\n")
    if "example.org" in address_of(ROOT)["home"]:
        sys.stderr.write("note: the address in [tool.launcherkit] of pyproject.toml is a placeholder\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
