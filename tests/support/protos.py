"""Makes the messages of the gRPC services: ``python -m tests.support.protos`` after a change of a ``.proto`` file.

Every folder ``proto`` of the three packages is taken.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = {Path(): "launcherkit", Path("plugin"): "launcherkit_plugin", Path("lab"): "launcherkit_lab"}
"""Folder, from which imports start, to the package in it."""
GENERATED = ("*_pb2.py", "*_pb2.pyi")


def proto_files(distribution: Path) -> list[Path]:
    """The ``.proto`` files of a distribution's package, as they are imported."""
    base = ROOT / distribution
    return [path.relative_to(base) for path in sorted((base / DISTRIBUTIONS[distribution]).rglob("proto/*.proto"))]


def generate(target: Path) -> None:
    """Write the stubs of all ``.proto`` files below a folder, at the places that they have in the repository."""
    for distribution in DISTRIBUTIONS:
        out = target / distribution
        out.mkdir(exist_ok=True)
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT / distribution}"),
                *(f"--{kind}_out={out}" for kind in ("python", "pyi")),
                *map(str, proto_files(distribution)),
            ],
            cwd=ROOT / distribution,
            check=True,
        )


def generated(root: Path) -> dict[str, str]:
    """The stubs below a folder, by path."""
    files = [distribution / path for distribution in DISTRIBUTIONS for path in proto_files(distribution)]
    folders = sorted({path.parent for path in files})
    return {
        str(path.relative_to(root)): path.read_text()
        for folder in folders
        for kind in GENERATED
        for path in sorted((root / folder).glob(kind))
    }


if __name__ == "__main__":
    generate(ROOT)
