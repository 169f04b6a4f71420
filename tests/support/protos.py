"""Makes the stubs of the hooks' services: ``python -m tests.support.protos`` after a change of a ``.proto`` file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("launcherkit/adapters/proto")
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_grpc.py")


def generate(target: Path) -> None:
    """Write the stubs of all ``.proto`` files below a folder, at the places that they have in the repository."""
    plugin = target / "protoc-gen-grpclib_python"
    plugin.write_text(f"#!{sys.executable}\nfrom grpclib.plugin.main import main\nmain()\n")
    plugin.chmod(0o755)
    try:
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT}"),
                f"--plugin=protoc-gen-grpclib_python={plugin}",
                *(f"--{kind}_out={target}" for kind in ("python", "pyi", "grpclib_python")),
                *(str(FOLDER / path.name) for path in sorted((ROOT / FOLDER).glob("*.proto"))),
            ],
            cwd=ROOT,
            check=True,
        )
    finally:
        plugin.unlink()


def generated(root: Path) -> dict[str, str]:
    """The stubs below a folder, by name."""
    return {path.name: path.read_text() for kind in GENERATED for path in sorted((root / FOLDER).glob(kind))}


if __name__ == "__main__":
    generate(ROOT)
