"""A file system of a real kernel, copied while claims come and go: what a power cut at that moment would leave."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcherkit_plugin.model.device import ClaimRef
from tests.plugin.dra.desk import CARDS, REF, ClaimDesk
from tests.support.hooks import ROOT
from tests.tiers import KILLS, find_program

CUTS = int(os.environ.get(KILLS, "20"))
ONE, TWO = (f"{card}.0" for card in CARDS[:2])
OTHER = ClaimRef("vms", "other", "u-9")

WORK = """
import sys
from pathlib import Path
from tests.plugin.test_real_power import OTHER, REF, desk_of
desk = desk_of(Path(sys.argv[1]), Path(sys.argv[2]), "boot-1")
while True:
    for call, ref in ((desk.prepare, REF), (desk.prepare, OTHER), (desk.unprepare, REF), (desk.unprepare, OTHER)):
        print("begin", call.__name__, ref.uid, flush=True)
        call(ref)
        print("end", call.__name__, ref.uid, flush=True)
"""


def desk_of(folder: Path, disk: Path, boot: str) -> ClaimDesk:
    """Claims whose files are all on a disk."""
    desk = ClaimDesk(folder)
    desk.lock.close()
    desk.boot = boot
    desk.places = desk.places._replace(kubelet_dir=str(disk / "kubelet"), cdi=str(disk / "cdi"))
    desk.allocate(REF)
    desk.allocate(OTHER, CARDS[1])
    desk.restart()
    return desk


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """The file system of an image. Nothing reaches it by the time that passes: only what is synced."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "ext4", "-o", "loop,commit=300", image, folder], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no loop device here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.skipif(find_program("mkfs.ext4") is None, reason="no mkfs.ext4 here")
def test_claims_on_ext4_after_power_cuts_at_random_moments(tmp_path: Path) -> None:
    """The journal is replayed by the mount. What the process said to be done is there; the rest heals."""
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run([find_program("mkfs.ext4") or "", "-q", image], check=True)
    (tmp_path / "first").mkdir()
    chance = random.Random(7)
    held = 0
    with mounted(image, tmp_path / "disk") as disk, working(tmp_path / "first", disk) as process:
        told: list[str] = []
        for number in range(CUTS):
            copy = tmp_path / f"{number}.img"  # the last one's loop device may still be closing
            told += _stopped_after(process, chance.randrange(1, 12))
            copy.write_bytes(_at_one_moment(image))
            os.kill(process.pid, signal.SIGCONT)
            held += check_boot(tmp_path, copy, done(told))
            copy.unlink()
    assert held > CUTS // 4, "hardly a cut was while claims had devices"


@contextmanager
def working(folder: Path, disk: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that prepares and unprepares claims for ever."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugin'}"}
    command = [sys.executable, "-c", WORK, str(folder), str(disk)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def _stopped_after(process: subprocess.Popen[bytes], lines: int) -> list[str]:
    """Stop the process after it has said some more; gives all that it has said since."""
    assert process.stdout is not None
    said = b"".join(process.stdout.readline() for _ in range(lines))
    os.kill(process.pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])  # it is in no call: none is half done
    os.set_blocking(process.stdout.fileno(), False)
    said += process.stdout.read() or b""
    os.set_blocking(process.stdout.fileno(), True)
    return said.decode().splitlines()


def _at_one_moment(image: Path) -> bytes:
    """The content of the image. The kernel may be moving something from the journal to its place: then it is read
    again, for half of that is what no disk ever has."""
    content = image.read_bytes()
    while (again := image.read_bytes()) != content:
        content = again
    return content


def done(lines: list[str]) -> dict[str, bool | None]:
    """Whether each claim is prepared; None while a call for it is under way."""
    found: dict[str, bool | None] = {REF.uid: False, OTHER.uid: False}
    for line in lines:
        state, call, uid = line.split()
        found[uid] = None if state == "begin" else call == "prepare"
    return found


def check_boot(folder: Path, copy: Path, prepared: Mapping[str, bool | None]) -> int:
    """The machine has booted with that disk. Gives how many claims had devices."""
    with mounted(copy, folder / "after") as disk:
        work = folder / "second"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        desk = desk_of(work, disk, "boot-2")
        try:
            assert desk.preparer.held().broken == {}
            held = desk.held()
            for uid, card, name in ((REF.uid, ONE, "vms/gpu"), (OTHER.uid, TWO, "vms/other")):
                if prepared[uid] is not None:
                    assert held.get(card) == (f"ResourceClaim {name}" if prepared[uid] else None)
            for ref in (REF, OTHER):
                desk.prepare(ref)
            assert desk.held() == {ONE: "ResourceClaim vms/gpu", TWO: "ResourceClaim vms/other"}
            for ref in (REF, OTHER):
                desk.unprepare(ref)
            assert desk.files() == []
        finally:
            desk.lock.close()
    return len(held)
