"""Which pod holds which device."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from launcherkit.model.value import NamedTuple

UsageSource: TypeAlias = Literal["pod-resources", "checkpoint", "none"]


class Holder(NamedTuple):
    """A container that has a device. The checkpoint knows the pod by its UID alone."""

    pod: str
    """``namespace/name``, or ``uid:<UID>``, or empty for a pod that the kubelet has not named yet."""
    container: str = ""

    def __str__(self) -> str:
        return f"pod {self.pod}" if self.pod else "a pod that is being started"


class Usage(NamedTuple):
    """Holders by resource and device ID, from one source; with ``none`` nothing is known, and nothing is taken away."""

    source: UsageSource
    held: Mapping[str, Mapping[str, Holder]]
    doubtful: Mapping[str, Mapping[str, Holder]] = {}
    """What pods may have of which nobody can tell whether they have ended: nothing of it is taken away (T2)."""

    @property
    def known(self) -> bool:
        return self.source != "none"

    def holder(self, resource: str, device: str) -> Holder | None:
        """Who has a device."""
        return self.held.get(resource, {}).get(device)

    @property
    def kept(self) -> Mapping[str, Mapping[str, Holder]]:
        """What must not be taken away, by resource and device ID."""
        if not self.doubtful:
            return self.held
        return {
            name: {**self.doubtful.get(name, {}), **self.held.get(name, {})} for name in {*self.held, *self.doubtful}
        }


NO_USAGE = Usage("none", {})
