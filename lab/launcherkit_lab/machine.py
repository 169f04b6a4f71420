"""A machine with an IOMMU, for a machine that has none: QEMU, the distribution's kernel, and the host's own files.

Its root is the host's, read-only, with a layer in memory above it: programs, Python's environment and what is
to be tested are there at their own paths, and nothing that is done in the machine touches them. Only the results'
folder is shared.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from launcherkit_lab.accelerator import accelerator
from launcherkit_lab.devices import DEVICES, NAMESPACE_BYTES, nic, options
from launcherkit_lab.initramfs import initramfs
from launcherkit_lab.packages import CACHE, CannotFetch, Kernel, fetch
from launcherkit_lab.programs import find_program

INSIDE = "LAUNCHERKIT_IN_MACHINE"
"""Set for what runs in the machine."""
SHARE = Path("/run/machine")
"""The results' folder, as the machine has it."""

BOOT_SECONDS = 300
"""After so long without a sign a machine isn't waited for any more while it boots."""
_BOOTS = 3

_BEGUN = "begun"
"""A file in the results' folder, there once the machine has booted."""
_START = Path(__file__).parent / "start"
_KERNEL_LINE = " ".join(
    (
        "console=ttyS0 loglevel=4 panic=-1 mitigations=off intel_iommu=on iommu=pt",
        # Where function 0 of a card has SR-IOV, QEMU's ARI says that its VF is next, and other functions stay unseen.
        "pci=noari",
        # The kernel counts ticks for a moment, and panics where a busy host has given it too few.
        "no_timer_check",
        # Emulated processors have one counter among them. Without it each look at the clock leaves the processor.
        "tsc=reliable",
        # Nothing here needs the kernel's tests of its cryptography. One was seen to keep a processor busy for ever.
        "cryptomgr.notests",
    )
)

# Whatever becomes of this process, the machine goes with it.
_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


class Outcome(NamedTuple):
    """What became of a run."""

    code: int | None
    """The command's exit code; None where the machine ended without one."""
    console: str
    """All that was said on the serial console."""

    def end(self, lines: int = 40) -> str:
        """The last lines of the console."""
        return "\n".join(self.console.splitlines()[-lines:])


