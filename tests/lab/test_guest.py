"""The guest of the suite, as far as it needs no machine: `tests.kernel.test_faulty` starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit_lab.guest.build import CannotCompile, build_kernel
from launcherkit_lab.guest.qemu import MOST, NoGuest, listed, place, with_nodes


def test_a_container_has_vfios_nodes_by_their_numbers_and_no_others() -> None:
    lines = with_nodes({"/dev/vfio/a b": "/dev/null", "/dev/mem": "/dev/zero"}).splitlines()
    assert lines[0] == "mount -t tmpfs vfio /dev/vfio"
    assert [line for line in lines if line.startswith("mknod")] == ["mknod -m 666 '/dev/vfio/a b' c 1 3"]
    assert lines[-1] == 'exec "$@"'


def test_iommufds_node_is_hidden_unless_the_container_has_it() -> None:
    assert "/dev/null /dev/iommu" in with_nodes({})
    assert "/dev/iommu" not in with_nodes({"/dev/iommu": "/dev/null"})


def test_a_container_can_not_have_what_the_host_has_not() -> None:
    with pytest.raises(FileNotFoundError, match="/dev/vfio/none"):
        with_nodes({"/dev/vfio/vfio": "/dev/vfio/none"})


def test_each_function_has_a_slot_that_is_free() -> None:
    """Slot 0 and the last one are q35's own."""
    slots = [int(place(index)[8:10], 16) for index in range(MOST)]
    assert slots == [*range(1, 31)]
    assert {place(index)[10:] for index in range(MOST)} == {".0"}


def test_where_there_is_no_qemu_there_is_no_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcherkit_lab.guest.qemu.find_program", lambda _: None)
    with pytest.raises(NoGuest, match="apt-get install qemu-system-x86"):
        listed([], {}, 1)


def test_where_there_is_no_compiler_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcherkit_lab.guest.build.find_program", lambda _: None)
    with pytest.raises(CannotCompile, match="apt-get install gcc"):
        build_kernel(tmp_path)


@pytest.mark.parametrize(
    ("addresses", "nodes", "problem"),
    [
        (["0000:01:00.0"] * (MOST + 1), {}, "room for 30 functions, not for 31"),
        ([], {"/dev/iommu": "/dev/iommu", "/dev/vfio/vfio": "/dev/vfio/vfio"}, "doesn't know iommufd"),
        ([], {"/dev/iommu": "/dev/iommu", "/dev/vfio/1": "/dev/vfio/1"}, "no right to"),
    ],
)
def test_what_can_not_be_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    addresses: list[str],
    nodes: dict[str, str],
    problem: str,
) -> None:
    """With a QEMU that knows nothing, and without the right to mount."""
    put(tmp_path / "qemu-system-x86_64", "echo List of objects:")
    put(tmp_path / "unshare", "echo no right to mount >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NoGuest, match=problem):
        listed(addresses, nodes, 1)


def put(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
