"""What the daemon's loop does at the end of a turn: it advertises what its providers have."""

from __future__ import annotations

from launcherkit.model.host import HostFacts
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.daemon.wiring import Setup
from launcherkit_plugin.model.device import Resource


def advertise(setup: Setup, allocator: Allocator, facts: HostFacts, now: float) -> dict[str, Resource]:
    """The resources as the kubelet sees them from now on, by name."""
    usage = allocator.usage()
    offers = {
        resource.name: Offer(resource, provider)
        for provider in setup.providers
        for resource in provider.resources(facts, usage, now)
    }
    return {name: offer.resource for name, offer in allocator.advertise(offers, facts).items()}