class Machine(NamedTuple):
    """How the machine is made.

    Raises, wherever it is started:
        CannotFetch: there is no kernel for it.
        OSError: QEMU can't be started, a folder can't be written.
    """

    cache: Path
    folder: Path
    """Where commands run."""
    memory_mib: int = 2048
    cpus: int = 2
    devices: Sequence[str] = DEVICES
    memory_nodes: int = 0
    """NUMA nodes that have no processor."""
    disks: Sequence[Path] = ()
    """Files that are the machine's ``/dev/vda``, ``/dev/vdb`` and so on."""
    with_nic: bool = True
    """Whether it has a NIC with SR-IOV besides, if QEMU knows one."""

    def run(
        self,
        command: Sequence[str | Path],
        results: Path,
        seconds: float,
        tell: Callable[[str], None] = lambda _: None,
        env: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Run a command in a new machine; see `start`."""
        with self.start(command, results, tell, env) as running:
            return running.wait(seconds)

    def start(
        self,
        command: Sequence[str | Path],
        results: Path,
        tell: Callable[[str], None] = lambda _: None,
        env: Mapping[str, str] | None = None,
    ) -> Running:
        """Start a machine for a command, and wait until it has booted.

        Args:
            results: a folder that the command finds, writable, at `SHARE`.
            tell: gets each line of the console as it comes, from another thread.
            env: variables for the command.
        """
        self._prepare(results, command, env or {})
        words = [*_WITH_US, *self._qemu(results), "-serial", "stdio", "-monitor", "none"]

        def boot() -> Running:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            return Running(process, results, tell)

        return booted(boot)

    def shell(self, results: Path) -> int:
        """A developer's shell in the machine, on this terminal."""
        size = shutil.get_terminal_size()
        lines = [
            "[ ! -r ~/.bashrc ] || . ~/.bashrc",
            f"PATH={shlex.quote(str(Path(sys.prefix) / 'bin'))}:$PATH",
            f"stty rows {size.lines} columns {size.columns}",
        ]
        self._prepare(results, ["bash", "--rcfile", SHARE / "bashrc", "-i"], {"TERM": os.environ.get("TERM", "dumb")})
        (results / "bashrc").write_text("\n".join(lines) + "\n")
        (results / "interactive").touch()
        # Ctrl-C is for what runs in the machine.
        terminal = ["-chardev", "stdio,id=terminal,mux=on,signal=off", "-serial", "chardev:terminal"]
        command = [*_WITH_US, *self._qemu(results), *terminal, "-mon", "chardev=terminal"]
        return subprocess.run(command, check=False).returncode

    def leave(self, command: Sequence[str | Path], results: Path, more: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a machine for a command, and leave it to itself: it outlives this process.

        Args:
            results: see `start`; what QEMU says is in its file ``qemu``.
            more: QEMU's options for serial ports and monitors.
        """
        self._prepare(results, command, {})
        with open(results / "qemu", "wb") as log:
            words = [*self._qemu(results), *more]
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _prepare(self, results: Path, command: Sequence[str | Path], env: Mapping[str, str]) -> None:
        kernel = fetch(self.cache)
        results.mkdir(parents=True, exist_ok=True)
        for name in ("exit", "interactive", _BEGUN):
            (results / name).unlink(missing_ok=True)
        variables = {INSIDE: "1", CACHE: str(self.cache), **env}
        exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        lines = [f"cd {shlex.quote(str(self.folder))}", *exports, "exec " + shlex.join(map(str, command))]
        (results / "command").write_text("\n".join(lines) + "\n")
        (results / "settings").write_text(f"MODULES={shlex.quote(str(kernel.modules.parent))}\n")
        shutil.copyfile(_START, results / "start")
        (results / "initramfs").write_bytes(_initramfs(kernel))
        with open(results / "namespace", "wb") as file:
            file.truncate(NAMESPACE_BYTES)

    def _qemu(self, results: Path) -> list[str]:
        kernel = fetch(self.cache)
        initrd = results / "initramfs"
        share = "security_model=none,multidevs=remap"
        devices = [*self.devices, *(nic(known_devices()) if self.with_nic else ())]
        return [
            *(_program(), "-nodefaults", "-no-user-config"),
            *("-no-reboot", "-display", "none", "-m", str(self.memory_mib), "-smp", str(self.cpus)),
            *accelerator(self.cache, kernel.image, initrd),
            *("-kernel", str(kernel.image), "-initrd", str(initrd), "-append", _KERNEL_LINE),
            *("-virtfs", f"local,path=/,mount_tag=root,readonly=on,{share}"),
            *("-virtfs", f"local,path={results},mount_tag=machine,{share}"),
            *("-device", "intel-iommu,intremap=on,caching-mode=on"),
            *(word for disk in self.disks for word in ("-drive", f"file={disk},if=virtio,format=raw,cache=unsafe")),
            *("-blockdev", f"driver=file,node-name=namespace,filename={results}/namespace"),
            *options(devices, self.memory_mib, self.memory_nodes),
        ]


def _program() -> str:
    return find_program("qemu-system-x86_64") or "qemu-system-x86_64"


def known_devices() -> str:
    """What QEMU says to ``-device help``: a line for each device, with its name in double quotes."""
    return subprocess.run([_program(), "-device", "help"], capture_output=True, text=True, check=True).stdout


def _initramfs(kernel: Kernel) -> bytes:
    busybox = find_program("busybox")
    if busybox is None:
        raise CannotFetch("no busybox here")
    return initramfs(kernel, Path(busybox))


def booted(boot: Callable[[], Running], seconds: float = BOOT_SECONDS) -> Running:
    """A machine that has booted, or has ended; the third one however that may be.

    An emulated processor was seen to lose its timer while Linux boots, on a busy host: then it waits for ever.
    """
    for _ in range(_BOOTS - 1):
        running = boot()
        if running.begins(seconds):
            return running
        running.stop()
    return boot()


class Running:
    """A machine that was started. As a context it ends with it."""

    def __init__(self, process: subprocess.Popen[bytes], results: Path, tell: Callable[[str], None]) -> None:
        self._process = process
        self._results = results
        self._lines: list[str] = []
        assert process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(process.stdout, tell), daemon=True)
        self._reader.start()

    def _read(self, console: IO[bytes], tell: Callable[[str], None]) -> None:
        with console, open(self._results / "console", "w") as log:
            for line in console:
                text = line.decode(errors="replace").rstrip("\r\n")
                self._lines.append(text)
                log.write(text + "\n")
                log.flush()
                tell(text)

    def is_up(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def begins(self, seconds: float) -> bool:
        """Wait so long until it has booted, or has ended; returns whether either is so."""
        deadline = time.monotonic() + seconds
        while self.is_up() and not (self._results / _BEGUN).exists():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        return True

    def wait(self, seconds: float) -> Outcome:
        """Wait for its end; one that takes longer is stopped."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._lines.append(f"machine: stopped after {seconds:.0f} s")
        return self.stop()

    def stop(self) -> Outcome:
        """End it if it still runs, and say what became of it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        try:
            code = int((self._results / "exit").read_text())
        except (OSError, ValueError):
            code = None
        return Outcome(code, "\n".join(self._lines))

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
