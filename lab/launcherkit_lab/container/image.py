"""An image's archive, as ``docker save``, ``podman save`` and ``skopeo copy`` write it: its files and configuration."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_MOST_JSON = 8 << 20


class BadImage(Exception):
    """The archive is no image, or one that can't be taken; the text names it and says why."""


class ImageConfig(NamedTuple):
    """What an image says of its containers (OCI image configuration, ``config``)."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    user: str = ""
    folder: str = "/"
    """The working directory."""


def unpack(archive: Path, folder: Path) -> ImageConfig:
    """Unpack an archive with one image; the layers by tar, as root with their owners.

    Args:
        archive: an OCI or Docker archive.
        folder: becomes the root of its containers; it is made.

    Raises:
        BadImage: it has no image, several, or a layer that can't be unpacked.
    """
    try:
        with closing(tarfile.open(archive)) as opened:
            reader = _Reader(archive, opened)
            config, layers = reader.image()
            folder.mkdir(parents=True)
            for layer in layers:
                _add(reader, layer, folder)
            return config
    except (tarfile.TarError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadImage(f"{archive}: it is no archive of an image: {error}") from error


class _Reader:
    def __init__(self, archive: Path, opened: tarfile.TarFile) -> None:
        self.archive = archive
        self._opened = opened
        self._names = {posixpath.normpath(name): name for name in opened.getnames()}

    def image(self) -> tuple[ImageConfig, list[str]]:
        """The configuration of the only image, and the names of its layers."""
        if "manifest.json" in self._names:  # Docker's, which also has OCI's layout since version 25
            described = self._only(self._json("manifest.json"), "images")
            return _config(self._json(described["Config"])), list(described["Layers"])
        described = self._only(self._json("index.json")["manifests"], "images")
        while described["mediaType"] in _INDEXES:
            every = self._json(_blob(described))["manifests"]
            own = [one for one in every if one.get("platform", {}).get("architecture") in (None, "amd64")]
            described = self._only(
                [one for one in own if "vnd.docker.reference.type" not in _notes(one)], "amd64 images"
            )
        manifest = self._json(_blob(described))
        return _config(self._json(_blob(manifest["config"]))), [_blob(one) for one in manifest["layers"]]

    def copy(self, name: str, path: Path) -> None:
        """Write a member to a file."""
        with open(path, "wb") as file:
            shutil.copyfileobj(self._member(name), file)

    def _member(self, name: str) -> Any:
        own = self._names.get(posixpath.normpath(name))
        member = None if own is None else self._opened.extractfile(own)
        if member is None:
            raise BadImage(f"{self.archive}: it has no {name}")
        return member

    def _json(self, name: str) -> Any:
        return json.loads(self._member(name).read(_MOST_JSON))

    def _only(self, every: list[Any], kind: str) -> Any:
        if len(every) != 1:
            raise BadImage(f"{self.archive}: it has {len(every)} {kind}; save the one that is to be tested alone")
        return every[0]


def _notes(described: Mapping[str, Any]) -> Mapping[str, Any]:
    return described.get("annotations") or {}


def _blob(described: Mapping[str, Any]) -> str:
    algorithm, _, digest = str(described["digest"]).partition(":")
    return f"blobs/{algorithm}/{digest}"


def _config(document: Mapping[str, Any]) -> ImageConfig:
    config = document.get("config") or {}
    return read_config(config)


def read_config(config: Mapping[str, Any]) -> ImageConfig:
    """What a configuration's ``config`` says."""
    return ImageConfig(
        tuple(config.get("Entrypoint") or ()),
        tuple(config.get("Cmd") or ()),
        tuple(config.get("Env") or ()),
        config.get("User") or "",
        config.get("WorkingDir") or "/",
    )


def _add(reader: _Reader, layer: str, folder: Path) -> None:
    """Add a layer to what is there: whiteouts first, which say what of the layers below is gone (OCI layer.md)."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        file = Path(place, "layer")
        reader.copy(layer, file)
        for gone in _whiteouts(_tar(reader, "--list", "--file", str(file)).splitlines(), folder):
            shutil.rmtree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink(missing_ok=True)
        where = ("--directory", str(folder), "--file", str(file))
        _tar(reader, "--extract", "--numeric-owner", "--preserve-permissions", f"--exclude={_WHITEOUT}*", *where)


def _whiteouts(names: list[str], folder: Path) -> Iterator[Path]:
    """The files of the layers below that a layer takes away; never one outside the folder, wherever links lead."""
    root = os.path.realpath(folder)
    for parent, name in map(posixpath.split, names):
        if not name.startswith(_WHITEOUT):
            continue
        place = os.path.realpath(os.path.join(root, parent.lstrip("/")))
        if os.path.commonpath([place, root]) != root or not os.path.isdir(place):
            continue
        yield from Path(place).iterdir() if name == _OPAQUE else [Path(place, name.removeprefix(_WHITEOUT))]


def _tar(reader: _Reader, *words: str) -> str:
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    done = subprocess.run(["tar", *words], capture_output=True, text=True, errors="surrogateescape", env=env)
    if done.returncode:
        raise BadImage(f"{reader.archive}: a layer can't be unpacked: {done.stderr.strip()}")
    return done.stdout
