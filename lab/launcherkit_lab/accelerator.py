"""Which of QEMU's accelerators runs a kernel here.

Never ``kvm:tcg``: on a machine whose /dev/kvm opens but doesn't run ordinary kernels, QEMU neither fails nor falls
back, it hangs. So a kernel is started, and has a few seconds to say that it runs.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from launcherkit_lab.programs import find_program

# Emulated, a copy by ERMS moves byte after byte, and a fifth level of page tables is one more to walk.
TCG = ("-machine", "q35", "-accel", "tcg", "-cpu", "max,-erms,-fsrm,-la57")
# A virtual IOMMU remaps interrupts only where the chip that they go through is QEMU's.
KVM = ("-machine", "q35,kernel-irqchip=split", "-accel", "kvm", "-cpu", "host")
_SECONDS = 20
_SAYS = b"machine: runs"


def accelerator(cache: Path, image: Path, initramfs: Path) -> tuple[str, ...]:
    """QEMU's options for machine, accelerator and CPU.

    The answer is kept in the cache till the host boots again.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return TCG
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    kept = cache / "kvm"
    try:
        last, _, answer = kept.read_text().strip().partition(" ")
    except OSError:
        last = answer = ""
    if last != boot:
        answer = "yes" if _runs(image, initramfs) else "no"
        kept.write_text(f"{boot} {answer}\n")
    return KVM if answer == "yes" else TCG


def _runs(image: Path, initramfs: Path) -> bool:
    command = [
        *(find_program("qemu-system-x86_64") or "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-monitor", "none", "-serial", "stdio", "-m", "256", *KVM),
        *("-kernel", str(image), "-initrd", str(initramfs), "-append", "console=ttyS0 panic=-1 quiet probe"),
    ]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return _SAYS in done.stdout
