"""What the fuzzers start from, and what they have found, passes; and they would notice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcherkit import pipeline
from launcherkit.choose.siblings import assemble_devices
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import Attachment, GuestDevice, Match
from launcherkit.model.policy import Siblings
from tests.fuzz.targets import NAMES, seeds, target

INPUTS = [(name, path) for name in NAMES for path in sorted(seeds(name).iterdir())]


@pytest.mark.parametrize(("name", "path"), INPUTS, ids=lambda each: each.name if isinstance(each, Path) else each)
def test_an_input_of_the_corpus_passes(name: str, path: Path) -> None:
    target(name)(path.read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_every_fuzzer_takes_any_bytes(name: str) -> None:
    chance = random.Random(1)
    for size in (0, 1, 2, 50, *[300] * 20):
        target(name)(chance.randbytes(size))


def test_the_oracle_notices_a_function_that_nobody_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A translator that takes whatever is in the slot is found out."""

    def whatever_is_there(
        matches: Sequence[Match], siblings: Siblings, host: HostFacts, **more: Any
    ) -> tuple[GuestDevice, ...]:
        return tuple(
            device._replace(
                attachments=(
                    *device.attachments,
                    *(Attachment(each.address, "sibling", "", None, None) for each in device.not_attached),
                )
            )
            for device in assemble_devices(matches, siblings, host, **more)
        )

    monkeypatch.setattr(pipeline, "assemble_devices", whatever_is_there)
    chance = random.Random(1)
    assert _noticed([chance.randbytes(300) for _ in range(400)])


def test_the_oracle_notices_a_policy_that_is_not_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole_group(
        matches: Sequence[Match], _siblings: Siblings, host: HostFacts, **more: Any
    ) -> tuple[GuestDevice, ...]:
        return assemble_devices(matches, "group", host, **more)

    monkeypatch.setattr(pipeline, "assemble_devices", whole_group)
    chance = random.Random(1)
    assert _noticed([chance.randbytes(300) for _ in range(400)])


def _noticed(inputs: list[bytes]) -> bool:
    for data in inputs:
        try:
            target("translate")(data)
        except AssertionError:
            return True
    return False
