"""What the daemon is told of claims whose pods wait for devices."""

from __future__ import annotations

from typing import Any

import pytest

from launcherkit_plugin.cluster.protocol import Message, awaiting_claims
from launcherkit_plugin.cluster.serve import awaiting_claim
from launcherkit_plugin.model.device import AwaitedDevice, AwaitingClaim, ClaimRef

RESULT = {"request": "gpu", "driver": "d.io", "pool": "node-1", "device": "a", "bindingConditions": ["x.io/Ready"]}


def claim(*results: dict[str, Any]) -> dict[str, Any]:
    allocation = {"devices": {"results": list(results)}}
    return {"metadata": {"namespace": "vms", "name": "gpu", "uid": "u-1"}, "status": {"allocation": allocation}}


def test_of_a_claim_the_devices_of_the_node_that_are_waited_for_are_told() -> None:
    others = [{**RESULT, "pool": "node-2"}, {**RESULT, "bindingConditions": []}]
    kept = awaiting_claim("node-1", claim(*others, {**RESULT, "shareID": "s"}))
    assert awaiting_claims(Message("awaiting", [kept["claim"]])) == (
        AwaitingClaim(ClaimRef("vms", "gpu", "u-1"), (AwaitedDevice("d.io", "gpu", "node-1", "a", "s"),)),
    )


@pytest.mark.parametrize("item", [claim(), claim({**RESULT, "pool": "node-2"}), {"metadata": {}, "status": None}])
def test_nothing_is_kept_of_other_claims(item: dict[str, Any]) -> None:
    assert awaiting_claim("node-1", item) == {}


@pytest.mark.parametrize("value", [7, [1], [{"ref": ["a"], "devices": []}]])
def test_what_is_no_such_list_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"is no"):
        awaiting_claims(Message("awaiting", value))
