"""From allocation, host facts and a domain document to the document that libvirt defines.

Every adapter and the public API use this one pipeline.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from launcherkit.domain.reader import read_facts
from launcherkit.domain.writer import with_essentials, write_plan
from launcherkit.domain.xml import Document, read_document
from launcherkit.errors import Collector
from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import GuestDevice, Note, Plan, PlannedDevice, PlannedFunction, Window
from launcherkit.model.policy import Policy
from launcherkit.model.request import NetworkStatus
from launcherkit.pipeline.decisions import Checked, Decided, check, decide
from launcherkit.pipeline.resolution import DraSource, HostSource, Resolved, resolve
from launcherkit.place.slots import Placement, place_devices, topology_for
from launcherkit.place.window import plan_window, window_beyond_default
from launcherkit.request.environment import Environment
from launcherkit.request.vmi import Vmi, read_vmi

__all__ = ["EMPTY_PLAN", "DraSource", "HostSource", "Translation", "translate"]


EMPTY_PLAN = Plan((), (), (), (), (), False)


class Translation(NamedTuple):
    """The result of `translate`.

    Attributes:
        domain_xml: The document to define.
        plan: The decisions behind the document.
        notes: What the operator should know even though nothing failed.
    """

    domain_xml: bytes
    plan: Plan
    notes: tuple[Note, ...]


def translate(  # noqa: PLR0913  # the inputs of a translation, each by name
    domain_xml: str | bytes,
    *,
    env: Mapping[str, str],
    host: HostSource,
    vmi: str | bytes | Mapping[str, Any] | Vmi | None = None,
    policy: Policy | None = None,
    dra: DraSource | None = None,
    network_status: NetworkStatus | str | bytes | None = None,
    name: str = "the domain document",
    libvirt: tuple[int, ...] | None = None,
    hook: bool = False,
) -> Translation:
    """Put the allocated devices, with their siblings, into a domain document.

    Args:
        domain_xml: the domain, as bytes or text.
        env: the environment of the container that got the devices; other variables are ignored.
        host: `Host.from_sysfs`, `Host.from_snapshot`, `Host.from_umockdev` or `Host.none`.
        vmi: the VirtualMachineInstance, as JSON or parsed; without it the environment is the request (Q1).
        policy: the integrator's decisions; None for the defaults.
        dra: the metadata files of DRA claims; None for those of this container (E5).
        network_status: the pod's annotation ``k8s.v1.cni.cncf.io/network-status`` or ``kubevirt.io/network-info``:
            which function each SR-IOV network has; None if it isn't known (Q5).
        name: what messages call the domain document, its file for example.
        libvirt: the version that will define the domain, if known: an older one gets no ``<maxphysaddr>`` (P5).
        hook: whether KubeVirt calls, whose pipeline refuses hostdevs without ``mode``: then every one of the document
            gets ``mode`` and ``type`` (KubeVirt#18861), and SR-IOV interfaces, whose hostdevs it makes, are not
            requests.

    Returns:
        The document to define, the plan behind it, and notes for the operator. If the VMI asks for nothing, the
        document is returned as it came, but for ``mode`` and ``type`` of PCI hostdevs that lack them (Q3).

    Raises:
        LauncherkitError: bad input, or a host that can't give what was allocated; see ``docs/errors``. If several
            things are wrong, `SeveralErrors` contains all of them.
    """
    policy = policy or Policy()
    document = read_document(domain_xml, name)
    asked = vmi if vmi is None or isinstance(vmi, Vmi) else read_vmi(vmi, interfaces=not hook)
    environment = Environment(env, policy.extra_prefixes)
    vmi_notes = () if asked is None else asked.notes
    if asked is not None and not asked.requests:
        return Translation(with_essentials(document, hook=hook), EMPTY_PLAN, (*vmi_notes, *_unasked(environment)))
    domain = read_facts(document.root, name)
    if isinstance(network_status, str | bytes):
        from launcherkit.request.networks import read_network_status  # few VMs have SR-IOV networks of their own

        network_status = read_network_status(network_status)
    resolved = resolve(domain, environment, asked, dra, host, policy, name, network_status)
    plan, notes = _plan(resolved, policy, document, libvirt)
    return Translation(write_plan(document, plan, hook=hook), plan, (*vmi_notes, *resolved.notes, *notes))


def _unasked(environment: Environment) -> list[Note]:
    """A note on devices that were allocated for a VMI that asks for none: often it isn't this pod's VMI (Q4)."""
    held = [f"{count} in {name}" for name, count in environment.counts().items() if count]
    return [Note("not-asked", f"the VMI asks for no device; left alone: {', '.join(held)}")] if held else []


def _plan(
    resolved: Resolved, policy: Policy, document: Document, libvirt: tuple[int, ...] | None
) -> tuple[Plan, tuple[Note, ...]]:
    """Decide, place and check; all errors of the three are raised together."""
    decided = decide(resolved, policy)
    domain = decided.domain
    placed = place_devices(
        decided.devices,
        domain,
        resolved.facts,
        topology_for(domain, policy.topology),
        generic_initiators=policy.generic_initiators,
    )
    window, short = _window(decided.devices, domain, resolved.facts, placed, document, libvirt)
    checked = check(resolved, decided, policy)
    errors = Collector((*decided.errors, *placed.errors, *checked.errors))
    errors.raise_if_any()
    attached = set(decided.attached) if resolved.not_attached else ()
    left = dict.fromkeys([primary for _, primary in resolved.not_attached if primary not in attached])
    devices = _devices(decided, placed, checked, resolved.facts, policy)
    iommufd = bool(checked.backends.iommufd)
    plan = Plan(
        devices,
        placed.controllers,
        checked.groups,
        checked.nodes,
        tuple(left),
        iommufd,
        window,
        placed.cells,
        decided.removed,
    )
    return plan, (*decided.notes, *placed.notes, *short, *checked.notes)


def _window(
    devices: Sequence[GuestDevice],
    domain: DomainFacts,
    facts: HostFacts,
    placed: Placement,
    document: Document,
    libvirt: tuple[int, ...] | None,
) -> tuple[Window | None, tuple[Note, ...]]:
    """Room for BARs (P5). The address space is read from the document only if the default may be too small."""
    expanders = any(each.model == "pcie-expander-bus" for each in (*domain.controllers, *placed.controllers))
    size = window_beyond_default(devices, domain, facts, expanders=expanders)
    if size is None:
        return None, ()
    from launcherkit.domain.window import read_address_space  # few guests need a larger window

    return plan_window(size, domain, read_address_space(document.root, libvirt))


def _devices(
    decided: Decided, placed: Placement, checked: Checked, facts: HostFacts, policy: Policy
) -> tuple[PlannedDevice, ...]:
    """All decisions about each function, put together."""
    aliases, shown, managed = decided.aliases, decided.shown, decided.managed
    guests, nodesets, opened = placed.guests, placed.nodesets, checked.backends.attributes
    rom, driver = policy.rom, policy.driver
    planned: list[PlannedDevice] = []
    for device in decided.devices:
        match, kept = device.attachments[0].match, device.kept
        by_claim = None if match is None or device.kind != "pci" else match.rom
        functions = [
            PlannedFunction(
                attachment,
                aliases[source],
                guests.get(source),
                shown.get(source),
                source in managed,
                opened.get(source),
                None if kept else (rom and _choice(rom, source, facts)) or by_claim,
                _choice(driver, source, facts) if driver and not kept else None,
                nodesets.get(source) if nodesets and isinstance(source, PciAddress) else None,
            )
            for attachment in device.attachments
            for source in (attachment.source,)
        ]
        planned.append(PlannedDevice(device.kind, tuple(functions), device.not_attached, kept))
    return tuple(planned)


def _choice(choices: Mapping[str, str], source: HostAddress, host: HostFacts) -> str | None:
    """The operator's choice of a ROM or driver for a function, by its address, else by its vendor and device (X1).

    Args:
        choices: by address or vendor and device: ``0000:65:00.0``, ``10de:2342``.
        source: a hostdev's; choices are only for PCI functions.
        host: has vendor and device.
    """
    if not isinstance(source, PciAddress):
        return None
    function = host.functions.get(source)
    model = "" if function is None else function.ids
    return choices.get(str(source), choices.get(model))


class KnownHost:
    """A host whose facts have all been read: it returns them all, whatever is asked for."""

    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts

    def facts(self, addresses: object, mdevs: object = (), *, topology: bool = False) -> HostFacts:  # noqa: ARG002  # all is known
        return self._facts
