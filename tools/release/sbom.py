"""A wheel's bill of materials, by cyclonedx-py: ``python -m tools.release.sbom DISTRIBUTION FOLDER`` writes it.

It lists what the distribution is tested with, which the environment has by the pins in ``tools/requirements``; licences
are those that the packages declare. An image's bill is of what the image has: ``deploy/images/Containerfile``.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Collection
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

from launcherkit import __version__

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
NO_DECLARED_LICENCE = {"protobuf"}
"""Packages whose metadata name no licence. They have been looked at: protobuf's file has the text of BSD-3-Clause."""
_PIN = re.compile(r"^(?P<name>[a-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)", re.MULTILINE)


class WrongBill(Exception):
    """The environment doesn't have what is pinned, or a package has no licence; the text says which."""


class Subject(NamedTuple):
    """A distribution, and what a bill of it lists."""

    kind: str
    """``library`` or ``application``, as CycloneDX has it."""
    pins: tuple[str, ...]
    """Files in ``tools/requirements``."""
    own: tuple[str, ...] = ()
    """Our own distributions that it needs."""


SUBJECTS = {
    "launcherkit": Subject("library", ("runtime.txt", "sidecar.txt")),
    "launcherkit-plugin": Subject("application", ("plugin.txt",), ("launcherkit",)),
    "launcherkit-lab": Subject("application", ("lab.txt",)),
}


def read_pins(text: str) -> dict[str, str]:
    """The pins of a requirements file: name to version."""
    return {match["name"]: match["version"] for match in _PIN.finditer(text)}


def parts_of(subject: Subject) -> dict[str, str]:
    """What a bill must list: name to version."""
    parts = dict.fromkeys(subject.own, __version__)
    for name in subject.pins:
        parts |= read_pins((REQUIREMENTS / name).read_text())
    return parts


def bill(name: str) -> str:
    """The bill of a distribution.

    Raises:
        WrongBill: it would not be right.
    """
    subject = SUBJECTS[name]
    parts = parts_of(subject)
    with tempfile.TemporaryDirectory() as folder:
        _make_environment(Path(folder), parts)
        project = Path(folder, "pyproject.toml")
        about = {
            "name": name,
            "version": __version__,
            "license": distribution(name).metadata["License-Expression"],
            "dependencies": distribution(name).requires,
        }
        project.write_text("[project]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in about.items()))
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--spec-version=1.6"]
        command += [f"--mc-type={subject.kind}", f"--pyproject={project}", folder]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    check(text, parts)
    return text


def _make_environment(folder: Path, names: Collection[str]) -> None:
    """An environment that has nothing but the metadata of some of the packages that are installed here."""
    venv.create(folder)
    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    for name in names:
        (metadata,) = (Path(str(each.locate())) for each in distribution(name).files or () if each.name == "METADATA")
        (packages / metadata.parent.name).mkdir()
        shutil.copy(metadata, packages / metadata.parent.name)


def check(text: str, parts: dict[str, str]) -> None:
    """Hold a bill against what it must list.

    Raises:
        WrongBill: something is missing, too many, of another version or without a licence.
    """
    components = {_normal(each["name"]): each for each in json.loads(text)["components"]}
    listed = {name: each["version"] for name, each in components.items()}
    if differing := sorted(dict(listed.items() ^ parts.items())):
        raise WrongBill(f"other versions are installed than are pinned: {', '.join(differing)}")
    unlicensed = {name for name, each in components.items() if not each.get("licenses")}
    if unknown := sorted(unlicensed - NO_DECLARED_LICENCE):
        raise WrongBill(f"no licence is declared by {', '.join(unknown)}: look at the files, then name them in sbom.py")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Write the bill."""
    name, folder = sys.argv[1:]
    try:
        Path(folder, f"{name}.cdx.json").write_text(bill(name))
    except WrongBill as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
