"""CDI files as runtimes read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcherkit_lab.conformance.cdi import edits, nodes_of, variables_of
from launcherkit_lab.conformance.expectation import Unmet

NAME = "example.com/gpu=0000:01:00.0"
EDITS = {"env": ["A=1"], "deviceNodes": [{"path": "/dev/vfio/1"}]}
DEVICE = {"name": "0000:01:00.0", "containerEdits": EDITS}
SPEC = {"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": [DEVICE]}

IN_YAML = """
kind: example.com/gpu
containerEdits: {env: [A=1]}
devices:
- name: 0000:01:00.0
  containerEdits: {deviceNodes: [{path: /dev/vfio/1}]}
"""


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("plain.json", json.dumps(SPEC)),
        ("indented.json", json.dumps(SPEC, indent="\t")),
        ("written.yaml", IN_YAML),
    ],
)
@pytest.mark.parametrize("other", ["", "{ half", "[]", '{"kind": "x/y"}', '{"kind": "x/y", "devices": null}', "\x00"])
def test_a_device_is_found_whatever_another_vendors_file_is(tmp_path: Path, file: str, text: str, other: str) -> None:
    """An address is a text, though PyYAML takes this one for a number; Go indents by tabs where it is asked to."""
    (tmp_path / file).write_text(text)
    (tmp_path / "another.json").write_text(other)
    (tmp_path / "another.yaml").write_bytes(b"\xff\xfe" + other.encode())
    (tmp_path / "folder.json").mkdir()
    found = edits(tmp_path, [NAME])
    assert variables_of(found) == {"A": "1"}
    assert [tuple(one) for one in nodes_of(found)] == [("/dev/vfio/1", "/dev/vfio/1", "rwm")]


@pytest.mark.parametrize(
    "text", ["{ half", "", "[]", json.dumps({**SPEC, "devices": None}), json.dumps({**SPEC, "containerEdits": [1]})]
)
def test_a_file_that_can_not_be_read_is_named_where_its_device_is_asked_for(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    assert edits(tmp_path, []) == []
    with pytest.raises(
        Unmet, match=rf"0 files of {tmp_path} have the CDI device {NAME}; a runtime can't read {file}: "
    ):
        edits(tmp_path, [NAME])


def test_a_device_that_a_file_has_twice_is_no_device(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({**SPEC, "devices": [DEVICE, DEVICE]}))
    with pytest.raises(Unmet, match=rf"2 files of {tmp_path} have the CDI device {NAME}"):
        edits(tmp_path, [NAME])
