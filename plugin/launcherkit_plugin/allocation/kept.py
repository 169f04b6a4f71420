"""Which devices are kept for which VM, and what follows for the pods that ask for one. Pure.

The kubelet doesn't say for which pod it asks. It admits one pod after the other, and lists a pod before it asks for it:
the pod is one that it lists, that asks for the resource, and that doesn't have all of it yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from launcherkit_plugin.model.device import Holder
from launcherkit_plugin.model.errors import CALLER_UNKNOWN, DEVICE_KEPT
from launcherkit_plugin.model.same_device import AskingPod, Kept


class Callers(NamedTuple):
    """The pods for which the kubelet may be asking."""

    pods: tuple[AskingPod, ...] = ()
    doubt: bool = False
    """It may be another one."""

    @property
    def is_certain(self) -> bool:
        """Whether it asks for the only one of them, or if there is none, for a pod that the API server doesn't have."""
        return not self.doubt and len(self.pods) <= 1


def callers_among(
    resource: str, listed: Iterable[str], held: Mapping[str, Holder], pods: Mapping[str, AskingPod]
) -> Callers:
    """The pods for which the kubelet may be asking.

    Args:
        resource: for which it asks.
        listed: the pods that it lists, ``namespace/name``.
        held: the holders of the resource's devices, by ID, by the same list.
        pods: those of the API server, by name.
    """
    names = set(listed)
    return Callers(
        tuple(pod for name, pod in pods.items() if name in names and lacks(name, pod, resource, held)),
        doubt=not names <= pods.keys(),
    )


def lacks(name: str, pod: AskingPod, resource: str, held: Mapping[str, Holder]) -> bool:
    """Whether a pod asks for more devices of a resource than it has; the arguments are those of `callers_among`."""
    return not pod.ended and sum(holder.pod == name for holder in held.values()) < pod.asks.get(resource, 0)


def check(resource: str, ids: Collection[str], kept: Iterable[Kept], callers: Callers) -> None:
    """Check that devices may go to the pod that asks for them.

    Args:
        resource, ids: what the pod gets.
        kept: the records that haven't expired.
        callers: the pods that may be asking.

    Raises:
        DEVICE_KEPT: one is kept for another VM, or the VM must have another one.
        CALLER_UNKNOWN: that depends on the pod, which isn't certain.
    """
    guarded = {record.device: record for record in kept if record.wish == "required"}
    owners = {pod.owner for pod in callers.pods if pod.wish == "required"}
    own = {key for key, record in guarded.items() if record.owner in owners and record.resource == resource}
    if not callers.is_certain and (own or _may_be_kept(guarded, resource, ids, callers)):
        raise CALLER_UNKNOWN(
            f"{resource}: {', '.join(ids)} can't be allocated: some are kept, and it isn't certain which pod asks",
            "The pod is made again by whoever made it. If that goes on, see whether the container `cluster` is "
            "connected and may list pods, which the component `same-device` allows.",
            resource=resource,
        )
    problem = next((f"{key} is kept {guarded[key]}" for key in _of_others(guarded, ids, callers)), "")
    if own and not (own <= set(ids) or own >= set(ids)):
        problem = f"{', '.join(sorted(own))} is required again, and the kubelet chose {', '.join(ids)}"
    if problem:
        raise DEVICE_KEPT(
            f"{resource}: {problem}",
            "The pod is made again by whoever made it. `launcherkit-plugin status` shows what is kept. If a device is "
            "required, see whether it is Unhealthy, and whether the Topology Manager wants one of another NUMA node.",
            resource=resource,
        )


def _of_others(guarded: Mapping[str, Kept], ids: Iterable[str], callers: Callers) -> list[str]:
    """The devices that are kept for VMs of which no pod is asking."""
    owners = {pod.owner for pod in callers.pods}
    return [key for key in ids if key in guarded and guarded[key].owner not in owners]


def _may_be_kept(guarded: Mapping[str, Kept], resource: str, ids: Collection[str], callers: Callers) -> bool:
    """Whether devices are kept for another pod than the one that asks, or that one, in doubt, must have others."""
    waits = callers.doubt and any(each.resource == resource and each.ended is not None for each in guarded.values())
    return waits or not guarded.keys().isdisjoint(ids)


def order(available: Collection[str], kept: Iterable[Kept], callers: Callers) -> tuple[list[str], list[str]]:
    """Which of the available devices to take first, and which last; the arguments are those of `check`."""
    wishes = {"preferred", "required"} if callers.is_certain else {"required"}
    owners = {pod.owner for pod in callers.pods if pod.wish in wishes}
    free = sorted(
        (each for each in kept if each.device in available), key=lambda record: (-record.since, record.device)
    )
    last = sorted((each for each in free if each.owner not in owners), key=lambda record: record.wish)
    return [each.device for each in free if each.owner in owners], [each.device for each in last]
