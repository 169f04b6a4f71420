"""Which pod holds which device."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from launcherkit.model.value import NamedTuple

Source: TypeAlias = Literal["pod-resources", "checkpoint", "none"]


class Holder(NamedTuple):
    """A container that has a device. The checkpoint knows the pod by its UID alone."""

    pod: str
    """``namespace/name``, or ``uid:<UID>``, or empty for a pod that the kubelet has not told us of yet."""
    container: str = ""

    def __str__(self) -> str:
        return f"pod {self.pod}" if self.pod else "a pod that is being started"


class Usage(NamedTuple):
    """Holders by resource and device ID, from one source; with ``none`` nothing is known, and nothing is taken away."""

    source: Source
    held: Mapping[str, Mapping[str, Holder]]

    @property
    def known(self) -> bool:
        return self.source != "none"

    def holder(self, resource: str, device: str) -> Holder | None:
        """Who has a device."""
        return self.held.get(resource, {}).get(device)


NO_USAGE = Usage("none", {})
