"""What a launcher pod is to a process: PID 1 of its own processes, with libvirt's directories and a network to itself.

Made by ``unshare``, so nothing of the machine's own libvirt is seen or touched. The directories outlive the processes,
as those of a pod outlive its containers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.libvirt.daemon import DAEMON, SOCKET

ROOT = Path(__file__).parents[2]
SECONDS = 180
"""The longest that anything here is waited for."""

_PLACES = {
    "run": "/run/libvirt",
    "etc": "/etc/libvirt",
    "lib": "/var/lib/libvirt",
    "log": "/var/log/libvirt",
    "cache": "/var/cache/libvirt",
}
_QEMU_CONF = """user = "root"
group = "root"
security_driver = "none"
namespaces = []
cgroup_controllers = []
remember_owner = 0
"""
_DAEMON_CONF = """auth_unix_rw = "none"
auth_unix_ro = "none"
log_outputs = "3:stderr"
"""
# What libvirt's QEMU driver doesn't start without, whatever qemu.conf says; a package makes it that wants services too.
_USERS = {"passwd": "libvirt-qemu:x:64055:64055::/nowhere:/bin/false\n", "group": "libvirt-qemu:x:64055:\n"}
# libvirt for a pod in which nobody else starts it. Its PID 1 must bury QEMU, or libvirt waits for it.
DAEMONS = f"virtlogd -d; {DAEMON} & while :; do wait; sleep 0.1; done"
_LAUNCHERKIT = "import sys; from launcherkit.cli.main import main; sys.exit(main())"


class CannotUnshare(Exception):
    """This machine or user may not make namespaces; the text says what it said."""


class Pod:
    """Directories for one pod after the other, and the processes in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _PLACES:
            (folder / name).mkdir()
        (folder / "etc" / "qemu.conf").write_text(_QEMU_CONF)
        (folder / "etc" / f"{DAEMON}.conf").write_text(_DAEMON_CONF)
        for name, line in _USERS.items():
            (folder / name).write_text(Path("/etc", name).read_text() + line)
        binds = [f"mount --bind {folder / name} /etc/{name}" for name in _USERS]
        binds += [f"mkdir -p {place} && mount --bind {folder / name} {place}" for name, place in _PLACES.items()]
        lines = ["mount --make-rprivate /", *binds, "mount -t tmpfs tmpfs /run/lock", "rm -f /run/*.pid"]
        # Pid files lie in /run itself, beside the socket folder.
        script = ["set -e", "mkdir -p /run/lock", *lines, 'exec "$@"']
        (folder / "start.sh").write_text("\n".join(script) + "\n")
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, output: Path | None = None) -> Process:
        """Start a program as PID 1 of a new pod."""
        errors = self.folder / "stderr"
        unshare = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
        env = {name: value for name, value in os.environ.items() if "_RESOURCE_" not in name}
        output = output or self.folder / "stdout"
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                [*unshare, "sh", str(self.folder / "start.sh"), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=env,
            )
        self._started.append(process)
        return Process(process, output, errors)

    def launcherkit(self, *arguments: str) -> Process:
        """Start launcherkit as PID 1 of a new pod."""
        return self.start(sys.executable, "-c", _LAUNCHERKIT, *arguments)

    def libvirtd(self) -> Process:
        """Start libvirt alone."""
        process = self.start("sh", "-c", DAEMONS, output=self.folder / "libvirtd")
        process.until((self.folder / "run" / SOCKET).exists, "libvirt's socket")
        return process

    def outside(self, *arguments: str) -> Process:
        """Start launcherkit outside of the pods."""
        output, errors = self.folder / "outside", self.folder / "outside-errors"
        with output.open("wb") as out, errors.open("wb") as err:
            command = [sys.executable, "-c", _LAUNCHERKIT, *arguments]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT)
        self._started.append(process)
        return Process(process, output, errors)

    @property
    def uri(self) -> str:
        """libvirt's, from outside of the pod that runs now."""
        return f"qemu+unix:///system?socket={self.folder / 'run' / SOCKET}"

    def libvirt(self, *arguments: str) -> str:
        """Run virsh on the libvirt of the pod that runs now; fails as virsh does."""
        done = subprocess.run(
            ["virsh", "--quiet", "--connect", self.uri, *arguments], capture_output=True, timeout=SECONDS
        )
        if done.returncode:
            raise AssertionError(done.stderr.decode())
        return done.stdout.decode()

    def close(self) -> None:
        """End every process; unshare takes its child with it."""
        for process in self._started:
            process.kill()
            process.wait()


class Process:
    """PID 1 of a pod, seen from outside."""

    def __init__(self, unshare: subprocess.Popen[bytes], output: Path, errors: Path) -> None:
        self._unshare, self._output, self._errors = unshare, output, errors

    @property
    def printed(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def reported(self) -> str:
        return self._errors.read_text(errors="replace")

    def pid(self) -> int:
        """As the machine knows it."""
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        self.until(lambda: bool(children.read_text().split()), "a first process")
        return int(children.read_text().split()[0])

    def send(self, number: int) -> None:
        os.kill(self.pid(), number)

    def inner(self, program: str) -> list[int]:
        """The processes of the pod that run a program, as the machine knows them."""
        own = os.readlink(f"/proc/{self.pid()}/ns/pid")
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if os.readlink(entry / "ns/pid") == own and (entry / "comm").read_text().strip() == program[:15]:
                    found.append(int(entry.name))
        return found

    def zombies(self) -> list[int]:
        """Processes of the pod that have ended and were not buried."""
        own = os.readlink(f"/proc/{self.pid()}/ns/pid")
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state == "Z" and os.readlink(entry / "ns/pid") == own:
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """kill -9, for one that is no pod."""
        self._unshare.kill()
        self._unshare.wait()

    def ends(self) -> int:
        """Wait for its end and give the exit code."""
        try:
            return self._unshare.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it never ended:\n{self.printed}\n{self.reported}") from None

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds, or fail with what the process has told."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            if self._unshare.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(
                    f"never saw {what}; exit code {self._unshare.poll()}\n{self.printed}\n{self.reported}"
                )
            time.sleep(0.05)

    def says(self, text: str) -> None:
        """Wait until it has printed something."""
        self.until(lambda: text in self.printed, repr(text))

    def tells(self, text: str) -> None:
        """Wait until it has said something on standard error."""
        self.until(lambda: text in self.reported, repr(text))


@contextmanager
def pod() -> Iterator[Pod]:
    """Directories for pods, and the end of all that was started in them.

    Raises:
        CannotUnshare: this user or machine has no namespaces.
    """
    probe: Sequence[str] = ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "true"]
    done = subprocess.run(probe, capture_output=True)
    if os.geteuid() or done.returncode:
        raise CannotUnshare(f"namespaces need root: {done.stderr.decode().strip() or 'this is another user'}")
    folder = Path(tempfile.mkdtemp(prefix="lk-pod-"))  # a socket's path has 107 bytes
    made = Pod(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


KILL = signal.SIGKILL
TERM = signal.SIGTERM
