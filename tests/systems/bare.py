"""``./dev test`` as a stranger types it: on a Debian with the README's three packages, in a clone, in an empty home.

Standard library only, as `roots`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.systems.elsewhere import Outcome
from tests.systems.enter import run_in
from tests.systems.roots import BARE, root_of

_USERS = {"root": 0, "user": 1000}
_OF_PIP = ("cert", "default-timeout", "extra-index-url", "index-url", "proxy", "trusted-host")
"""What pip must know to reach its index from this machine; files that it names besides are not there."""
_OF_THE_NETWORK = ("http_proxy", "https_proxy", "no_proxy", "ssl_cert_file")


def run_bare(checkout: Path, words: Sequence[str], env: Mapping[str, str]) -> Iterator[Outcome]:
    """Run a command of ``./dev`` in each bare root, as root and as a user who owns nothing but a clone.

    Raises:
        CannotMake: a root can't be had.
        OSError: there is no room, or no git.
    """
    settings = {name: value for name, value in env.items() if name.lower() in (*_OF_THE_NETWORK, "ci")} | pip_settings()
    for system in BARE:
        with root_of(system, env) as (root, programs):
            for name, uid in _USERS.items():
                with tempfile.TemporaryDirectory(prefix="launcherkit-", dir="/tmp") as folder:  # the root's too
                    clone, home = Path(folder, "launcherkit"), Path(folder, "home")
                    _clone(checkout, clone)
                    home.mkdir()
                    subprocess.run(["chown", "--recursive", f"{uid}:{uid}", folder], check=True)
                    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env", f"HOME={home}"]
                    began = time.monotonic()
                    code = run_in(root, clone, [*become, "python3", "dev", *words], settings)
                    yield Outcome(f"{system} {name}", programs, code, time.monotonic() - began)


def pip_settings() -> dict[str, str]:
    """How this machine's pip reaches its index, as variables; empty where there is no pip."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    found = {}
    for line in done.stdout.splitlines():  # global.index-url='...', and at last what variables say
        name, _, value = line.partition("=")
        name = name.rpartition(".")[2]
        if name in _OF_PIP:
            found[f"PIP_{name.replace('-', '_').upper()}"] = " ".join(shlex.split(value))
    return found


def _clone(checkout: Path, clone: Path) -> None:
    """Clone, with what has not been committed yet."""
    git = ["git", "-c", "safe.directory=*"]
    subprocess.run([*git, "clone", "--quiet", "--no-hardlinks", checkout, clone], check=True)
    changed = subprocess.run(
        [*git, "-C", checkout, "ls-files", "-z", "--modified", "--others", "--exclude-standard"],
        stdout=subprocess.PIPE,
        check=True,
    )
    for name in map(os.fsdecode, filter(None, changed.stdout.split(b"\0"))):
        (clone / name).unlink(missing_ok=True)
        if (checkout / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, clone / name)
