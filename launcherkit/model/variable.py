"""Names of the variables in which device plugins tell what they allocated (E1, E2)."""

from launcherkit.model.request import Kind

KIND_OF_PREFIX: dict[str, Kind] = {"MDEV_PCI_RESOURCE": "mdev", "PCI_RESOURCE": "pci", "USB_RESOURCE": "usb"}
"""In the order in which they are tried."""


def kinds_of_prefixes(extra_prefixes: tuple[str, ...] = ()) -> dict[str, Kind]:
    """Prefix to kind of address, in the order in which they are tried; those that a policy adds hold PCI addresses."""
    return KIND_OF_PREFIX | {prefix: "pci" for prefix in extra_prefixes if prefix not in KIND_OF_PREFIX}


def resource_suffix(resource: str) -> str:
    """What stands for a resource in a variable's name: ``nvidia.com/A-1`` gives ``NVIDIA_COM_A-1``.

    Not injective, so there is no way back (E2).
    """
    return resource.upper().replace("/", "_").replace(".", "_")
