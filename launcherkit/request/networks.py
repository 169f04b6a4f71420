"""Reads which PCI function each network of a pod has, from an annotation of the pod (Q5).

Multus writes ``k8s.v1.cni.cncf.io/network-status``, a list. Of that KubeVirt makes ``kubevirt.io/network-info``, an
object.
"""

from typing import NamedTuple

from launcherkit.errors import BAD_NETWORK_STATUS, shown
from launcherkit.model.address import PciAddress
from launcherkit.request.fields import DocumentErrors, Fields, parse_json, string, text


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


_REMEDY = (
    "Give the value of the pod's annotation k8s.v1.cni.cncf.io/network-status, or of kubevirt.io/network-info, as a "
    "downward API volume has it."
)


def read_network_status(status: str | bytes, name: str = "the network status") -> NetworkStatus:
    """Read either annotation; keys that don't matter here are ignored.

    Args:
        status: its value, JSON.
        name: what messages call it, a file's path for example.

    Raises:
        BAD_NETWORK_STATUS: it isn't JSON, a value is wrong, or it is empty, as it is until Multus has attached the
            networks.
    """
    problems = DocumentErrors(name, BAD_NETWORK_STATUS, _REMEDY)
    try:
        content = status.decode() if isinstance(status, bytes) else status
    except UnicodeDecodeError as error:
        problems.fail("", f"byte {error.start} is not UTF-8")
    if not content.strip():
        problems.fail("", "empty: the pod doesn't have the annotation, or didn't when the file was written")
    document = parse_json(content, problems)
    if isinstance(document, list):
        entries = [Fields(entry, f"$[{index}]", problems) for index, entry in enumerate(document)]
        networks = [_attached(fields, "device-info") for fields in entries if fields.valid]
    elif isinstance(document, dict):
        networks = [_attached(fields, "deviceInfo") for fields in Fields(document, "$", problems).objects("interfaces")]
    else:
        problems.fail("$", f"{shown(document)} is neither a list of networks nor an object with interfaces")
    problems.raise_if_any()
    return NetworkStatus(name, tuple(networks))


def _attached(fields: Fields, info_key: str) -> AttachedNetwork:
    info = fields.child(info_key)
    pci = info.child("pci") if info is not None else None
    return AttachedNetwork(  # names may be empty: that of the pod's own network is
        fields.optional("network", string, "the name of a network"),
        fields.optional("name", string, "the name of a NetworkAttachmentDefinition"),
        fields.optional("interface", string, "the name of an interface"),
        pci.optional("pci-address", _pci_address, "a PCI address such as 0000:3b:00.2") if pci is not None else None,
    )


def _pci_address(value: object) -> PciAddress:
    return PciAddress.parse(text(value))
