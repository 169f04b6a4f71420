"""What changed on a host between two snapshots of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit.cli.main import run
from launcherkit.errors import LauncherkitError
from launcherkit.host.snapshot import dump
from launcherkit.host.source import Host
from launcherkit.model.host import HostFacts
from launcherkit.show.changes import HostChange, changes
from tests.show.machines import DATA, HOSTS
from tests.support.hosttree import HostTree

LINK = {"current_link_speed": "16.0 GT/s PCIe\n", "current_link_width": "16\n"}
Build = Callable[[HostTree], object]


def host(directory: Path, *builds: Build) -> HostFacts:
    directory.mkdir()
    tree = HostTree(directory)
    for build in builds:
        build(tree)
    return Host.from_sysfs(directory).scan()


def card(slot: str, group: int, driver: str = "vfio-pci", audio_group: int | None = None, **files: str) -> Build:
    def build(tree: HostTree) -> None:
        tree.function(f"{slot}.0", driver=driver, group=group, files=LINK | files)
        tree.function(f"{slot}.1", device=0x1AEF, class_code=0x040300, driver="vfio-pci", group=audio_group or group)

    return build


def nic(address: str) -> Build:
    return lambda tree: tree.function(address, vendor=0x8086, device=0x1533, class_code=0x020000, driver="igb", group=9)


def accelerator(address: str, device: int) -> Build:
    return lambda tree: tree.function(address, device=device, class_code=0x030200, driver="vfio-pci", group=8)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([card("0000:01:00", 1)], [card("0000:01:00", 7)], []),
        (
            [card("0000:01:00", 1)],
            [card("0000:01:00", 1, "nouveau")],
            [HostChange("driver", "0000:01:00.0", "vfio-pci", "nouveau")],
        ),
        ([nic("0000:02:00.0")], [], [HostChange("gone", "0000:02:00.0", "8086:1533 class 0200", "")]),
        ([], [nic("0000:02:00.0")], [HostChange("new", "0000:02:00.0", "", "8086:1533 class 0200")]),
        (
            [nic("0000:02:00.0")],
            [nic("0000:03:00.0")],
            [HostChange("moved", "0000:03:00.0", "0000:02:00.0", "0000:03:00.0")],
        ),
        (
            [card("0000:01:00", 1)],
            [card("0000:01:00", 1, current_link_width="4\n")],
            [HostChange("link", "0000:01:00.0", "x16", "x4")],
        ),
        ([card("0000:01:00", 1)], [card("0000:01:00", 1, current_link_speed="2.5 GT/s PCIe\n")], []),
        (
            [card("0000:01:00", 1)],
            [card("0000:01:00", 1, audio_group=2)],
            [HostChange("group split", "0000:01:00.0", "0000:01:00.0, 0000:01:00.1", "0000:01:00.0 | 0000:01:00.1")],
        ),
        (
            [card("0000:01:00", 1, audio_group=2)],
            [card("0000:01:00", 1)],
            [HostChange("group joined", "0000:01:00.0", "0000:01:00.0 | 0000:01:00.1", "0000:01:00.0, 0000:01:00.1")],
        ),
    ],
)
def test_a_change_is_reported_once_and_what_differs_from_boot_to_boot_is_none(
    tmp_path: Path, old: list[Build], new: list[Build], expected: list[HostChange]
) -> None:
    assert list(changes(host(tmp_path / "old", *old), host(tmp_path / "new", *new))) == expected


def test_one_card_of_two_that_is_gone_is_not_taken_for_the_other(tmp_path: Path) -> None:
    both = host(tmp_path / "old", card("0000:01:00", 1), card("0000:02:00", 2))
    one = host(tmp_path / "new", card("0000:02:00", 2))
    assert [(each.kind, each.subject) for each in changes(both, one)] == [
        ("gone", "0000:01:00.0"),
        ("gone", "0000:01:00.1"),
    ]


def test_vfs_that_are_gone_are_told_by_their_number(tmp_path: Path) -> None:
    def vfs(tree: HostTree) -> None:
        for function in (4, 5):
            tree.vf("0000:01:00.0", f"0000:01:00.{function}")

    def none(tree: HostTree) -> None:
        (tree.path("0000:01:00.0") / "sriov_numvfs").write_text("0\n")

    old, new = host(tmp_path / "old", card("0000:01:00", 1), vfs), host(tmp_path / "new", card("0000:01:00", 1), none)
    assert changes(old, new) == (HostChange("VFs", "0000:01:00.0", "2", "0"),)


def test_a_group_that_is_lost_with_the_iommu_is_reported(tmp_path: Path) -> None:
    old = host(tmp_path / "old", nic("0000:02:00.0"))
    off = old._replace(
        functions={key: each._replace(iommu_group=None) for key, each in old.functions.items()}, groups={}
    )
    assert changes(old, off) == (HostChange("IOMMU group", "0000:02:00.0", "one", "none"),)


def test_what_one_look_did_not_read_has_not_changed(tmp_path: Path) -> None:
    old = host(tmp_path / "old", card("0000:01:00", 1))
    assert changes(old, old._replace(details={})) == ()


@pytest.mark.parametrize("name", HOSTS)
def test_a_machine_is_as_it_was(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(DATA / HOSTS[name])
    assert run(["snapshot", "--diff", path, path], {}) == 0
    assert not capfd.readouterr().out


def test_the_command_tells_of_changes_by_line_and_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(dump(host(tmp_path / "a", nic("0000:02:00.0"), card("0000:01:00", 1))))
    new.write_text(dump(host(tmp_path / "b", card("0000:01:00", 1, "nouveau"))))
    assert run(["snapshot", "--diff", str(old), str(new)], {}) == 1
    assert capfd.readouterr().out.splitlines()[:3] == [
        "0000:01:00.0  driver  vfio-pci -> nouveau",
        "0000:02:00.0  gone    8086:1533 class 0200",
        "",
    ]


def test_the_picture_shows_each_kind_of_change_where_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    same = card("0000:09:00", 20)
    before = [card("0000:01:00", 1), card("0000:02:00", 2), card("0000:03:00", 3), nic("0000:04:00.0"), same]
    before += [accelerator("0000:06:00.0", 0x1EB8), accelerator("0000:07:00.0", 0x1EB9)]
    after = [
        card("0000:01:00", 1, "nouveau"),
        card("0000:02:00", 2, current_link_width="4\n"),
        card("0000:03:00", 3, audio_group=30),
        nic("0000:05:00.0"),
        same,
        accelerator("0000:07:00.0", 0x20B5),
    ]
    old.write_text(dump(host(tmp_path / "a", *before)))
    new.write_text(dump(host(tmp_path / "b", *after)))
    assert run(["snapshot", "--diff", str(old), str(new)], {"COLUMNS": "200"}) == 1
    picture = capfd.readouterr().out.partition("\n\n")[2]
    assert run(["snapshot", "--diff", str(old), str(new), "-o", str(tmp_path / "diff")], {"COLUMNS": "200"}) == 1
    assert (tmp_path / "diff").read_text().endswith(f"\n\n{picture}")
    assert capfd.readouterr().out == ""
    for address, words in (
        ("0000:01:00.0", "driver was vfio-pci"),
        ("0000:02:00.0", "link was x16"),
        ("0000:03:00.0", "group split was 0000:03:00.0, 0000:03:00.1"),
        ("0000:05:00.0", "moved from 0000:04:00.0"),
    ):
        assert re.search(rf"[│└] {address}  .*{re.escape(words)}", picture)
    assert "0000:06:00.0  gone  NVIDIA Corporation TU104GL [Tesla T4]" in picture
    assert "0000:07:00.0  ready  vfio-pci  was 10de:1eb9 class 0302, new  NVIDIA Corporation GA100" in picture
    assert "0000:09:00" not in picture


def test_a_snapshot_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LauncherkitError):
        run(["snapshot", "--diff", str(tmp_path / "none.json"), "none"], {})
