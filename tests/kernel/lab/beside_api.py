"""Run a command beside the stand-in for an API server, which writes its kubeconfig into the folder.

``python -m tests.kernel.lab.beside_api FOLDER COMMAND ...``
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kernel.pod.manifests import NAMESPACE
from tests.support.apiserver import NODES, ApiServer

NODE = "node-1"


def main(folder: Path, command: list[str]) -> int:
    server = ApiServer()
    server.put(NODES, {"metadata": {"name": NODE}})
    server.accounts.add((NAMESPACE, "launcherkit-plugin"))
    with server.running(folder, tls=True):
        return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
