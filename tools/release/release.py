"""``./dev release``: builds all that a release is, and publishes it."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcherkit import __version__
from tools.release.assemble import CHART_REFERENCE, FILES_REFERENCE, Plan, assemble, say, seal
from tools.release.build import ROOT, CannotBuild, source_of
from tools.release.images import OWN_ARCHITECTURE, REGISTRY, TARGETS, cannot_run
from tools.release.images import CannotBuild as CannotBuildImage
from tools.release.oci import Layout
from tools.release.options import misuse, parser_of_arguments
from tools.release.publish import CannotPublish, Index, Registry, plan_index, plan_registry, refuse_conflicts
from tools.release.signing import Key, UnusableKey, read_key

_PACKAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "skopeo": "skopeo"}


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Do what is asked; what was published, or made, is printed when all of it is."""
    parser = parser_of_arguments()
    arguments = parser.parse_args(argv)
    if problem := misuse(arguments):
        parser.error(problem)
    # Only twine gets what it logs in with.
    ours = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("TWINE_")}
    try:
        lines = _release(arguments, root, ours)
    except (CannotBuild, CannotBuildImage) as error:
        return _failed(error, 1)
    except (CannotPublish, UnusableKey, OSError) as error:
        return _failed(error, 69)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _failed(error: Exception, code: int) -> int:
    say(str(error))
    return code


def _release(arguments: argparse.Namespace, root: Path, ours: Mapping[str, str]) -> list[str]:
    key = read_key(arguments.key, arguments.passphrase_file) if arguments.key else None
    architectures = tuple(sorted(set(arguments.arch or ("amd64", "arm64"))))
    _check_log((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    plan = Plan(source_of(root), arguments.registry or REGISTRY, architectures, arguments.base, arguments.builder)
    _check_machine(architectures)
    registry = Registry(arguments.registry, arguments.plain_http) if arguments.registry else None
    index = _index_of(arguments)
    if arguments.dry_run:
        return foreseen(plan, registry, index, key)
    if os.geteuid() != 0:
        raise CannotBuild("images are built as root: sudo ./dev release ...")
    # Not in memory, where /tmp may be.
    temporary = None if arguments.to_folder else Path(tempfile.mkdtemp(prefix="launcherkit-release-", dir="/var/tmp"))
    folder = arguments.to_folder or Path(str(temporary), "release")
    try:
        assemble(plan, folder)
        seal(folder, plan.registry, key)
        lines = publish(folder, registry, index, ours)
    except CannotPublish as error:
        again = f"repeat the command with --to-folder {folder}"
        raise CannotPublish(f"{error}\nthe release is in {folder}: {again}") from None
    except BaseException:
        _remove(temporary)
        raise
    _remove(temporary)
    return lines or [f"made  {path}" for path in sorted(folder.iterdir())]


def _remove(folder: Path | None) -> None:
    if folder:
        shutil.rmtree(folder)


def publish(folder: Path, registry: Registry | None, index: Index | None, ours: Mapping[str, str]) -> list[str]:
    """Publish a release; what was published, a line for each.

    Raises:
        CannotPublish: something else is there already, or was refused.
    """
    layout = Layout(folder / "oci")
    pushes = plan_registry(layout, registry) if registry else []
    files = sorted([*folder.glob("*.whl"), *folder.glob("launcherkit*-[0-9]*.tar.gz")])
    files = [path for path in files if "-docs-" not in path.name]
    uploads = plan_index(files, index) if index else []
    refuse_conflicts([*pushes, *uploads])
    lines = []
    for step in pushes:
        if registry and step.there is None:
            say(f"push {step.where}")
            registry.push(layout, step.what, step.digest)
        lines.append(f"{'pushed' if step.there is None else 'there already'}  {step.where}@{step.digest}")
    missing = [step.what for step in uploads if step.there is None]
    if index and missing:
        say(f"upload {len(missing)} files to {index.address}")
        index.upload([folder / name for name in missing], {**os.environ, **ours})
    for step in uploads:
        lines.append(f"{'uploaded' if step.there is None else 'there already'}  {step.what}  {step.digest}")
    return lines


def foreseen(plan: Plan, registry: Registry | None, index: Index | None, key: Key | None) -> list[str]:
    """What a release would publish, a line for each."""
    lines = [f"commit  {plan.source.commit}"]
    if registry:
        images = [f"launcherkit-{target}:{__version__}" for target in TARGETS]
        for name, what in {
            **dict.fromkeys(images, f"image for {' and '.join(plan.architectures)}"),
            CHART_REFERENCE: "chart",
            FILES_REFERENCE: "wheels, sdists, documentation, bills of materials, provenance, checksums",
        }.items():
            there = registry.digest(name)
            lines.append(f"push    {registry.name}/{name}  {what}{f'; there is {there} now' if there else ''}")
    if index:
        for project in ("launcherkit", "launcherkit-plugin"):
            files = sorted(name for name in index.published(project) if f"-{__version__}" in name)
            now = f"; there are {', '.join(files)} now" if files else ""
            lines.append(f"upload  {project} {__version__}, a wheel and an sdist, to {index.address}{now}")
    return [*lines, "sign    everything" if key else "sign    nothing"]


def _index_of(arguments: argparse.Namespace) -> Index | None:
    if not arguments.index:
        return None
    return Index(arguments.index, arguments.index_pages or pages_of(arguments.index))


def pages_of(address: str) -> str:
    """Where pip finds what was uploaded to an address: below it, but beside ``/legacy``, which is only for uploads."""
    where = address.rstrip("/")
    if where.endswith("/legacy"):
        where = where.removesuffix("/legacy").replace("://upload.", "://", 1)
    return f"{where}/simple"


def _check_log(log: str) -> None:
    """Warn of changes that no version has.

    Raises:
        CannotBuild: this version isn't in the changelog.
    """
    if not re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", log, re.MULTILINE):
        raise CannotBuild(f"CHANGELOG.md has no heading `## [{__version__}] - YYYY-MM-DD`")
    if re.search(r"^## \[Unreleased\]\n+(?!## )\S", log, re.MULTILINE):
        say(f"note: CHANGELOG.md has changes under Unreleased, which {__version__} will have")


def _check_machine(architectures: Sequence[str]) -> None:
    """Say what is missing before anything is built.

    Raises:
        CannotBuild: programs are, or the kernel's handler for those of another architecture.
    """
    missing = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    if missing:
        raise CannotBuild(
            f"there is no {', '.join(missing)}: apt-get install --no-install-recommends {' '.join(missing)}"
        )
    for architecture in architectures:
        if architecture != OWN_ARCHITECTURE and (problem := cannot_run(architecture)):
            raise CannotBuild(f"{problem}; or leave it out: --arch {OWN_ARCHITECTURE}")


if __name__ == "__main__":
    sys.exit(main())
