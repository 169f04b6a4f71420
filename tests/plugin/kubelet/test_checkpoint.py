"""The kubelet's checkpoint: both shapes are read, and what isn't whole is never taken for empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcherkit_plugin.kubelet.usage import CHECKPOINT_BYTES, is_missing, read_checkpoint
from launcherkit_plugin.model.device import Holder
from launcherkit_plugin.model.errors import USAGE_UNREADABLE
from tests.support.errors import raises_code
from tests.support.pod_resources import write_checkpoint

GPU = "nvidia.com/GA102"


def entries(text: str) -> str:
    """A checkpoint with one entry."""
    return f'{{"Data":{{"PodDeviceEntries":[{text}]}}}}'


@pytest.mark.parametrize("by_node", [True, False])
def test_ids_are_read_as_a_list_or_by_numa_node(tmp_path: Path, by_node: bool) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    write_checkpoint(path, {"u-1": {GPU: ["0000:01:00.0", "0000:02:00.0"]}, "u-2": {}}, by_node=by_node)
    holder = Holder("uid:u-1", "compute")
    assert read_checkpoint(str(path)) == {GPU: {"0000:01:00.0": holder, "0000:02:00.0": holder}}


def test_a_real_one_with_what_newer_kubelets_add_is_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": GPU, "DeviceIDs": {"0": ["a"], "1": ["b"], "2": None}}
    document = {
        "Data": {"PodDeviceEntries": [{**entry, "AllocResp": "CgA=", "Later": {}}], "RegisteredDevices": {GPU: ["a"]}},
        "Checksum": 2461372541,
        "Version": "v2",
    }
    path.write_text(json.dumps(document))
    assert set(read_checkpoint(str(path))[GPU]) == {"a", "b"}


def test_one_that_nobody_has_a_device_in_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_text('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}')
    assert read_checkpoint(str(path)) == {}


WHOLE = '{"PodUID":"u","ContainerName":"c","ResourceName":"r"'


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "Expecting value"),
        ("null", "$: missing: an object"),
        ("[]", "$: a list is not an object"),
        ("{}", "$.Data: missing: an object"),
        ('{"Data":{}}', "$.Data.PodDeviceEntries: missing: a list"),
        ('{"Data":{"PodDeviceEntries":{}}}', "$.Data.PodDeviceEntries: an object is not a list"),
        (entries(WHOLE + "}"), "$.Data.PodDeviceEntries[0].DeviceIDs: missing: a list, or lists by NUMA node"),
        (entries(WHOLE + ',"DeviceIDs":"a"}'), "[0].DeviceIDs: 'a' is not a list, or lists by NUMA node"),
        (entries(WHOLE + ',"DeviceIDs":[1]}'), "[0].DeviceIDs[0]: 1 is not a device ID"),
        (entries(WHOLE + ',"DeviceIDs":{"0":["a"],"1":[1]}}'), "[0].DeviceIDs.1[0]: 1 is not a device ID"),
        (entries(WHOLE.replace('"u"', "7") + "}"), "[0].PodUID: 7 is not a name"),
        (entries(WHOLE.replace('"r"', '""') + "}"), "[0].ResourceName: '' is not a name"),
        (entries(WHOLE + ',"PodUID":"v"}'), "the key 'PodUID' appears twice in one object"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_what_is_no_checkpoint_is_an_error_that_names_the_file_and_the_place(
    tmp_path: Path, text: str, wrong: str
) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text)
    with raises_code(USAGE_UNREADABLE) as raised:
        read_checkpoint(str(path))
    assert raised.value.message.startswith(f"{path}: is not a checkpoint of devices: ")
    assert wrong in raised.value.message


@settings(deadline=None)
@given(st.data())
def test_no_beginning_of_one_is_taken_for_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("half") / "checkpoint"
    write_checkpoint(path, {"u-1": {GPU: ["0000:01:00.0"]}, "u-2": {GPU: ["0000:02:00.0"]}})
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with raises_code(USAGE_UNREADABLE):
        read_checkpoint(str(path))


def test_one_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with path.open("wb") as file:
        file.truncate(CHECKPOINT_BYTES + 1)
    with raises_code(USAGE_UNREADABLE, match="more than"):
        read_checkpoint(str(path))


def test_none_is_told_from_one_that_can_not_be_reached(tmp_path: Path) -> None:
    assert is_missing(str(tmp_path / "checkpoint"))
    assert not is_missing(str(tmp_path / "elsewhere/checkpoint"))
    (tmp_path / "checkpoint").touch()
    assert not is_missing(str(tmp_path / "checkpoint"))
