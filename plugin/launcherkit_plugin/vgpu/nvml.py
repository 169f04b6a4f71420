"""NVML, asked for the GPU instances of a card by way of a process (`launcherkit_plugin.vgpu.nvml_child`)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeAlias

from launcherkit.atomic import make_folders
from launcherkit.errors import LauncherkitError
from launcherkit_plugin.file_lock import FileLock
from launcherkit_plugin.host.child import NoAnswer, ask, command_of
from launcherkit_plugin.model.errors import GPU_INSTANCES_NOT_CHANGED, NO_NVML, NVML_BINDING

CALL_SECONDS = 60.0
"""How long a call may take: the first client initializes all cards, and a change of the mode may reset one."""

_NOT_FOUND = (12, 13)
"""There is no library, or it lacks a function."""
_RESET_REQUIRED = 16
_REMEDIES: Mapping[int, str] = {
    3: "The card has no MIG mode, or it is off.",
    4: "GPU instances need root; in a container, a privileged one with /dev/nvidiactl and /dev/nvidia-caps.",
    6: "The card must have NVIDIA's vGPU driver of the host, and not be bound to VFIO.",
    9: "Load NVIDIA's vGPU driver of the host: `nvidia-smi` on the node must show the card.",
    18: "Use the libnvidia-ml.so.1 of the driver that is loaded: in a container, mount the host's.",
    19: "Something uses it: `nvidia-smi` and `fuser -v /dev/nvidia*` on the node show what.",
    23: "The card has no room for it: `launcherkit-plugin vgpu list` shows its GPU instances.",
}
_REMEDY = "`nvidia-smi mig -lgi` and `dmesg` on the node say more."


class Placed(NamedTuple):
    """A GPU instance, known by its profile and its slices of memory: no two have the same."""

    profile: int
    """The ID of the profile."""
    start: int
    size: int

    def overlaps(self, other: Placed) -> bool:
        """Whether both have a slice in common."""
        return self.start < other.start + other.size and other.start < self.start + self.size


class Profile(NamedTuple):
    """A kind of GPU instance that a card offers."""

    id: int
    name: str
    """``1g.10gb``."""
    most: int
    """How many an empty card holds."""
    placements: tuple[tuple[int, int], ...]
    """The first slice and the number of slices of each place where one can be."""


class MigCard(NamedTuple):
    """The state of a card."""

    enabled: bool | None
    """Whether it is in MIG mode; None: it has none."""
    pending: bool
    """The mode after the next reset."""
    profiles: tuple[Profile, ...] = ()
    instances: frozenset[Placed] = frozenset()

    def text(self, instance: Placed) -> str:
        """``1g.10gb at 4``."""
        return f"{self._name(instance)} at {instance.start}"

    def named(self) -> list[tuple[Placed, str]]:
        """The instances in order of their places, with the names of their profiles."""
        return [(each, self._name(each)) for each in sorted(self.instances, key=lambda it: it.start)]

    def _name(self, instance: Placed) -> str:
        return next((each.name for each in self.profiles if each.id == instance.profile), str(instance.profile))

    @property
    def summary(self) -> str:
        """``4 of 1g.10gb, 1 of 3g.40gb``; empty without instances."""
        counts = {each.name: sum(it.profile == each.id for it in self.instances) for each in self.profiles}
        return ", ".join(f"{number} of {name}" for name, number in counts.items() if number)


Ask: TypeAlias = Callable[[Mapping[str, Any], float, Sequence[int]], Mapping[str, Any]]
"""Asks a question, given seconds and files to keep open; raises `NoAnswer`. In tests a double of the process."""


def ask_process(question: Mapping[str, Any], seconds: float, keep: Sequence[int]) -> Mapping[str, Any]:
    """See `Ask`."""
    command = command_of("launcherkit_plugin.vgpu.nvml_child")
    answer: Mapping[str, Any] = json.loads(asyncio.run(ask(command, json.dumps(question).encode(), seconds, keep)))
    return answer


class Nvml:
    """Calls of NVML, each in a process; they block.

    Args:
        lock: a file that the process has locked as long as it lives: no other change begins while one that was
            abandoned may still be under way.
        asks: makes the calls.
    """

    def __init__(self, lock: str, asks: Ask = ask_process) -> None:
        self._lock = lock
        self._asks = asks

    def read(self, card: str) -> MigCard:
        """The present state of a card.

        Raises:
            NO_NVML, GPU_INSTANCES_NOT_CHANGED: it can't be read.
        """
        answer = self._ask(card, (), call="read")
        profiles = map(_profile, answer["profiles"])
        enabled = None if answer["current"] is None else bool(answer["current"])
        return MigCard(
            enabled, bool(answer["pending"]), tuple(profiles), frozenset(Placed(*it) for it in answer["instances"])
        )

    def create(self, card: str, instance: Placed) -> None:
        """Create a GPU instance.

        Raises:
            NO_NVML, GPU_INSTANCES_NOT_CHANGED: NVML refuses, or hasn't answered in time.
        """
        self._change(card, call="create", **instance._asdict())

    def destroy(self, card: str, instance: Placed, most: int) -> None:
        """Destroy a GPU instance if it exists, of a profile of which there are ``most``; raises as `create`."""
        self._change(card, call="destroy", most=most, **instance._asdict())

    def set_mode(self, card: str, *, enabled: bool) -> None:
        """Set MIG mode, which stays pending if the driver can't activate it now; raises as `create`."""
        self._change(card, call="mode", mode=int(enabled))

    def _change(self, card: str, **question: Any) -> None:
        try:
            make_folders(os.path.dirname(self._lock), 0o700)
            with closing(FileLock(self._lock)) as lock:
                if not lock.try_lock():
                    raise GPU_INSTANCES_NOT_CHANGED(
                        f"{card}: another process changes GPU instances: it has locked {self._lock}",
                        "A call of NVML that was abandoned may hang in the driver: see `dmesg` on the node.",
                        device=card,
                    )
                self._ask(card, (lock.file,), **question)
        except OSError as problem:
            raise _failed(card, f"{self._lock}: {problem.strerror}", "The plugin needs to write there.") from problem

    def _ask(self, card: str, keep: Sequence[int], **question: Any) -> Mapping[str, Any]:
        try:
            answer = self._asks({"card": card, **question}, CALL_SECONDS, keep)
        except NoAnswer as problem:
            raise _failed(card, f"the process that asks NVML to {question['call']}: {problem}", _REMEDY) from problem
        if "missing" in answer:
            raise NO_NVML(f"{card}: {answer['missing']}", NVML_BINDING, device=card)
        if "code" not in answer:
            return answer
        text = f"{answer['from']}: {answer['text']} ({answer['code']})"
        if answer["code"] in _NOT_FOUND:
            remedy = "libnvidia-ml.so.1 is part of NVIDIA's driver; in a container, mount the host's."
            raise NO_NVML(f"{card}: NVML can't be used: {text}", remedy, device=card)
        raise _failed(card, text, _REMEDIES.get(answer["code"], _REMEDY))


def _profile(document: Mapping[str, Any]) -> Profile:
    places = tuple((start, size) for start, size in document["placements"])
    return Profile(document["id"], document["name"].removeprefix("MIG "), document["most"], places)


def _failed(card: str, text: str, remedy: str) -> LauncherkitError:
    return GPU_INSTANCES_NOT_CHANGED(f"{card}: {text}", remedy, device=card)
