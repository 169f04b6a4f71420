"""The last look: whether the kernel would let QEMU have what was decided, and by which way (V1-V3)."""

from __future__ import annotations

from launcherkit.errors import Collector, LauncherkitError
from launcherkit.model.domain import DomainFacts
from launcherkit.model.note import Note
from launcherkit.model.plan import TouchedGroup
from launcherkit.model.policy import Policy
from launcherkit.model.value import NamedTuple
from launcherkit.pipeline import rare
from launcherkit.pipeline.decided import Decided
from launcherkit.pipeline.resolved import Resolved
from launcherkit.resolve.backend import Backends, decide_backends, nodes_of
from launcherkit.resolve.viability import check_nodes, check_viability, nodes_to_come, touched_groups


class Checked(NamedTuple):
    """What VFIO has to do with it."""

    groups: tuple[TouchedGroup, ...]
    backends: Backends
    nodes: tuple[str, ...]
    """Device nodes that QEMU will open."""
    notes: tuple[Note, ...]
    errors: tuple[LauncherkitError, ...]


def check(resolved: Resolved, decided: Decided, domain: DomainFacts, policy: Policy) -> Checked:
    """Look at the groups and nodes of all that is attached; tell of what is not."""
    errors, notes = Collector(), list[Note]()
    facts, units, managed = resolved.facts, decided.units, decided.managed
    if resolved.left_alone or resolved.existing or any(unit.stayed for unit in units):
        gpus = {request.name for request in resolved.requests if request.section == "gpus"}
        notes += rare.notes_about(units, resolved.left_alone, gpus, facts)
    attached = decided.attached
    groups = touched_groups(attached, facts)
    check_viability(groups, managed, facts, errors, notes)
    backends = decide_backends(units, domain, facts, errors, notes)
    nodes = nodes_of(attached, backends, facts)
    if policy.node_check == "always" or (policy.node_check == "auto" and resolved.allocated):
        to_come = frozenset(nodes_to_come(groups, managed, facts) if managed else ())
        check_nodes([node for node in nodes if node not in to_come], facts, errors)
    return Checked(groups, backends, nodes, tuple(notes), errors.errors)
