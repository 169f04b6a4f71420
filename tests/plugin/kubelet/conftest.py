"""What the tests of the kubelet's side share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit_lab.kubelet import Kubelet, running_kubelet
from tests.plugin.kubelet.parts import Plugin
from tests.support.looping import Loop, running_loop


@pytest.fixture
def folder() -> Iterator[Path]:
    """What ``--kubelet-dir`` names. pytest's own paths are too long for sockets: they have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as name:
        (Path(name) / "device-plugins").mkdir()
        yield Path(name)


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Kubelet]:
    with running_kubelet(folder) as kubelet:
        yield kubelet


@pytest.fixture
def loop() -> Iterator[Loop]:
    with running_loop() as loop:
        yield loop


@pytest.fixture
def plugin(folder: Path, loop: Loop) -> Iterator[Plugin]:
    plugin = Plugin(loop, folder / "device-plugins", dev_root="/host")
    yield plugin
    plugin.close()
