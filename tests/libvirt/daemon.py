"""A private virtqemud or libvirtd: an unprivileged session daemon with all its files in one temporary directory.

Nothing of the machine's own libvirt is touched, not even read: no /etc/libvirt, no /run/libvirt, no network. A session
daemon is one that isn't root's, so root starts it as ``nobody``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lxml import etree

from tests.tiers import LIBVIRT, LIBVIRT_SOCKET, find_program

DAEMON = "virtqemud" if find_program("virtqemud") else "libvirtd"
"""The one that launcherkit takes: the modular one where it is installed."""
SOCKET = {"virtqemud": "virtqemud-sock", "libvirtd": "libvirt-sock"}[DAEMON]

_START_SECONDS = 60
_IDLE_SECONDS = 900  # it goes by itself should the tests be killed
_KVM = "/dev/kvm"
# QEMU's output goes straight into the domain's log, where libvirt looks for the reason that a domain doesn't start. By
# way of virtlogd it once found none there (9.0, on a busy machine).
_QEMU_CONF = 'stdio_handler = "file"\n'


class CannotStart(Exception):
    """The daemon did not come up; the text says what it said."""


class Refused(Exception):
    """virsh failed; the text is libvirt's."""


class Libvirt:
    """A connection to the daemon, by virsh: 20 ms a call, and nothing to compile."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri = uri
        self.folder = folder
        self.version = _version(self("version", "--daemon"))

    def __call__(self, *arguments: str) -> str:
        """Run a virsh command and return what it printed.

        Raises:
            Refused: with libvirt's message.
        """
        command = [find_program("virsh") or "virsh", "--quiet", "--connect", self._uri, *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_START_SECONDS)
        if done.returncode:
            raise Refused(done.stderr.decode(errors="replace").replace("error: ", "").strip())
        return done.stdout.decode()

    def keep(self, domain_xml: bytes, *, validate: bool = True) -> bytes:
        """Define a domain, undefine it again, and return what libvirt had made of it.

        Without ``validate`` libvirt doesn't hold it against its schema, and ignores what it doesn't know.

        Raises:
            Refused: the document isn't valid, or libvirt would not have it.
        """
        with tempfile.NamedTemporaryFile(suffix=".xml", dir=self.folder) as file:
            file.write(domain_xml)
            file.flush()
            self("define", *(["--validate"] if validate else []), file.name)
        name = etree.fromstring(domain_xml).findtext("name") or ""
        try:
            return self("dumpxml", "--inactive", name).encode()
        finally:
            self("undefine", "--nvram", name)


@contextmanager
def private_libvirt() -> Iterator[Libvirt]:
    """Start a daemon of our own, and stop it again; or use that of `LIBVIRT_SOCKET`, and leave it running.

    Raises:
        CannotStart: with the end of its log.
    """
    if socket := os.environ.get(LIBVIRT_SOCKET):
        with tempfile.TemporaryDirectory(prefix="lk-libvirt-") as there:
            yield Libvirt(f"qemu+unix:///session?socket={socket}", Path(there))
        return
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    # Not under pytest's own temporary directory: nobody may not enter that one, and a socket's path has 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="lk-libvirt-"))
    try:
        _configure(folder)
        if user:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid)
        process = _start(folder, user)
        try:
            _wait_for_socket(process, folder)
            yield Libvirt(f"qemu+unix:///session?socket={_socket(folder)}", folder)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, user: pwd.struct_passwd | None) -> subprocess.Popen[bytes]:
    variables = {"HOME": "", "XDG_CONFIG_HOME": "config", "XDG_RUNTIME_DIR": "run", "XDG_CACHE_HOME": "cache"}
    env = {name: str(folder / directory) for name, directory in variables.items()}
    env["PATH"] = str(_emulators(folder))
    command = [find_program(DAEMON) or DAEMON, "--timeout", str(_IDLE_SECONDS)]
    with open(folder / "log", "wb") as log:
        try:
            return subprocess.Popen(
                command,
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=_groups_for_kvm() if user else None,
            )
        except OSError as error:
            raise CannotStart(f"{command[0]}: {error}") from error


def _configure(folder: Path) -> None:
    """Write what the daemon reads as its user's ``~/.config/libvirt/qemu.conf``."""
    file = folder / "config" / "libvirt" / "qemu.conf"
    file.parent.mkdir(parents=True)
    file.write_text(_QEMU_CONF)


def _emulators(folder: Path) -> Path:
    """A directory with the emulators that the tests use, and no others.

    libvirt asks every emulator on its PATH what it can do, for more than a second each, and some packages have dozens.
    """
    directory = folder / "bin"
    directory.mkdir()
    for program, _ in LIBVIRT.needs:
        found = find_program(program)
        if program.startswith("qemu-system-") and found:
            (directory / program).symlink_to(os.path.realpath(found))
    directory.chmod(0o755)
    return directory


def _groups_for_kvm() -> list[int]:
    """The group that may open /dev/kvm: without it libvirt refuses to define a domain of type kvm."""
    try:
        found = os.stat(_KVM)
    except OSError:
        return []
    return [found.st_gid] if found.st_gid and found.st_mode & stat.S_IWGRP else []


def _socket(folder: Path) -> Path:
    return folder / "run" / "libvirt" / SOCKET


def _wait_for_socket(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _socket(folder).exists():
        if process.poll() is not None or time.monotonic() > deadline:
            log = (folder / "log").read_text(errors="replace").splitlines()
            raise CannotStart(f"{DAEMON} did not start: " + " | ".join(log[-5:]))
        time.sleep(0.05)


def _version(text: str) -> tuple[int, ...]:
    """The daemon's version, from the last line of ``virsh version --daemon``."""
    return tuple(int(part) for part in text.rsplit(maxsplit=1)[-1].split("."))
