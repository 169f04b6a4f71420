"""What the tests of the adapters share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosttree import HostTree


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder for sockets. pytest's own paths are too long for some: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="launcherkit-") as folder:
        yield Path(folder)


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    """A host with one two-function card, and no /dev/vfio, as a sidecar sees it."""
    tree = HostTree(tmp_path / "host", nodes=False)
    tree.card("0000:e1:00", group=44)
    return tree
