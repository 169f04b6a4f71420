"""Faults on command, as they are seen in the machine. After each the card is as it was."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from launcherkit_lab.faults import make, recover
from launcherkit_lab.packages import cache_folder
from launcherkit_lab.session import CannotStart, Session
from tests.kernel.lab.asked import program, run

pytestmark = pytest.mark.kernel

STATE = """
for address in %s; do
    cd /sys/bus/pci/devices/$address 2>/dev/null || { echo gone; continue; }
    echo $(od -An -tx1 -N4 config) $(basename "$(readlink driver)") $(basename $(readlink iommu_group)) $(cat resource)
done
"""
IS_VIABLE = """
import fcntl, struct, sys
GET_STATUS, VIABLE = 0x3B67, 1  # VFIO_GROUP_GET_STATUS and VFIO_GROUP_FLAGS_VIABLE of include/uapi/linux/vfio.h
with open("/dev/vfio/" + sys.argv[1], "r+b", buffering=0) as group:
    print(struct.unpack("II", fcntl.ioctl(group, GET_STATUS, struct.pack("II", 8, 0)))[1] & VIABLE)
"""


def state(session: Session) -> dict[str, str]:
    """Of each function the first bytes of its configuration space, driver, IOMMU group and BARs; or that it is gone."""
    functions = session.functions()
    code, out, errors = run(session, "sh", "-c", STATE % " ".join(functions.values()))
    assert code == 0, errors
    return dict(zip(functions, out.splitlines(), strict=True))


@contextmanager
def fault(session: Session, name: str, function: str, file: str = "vendor") -> Iterator[dict[str, str]]:
    """A fault happens, and ends; what changed in between."""
    before = state(session)
    make(session, name, function, file, cache_folder(os.environ))
    yield {name: now for name, now in state(session).items() if now != before[name]}
    recover(session, function.partition(".")[0])
    assert state(session) == before


def test_a_function_that_is_removed_is_gone_alone(session: Session) -> None:
    with fault(session, "removed", "left.1") as changed:
        assert changed == {"left.1": "gone"}
        assert "left.1" in session.addresses()


def test_a_card_is_pulled_out_and_comes_back_by_hot_plug(session: Session) -> None:
    with fault(session, "unplugged", "left.0") as changed:
        assert changed == {"left.0": "gone", "left.1": "gone"}
        assert "left.0" not in session.addresses()
    assert "Card not present" in run(session, "dmesg")[1]


def test_a_card_without_power_reads_as_ones_and_the_kernel_does_not_know(session: Session) -> None:
    before = state(session)
    with fault(session, "unpowered", "large.0") as changed:
        assert changed == {"large.0": " ".join(["ff"] * 4 + before["large.0"].split()[4:])}


def test_a_group_with_a_member_that_is_taken_is_not_viable(session: Session) -> None:
    def is_viable() -> str:
        return run(session, "python3", "-c", IS_VIABLE, state(session)["left.0"].split()[5])[1]

    assert is_viable() == "1\n"
    with fault(session, "taken", "right.0") as changed:
        assert [(name, now.split()[4]) for name, now in changed.items()] == [("right.0", "uio_pci_generic")]
        assert is_viable() == "0\n"


def test_a_function_that_is_refused_is_bound_to_no_driver(session: Session) -> None:
    address = session.functions()["left.0"]
    drivers = "/sys/bus/pci/drivers"
    with fault(session, "refused", "left.0") as changed:
        assert not changed
        assert run(session, "sh", "-c", f"echo {address} >{drivers}/vfio-pci/unbind")[0] == 0
        code, _, errors = run(session, "sh", "-c", f"echo {address} >{drivers}/vfio-pci/bind")
        assert code
        assert "I/O error" in errors
        assert run(session, "sh", "-c", f"echo {session.functions()['large.0']} >{drivers}/vfio-pci/unbind")[0] == 0
        assert run(session, "sh", "-c", f"echo {session.functions()['large.0']} >{drivers}/vfio-pci/bind")[0] == 0


def test_who_reads_a_file_that_hangs_is_beyond_signals(session: Session) -> None:
    device = f"/sys/bus/pci/devices/{session.functions()['left.0']}"
    hangs = "until grep -q ^State:.D /proc/$!/status; do sleep 0.1; done"
    with fault(session, "hanging", "left.0", "numa_node") as changed:
        assert not changed
        script = f"cat {device}/numa_node & {hangs}; kill -KILL $!; {hangs}; cat {device}/vendor"
        assert run(session, "sh", "-c", script) == (0, "0x10de\n", "")
    assert run(session, "cat", f"{device}/numa_node") == (0, "-1\n", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("fault", "removed", "left.7"),
            "no function left.7 in this machine; there are large.0, left.0, left.1, right.0",
        ),
        (
            ("fault", "d3cold", "left.0"),
            "d3cold: Linux puts a function into D3cold only where ACPI has a power resource",
        ),
        (("recover", "middle"), "no card middle in this machine; there are left, right, large"),
    ],
)
def test_what_the_machine_has_not_is_said(session: Session, words: tuple[str, ...], expected: str) -> None:
    done = subprocess.run(program(session, *words), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (65, "")
    assert done.stderr.startswith(f"launcherkit-lab: error: {expected}")


def test_a_file_that_a_function_has_not_does_not_hang(session: Session) -> None:
    with pytest.raises(CannotStart, match="has no file nothing"):
        make(session, "hanging", "left.0", "nothing", cache_folder(os.environ))
