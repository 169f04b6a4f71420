"""Writes a bill of the distribution's packages in an image, as CycloneDX JSON: ``python3 packages.py FILE``.

It runs in the build, between ``apt-get update`` and the removal of apt's lists. A package has the purl by which
scanners look up vulnerabilities, with its source package, and the SHA-256 of its .deb where apt's lists have that
version: a base may be older than they are, and is identified by its own digest. The same packages give the same bytes.
"""

import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import run
from typing import NamedTuple
from urllib.parse import quote

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "pkg:deb")
_FIELDS = ("Package", "Version", "Architecture", "source:Package", "source:Version")


class Package(NamedTuple):
    """An installed package, and what it was built from."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str


def installed() -> list[Package]:
    """All that dpkg has, sorted."""
    form = "\\t".join(f"${{{field}}}" for field in ("db:Status-Status", *_FIELDS)) + "\\n"
    rows = (line.split("\t") for line in _output("dpkg-query", "--show", f"--showformat={form}").splitlines())
    return sorted(Package(*fields) for state, *fields in rows if state == "installed")


def known_hashes(packages: list[Package]) -> dict[tuple[str, str, str], str]:
    """By name, version and architecture: the SHA-256 of the .deb in apt's lists."""
    arguments = [f"{each.name}:{each.architecture}={each.version}" for each in packages if each.architecture != "all"]
    arguments += [f"{each.name}={each.version}" for each in packages if each.architecture == "all"]
    hashes = {}
    for record in _records(_output("apt-cache", "show", *arguments)):
        if "SHA256" in record:
            hashes[record["Package"], record["Version"], record["Architecture"]] = record["SHA256"]
    return hashes


def bill(packages: list[Package], hashes: Mapping[tuple[str, str, str], str], system: Mapping[str, str]) -> str:
    """The bill.

    Args:
        packages: sorted.
        hashes: as from `known_hashes`.
        system: of os-release(5).
    """
    components = [_component(each, hashes.get(each[:3]), system) for each in packages]
    identity = " ".join(str(component["purl"]) for component in components)
    named = {"type": "operating-system", "name": system["ID"], "version": system.get("VERSION_ID", "")}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, identity)}",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": named},
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def _component(package: Package, sha256: str | None, system: Mapping[str, str]) -> dict[str, object]:
    qualifiers = {"arch": package.architecture, "distro": f"{system['ID']}-{system.get('VERSION_ID', '')}"}
    if package.source != package.name or package.source_version != package.version:
        other = "" if package.source_version == package.version else f"@{package.source_version}"
        qualifiers["upstream"] = package.source + other
    more = "&".join(f"{name}={quote(value, safe='')}" for name, value in qualifiers.items())
    purl = f"pkg:deb/{system['ID']}/{package.name}@{quote(package.version, safe='')}?{more}"
    hashes = {} if sha256 is None else {"hashes": [{"alg": "SHA-256", "content": sha256}]}
    named = {"type": "library", "bom-ref": purl, "name": package.name, "version": package.version}
    return {**named, **hashes, "purl": purl}


def _records(text: str) -> Iterator[dict[str, str]]:
    for paragraph in text.split("\n\n"):
        lines = (line.partition(": ") for line in paragraph.splitlines() if not line.startswith(" "))
        yield {name: value for name, _, value in lines}


def _output(*command: str) -> str:
    """What a program prints. apt-cache fails if it doesn't know one of many packages, and shows the others."""
    return run(command, capture_output=True, text=True, check=command[0] != "apt-cache").stdout  # noqa: S603


def _system() -> dict[str, str]:
    lines = (line.partition("=") for line in Path("/etc/os-release").read_text().splitlines())
    return {name: value.strip('"') for name, _, value in lines}


if __name__ == "__main__":
    packages = installed()
    target = Path(sys.argv[1])
    target.parent.mkdir(exist_ok=True)
    target.write_text(bill(packages, known_hashes(packages), _system()))
