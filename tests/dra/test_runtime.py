"""The double's runtime refuses what CDI libraries refuse, and merges as they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.dra.runtime import NotCreated, Runtime, wrong_in

SPEC = {"cdiVersion": "0.5.0", "kind": "example.com/gpu"}


def device(name: str, **edits: object) -> dict[str, object]:
    return {"name": name, "containerEdits": edits}


def write(folder: Path, name: str, *devices: object, **more: object) -> Runtime:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({**SPEC, "devices": devices, **more}))
    return Runtime(folder)


def test_what_several_files_say_of_a_container_is_merged(tmp_path: Path) -> None:
    (tmp_path / "node").touch()
    node = {"path": "/dev/vfio/1", "hostPath": str(tmp_path / "node")}
    mount = {"hostPath": str(tmp_path / "node"), "containerPath": "/etc/m", "options": ["ro", "bind"]}
    write(tmp_path, "a.json", device("0", env=["A=1"], deviceNodes=[node]), containerEdits={"env": ["ALL=yes"]})
    runtime = write(tmp_path, "b.json", device("x", env=["A=2", "B=3"], mounts=[mount]), kind="example.com/other")
    container = runtime.create(["example.com/gpu=0", "example.com/other=x"])
    assert container.env == {"A": "2", "B": "3", "ALL": "yes"}
    assert container.nodes == {"/dev/vfio/1": str(tmp_path / "node")}
    assert set(container.mounts) == {"/etc/m"}


@pytest.mark.parametrize(
    ("edits", "wrong"),
    [
        ({"env": ["A"]}, "env"),
        ({"deviceNodes": [{"path": "dev/x"}]}, "node"),
        ({"deviceNodes": [{"path": "/dev/x", "permissions": "rwx"}]}, "permissions"),
        ({"mounts": [{"hostPath": "/x"}]}, "mount"),
        ({"devices": []}, "edits"),
        ({}, "edits nothing"),
    ],
)
def test_a_file_that_is_invalid_fails_the_container(tmp_path: Path, edits: dict[str, object], wrong: str) -> None:
    runtime = write(tmp_path, "a.json", device("0", **edits))
    with pytest.raises(NotCreated, match=wrong):
        runtime.create(["example.com/gpu=0"])


def test_a_file_says_the_version_of_what_it_has() -> None:
    named = device("0", env=["A=1"])
    assert "0.5.0" not in wrong_in({**SPEC, "devices": [named]})
    assert "is needed" in wrong_in({**SPEC, "cdiVersion": "0.4.0", "devices": [named]})
    assert "cdiVersion" in wrong_in({**SPEC, "cdiVersion": "7", "devices": [named]})


def test_a_device_without_a_file_or_with_two_fails_the_container(tmp_path: Path) -> None:
    write(tmp_path, "a.json", device("0", env=["A=1"]))
    runtime = write(tmp_path, "b.json", device("0", env=["A=1"]))
    for name in ("0", "1"):
        with pytest.raises(NotCreated, match=f"unresolvable CDI devices example.com/gpu={name}"):
            runtime.create([f"example.com/gpu={name}"])


def test_a_node_that_is_not_there_fails_the_container(tmp_path: Path) -> None:
    runtime = write(tmp_path, "a.json", device("0", deviceNodes=[{"path": "/dev/vfio/4711"}]))
    with pytest.raises(NotCreated, match="failed to stat"):
        runtime.create(["example.com/gpu=0"])
