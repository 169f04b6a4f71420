"""Reads the variables that device plugins set (E1, E3, E4)."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from launcherkit.errors import BAD_MDEV_UUID, BAD_PCI_ADDRESS, BAD_USB_ADDRESS, Code, LauncherkitError, shown_entry
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress, UsbAddress
from launcherkit.model.plan import Note
from launcherkit.model.request import Allocation, Kind, kinds_of_prefixes, resource_suffix

_PARSE: dict[Kind, tuple[Callable[[str], HostAddress], Code[LauncherkitError], str]] = {
    "pci": (PciAddress.parse, BAD_PCI_ADDRESS, "a PCI address such as 0000:e1:00.0"),
    "mdev": (MdevAddress.parse, BAD_MDEV_UUID, "the UUID of a mediated device"),
    "usb": (UsbAddress.parse, BAD_USB_ADDRESS, "a USB address such as 1:4"),
}


_OF_NETWORKS = "PCIDEVICE"


class VariableValue(NamedTuple):
    """The content of one variable."""

    allocation: Allocation
    """The entries that are addresses."""
    notes: tuple[Note, ...]
    """On entries that repeat others (E3)."""
    errors: tuple[LauncherkitError, ...]
    """One for each entry that isn't an address."""


class Environment:
    """The ``*_RESOURCE_*`` variables of an environment; values are parsed on demand.

    Args:
        env: all variables, of this process or of a file.
        extra_prefixes: further prefixes that hold PCI addresses, such as ``PCIDEVICE`` (E1).
    """

    def __init__(self, env: Mapping[str, str], extra_prefixes: tuple[str, ...] = ()) -> None:
        self._env = env
        self._kinds = kinds_of_prefixes(extra_prefixes)
        starts = tuple(prefix + "_" for prefix in self._kinds)
        names = sorted(name for name in env if name.startswith(starts))
        self.variables = tuple(name for name in names if not self._is_info(name, env))

    def _is_info(self, name: str, env: Mapping[str, str]) -> bool:
        """Whether it is the SR-IOV network plugin's ``PCIDEVICE_<R>_INFO``, JSON next to ``PCIDEVICE_<R>``."""
        return name.endswith("_INFO") and env[name].lstrip().startswith("{")

    def counts(self) -> dict[str, int]:
        """The number of entries of each variable, for messages (E4)."""
        return {name: len(_entries(self._env[name])) for name in self.variables}

    def names_for(self, resource: str) -> list[str]:
        """The variables that may hold ``resource``, in the order in which they are tried (E1)."""
        suffix = resource_suffix(resource)
        return [f"{prefix}_{suffix}" for prefix in self._kinds]

    def variable_for(self, resource: str) -> str | None:
        """The first variable for ``resource`` that isn't empty, else the first that is set; None if none is."""
        present = [
            name for name in self.names_for(resource) if name in self._env and not self._is_info(name, self._env)
        ]
        return next((name for name in present if _entries(self._env[name])), present[0] if present else None)

    def of_networks(self) -> "Environment":
        """Only the variables of the SR-IOV network device plugin, ``PCIDEVICE_<R>`` (Q5)."""
        prefix = _OF_NETWORKS + "_"
        return Environment(
            {name: value for name, value in self._env.items() if name.startswith(prefix)}, (_OF_NETWORKS,)
        )

    @staticmethod
    def variable_of_network(resource: str) -> str:
        """The variable that holds the devices of a network's resource (Q5)."""
        return f"{_OF_NETWORKS}_{resource_suffix(resource)}"

    def resource_of_network(self, network: str) -> str | None:
        """The resource of a network of the VMI, if the pod's author has named it as KubeVirt did until 1.5 (Q5)."""
        return self._env.get(f"KUBEVIRT_RESOURCE_NAME_{network}") or None

    def read(self, variable: str) -> VariableValue:
        """Parse one variable, entry by entry."""
        prefix, kind = next(item for item in self._kinds.items() if variable.startswith(item[0] + "_"))
        parse, error, expected = _PARSE[kind]
        entries: dict[HostAddress, int] = {}
        notes: list[Note] = []
        errors: list[LauncherkitError] = []
        for position, entry in enumerate(self._env[variable].split(","), start=1):
            text = entry.strip()
            if not text:
                continue
            try:
                address = parse(text)
            except ValueError as problem:
                errors.append(
                    error(
                        f"{variable}, entry {position}: {shown_entry(text)}: {problem}",
                        f"The device plugin that sets {variable} must put {expected} there; see what it logged.",
                        variable=variable,
                    )
                )
                continue
            if address in entries:
                first = entries[address]
                notes.append(Note("repeat", f"{variable}: entry {position} repeats entry {first}, {address}"))
            else:
                entries[address] = position
        allocation = Allocation(variable, variable[len(prefix) + 1 :], kind, tuple(entries))
        return VariableValue(allocation, tuple(notes), tuple(errors))


def _entries(value: str) -> list[str]:
    return [text for text in map(str.strip, value.split(",")) if text]
