"""What is told of a published device: to the kubelet its health, to the cluster its conditions in a claim (D11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from launcherkit.model.value import NamedTuple
from launcherkit_plugin.dra.claim_record import ClaimRecord
from launcherkit_plugin.model.device import ClaimRef, Problem
from launcherkit_plugin.telemetry.reporter import USUAL

_MESSAGE_BYTES = 1024
"""The most that the kubelet takes."""
_UNBOUND = frozenset({"driver", "gone", "failed"})
"""Problems of devices that are bound to no VFIO driver."""


class DeviceState(NamedTuple):
    """One device of the pool."""

    name: str
    problem: Problem | None
    in_container: bool = False
    """Containers use it by the driver of the host."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with it; that something else is in use isn't wrong."""
        return self.problem is None or self.problem.reason in USUAL

    @property
    def message(self) -> str:
        """Why it isn't; empty where it is."""
        text = "" if self.problem is None or self.healthy else self.problem.text
        return text.encode()[:_MESSAGE_BYTES].decode(errors="ignore")


def conditions(state: DeviceState, when: str) -> list[dict[str, str]]:
    """The conditions of a device in the status of its claim.

    Args:
        state: of the device.
        when: the time at which they have become so, as Kubernetes writes it.
    """
    problem = None if state.healthy else state.problem
    if state.in_container:
        return [_condition("DriverReady", problem is None, problem, when, state.message)]
    bound = problem is None or problem.reason not in _UNBOUND
    return [
        _condition("BoundToVfio", bound, problem, when, state.message),
        _condition("GroupViable", problem is None, problem, when, state.message),
    ]


def _condition(kind: str, well: bool, problem: Problem | None, when: str, message: str) -> dict[str, str]:
    status: Literal["True", "False"] = "True" if well else "False"
    reason = "Prepared" if well or problem is None else "".join(map(str.capitalize, problem.reason.split("-")))
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "" if well else message,
        "lastTransitionTime": when,
    }


class ClaimStatuses:
    """What the cluster was told of each claim, so that it is told again only where something has changed.

    Args:
        driver: whose devices they are.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._told: dict[str, tuple[DeviceState, ...]] = {}

    def known(self, records: Sequence[ClaimRecord], states: Mapping[str, DeviceState]) -> None:
        """What was prepared before this process was told of then; where something is wrong it is told again."""
        for record in records:
            found = _states(record, states)
            if all(state.healthy for state in found):
                self._told[record.ref.uid] = found

    def changed(
        self, records: Sequence[ClaimRecord], states: Mapping[str, DeviceState], when: str
    ) -> Iterator[tuple[ClaimRef, list[dict[str, Any]]]]:
        """The claims of which something new is to be told, with what ``status.devices`` is to say.

        Args:
            records: of all prepared claims.
            states: of the published devices, by name.
            when: it is now, as Kubernetes writes it.
        """
        told = {}
        for record in records:
            uid, found = record.ref.uid, _states(record, states)
            told[uid] = found
            if found != self._told.get(uid):
                yield (
                    record.ref,
                    [
                        {"driver": self._driver, "pool": device.pool, "device": device.device}
                        | ({"shareID": device.share_id} if device.share_id else {})
                        | {"conditions": conditions(state, when)}
                        for device, state in zip(record.devices, found, strict=True)
                    ],
                )
        self._told = told


def _states(record: ClaimRecord, states: Mapping[str, DeviceState]) -> tuple[DeviceState, ...]:
    """Of a claim's devices. One that isn't published any more has gone."""
    return tuple(
        states.get(device.device)
        or DeviceState(device.device, Problem("gone", f"{device.id} is not among the node's devices any more"))
        for device in record.devices
    )
