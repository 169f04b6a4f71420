"""Image archives are what the OCI's image layout says: blobs by their digests, an index that leads to them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.kernel.pod.archive import write_archive
from tests.kernel.pod.files import Folder, Link, Text, at_their_paths, merged, tree


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source/kept/below").mkdir(parents=True)
    (tmp_path / "source/left").mkdir()
    for name in ("kept/below/file", "left/file"):
        (tmp_path / "source" / name).write_text(name)
    (tmp_path / "source/kept/below/file").chmod(0o750)
    return tmp_path / "source"


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {info.name: file.read() for info in tar if (file := tar.extractfile(info))}


def test_the_index_leads_to_the_layer_and_every_blob_is_named_by_its_digest(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    write_archive(archive, "registry.example/one:1", {"/etc/one": Text("1")}, ["/bin/one", "--more"], {"A": "b"})
    found = members(archive)
    for name, data in found.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"
    [entry] = json.loads(found["index.json"])["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "registry.example/one:1"
    manifest = json.loads(found[f"blobs/{entry['digest'].replace(':', '/')}"])
    config = json.loads(found[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])
    assert config["config"]["Entrypoint"] == ["/bin/one", "--more"]
    assert config["config"]["Env"] == ["A=b"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tar"]


def test_a_layer_has_what_was_gathered_and_the_folders_above_it(tmp_path: Path, source: Path) -> None:
    files = merged(
        tree(source, "/opt/tree", lambda relative: relative != "left"),
        [("/tmp", Folder(0o1777)), ("/bin/sh", Link("busybox")), ("/etc/users", Text("root\n", 0o640))],
    )
    write_archive(tmp_path / "image.tar", "one:1", files, ["/bin/sh"], {})
    [layer] = [
        data
        for name, data in members(tmp_path / "image.tar").items()
        if name.startswith("blobs/") and not data.startswith(b"{")
    ]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert tar.getnames() == [
            *("bin", "bin/sh", "etc", "etc/users"),
            *("opt", "opt/tree", "opt/tree/kept", "opt/tree/kept/below", "opt/tree/kept/below/file", "tmp"),
        ]
        assert {name: tar.getmember(name).mode for name in ("tmp", "etc/users", "opt/tree/kept/below/file")} == {
            "tmp": 0o1777,
            "etc/users": 0o640,
            "opt/tree/kept/below/file": 0o750,
        }
        assert tar.getmember("bin/sh").linkname == "busybox"


def test_a_link_is_taken_with_every_step_to_its_file(source: Path) -> None:
    (source / "first").symlink_to("second")
    (source / "second").symlink_to("kept/below/file")
    assert dict(at_their_paths(source / "first")) == {
        str(source / "first"): Link("second"),
        str(source / "second"): Link("kept/below/file"),
        str(source / "kept/below/file"): source / "kept/below/file",
    }
