"""What tests of the lab share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A kubelet's, with a path that is short enough for sockets, however long that of the test's files is."""
    with tempfile.TemporaryDirectory(prefix="k-") as name:
        yield Path(name)
