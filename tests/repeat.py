"""The base tier again and again, in other surroundings each time and beside busy processes: ``./dev test --repeat N``.

A test that fails here and not elsewhere depends on something that it doesn't say.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

WORKERS = (1, 2, 8)
SETTINGS = (
    {"TZ": "UTC", "COLUMNS": "80", "LANG": "C.UTF-8"},
    {"TZ": "Asia/Kathmandu", "COLUMNS": "40", "LANG": "C"},
    {"TZ": "America/St_Johns", "COLUMNS": "250", "LANG": "de_DE.UTF-8"},
    {"TZ": "Pacific/Kiritimati", "COLUMNS": "1", "LANG": "tr_TR.ISO-8859-9"},
)
# /dev/shm as small as containers have it, and of the network the loopback device alone.
_ALONE = """
mount -t tmpfs -o size=64m tmpfs /dev/shm
"$1" -c 'import fcntl, socket; fcntl.ioctl(socket.socket(), 0x8914, b"lo".ljust(16, b"\\0") + b"\\x41" + bytes(23))'
exec "$@"
"""
_BUSY = "while True: pass"


@contextmanager
def hogs(number: int) -> Iterator[None]:
    """Processes that take all of the processors that they can get."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run(workers: int, settings: dict[str, str], options: Sequence[str]) -> int:
    """Run pytest once, with an empty home; as root also without a network and with a small ``/dev/shm``."""
    alone = ["unshare", "--mount", "--net", "sh", "-euc", _ALONE, "sh"] if os.geteuid() == 0 else []
    command = [sys.executable, "-m", "pytest", "--base", f"--workers={workers}", "-q"]
    with tempfile.TemporaryDirectory(prefix="home-") as home:
        env = os.environ | settings | {"HOME": home}
        return subprocess.run([*alone, *command, *options], env=env, check=False).returncode


def main(times: int, busy: int, options: Sequence[str]) -> int:
    """Run the tests so many times; the last lines say what became of each."""
    said, worst = [], 0
    with hogs(busy):
        for workers, settings in islice(zip(cycle(WORKERS), cycle(SETTINGS), strict=False), times):
            began = time.monotonic()
            code = run(workers, settings, options)
            outcome = "passed" if code == 0 else f"FAILED, exit code {code}"
            said.append(f"{outcome}, {time.monotonic() - began:.0f} s: {workers} workers, {settings}")
            print(f"{len(said)} of {times}: {said[-1]}", flush=True)
            worst = max(worst, code)
    alone = "no network, 64 MB in /dev/shm" if os.geteuid() == 0 else "with the network, for only root can take it away"
    print("\n".join(["", f"beside {busy} busy processes, an empty home, {alone}:", *said]), flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
