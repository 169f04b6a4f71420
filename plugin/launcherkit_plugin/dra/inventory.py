"""What a DRA driver publishes of the devices that there are (D1-D4)."""

from __future__ import annotations

from collections.abc import Mapping

from launcherkit.model.value import NamedTuple
from launcherkit_plugin.model.device import Problem


class CounterUse(NamedTuple):
    """What a device takes of a counter that it shares with others, so that the scheduler never gives both away."""

    set: str
    counter: str
    amount: int
    total: int
    """What the counter has when nothing is allocated."""


class Taint(NamedTuple):
    """Why the scheduler is to leave a device alone."""

    key: str
    """``launcherkit.io/not-viable``."""
    value: str
    effect: str
    """``NoSchedule`` or ``NoExecute``."""


class DraDevice(NamedTuple):
    """A device of the pool: one physical card with all that goes along, or one vGPU."""

    name: str
    """A DNS label, the same for as long as the device is there: ``pci-0000-e1-00-0``, ``mdev-<uuid>``."""
    resource: str
    """The name of its `launcherkit_plugin.model.device.Resource`."""
    id: str
    """Of its `launcherkit_plugin.model.device.Device` there."""
    attributes: Mapping[str, int | bool | str]
    """Names without a domain are the driver's."""
    capacity: Mapping[str, str]
    """Quantities as Kubernetes writes them: ``32Gi``."""
    counters: tuple[CounterUse, ...] = ()
    taints: tuple[Taint, ...] = ()
    problem: Problem | None = None
    """What the taint is for."""
