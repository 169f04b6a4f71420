"""The machine of the lab's page is up for all tests here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit_lab.description import read_description
from launcherkit_lab.packages import CannotFetch, cache_folder
from launcherkit_lab.qmp import NoMachine
from launcherkit_lab.session import Session
from tests.kernel.inside import cannot_be_made
from tests.support.pages import ROOT, blocks


@pytest.fixture(scope="session")
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    (text,) = [block.text for block in blocks(ROOT / "docs/how-to/lab.md") if block.reported.get("file") == "my.yaml"]
    with tempfile.TemporaryDirectory(prefix="lk-lab-") as folder:
        machine = Path(folder, "my.yaml")
        machine.write_text(text)
        made = Session(Path(folder, "up"))
        try:
            made.up(read_description(str(machine)), cache_folder(os.environ), print)
        except CannotFetch as error:
            cannot_be_made(request.config, error)
        yield made
        made.down()
        with pytest.raises(NoMachine):
            made.down()
