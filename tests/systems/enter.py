"""A command in a root of another system: this machine's kernel and devices, that system's programs, this checkout.

Everything is mounted in a namespace of the command's own and goes with it. Standard library only, as `roots`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# $1 is the root, $2 the checkout; the command follows.
_ENTER = """
root=$1 checkout=$2
shift 2
mkdir -p "$root$checkout"
# Namespaces can be made where / is a mount, and nowhere else.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 run "$root/run"
# What a failed test leaves is where it says, for whoever looks from outside too.
mount --bind /tmp "$root/tmp"
mount --bind "$checkout" "$root$checkout"
code=0
chroot "$root" sh -c 'cd "$1" && shift && exec "$@"' sh "$checkout" "$@" || code=$?
exit $code  # not by exec: this shell is process 1 of the namespace, and reaps what others leave to it
"""
_TAKEN_ALONG = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Files that change with the network that the machine is in: which names there are, and whom to believe."""
_OF_THIS_MACHINE = ("HOME", "PATH", "SHELL", "TMPDIR", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run_in(root: Path, checkout: Path, command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command in the checkout's folder, as root of the system in `root`, and return its exit code.

    ``env`` is what it gets but for what this machine's variables say of its own folders and Pythons.
    """
    for path in _TAKEN_ALONG:
        with suppress(FileNotFoundError):
            shutil.copyfile(path, root / path.lstrip("/"))
    kept = {name: value for name, value in env.items() if name not in _OF_THIS_MACHINE and not _of_python(name)}
    own = {"HOME": "/root", "PATH": _PATH, "LANG": "C.UTF-8"}
    # No process outlives the command: daemons of a run that was killed would keep the root busy.
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--"]
    entering = ["sh", "-euc", _ENTER, "sh", os.fspath(root), os.fspath(checkout)]
    return subprocess.run([*unshare, *entering, *command], env=kept | own, check=False).returncode


def _of_python(name: str) -> bool:
    return name.startswith(("PYTHON", "PYENV", "LC_"))
