"""Writes an image as an OCI archive of one layer: what `ctr images import` and `podman load` take."""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import stat
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kernel.pod.files import Content, Files, Folder, Link, Text

_OCI = "application/vnd.oci.image"


def write_archive(archive: Path, name: str, files: Files, entrypoint: Sequence[str], env: Mapping[str, str]) -> None:
    """Write an image for the machine's own processor, amd64.

    Args:
        name: the image's whole name, ``registry.example/launcher:1``.
    """
    layer = archive.with_name(archive.name + ".layer")
    try:
        _write_layer(layer, files)
        with open(layer, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        variables = [f"{key}={value}" for key, value in env.items()]
        blobs: dict[str, bytes] = {}
        config = _blob(
            blobs,
            "config",
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Entrypoint": list(entrypoint), "Env": variables, "WorkingDir": "/"},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            },
        )
        of_layer = {
            "mediaType": f"{_OCI}.layer.v1.tar",
            "digest": f"sha256:{digest}",
            "size": layer.stat().st_size,
        }
        manifest = _blob(blobs, "manifest", {"schemaVersion": 2, "config": config, "layers": [of_layer]})
        named = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        index = {"schemaVersion": 2, "manifests": [{**manifest, "annotations": named}]}
        with tarfile.open(archive, "w") as tar:
            _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
            _add(tar, "index.json", json.dumps(index).encode())
            for key, data in blobs.items():
                _add(tar, f"blobs/sha256/{key}", data)
            tar.add(layer, f"blobs/sha256/{digest}")
    finally:
        layer.unlink(missing_ok=True)


def _blob(blobs: dict[str, bytes], kind: str, document: dict[str, object]) -> dict[str, object]:
    media = f"{_OCI}.{kind}.v1+json"
    data = json.dumps(document if kind == "config" else {"mediaType": media, **document}).encode()
    digest = hashlib.sha256(data).hexdigest()
    blobs[digest] = data
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}


def _write_layer(layer: Path, files: Files) -> None:
    whole: dict[str, Content] = {}
    for path, content in files.items():
        for parent in _parents(path):
            whole.setdefault(parent, Folder())
        whole[path] = content
    with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(whole):
            _add_content(tar, path.lstrip("/"), whole[path])


def _parents(path: str) -> Sequence[str]:
    parent = posixpath.dirname(path)
    return [] if parent == "/" else [*_parents(parent), parent]


def _add_content(tar: tarfile.TarFile, name: str, content: Content) -> None:
    info = tarfile.TarInfo(name)
    match content:
        case Folder(mode):
            info.type, info.mode = tarfile.DIRTYPE, mode
            tar.addfile(info)
        case Link(to):
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, to, 0o777
            tar.addfile(info)
        case Text(text, mode):
            _add(tar, name, text.encode(), mode)
        case Path():
            status = content.stat()
            # Python takes bytecode only of a source of the same second.
            info.size, info.mode, info.mtime = status.st_size, stat.S_IMODE(status.st_mode), int(status.st_mtime)
            with open(content, "rb") as file:
                tar.addfile(info, file)


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))
