"""JSON patches (RFC 6902), as far as they add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any


def with_additions(document: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A document with a patch's additions; a step that isn't one, or has no place, fails."""
    changed: dict[str, Any] = deepcopy(dict(document))
    for step in steps:
        assert step["op"] == "add"
        first, *parents, last = step["path"].split("/")
        assert not first
        place: Any = changed
        for name in parents:
            place = place[name]
        if isinstance(place, list):
            assert last == "-"
            place.append(deepcopy(step["value"]))
        else:
            place[last] = deepcopy(step["value"])
    return changed
