"""Errors for requests without a variable: what was expected, what is set, what is near (E2, E4, E5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from launcherkit.errors import VARIABLE_CLASH, VARIABLE_MISSING, Conflict, TooFew, counted
from launcherkit.model.request import Request, resource_suffix
from launcherkit.request.environment import Environment


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
