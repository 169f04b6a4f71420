"""The files of claims that are there, whatever their records say: to be removed with a claim, or after a kill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from launcherkit_plugin.dra.claim_files import ClaimPlaces
from launcherkit_plugin.dra.claim_record import Records
from launcherkit_plugin.model.device import ClaimRef


def files_left(places: ClaimPlaces, ref: ClaimRef) -> Iterator[str]:
    """The files of a claim, but for its record. Another claim of its name has metadata of its own."""
    yield places.of_claim(ref.uid)
    for request in _names(places.metadata_folder(ref)):
        path = places.metadata_file(ref, request)
        with suppress(OSError), open(path, "rb") as file:
            if f'"{ref.uid}"'.encode() in file.read():
                yield path


def strays(places: ClaimPlaces, records: Records) -> Iterator[str]:
    """Files of claims that have no record, and parts of files that were never completed."""
    known = records.claims.keys() | records.broken.keys()
    start = f"{places.driver}_"
    for name in _names(places.cdi):
        uid = name.removeprefix(start).removesuffix(".json")
        if name.startswith(f".{start}") or (name.startswith(start) and uid not in known):
            yield f"{places.cdi}/{name}"
    for name in _names(places.records):
        if name.startswith("."):
            yield f"{places.records}/{name}"
    if records.broken:
        return  # whose metadata it is nobody knows
    kept = {places.metadata_folder(record.ref) for record in records.claims.values()}
    for name in _names(places.metadata):
        folder = f"{places.metadata}/{name}"
        for request in _names(folder):
            for file in _names(f"{folder}/{request}"):
                if folder not in kept or file.startswith("."):
                    yield f"{folder}/{request}/{file}"
        remove_empty(folder)


def remove_empty(folder: str) -> None:
    """Remove the folders in a folder, and it, where nothing is in them."""
    for name in [f"/{each}" for each in _names(folder)] + [""]:
        with suppress(OSError):
            os.rmdir(folder + name)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
