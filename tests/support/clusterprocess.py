"""A running `launcherkit-plugin cluster`."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

from tests.support.forked import PLUGIN
from tests.support.hooks import ROOT, ServerProcess


class ClusterProcess(ServerProcess):
    """The process that speaks to a cluster, for a daemon at a socket; ended with the block.

    Args:
        path: of the socket.
        node: its name.
        kubeconfig: the credentials; None for none.
        python: runs it, instead of a fork.
    """

    def __init__(
        self,
        path: Path | str,
        node: str,
        kubeconfig: Path | str | None,
        *arguments: str,
        python: str = "",
        **popen: Any,
    ) -> None:
        paths = [ROOT, ROOT / "plugin", sysconfig.get_path("purelib")]  # for a Python outside of the environment
        env = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.defpath, "POD_NAMESPACE": "launcherkit"}
        if kubeconfig is not None:
            env["KUBECONFIG"] = str(kubeconfig)
        command = [python, "-m", "launcherkit_plugin"] if python else [PLUGIN]
        places = ["--cluster-socket", str(path), "--node", node]
        super().__init__([*command, "cluster", *places, *arguments], env, **popen)
