"""A snapshot holds what sysfs holds, exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit.errors import LauncherkitError
from launcherkit.host.snapshot import FORMAT, dump, load
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import (
    NO_FACTS,
    Bar,
    HostFacts,
    Mdev,
    MdevParent,
    MdevType,
    PciDetail,
    PciFunction,
    PciLink,
    VgpuVf,
)
from tests.support.hosttree import HostTree

UUID = "11111111-2222-3333-4444-555555555555"

_u16 = st.integers(0, 0xFFFF)
_small = st.integers(0, 1000)
_name = st.text(min_size=1, max_size=8)
_u64 = st.integers(0, (1 << 64) - 1)
_addresses = st.builds(
    PciAddress, st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7)
)


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def _tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=3).map(tuple)


_details = st.builds(
    PciDetail,
    _maybe(st.integers(0, 255)),
    _maybe(_small),
    st.booleans(),
    _maybe(_name),
    _maybe(_name),
    _tuples(_name),
    _tuples(_addresses),
    _maybe(_small),
    _maybe(_small),
    _tuples(st.builds(Bar, st.integers(0, 20), _u64, _u64, _u64)),
    st.booleans(),
    _tuples(_name),
    _maybe(_name),
    _maybe(_name),
    _maybe(st.builds(VgpuVf, _small, _tuples(st.tuples(_small, st.text(max_size=5))), _maybe(_small), _maybe(_small))),
    _maybe(st.builds(PciLink, *[_maybe(_small)] * 4)),
)
_functions = st.builds(
    PciFunction,
    _addresses,
    _u16,
    _u16,
    _u16,
    _u16,
    st.integers(0, 0xFFFFFF),
    _maybe(_name),
    _maybe(st.integers(0, 3)),
    _maybe(_small),
    _maybe(_addresses),
)
_types = st.builds(MdevType, _name, _maybe(_name), _maybe(_name), _maybe(_small), _maybe(_name))
_mdevs = st.builds(Mdev, st.uuids().map(str), st.text(max_size=5), _name, _maybe(_name), _maybe(_name), _maybe(_small))
_parents = st.builds(MdevParent, _name, _maybe(_addresses), _tuples(_types))


@st.composite
def _facts(draw: st.DrawFn) -> HostFacts:
    functions = {function.address: function for function in draw(st.lists(_functions, max_size=6))}
    groups: dict[int, tuple[PciAddress, ...]] = {}
    for address in sorted(functions):
        group = functions[address].iommu_group
        if group is not None:
            groups[group] = (*groups.get(group, ()), address)
    for group in draw(st.sets(st.integers(0, 3))):  # facts by need leave groups out
        groups.pop(group, None)
    details = {address: draw(_details) for address in functions if draw(st.booleans())}
    mdevs = {mdev.uuid: mdev for mdev in draw(st.lists(_mdevs, max_size=2))}
    parents = {parent.name: parent for parent in draw(st.lists(_parents, max_size=2))}
    return HostFacts(True, functions, details, groups, mdevs, parents, draw(_maybe(st.frozensets(_name, max_size=3))))


@given(_facts())
def test_load_takes_back_what_dump_wrote(facts: HostFacts) -> None:
    text = dump(facts)
    assert load(text) == facts
    assert dump(load(text)) == text


def test_a_host_of_which_nothing_is_known_stays_so() -> None:
    assert load(dump(NO_FACTS)) == NO_FACTS


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path / "root")
    tree.card("0000:e1:00", group=44, numa=1)
    tree.function("10000:01:00.0", driver="nvidia", group=3, vfio_dev="vfio0")
    tree.vf("10000:01:00.0", "10000:01:00.4", vgpu="558", driver="nvidia", group=4)
    tree.mdev_type("0000:e1:00.0", "nvidia-222", name="GRID T4-1Q", available_instances="15")
    tree.mdev("0000:e1:00.0", "nvidia-222", UUID, group=60)
    return tree


def test_a_snapshot_equals_the_host_it_was_taken_from(tree: HostTree, tmp_path: Path) -> None:
    host = Host.from_sysfs(tree.root)
    file = tmp_path / "host.json"
    file.write_text(dump(host.scan()))
    assert Host.from_snapshot(file) == host
    assert Host.from_snapshot(file).scan(details=False) == host.scan(details=False)


def test_one_function_stands_on_one_line_and_the_order_is_of_addresses(tree: HostTree) -> None:
    text = dump(Host.from_sysfs(tree.root).scan())
    lines = [line for line in text.splitlines() if line.startswith('{"address"')]
    assert [line[13:25] for line in lines] == ["0000:e1:00.0", "0000:e1:00.1", "10000:01:00.", "10000:01:00."]
    assert '"vendor": "10de"' in lines[0]
    assert '"class": "030000"' in lines[0]
    assert json.loads(text)["format"] == FORMAT


def test_groups_follow_from_the_functions_where_none_are_listed(tree: HostTree) -> None:
    document = json.loads(dump(Host.from_sysfs(tree.root).scan()))
    listed = document.pop("groups")
    assert {
        str(key): [str(member) for member in value] for key, value in load(json.dumps(document)).groups.items()
    } == listed


def test_older_snapshots_know_a_group_of_vfios_no_iommu_mode_by_its_node(tree: HostTree) -> None:
    tree.function("0000:02:00.0", driver="vfio-pci")
    tree.noiommu("0000:02:00.0", 0)
    document = json.loads(dump(Host.from_sysfs(tree.root).scan()))
    assert document.pop("noiommu") == [0]
    assert load(json.dumps(document)) == Host.from_sysfs(tree.root).scan()


def _function(**changes: Any) -> dict[str, Any]:
    return {"address": "0000:01:00.0", "vendor": "10de", "device": "2204", "class": "030000"} | changes


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"functions": [_function(vendor="zz")]}, "$.functions[0].vendor: 'zz' is not 4 hex digits"),
        ({"functions": [_function(vendor=None)]}, "$.functions[0].vendor: missing: 4 hex digits"),
        ({"functions": [_function(), _function()]}, "$.functions[1].address: 0000:01:00.0 appears twice"),
        ({"functions": [_function(drivr="x")]}, "$.functions[0]: unknown key 'drivr'"),
        ({"functions": [_function(numa_node=True)]}, "$.functions[0].numa_node: true is not a number"),
        ({"functions": [_function(detail=3)]}, "$.functions[0].detail: 3 is not an object"),
        (
            {"functions": [_function(detail={"resources": ["0 1-2"]})]},
            "$.functions[0].detail.resources[0]: '0 1-2' is not",
        ),
        ({"functions": [_function(iommu_group=1)], "groups": {"1": []}}, "$.groups.1: not what the functions say"),
        ({"groups": {"x": []}}, "$.groups: 'x' is not the number of a group"),
        ({"functions": {}}, "$.functions: an object is not a list"),
        ({"nodes": [1]}, "$.nodes: a list is not a list of paths"),
        ({"mdevs": [{"uuid": "x", "type_id": "t"}]}, "$.mdevs[0].uuid: 'x' is not a UUID"),
        ({"format": "launcherkit.io/host/v9"}, "$.format: not 'launcherkit.io/host/v1'"),
        ([], "$: a list is not an object"),
    ],
)
def test_what_is_wrong_is_reported_with_file_path_and_value(document: Any, message: str) -> None:
    if isinstance(document, dict):
        document = {"format": FORMAT} | document
    with pytest.raises(LauncherkitError) as caught:
        load(json.dumps(document), "host.json")
    assert caught.value.code == "LK502"
    assert caught.value.message.startswith(f"host.json: {message}")


def test_all_that_is_wrong_is_reported_at_once_up_to_twenty() -> None:
    functions = [_function(address=f"0000:01:{device:02x}.0", vendor=1, device="") for device in range(32)]
    with pytest.raises(LauncherkitError) as caught:
        load(json.dumps({"format": FORMAT, "functions": functions}))
    assert len(list(caught.value.leaves())) == 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 32 deep"),
        ('{"a":' * 100_000, "nested more than 32 deep"),
        ('{"a":' * 40, "nested more than 32 deep"),
        ('["[{"' + ",[" * 40, "nested more than 32 deep"),
        ("[" + "[]," * 600_000, "more than 1000000 values"),
        ("[" + "0," * 2_000_000, "more than 1000000 values"),
        ('["' + "[" * 40, "not JSON"),
        ('{"format": NaN}', "NaN is not a JSON number"),
        ('{"format": 1, "format": 2}', "the key 'format' appears twice"),
        ("{", "line 1, column 2: not JSON"),
        ("", "not JSON"),
        ("1" * 5000, "$: "),
    ],
)
def test_hostile_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(LauncherkitError) as caught:
        load(text)
    assert caught.value.code == "LK502"
    assert message in caught.value.message


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "host.json"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(LauncherkitError, match="byte 0 is not UTF-8"):
        Host.from_snapshot(file)


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("0000:01:00.0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_keys = st.sampled_from(
    [*PciFunction._fields, *PciDetail._fields, "class", "rom", "detail", "types", "uuid", "name", "id"]
)
_objects = st.dictionaries(_keys, _json_values | st.dictionaries(_keys, _json_values, max_size=3), max_size=6)
_documents = st.fixed_dictionaries(
    {"format": st.just(FORMAT)},
    optional={key: st.lists(_objects, max_size=3) | _json_values for key in ("functions", "mdevs", "mdev_parents")}
    | {"groups": st.dictionaries(st.sampled_from(["1", "x", "²"]), _json_values) | _json_values, "nodes": _json_values},
)


@given(_documents.map(json.dumps) | _json_values.map(json.dumps) | st.text())
def test_any_json_is_read_or_refused(text: str) -> None:
    try:
        facts = load(text)
    except LauncherkitError as error:
        refused = tuple(error.leaves())
    else:
        refused = ()
        assert load(dump(facts)) == facts
    assert all(leaf.code == "LK502" for leaf in refused)


def test_brackets_in_strings_are_not_nesting() -> None:
    nodes = ["[{" * 50, "a\\", '"' + "[" * 50]
    assert load(json.dumps({"format": FORMAT, "nodes": nodes})).nodes == frozenset(nodes)
