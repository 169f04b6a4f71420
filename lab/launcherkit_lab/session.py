"""A machine that was left to itself: started, asked to run commands, and ended, each time by another process."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tty
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from launcherkit_lab.boot import boot_script, modules
from launcherkit_lab.description import KINDS, Description
from launcherkit_lab.driver.build import build
from launcherkit_lab.machine import BOOT_SECONDS, SHARE, Machine, known_devices
from launcherkit_lab.packages import fetch
from launcherkit_lab.plugged import device_options
from launcherkit_lab.qmp import NoMachine, addresses, execute

FUNCTIONS = "functions.json"
"""A file of the shared folder: the PCI addresses of the machine's functions, by their names."""
_MACHINE = "machine.json"
_AGENT = Path(__file__).with_name("agent")
_SOCKET_BYTES = 107
_NOT_UP = "no machine is up; `launcherkit-lab up` starts one"


class CannotStart(Exception):
    """The machine doesn't come up; the text says why, with the end of its console."""


class Session:
    """The one machine of a folder, which is shared with it.

    Raises, wherever it is asked for something:
        NoMachine: it is not up.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._monitor = folder / "monitor.sock"
        self._process: subprocess.Popen[bytes] | None = None  # where this very process has started it

    def is_up(self) -> bool:
        """Whether its QEMU runs."""
        try:
            number = (self.folder / "pid").read_text().strip()
            words = Path("/proc", number, "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return os.fsencode(self.folder / "pid") in words

    def up(self, description: Description, cache: Path, report: Callable[[str], None]) -> None:
        """Start it, and wait till its functions have their drivers.

        Raises:
            CannotStart: it is up already, QEMU has no such device, it ends, or a driver doesn't take its function.
            CannotFetch, CannotBuild: what it is made of can't be had.
        """
        if self.is_up():
            raise CannotStart("a machine is up; `launcherkit-lab down` ends it")
        if len(str(self.folder / "requests.sock").encode()) > _SOCKET_BYTES:
            raise CannotStart(f"{self.folder}: too long a path for sockets; name a shorter folder")
        kinds = {function.kind for card in description.cards for function in card.functions}
        emulated = known_devices()
        if lacking := [kind for kind in sorted(kinds) if f'"{KINDS[kind].device}"' not in emulated]:
            names = ", ".join(f"{KINDS[kind].device} (kind {kind})" for kind in lacking)
            raise CannotStart(f"this QEMU has no {names}; a newer one may have it: see docs/how-to/lab.md")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        (self.folder / "requests").mkdir()
        (self.folder / _MACHINE).write_text(description.model_dump_json(by_alias=True))
        report("kernel: from the cache, or fetched from the distribution, half a minute")
        kernel = fetch(cache)
        built = {name: build(kernel.headers, cache, name) for name in modules(description)}
        report(f"QEMU: Linux {kernel.release}, {len(description.cards)} cards")
        self._process = self._start(description, cache)
        if not self._is_ready(self._process):  # see `launcherkit_lab.machine.booted`
            report("once more, for it has not booted")
            self._process = self._start(description, cache)
            if not self._is_ready(self._process):
                raise CannotStart(self._why_not())
        report("drivers")
        named = {name: address for name, address in self.addresses().items() if "." in name}
        (self.folder / FUNCTIONS).write_text(json.dumps(named, indent=1) + "\n")
        said = self.folder / "boot"
        with open(said, "wb") as log:
            code = self.run(["sh", "-c", boot_script(description, named, built)], Path("/"), log, log)
        if code:
            self.down()
            raise CannotStart(f"a driver does not take its function: {said.read_text(errors='replace').strip()}")

    def _start(self, description: Description, cache: Path) -> subprocess.Popen[bytes]:
        machine = Machine(
            cache,
            Path("/"),
            memory_mib=description.memory,
            cpus=description.processors,
            devices=[*device_options(description)],
            memory_nodes=description.memory_nodes,
            with_nic=False,
        )
        shutil.copyfile(_AGENT, self.folder / "agent")
        # The third port has an interrupt of its own: by default it has the console's, and Linux doesn't share those.
        serial = [
            *("-serial", f"file:{self.folder / 'console'}"),
            *("-serial", f"unix:{self.folder / 'requests.sock'},server=on,wait=off"),
            *("-chardev", f"socket,id=shell,path={self.folder / 'shell.sock'},server=on,wait=off"),
            *("-device", "isa-serial,index=2,irq=5,chardev=shell"),
        ]
        monitor = [
            "-pidfile",
            str(self.folder / "pid"),
            "-qmp",
            f"unix:{self._monitor},server=on,wait=off",
            "-monitor",
            "none",
        ]
        # Ports tell the kernel of cards that come and go, as real ones do; else q35 has ACPI do so for some of them.
        hot_plug = ["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]
        return machine.leave(["sh", SHARE / "agent"], self.folder, [*serial, *monitor, *hot_plug])

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait till the agent answers; where that takes too long the machine is ended.

        Raises:
            CannotStart: it has ended by itself.
        """
        deadline = time.monotonic() + BOOT_SECONDS
        while not (self.folder / "ready").exists():
            if process.poll() is not None:
                raise CannotStart(self._why_not())
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                return False
            time.sleep(0.1)
        return True

    def _why_not(self) -> str:
        texts = [self.folder / name for name in ("qemu", "console")]
        lines = [line for path in texts if path.exists() for line in path.read_text(errors="replace").splitlines()]
        return "\n".join(["the machine did not come up:", *lines[-20:]])

    def run(self, command: Sequence[str | Path], folder: Path, out: BinaryIO, errors: BinaryIO) -> int:
        """Run a command in the machine, without input; its exit code. An interrupt ends it there, too."""
        request = self._request(command, folder)
        self._send("run", request, "pid")
        try:
            return self._follow(request, out, errors)
        except KeyboardInterrupt:
            self._send("kill", request, "code")
            raise

    def _follow(self, request: Path, out: BinaryIO, errors: BinaryIO) -> int:
        """Pass on what a command writes, till it ends."""
        with open(request / "stdout", "rb") as printed, open(request / "stderr", "rb") as reported:
            while True:
                ended = (request / "code").exists() or not self.is_up()
                for source, to in ((printed, out), (reported, errors)):
                    shutil.copyfileobj(source, to)
                    to.flush()
                if ended:
                    return _code(request)
                time.sleep(0.05)

    def description(self) -> Description:
        """What it was started as."""
        self._requests()
        return Description.model_validate_json((self.folder / _MACHINE).read_text())

    def functions(self) -> dict[str, str]:
        """The PCI addresses of its functions, by their names, also of those that are away."""
        self._requests()
        named: dict[str, str] = json.loads((self.folder / FUNCTIONS).read_text())
        return named

    def addresses(self) -> dict[str, str]:
        """The PCI addresses of what is plugged in now, by name: functions, and their ports (``gpu0-port``)."""
        self._requests()
        return addresses(execute(self._monitor, "query-pci"))

    def plug(self, option: str) -> None:
        """Plug in a device, as QEMU's option ``-device`` has it.

        Raises:
            CannotStart: QEMU doesn't take it.
        """
        self._requests()
        if said := execute(self._monitor, "human-monitor-command", {"command-line": f"device_add {option}"}):
            raise CannotStart(f"QEMU: {said.strip()}")

    def shell(self, folder: Path) -> int:
        """A shell in the machine on this terminal, till it ends; its exit code."""
        size = shutil.get_terminal_size()
        lines = (
            f"stty rows {size.lines} columns {size.columns}; export TERM={shlex.quote(os.environ.get('TERM', 'dumb'))}"
        )
        request = self._request(["bash", "-c", f"{lines}; exec bash -i"], folder)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / "shell.sock"))
            before = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
            self._send("shell", request, "pid")
            if before:
                tty.setraw(sys.stdin)
            try:
                threading.Thread(target=_copy, args=(sys.stdin.fileno(), connection.fileno()), daemon=True).start()
                threading.Thread(target=_copy, args=(connection.fileno(), sys.stdout.fileno()), daemon=True).start()
                while not (request / "code").exists() and self.is_up():
                    time.sleep(0.1)
            finally:
                if before:
                    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        return _code(request)

    def down(self) -> None:
        """End it at once; its folder stays."""
        if not self.is_up():
            raise NoMachine(_NOT_UP)
        execute(self._monitor, "quit")
        while self.is_up():
            time.sleep(0.05)
        if self._process is not None:
            self._process.wait()

    def _request(self, command: Sequence[str | Path], folder: Path) -> Path:
        """A new request's folder."""
        request = Path(tempfile.mkdtemp(prefix="", dir=self._requests()))
        path = os.environ.get("PATH", os.defpath)
        lines = [
            f"export PATH={shlex.quote(path)}:$PATH",
            f"cd {shlex.quote(str(folder))}",
            f"exec {shlex.join(map(str, command))}",
        ]
        (request / "command").write_text("\n".join(lines) + "\n")
        for name in ("stdout", "stderr"):
            (request / name).touch()
        return request

    def _requests(self) -> Path:
        if not self.is_up():
            raise NoMachine(_NOT_UP)
        return self.folder / "requests"

    def _send(self, action: str, request: Path, answer: str) -> None:
        """Give the agent a line, and wait for the file by which it answers.

        The connection has to last so long: QEMU hands on a few bytes at a time, and forgets the rest of one that ended.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / "requests.sock"))
            connection.sendall(f"{action} {request.name}\n".encode())
            while not (request / answer).exists() and self.is_up():
                time.sleep(0.02)


def _code(request: Path) -> int:
    try:
        return int((request / "code").read_text())
    except (OSError, ValueError):
        raise NoMachine("the machine has ended before the command") from None


def _copy(source: int, to: int) -> None:
    try:
        while data := os.read(source, 1 << 16):
            os.write(to, data)
    except OSError:
        return  # the terminal or the machine has gone
