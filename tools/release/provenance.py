"""Where built files come from: an in-toto statement with SLSA's provenance, as JSON.

What is signed is the list of checksums, which has the statement's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Source(NamedTuple):
    """What was built."""

    address: str
    """Of the repository."""
    commit: str
    """The whole SHA-1, or SHA-256, of git."""


_BUILD = {"command": "./dev build"}


def statement(
    built: Iterable[Path],
    source: Source,
    pins: Path,
    builder: str,
    tools: Mapping[str, str],
    parameters: Mapping[str, object] = _BUILD,
    images: Mapping[str, str] = {},
    bases: Mapping[str, str] = {},
) -> dict[str, object]:
    """The statement about built files.

    Args:
        pins: the requirements file of what they were built with.
        builder: a URI that names who built them.
        tools: version by name of what they were built by.
        parameters: what was asked for.
        images: SHA-256 by name of what was built and is no file.
        bases: SHA-256 by name of what the images were built on.
    """
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            *({"name": path.name, "digest": {"sha256": sha256(path)}} for path in sorted(built)),
            *({"name": name, "digest": {"sha256": digest}} for name, digest in images.items()),
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{source.address}#dev-build",
                "externalParameters": dict(parameters),
                "resolvedDependencies": [
                    {"uri": f"git+{source.address}", "digest": {"gitCommit": source.commit}},
                    {"uri": f"git+{source.address}#tools/requirements/{pins.name}", "digest": {"sha256": sha256(pins)}},
                    *({"uri": f"pkg:oci/{name}", "digest": {"sha256": digest}} for name, digest in bases.items()),
                ],
            },
            "runDetails": {"builder": {"id": builder, "version": dict(tools)}},
        },
    }


def sha256(path: Path) -> str:
    """The digest of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
