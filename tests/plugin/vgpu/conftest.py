"""The stand-in of NVML, for this folder's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.vgpu.stand_in import StandIn, compiled


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stand_in(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn(tmp_path, library)
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    return found
