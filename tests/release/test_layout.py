"""OCI layouts: what is read back is what was put in, and a byte that changes is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.release.oci import INDEX, MANIFEST, DamagedLayout, Layer, Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "oci")
    made.create()
    return made


def artefact(layout: Layout, reference: str, **settings: str) -> str:
    made = layout.add_artefact(
        reference, Layer(json.dumps(settings).encode(), "a/b"), [Layer(b"text", "c/d", {"e": "f"})]
    )
    digest: str = made["digest"]
    return digest


def test_what_is_added_is_found_by_its_reference(layout: Layout) -> None:
    digest = artefact(layout, "charts/a:1")
    assert {name: each["digest"] for name, each in layout.references().items()} == {"charts/a:1": digest}
    manifest = layout.document(layout.references()["charts/a:1"])
    assert manifest["mediaType"] == MANIFEST
    (layer,) = manifest["layers"]
    assert (layer["mediaType"], layer["size"], layer["annotations"]) == ("c/d", 4, {"e": "f"})


def test_the_same_content_gives_the_same_bytes_in_whatever_order_it_comes(layout: Layout, tmp_path: Path) -> None:
    other = Layout(tmp_path / "other")
    other.create()
    for name in ("a:1", "b:1"):
        artefact(layout, name)
    for name in ("b:1", "a:1", "b:1"):
        artefact(other, name)
    assert (layout.folder / "index.json").read_bytes() == (other.folder / "index.json").read_bytes()


def test_images_of_several_architectures_are_one_index_with_their_platforms(layout: Layout) -> None:
    digests = [
        artefact(layout, "a:1-amd64", architecture="amd64", os="linux"),
        artefact(layout, "a:1-arm64", architecture="arm64", os="linux", variant="v8"),
    ]
    merged = layout.merge("a:1", ["a:1-amd64", "a:1-arm64"])
    assert list(layout.references()) == ["a:1"]
    assert merged["mediaType"] == INDEX
    images = layout.images(merged)
    assert [each["digest"] for each in images] == digests
    assert [each["platform"] for each in images] == [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "arm64", "os": "linux", "variant": "v8"},
    ]
    layout.check()


@pytest.mark.parametrize("damage", ["change", "remove"])
def test_a_blob_that_is_changed_or_missing_is_noticed_wherever_it_is(layout: Layout, damage: str) -> None:
    artefact(layout, "a:1-amd64", architecture="amd64", os="linux")
    index = layout.merge("a:1", ["a:1-amd64"])
    (image,) = layout.images(index)
    manifest = layout.document(image)
    for part in (index, image, manifest["config"], *manifest["layers"]):
        blob = layout.folder / "blobs/sha256" / part["digest"].removeprefix("sha256:")
        whole = blob.read_bytes()
        if damage == "change":
            blob.write_bytes(whole[:-1] + b" ")
        else:
            blob.unlink()
        with pytest.raises(DamagedLayout, match=blob.name):
            layout.check()
        blob.write_bytes(whole)
    layout.check()
