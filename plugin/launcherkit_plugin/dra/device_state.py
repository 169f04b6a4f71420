"""The state of a published device: its health for the kubelet, and its conditions in the status of a claim (D11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from launcherkit_plugin.dra.claim_record import ClaimRecord
from launcherkit_plugin.model.device import ClaimRef, Problem, without_names
from launcherkit_plugin.telemetry.reporter import USUAL

READY, FAILED = "launcherkit.io/Ready", "launcherkit.io/Failed"
"""The conditions for which the scheduler waits before it binds a pod: with the first it does so, with the second it
allocates another device (KEP-5007)."""
_MESSAGE_BYTES = 1024
"""The longest message that the kubelet accepts."""
_UNBOUND = frozenset({"driver", "gone", "failed"})
"""Problems of devices that aren't bound to a VFIO driver."""


class DeviceState(NamedTuple):
    """One device of the pool."""

    name: str
    problem: Problem | None
    in_container: bool = False
    """Containers use it through the host's driver."""
    usb: bool = False
    """It is a USB device."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with it. Being blocked by another device that is in use isn't wrong."""
        return self.problem is None or self.problem.reason in USUAL

    @property
    def message(self) -> str:
        """Why it isn't healthy; empty if it is."""
        return _text(None if self.healthy else self.problem)


def _text(problem: Problem | None) -> str:
    text = "" if problem is None else without_names(problem.text)
    return text.encode()[:_MESSAGE_BYTES].decode(errors="ignore")


def conditions(state: DeviceState, when: str, *, awaited: bool = False) -> list[dict[str, str]]:
    """The conditions of a device in the status of its claim.

    Args:
        state: of the device.
        when: the time of their last transition, in the format of Kubernetes.
        awaited: with those for which the scheduler waits.
    """
    problem = None if state.healthy else state.problem
    unbound = problem if problem is not None and problem.reason in _UNBOUND else None
    if state.in_container:
        kinds = {"DriverReady": problem}
    elif state.usb:
        kinds = {"Available": problem}
    else:
        kinds = {"BoundToVfio": unbound, "GroupViable": problem}
    if awaited:
        kinds |= {READY: state.problem, FAILED: problem}
    return [_condition(kind, wrong, when) for kind, wrong in kinds.items()]


def _condition(kind: str, problem: Problem | None, when: str) -> dict[str, str]:
    """The condition: what it says isn't so where there is a problem; of `FAILED`, it is."""
    status: Literal["True", "False"] = "True" if (problem is None) != (kind == FAILED) else "False"
    reason = "Prepared" if problem is None else "".join(map(str.capitalize, problem.reason.split("-")))
    return {"type": kind, "status": status, "reason": reason, "message": _text(problem), "lastTransitionTime": when}


class ClaimStatuses:
    """Remembers which status was sent for each claim, so that only changes are sent.

    Args:
        driver: the name of the devices' driver.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._sent: dict[str, tuple[DeviceState, ...]] = {}

    def note_prepared(self, records: Sequence[ClaimRecord], states: Mapping[str, DeviceState]) -> None:
        """Note claims that were prepared before this process started. Their status was sent then; it is sent again
        only if a device isn't healthy."""
        for record in records:
            of_claim = _states(record, states)
            if all(state.healthy for state in of_claim):
                self._sent[record.ref.uid] = of_claim

    def changed(
        self, records: Sequence[ClaimRecord], states: Mapping[str, DeviceState], when: str, *, awaited: bool = False
    ) -> Iterator[tuple[ClaimRef, list[dict[str, Any]]]]:
        """The claims whose status has changed, each with its new ``status.devices``.

        Args:
            records: of all prepared claims, and as such the claims whose pods wait for devices.
            states: of the published devices, by name.
            when: the current time, in the format of Kubernetes.
            awaited: see `conditions`.
        """
        current = {}
        for record in records:
            uid, of_claim = record.ref.uid, _states(record, states)
            current[uid] = of_claim
            if of_claim != self._sent.get(uid):
                entries = {  # one that is looked at may be among those that the claim has
                    (device.pool, device.device, device.share_id): {
                        "driver": self._driver,
                        "pool": device.pool,
                        "device": device.device,
                    }
                    | ({"shareID": device.share_id} if device.share_id else {})
                    | {"conditions": conditions(state, when, awaited=awaited)}
                    for device, state in zip(record.devices, of_claim, strict=True)
                }
                yield record.ref, list(entries.values())
        self._sent = current


def _states(record: ClaimRecord, states: Mapping[str, DeviceState]) -> tuple[DeviceState, ...]:
    """The states of a claim's devices. A device that isn't published any more is gone."""
    return tuple(
        states.get(device.device)
        or DeviceState(device.device, Problem("gone", f"{device.id} is not among the node's devices any more"))
        for device in record.devices
    )
