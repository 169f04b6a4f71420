"""Bills of materials, as CycloneDX JSON, of the distributions and the images: ``python -m release.sbom``.

They are made of the pins in ``tools/requirements/`` and the licences beside this file alone: the same pins give
the same bytes. A wheel has its own in ``.dist-info/sboms`` (PEP 770), an image in ``/usr/share/sbom``.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from launcherkit import __version__

ROOT = Path(__file__).resolve().parents[1]
LICENCES = Path(__file__).with_name("licences.toml")
_PIN = re.compile(r"^(?P<name>[a-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)", re.MULTILINE)
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "pkg:pypi/launcherkit")


class UnknownLicence(Exception):
    """A package is shipped whose licence nobody has written down."""


class Pin(NamedTuple):
    """A package at a version."""

    name: str
    version: str

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


class Subject(NamedTuple):
    """What a bill is of: a distribution or an image, the pins in it, and where the bill is kept."""

    name: str
    kind: str
    """``library``, ``application`` or ``container``, as CycloneDX has it."""
    pins: tuple[str, ...]
    """Files in ``tools/requirements/``."""
    own: tuple[str, ...]
    """Our own distributions in it, besides itself."""
    path: str

    @property
    def purl(self) -> str:
        return f"pkg:{'oci' if self.kind == 'container' else 'pypi'}/{self.name}@{__version__}"


SUBJECTS = (
    Subject("launcherkit", "library", ("runtime.txt", "sidecar.txt"), (), "sboms/launcherkit.cdx.json"),
    Subject(
        "launcherkit-plugin",
        "application",
        ("plugin.txt",),
        ("launcherkit",),
        "plugin/sboms/launcherkit-plugin.cdx.json",
    ),
    *(
        Subject(f"launcherkit-{image}", "container", (pins,), own, f"deploy/images/sboms/launcherkit-{image}.cdx.json")
        for image, pins, own in (
            ("sidecar", "sidecar.txt", ("launcherkit",)),
            ("launcher", "runtime.txt", ("launcherkit",)),
            ("plugin", "plugin.txt", ("launcherkit", "launcherkit-plugin")),
            ("webhook", "webhook.txt", ("launcherkit", "launcherkit-plugin")),
        )
    ),
)


def read_pins(text: str) -> set[Pin]:
    """The pins of a requirements file."""
    return {Pin(match["name"], match["version"]) for match in _PIN.finditer(text)}


def bill(subject: Subject, pins: Iterable[Pin], licences: Mapping[str, str]) -> dict[str, object]:
    """The bill of materials of a subject.

    Raises:
        UnknownLicence: of a package none is known.
    """
    parts = sorted({*pins, *(Pin(name, __version__) for name in subject.own)})
    if unknown := [pin.name for pin in parts if pin.name not in licences]:
        raise UnknownLicence(f"{LICENCES.name} has no licence of {', '.join(unknown)}")
    identity = " ".join([subject.purl, *(pin.purl for pin in parts)])
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, identity)}",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "pre-build"}],
            "component": _component(subject.kind, subject.name, __version__, subject.purl, licences["launcherkit"]),
        },
        "components": [_component("library", *pin, pin.purl, licences[pin.name]) for pin in parts],
    }


def _component(kind: str, name: str, version: str, purl: str, licence: str) -> dict[str, object]:
    licences = [{"expression": licence}] if " " in licence else [{"license": {"id": licence}}]
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "licenses": licences, "purl": purl}


def bills(root: Path = ROOT) -> dict[str, str]:
    """The text of every bill by its path."""
    licences: dict[str, str] = tomllib.loads(LICENCES.read_text())
    made = {}
    for subject in SUBJECTS:
        pins = set[Pin]().union(
            *(read_pins((root / "tools" / "requirements" / name).read_text()) for name in subject.pins)
        )
        made[subject.path] = json.dumps(bill(subject, pins, licences), indent=1) + "\n"
    return made


def main() -> None:
    """Write them all."""
    try:
        made = bills()
    except UnknownLicence as error:
        sys.exit(f"{error}; look at its metadata and write it down")
    for path, text in made.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)


if __name__ == "__main__":
    main()
