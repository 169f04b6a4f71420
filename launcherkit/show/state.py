"""The states of a picture: one table of words, colours and marks, and which state a function has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from launcherkit.show.topology import HostTopology, TreeFunction, VirtualFunctions

CardState: TypeAlias = Literal["unhealthy", "blocked", "held", "kept", "shared", "free", "ready", "idle", "host"]


@dataclass(frozen=True, slots=True)
class Look:
    """How a state is shown."""

    word: str
    meaning: str
    light: str
    """CSS colour on white, and for viewers that know no other."""
    dark: str
    """CSS colour on black."""
    mark: str
    """An SVG path of relative commands in a square of 12, to be filled by the rule ``evenodd``."""


LOOKS: Mapping[CardState, Look] = {
    "unhealthy": Look(
        "unhealthy",
        "the device plugin can't give it to anybody",
        "#a40e26",
        "#ff7b72",
        "m6 .5 5.8 10.5h-11.6zm-.7 3.5h1.4v3.6h-1.4zm0 4.6h1.4v1.4h-1.4z",
    ),
    "blocked": Look(
        "blocked",
        "something keeps it from guests",
        "#a40e26",
        "#ff7b72",
        "m2.5 1 3.5 3.5 3.5-3.5 1.5 1.5-3.5 3.5 3.5 3.5-1.5 1.5-3.5-3.5-3.5 3.5-1.5-1.5 3.5-3.5-3.5-3.5z",
    ),
    "held": Look("held", "a pod or a claim has it", "#0550ae", "#79c0ff", "m1.5 1.5h9v9h-9z"),
    "kept": Look(
        "kept",
        "nobody has it, but others that are in use keep it from everybody else",
        "#7d4e00",
        "#e3b341",
        "m1.5 1.5h9v9h-9zm4.5 1.5v6h3v-6z",
    ),
    "shared": Look(
        "shared",
        "its VFs or mediated devices go to guests",
        "#0b6e6e",
        "#56d4dd",
        "m1 1.5h10v2.2h-10zm0 3.4h10v2.2h-10zm0 3.4h10v2.2h-10z",
    ),
    "free": Look(
        "free",
        "a guest could have it, and nobody holds it",
        "#116329",
        "#56d364",
        "m6 1a5 5 0 1 0 0 10a5 5 0 1 0 0-10z",
    ),
    "ready": Look(
        "for guests",
        "a guest could have it, unless somebody holds it: that was not asked",
        "#116329",
        "#56d364",
        "m6 1a5 5 0 1 0 0 10a5 5 0 1 0 0-10zm0 2.4a2.6 2.6 0 1 1 0 5.2a2.6 2.6 0 1 1 0-5.2z",
    ),
    "idle": Look(
        "not set up",
        "it has no driver, or is a VF without a vGPU type",
        "#6639ba",
        "#d2a8ff",
        "m6 .5 5.5 5.5-5.5 5.5-5.5-5.5zm0 2.5-3 3 3 3 3-3z",
    ),
    "host": Look("host's own", "the host uses it", "#57606a", "#9da7b3", "m2 2h8v8h-8zm2 2v4h4v-4z"),
}
"""What most deserves attention comes first: a card has the first of its functions' states."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the device plugin says of a device that it can't give to anybody now."""

    state: Literal["unhealthy", "kept"]
    text: str


NO_REPORTS: Mapping[str, Report] = MappingProxyType({})
"""By address or UUID."""


class States:
    """The states of a host's functions and mediated devices.

    Args:
        topology: the host's.
        reports: by address or UUID.
    """

    def __init__(self, topology: HostTopology, reports: Mapping[str, Report] = NO_REPORTS) -> None:
        self._asked = topology.held is not None
        self._reports = reports
        self._held = {held.device for held in topology.held or ()}
        functions = [function for place in topology.places() for function in place.slot.functions]
        held = [function for function in functions if str(function.address) in self._held]
        self._slots = {function.address.slot for function in held}
        self._groups = {function.group for function in held} - {None}

    def of(self, function: TreeFunction) -> CardState:
        """Of a function; what is in the slot of a held one goes with it, what else is in its group is kept."""
        name = str(function.address)
        if name in self._held:
            return "held"
        if name in self._reports:
            return self._reports[name].state
        if function.blockers:
            return "blocked"
        if function.state == "ready" and function.group in self._groups:
            return "held" if function.address.slot in self._slots else "kept"
        return self._unheld(function.state)

    def of_vfs(self, vfs: VirtualFunctions) -> tuple[CardState, ...]:
        """Of each VF."""
        state: CardState = "blocked" if vfs.blockers else self._unheld(vfs.state)
        return tuple(self.of_name(str(address), state) for address in vfs.addresses)

    def of_name(self, name: str, unheld: CardState | None = None) -> CardState:
        """Of a VF or mediated device, by its address or UUID."""
        if name in self._held:
            return "held"
        return self._reports[name].state if name in self._reports else unheld or self._unheld("ready")

    def _unheld(self, state: str) -> CardState:
        if state == "ready":
            return "free" if self._asked else "ready"
        states: Mapping[str, CardState] = {"blocked": "blocked", "parent": "shared", "idle": "idle", "unused": "idle"}
        return states.get(state, "host")


def first_of(states: Iterable[CardState]) -> CardState:
    """The state that most deserves attention."""
    return min(states, key=list(LOOKS).index)
