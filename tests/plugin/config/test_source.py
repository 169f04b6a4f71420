"""A configuration is read again when it has changed, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcherkit.errors import UNREADABLE_FILE, Code, LauncherkitError
from launcherkit_plugin.config.source import ConfigSource
from launcherkit_plugin.model.config import Config, Reading
from launcherkit_plugin.model.errors import BAD_PLUGIN_CONFIG, CONFIG_NOT_READ
from tests.support.errors import raises_code


class Reader:
    """Reads ``rescan_seconds`` from a file, and counts."""

    def __init__(self, path: Path, *more: Path) -> None:
        self.path, self.files = path, (str(path), *map(str, more))
        self.times = 0
        self.settings: object = None
        self.fails: LauncherkitError | None = None

    async def __call__(self, kubevirt: Mapping[str, Any] | None, labels: Mapping[str, str]) -> Reading:
        self.times += 1
        self.settings = kubevirt, labels
        if self.fails is not None:
            raise self.fails
        return Reading(Config(rescan_seconds=float(self.path.read_text())), files=self.files)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    path = tmp_path / "plugin.yaml"
    path.write_text("30")
    return Reader(path)


def source_of(reader: Reader) -> ConfigSource:
    source = ConfigSource(str(reader.path), reader)
    asyncio.run(source.first())
    return source


def again(source: ConfigSource) -> float | None:
    reading = asyncio.run(source.again())
    return None if reading is None else reading.config.rescan_seconds


def test_what_has_not_changed_is_not_read_again(reader: Reader) -> None:
    assert again(source_of(reader)) is None
    assert reader.times == 1


def test_what_has_is(reader: Reader) -> None:
    source = source_of(reader)
    reader.path.write_text("5.5")
    assert again(source) == 5.5
    assert again(source) is None


def test_a_file_that_says_the_same_in_other_words_is_no_new_configuration(reader: Reader) -> None:
    source = source_of(reader)
    reader.path.write_text("30.0")
    assert again(source) is None
    assert reader.times == 2


def test_a_file_that_it_refers_to_counts_too(tmp_path: Path) -> None:
    (tmp_path / "plugin.yaml").write_text("30")
    (tmp_path / "kubevirt.yaml").write_text("a")
    reader = Reader(tmp_path / "plugin.yaml", tmp_path / "kubevirt.yaml")
    source = source_of(reader)
    assert again(source) is None
    (tmp_path / "kubevirt.yaml").write_text("other")
    again(source)
    assert reader.times == 2
    assert source.folders == (str(tmp_path),)


def test_what_the_cluster_says_counts_too(reader: Reader) -> None:
    source = source_of(reader)
    source.set_cluster({"permittedHostDevices": {}}, {"zone": "a"})
    again(source)
    assert reader.settings == ({"permittedHostDevices": {}}, {"zone": "a"})
    source.set_cluster({"permittedHostDevices": {}}, {"zone": "a"})
    again(source)
    assert reader.times == 2


@pytest.mark.parametrize("failure", [CONFIG_NOT_READ, UNREADABLE_FILE, BAD_PLUGIN_CONFIG])
def test_one_that_is_wrong_or_could_not_be_read_is_read_again(reader: Reader, failure: Code[LauncherkitError]) -> None:
    source = source_of(reader)
    reader.path.write_text("7")
    reader.fails = failure("in another file", "Try again.")
    with raises_code(failure):
        again(source)
    reader.fails = None
    assert again(source) == 7


def test_without_a_file_nothing_ever_changes(reader: Reader) -> None:
    source = ConfigSource(None, reader)
    assert asyncio.run(source.first()).config.rescan_seconds == 30
    assert again(source) is None
    assert source.folders == ()


def test_one_that_did_not_come_into_force_is_read_again(reader: Reader) -> None:
    source = source_of(reader)
    reader.path.write_text("7")
    assert again(source) == 7
    source.forget()
    assert again(source) == 7
