"""An OCI image layout: a folder of images and other artefacts that skopeo, buildah, podman and oras read.

A reference in it is a repository and a tag, ``launcherkit-plugin:0.1.0``, without the registry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Descriptor: TypeAlias = "dict[str, Any]"
"""Media type, digest and size of a blob, and perhaps a platform and annotations."""
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
REFERENCE = "org.opencontainers.image.ref.name"


class DamagedLayout(Exception):
    """A blob is missing, or its bytes are not those of its digest; the text says which."""


class Layer(NamedTuple):
    """A file of an artefact that is no image."""

    content: bytes
    media_type: str
    annotations: Mapping[str, str] = {}


class Layout:
    """A layout in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Make an empty one."""
        (self.folder / "blobs" / "sha256").mkdir(parents=True)
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self._write({})

    def references(self) -> dict[str, Descriptor]:
        """What is in it, by reference."""
        manifests = json.loads((self.folder / "index.json").read_bytes())["manifests"]
        return {each["annotations"][REFERENCE]: each for each in manifests}

    def add_reference(self, reference: str, descriptor: Descriptor) -> None:
        """Have a reference lead to a blob that is there; what it led to before is forgotten."""
        self._write({**self.references(), reference: descriptor})

    def forget(self, end: str) -> None:
        """Forget the references that end so."""
        self._write({name: each for name, each in self.references().items() if not name.endswith(end)})

    def merge(self, reference: str, parts: Iterable[str]) -> Descriptor:
        """Make one index of the images of some references, which are forgotten: one for each architecture."""
        there = self.references()
        images = []
        for part in parts:
            image = {key: there[part][key] for key in ("mediaType", "digest", "size")}
            settings = self.document(self.document(image)["config"])
            platform = {key: settings[key] for key in ("architecture", "os", "variant") if settings.get(key)}
            images.append({**image, "platform": platform})
            del there[part]
        made = self.add_blob(_as_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": images}), INDEX)
        self._write({**there, reference: made})
        return made

    def add_artefact(self, reference: str, settings: Layer, layers: Iterable[Layer], **more: object) -> Descriptor:
        """Add what is no image; ``more`` are further fields of its manifest."""
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add_blob(settings.content, settings.media_type),
            "layers": [self._layer(layer) for layer in layers],
            **more,
        }
        made = self.add_blob(_as_json(manifest), MANIFEST)
        self.add_reference(reference, made)
        return made

    def add_blob(self, content: bytes, media_type: str) -> Descriptor:
        """Add bytes."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._path(digest).write_bytes(content)
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def document(self, descriptor: Descriptor) -> Any:
        """The JSON of a blob."""
        return json.loads(self._path(descriptor["digest"]).read_bytes())

    def images(self, descriptor: Descriptor) -> list[Descriptor]:
        """The images of an index; of what is no index, none."""
        return self.document(descriptor)["manifests"] if descriptor["mediaType"] == INDEX else []

    def check(self) -> None:
        """Compare all that the references lead to with its digest.

        Raises:
            DamagedLayout: a byte was changed, or a blob is missing.
        """
        seen: set[str] = set()
        for descriptor in self.references().values():
            self._check(descriptor, seen)

    def _check(self, descriptor: Descriptor, seen: set[str]) -> None:
        digest = descriptor["digest"]
        if digest in seen:
            return
        seen.add(digest)
        try:
            with self._path(digest).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise DamagedLayout(f"{digest} is missing in {self.folder}") from None
        if digest != f"sha256:{found}":
            raise DamagedLayout(f"{self._path(digest)} has other bytes than its name says")
        if descriptor["mediaType"] in (INDEX, MANIFEST):
            document = self.document(descriptor)
            parts = [*document.get("manifests", ()), *document.get("layers", ())]
            for part in [*parts, *([document["config"]] if "config" in document else [])]:
                self._check(part, seen)

    def _layer(self, layer: Layer) -> Descriptor:
        blob = self.add_blob(layer.content, layer.media_type)
        return {**blob, "annotations": dict(layer.annotations)} if layer.annotations else blob

    def _path(self, digest: str) -> Path:
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _write(self, references: Mapping[str, Descriptor]) -> None:
        manifests = [{**each, "annotations": {REFERENCE: name}} for name, each in sorted(references.items())]
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        (self.folder / "index.json").write_bytes(_as_json(index))


def _as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
