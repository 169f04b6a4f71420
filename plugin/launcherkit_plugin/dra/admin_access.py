"""What containers of a claim with admin access get: a file that says what its devices are, and how they are (D13).

It has no device node, and isn't metadata (KEP-5304): KubeVirt and launcherkit would make hostdevs of that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launcherkit_plugin.dra.claim_record import ClaimRecord, PreparedDevice
from launcherkit_plugin.dra.device_state import DeviceState
from launcherkit_plugin.dra.request_parts import ListedDevice
from launcherkit_plugin.model.device import Problem, Usage, holders_by_device

API_VERSION, KIND = "launcherkit.io/v1", "DeviceStates"


def admin_states(
    record: ClaimRecord, listed: Mapping[str, ListedDevice], usage: Usage, driver: str
) -> dict[str, bytes]:
    """The contents of the file of each request with admin access, by request.

    Args:
        record: of the claim.
        listed: the published devices, by name; of one that isn't there any more only that is said.
        usage: who has which device.
        driver: the name of the driver.
    """
    holders = {
        key: ", ".join(dict.fromkeys(map(str, those)))
        for devices in usage.held.values()
        for key, those in holders_by_device(devices).items()
    }
    requests: dict[str, list[dict[str, Any]]] = {}
    for device in (each for each in record.devices if each.admin):
        state = _state(device, listed.get(device.device), holders.get(device.id, ""))
        requests.setdefault(device.request, []).append({"driver": driver, "pool": device.pool, **state})
    head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": record.ref._asdict()}
    return {
        request: (json.dumps({**head, "request": request, "devices": devices}) + "\n").encode()
        for request, devices in requests.items()
    }


def _state(device: PreparedDevice, listed: ListedDevice | None, holder: str) -> dict[str, Any]:
    gone = Problem("gone", f"{device.id} is not among the node's devices any more")
    problem = gone if listed is None else listed.published.problem
    state = DeviceState(device.device, problem)
    return {
        "name": device.device,
        "resource": device.resource,
        "id": device.id,
        "attributes": {} if listed is None else listed.published.attributes,
        "healthy": state.healthy,
        "reason": "" if problem is None else problem.reason,
        "message": "" if problem is None else problem.text,
        "holder": holder,
    }
