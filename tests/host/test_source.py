"""The ways to name a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.errors import UNREADABLE_FILE, LauncherkitError
from launcherkit.host.snapshot import dump
from launcherkit.host.source import Host, host_of, open_host
from launcherkit.model.address import PciAddress
from launcherkit.model.policy import Policy
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree

SERVER = Path(__file__).parent.parent / "data" / "rack-server.umockdev"


def test_a_host_is_opened_by_what_the_text_names(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "root")
    tree.card("0000:e1:00", group=1)
    snapshot = tmp_path / "host.json"
    snapshot.write_text(dump(Host.from_sysfs(tree.root).scan()))
    assert not open_host("none").scan().known
    assert open_host(str(tree.root)) == open_host(str(snapshot))
    assert len(open_host(str(SERVER)).scan().functions) == 47


@pytest.mark.parametrize("name", ["missing.json", "missing.umockdev", "missing", "\0"])
def test_what_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(LauncherkitError) as caught:
        open_host(f"{tmp_path}/{name}")
    assert caught.value.code == "LK131"
    assert str(tmp_path) in caught.value.message


def test_a_directory_that_is_no_root_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(LauncherkitError) as caught:
        open_host(str(tmp_path))
    assert caught.value.code == "LK501"
    assert "sys/bus/pci/devices" in caught.value.message


def test_hosts_say_where_they_come_from_and_compare_by_what_they_hold(tmp_path: Path) -> None:
    first, second = HostTree(tmp_path / "a"), HostTree(tmp_path / "b")
    assert Host.from_sysfs(first.root) == Host.from_sysfs(second.root)
    second.card("0000:e1:00", group=1)
    assert Host.from_sysfs(first.root) != Host.from_sysfs(second.root)
    assert Host.none() == Host.none() != 3
    assert repr(Host.none()) == "Host.none()"
    assert repr(Host.from_sysfs(first.root)) == f"Host.from_sysfs({str(first.root)!r})"


def test_a_recording_answers_by_need_with_all_it_holds() -> None:
    host = Host.from_umockdev(SERVER)
    assert host.facts([PciAddress(0, 4, 0, 0)]) == host.scan()._replace(recorded=True)


def test_the_host_is_named_by_flag_variable_or_policy(tmp_path: Path) -> None:
    policy = Policy(sysfs_root="/policy")
    assert host_of("/flag", {"LAUNCHERKIT_HOST": "/variable"}, policy).text == "/flag"
    assert host_of(None, {"LAUNCHERKIT_HOST": "/variable"}, policy).text == "/variable"
    assert host_of(None, {"LAUNCHERKIT_HOST": ""}, policy).text == "/policy"


def test_a_host_is_opened_only_when_it_is_asked(tmp_path: Path) -> None:
    nowhere = host_of("/no/such/host", {}, Policy())
    with raises_code(UNREADABLE_FILE):
        nowhere.facts([PciAddress(0, 1, 0, 0)])
    HostTree(tmp_path).card("0000:e1:00", group=44)
    facts = host_of(str(tmp_path), {}, Policy()).facts([PciAddress(0, 0xE1, 0, 0)])
    assert len(facts.functions) == 2
