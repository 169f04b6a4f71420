"""Reads the variables that device plugins set (E1, E3, E4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from launcherkit.errors import (
    BAD_MDEV_UUID,
    BAD_PCI_ADDRESS,
    BAD_USB_ADDRESS,
    VARIABLE_CLASH,
    VARIABLE_MISSING,
    Code,
    Conflict,
    LauncherkitError,
    TooFew,
    counted,
    shown_entry,
)
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress, UsbAddress
from launcherkit.model.plan import Note
from launcherkit.model.request import Allocation, Kind, Request, kinds_of_prefixes, resource_suffix

_PARSE: dict[Kind, tuple[Callable[[str], HostAddress], Code[LauncherkitError], str]] = {
    "pci": (PciAddress.parse, BAD_PCI_ADDRESS, "a PCI address such as 0000:e1:00.0"),
    "mdev": (MdevAddress.parse, BAD_MDEV_UUID, "the UUID of a mediated device"),
    "usb": (UsbAddress.parse, BAD_USB_ADDRESS, "a USB address such as 1:4"),
}


_OF_NETWORKS = "PCIDEVICE"


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

    def of_networks(self) -> Environment:
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

    def read(self, variable: str) -> tuple[Allocation, list[Note], list[LauncherkitError]]:
        """Parse one variable, entry by entry.

        Returns:
            The entries that are addresses; notes on those that repeat others (E3); an error for each that isn't one.
        """
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
        return allocation, notes, errors


def _entries(value: str) -> list[str]:
    return [text for text in map(str.strip, value.split(",")) if text]


# Errors for requests without a variable: what was expected, what is set, what is near (E2, E4, E5).


def check_requests(
    requests: Sequence[Request], variable_of: Mapping[str, str | None], present: Environment
) -> Iterator[Conflict | TooFew]:
    """An error for two resources with one variable, and for a resource without any.

    Args:
        requests: all requests of a VMI.
        variable_of: the variable that answers each requested resource; None if there is none.
        present: the variables that are set.
    """
    resource_of: dict[str, Request] = {}
    for request in requests:
        if request.resource is None:
            continue
        first = resource_of.setdefault(resource_suffix(request.resource), request)
        if first.resource != request.resource:
            clash = f"PCI_RESOURCE_{resource_suffix(request.resource)}"
            yield VARIABLE_CLASH(
                f"{first.path} asks for {first.resource} and {request.path} for {request.resource}, which have one "
                f"variable, {clash}",
                "Rename one of the resources in the device plugin's configuration: / and . both become _.",
                variable=clash,
            )
    for resource, variable in variable_of.items():
        if variable is None:
            askers = [request for request in requests if request.resource == resource]
            yield variable_missing(askers, present.names_for(resource), present.counts())


def variable_missing(askers: Sequence[Request], expected: Sequence[str], present: Mapping[str, int]) -> TooFew:
    """The error for a request that no variable answers.

    Args:
        askers: the requests for one resource.
        expected: names of the variables that could answer it, in the order in which they are tried.
        present: the number of entries of each variable that is set.
    """
    import difflib  # only for an error

    held = ", ".join(f"{name} ({count})" for name, count in sorted(present.items())) or "none"
    usual = expected[1]  # PCI_RESOURCE_, after MDEV_PCI_RESOURCE_ (E1)
    nearest = difflib.get_close_matches(usual, present, n=1, cutoff=0.5)
    hint = f"; the nearest is {nearest[0]}" if nearest else ""
    resource = " ".join((askers[0].resource or "").split())  # in a remedy each line is a command
    return VARIABLE_MISSING(
        f"{_named(askers)} for {askers[0].resource}, but none of {', '.join(expected)} is set; present: {held}{hint}",
        "Check that deviceName is what the device plugin advertises (kubectl describe node) and that "
        f"{resource} is in the limits of the container that runs this.",
        variable=usual,
        resource=askers[0].resource or "",
    )


def not_in_domain(requests: Sequence[Request], hostdevs: int) -> TooFew:
    """The error if there is neither a variable, nor metadata of a claim, nor a hostdev for the requests (Q2, E4)."""
    names = ", ".join(f"{request.section} {request.name!r}" for request in requests)
    by_claim = any(request.dra_claim for request in requests)
    return VARIABLE_MISSING(
        f"the VMI asks for {counted(len(requests), 'device')} ({names}), but no *_RESOURCE_* variable is set"
        f"{', no claim has metadata,' if by_claim else ''} and the domain has {counted(hostdevs, 'hostdev')}",
        "In a sidecar the hostdevs come from KubeVirt: see the launcher's log. Elsewhere run this in the "
        "container that got the devices, or give it the variables"
        f"{' and the metadata of the claims' if by_claim else ''} of that container.",
        key="spec.domain.devices",
    )


def _named(askers: Sequence[Request]) -> str:
    names = ", ".join(f"{request.path} {request.name!r}" for request in askers)
    return f"{names} {'asks' if len(askers) == 1 else 'ask'}"
