"""What a pod's annotation says about its networks (Q5)."""

from typing import NamedTuple

from launcherkit.model.address import PciAddress


class AttachedNetwork(NamedTuple):
    """A network of a pod, as Multus attached it."""

    network: str | None
    """Its name in the VMI, which only KubeVirt's annotation has."""
    attachment: str | None
    """The NetworkAttachmentDefinition, ``namespace/name``, which only Multus's annotation has."""
    interface: str | None
    """The name of the pod's interface."""
    device: PciAddress | None


class NetworkStatus(NamedTuple):
    """The content of ``k8s.v1.cni.cncf.io/network-status`` or ``kubevirt.io/network-info``."""

    source: str
    """What messages call it, a file's path for example."""
    networks: tuple[AttachedNetwork, ...]
