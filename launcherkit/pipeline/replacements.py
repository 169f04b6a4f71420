"""Whether allocated devices can take the places of others that hostdevs of the document had (X2).

Of the device before, the document shows its functions and where in the guest they are. Its model only a host can tell:
this one, if the device is still there.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.choose.retarget import Retargeted, notes_on, reuse
from launcherkit.errors import CANT_REPLACE, Collector, Conflict
from launcherkit.model.address import CardAddress, HostAddress, MdevAddress, PciAddress, card_of
from launcherkit.model.address_space import AddressSpace
from launcherkit.model.domain import PCIE_EXPANDER, DomainFacts, ExistingHostdev
from launcherkit.model.host import HostFacts, Mdev, bound_to_vfio, describe
from launcherkit.model.plan import GuestDevice, Note, Window
from launcherkit.model.policy import Policy
from launcherkit.model.window import card_bars, window_beyond_default, window_need
from launcherkit.pipeline.resolution import Resolved
from launcherkit.place.align import CellMap, find_cell
from launcherkit.place.initiators import is_coherent_gpu
from launcherkit.place.slots import topology_for
from launcherkit.place.window import size_in_words

_LIKE_IT = "Let a device be allocated that is like the one before, by a resource of each model for example"
_ANEW = f"{_LIKE_IT}; or let the guest see the change: `replace: yes` in the policy."
_OTHER_MODEL = (
    f"{_LIKE_IT}. If another model may come, or if the domain is from another node, where that address was another "
    "device: `replace: model` in the policy."
)


class Replacement(NamedTuple):
    """A function that gets the hostdev of another."""

    position: int
    """The hostdev's in the document."""
    hostdev: ExistingHostdev
    """As the document has it."""
    before: HostAddress
    now: HostAddress


def replace_devices(
    moved: Retargeted, devices: Sequence[GuestDevice], resolved: Resolved, policy: Policy, name: str, *, hook: bool
) -> tuple[Retargeted, tuple[GuestDevice, ...], list[Note]]:
    """Put the allocated devices into the hostdevs of those before, if the policy permits what differs.

    Args:
        moved: with at least one hostdev that gets another source.
        devices: with their siblings.
        resolved: what was allocated, with facts about it and about the devices before.
        policy: its ``replace`` counts.
        name: what messages call the document.
        hook: as for `translate`.

    Returns:
        The hostdevs, the devices, and notes on what has changed.

    Raises:
        CANT_REPLACE, SeveralErrors: devices differ from those before.
    """
    moved, devices = reuse(moved, devices)
    host, was, notes, errors, leaving = resolved.facts, moved.was, notes_on(moved, devices), Collector(), set[int]()
    looks_back = policy.replace == "no" and not hook and _may_be_from_here(was, host)
    for device in devices:
        pairs = _replacements(device, moved, resolved)
        models = [*_other_models(pairs, resolved)] if looks_back else []
        places = _other_cells(pairs, was, host, policy)
        others = [
            *_other_types(pairs, host),
            *_other_functions(device, pairs, moved),
            *_other_memory(pairs, host, policy),
        ]
        reasons = "; ".join((*models, *others, *places.values()))
        if reasons and policy.replace != "yes":
            errors.add(_refusal(pairs[0], moved, reasons, name, _ANEW if others or places else _OTHER_MODEL))
        elif reasons:
            leaving.update([pair.position for pair in pairs if card_of(pair.now) in places])
            anew = "; it gets another place" if places else ""
            notes.append(Note("replaced", f"{device.primary.source} is not like the device before: {reasons}{anew}"))
    errors.raise_if_any()
    return moved._replace(domain=_without_places(moved.domain, leaving)), devices, notes


def _replacements(device: GuestDevice, moved: Retargeted, resolved: Resolved) -> list[Replacement]:
    """The functions of a device that get the hostdevs of others; none if KubeVirt only pairs otherwise.

    If one variable has both devices, the hostdev is of this pod (C1).
    """
    pairs = [
        Replacement(attachment.hostdev, moved.was.hostdevs[attachment.hostdev], attachment.replaces, attachment.source)
        for attachment in device.attachments
        if attachment.hostdev is not None and attachment.replaces is not None
    ]
    matches = [
        (pair.before, moved.primaries[pair.position].variable) for pair in pairs if pair.position in moved.primaries
    ]
    paired = [before for before, name in matches if name and before in resolved.variables[name].entries]
    return pairs if matches and not paired else []


def _without_places(domain: DomainFacts, leaving: Collection[int]) -> DomainFacts:
    """The domain, in which some hostdevs have no place any more."""
    hostdevs = [
        hostdev._replace(guest=None, placed=False) if index in leaving else hostdev
        for index, hostdev in enumerate(domain.hostdevs)
    ]
    return domain._replace(hostdevs=tuple(hostdevs))


def _refusal(pair: Replacement, moved: Retargeted, reasons: str, name: str, remedy: str) -> Conflict:
    match, key = moved.primaries.get(pair.position), f"hostdev {pair.position + 1}"
    asked = "" if match is None else f", allocated for {match.section} {match.name!r} here,"
    message = f"{name}, {key} ({pair.hostdev.alias}): {pair.now}{asked} can't take the place of {pair.before}"
    return CANT_REPLACE(f"{message}: {reasons}", remedy, file=name, key=key, device=str(pair.now))


# What differs, in words.


def _may_be_from_here(was: DomainFacts, host: HostFacts) -> bool:
    """Whether the document may be of this host: all its functions are here, and VFIO has them.

    Otherwise an address of the document says nothing about what is at that address here.
    """
    sources = [hostdev.source for hostdev in was.hostdevs if isinstance(hostdev.source, PciAddress)]
    functions = [host.functions.get(source) for source in sources]
    return all(each is not None and bound_to_vfio(each, host.details.get(each.address)) for each in functions)


def _other_models(pairs: Sequence[Replacement], resolved: Resolved) -> Iterator[str]:
    """Functions of another vendor, device, class or vGPU type than those before, if these are on this host.

    What is allocated to this pod for another request is no former device: it is another's, so the document isn't of
    this host.
    """
    host = resolved.facts
    addresses = [(pair.before, pair.now) for pair in pairs if pair.before not in resolved.listed]
    for before, now in addresses:
        if not isinstance(before, PciAddress) or not isinstance(now, PciAddress):
            continue
        function, former = host.functions.get(now), host.functions.get(before)
        if function is None or former is None:
            continue
        if (function.model, function.class_code) != (former.model, former.class_code):
            yield f"it is {describe(function)}, and on this host the one before is {describe(former)}"
        types = [_vf_type(address, host) for address in (now, before)]
        if all(types) and types[0] != types[1]:
            yield f"its vGPU type is {types[0]}, and on this host that of {before} is {types[1]}"


def _vf_type(address: PciAddress, host: HostFacts) -> int:
    detail = host.details.get(address)
    return 0 if detail is None or detail.vgpu is None else detail.vgpu.current_type


def _other_types(pairs: Sequence[Replacement], host: HostFacts) -> Iterator[str]:
    """mdevs of another type than those before. On another host a UUID is another, or was made of the type."""
    for pair in pairs:
        mdev, former, model = _mdev(pair.now, host), _mdev(pair.before, host), pair.hostdev.model
        if mdev is not None and former is not None and _type(mdev) != _type(former):
            yield f"it is of type {_type(mdev)}, and the one before of type {_type(former)}"
        elif mdev is not None and mdev.device_api and model and mdev.device_api != model:
            yield f"it is for the model {mdev.device_api}, and the hostdev has {model}"


def _mdev(address: HostAddress, host: HostFacts) -> Mdev | None:
    return host.mdevs.get(address.uuid) if isinstance(address, MdevAddress) else None


def _type(mdev: Mdev) -> str:
    return mdev.type_name or mdev.type_id


def _other_functions(device: GuestDevice, pairs: Sequence[Replacement], moved: Retargeted) -> Iterator[str]:
    """Functions that the domain has no hostdev for, or hostdevs without a function."""
    before, now = [pair.before for pair in pairs], [pair.now for pair in pairs]
    indices = [index for pair in pairs for index in moved.siblings.get(pair.position, ())]
    gone = [source for index in indices if (source := moved.was.hostdevs[index].source)]
    # If only a sibling that is asked for by name is another, the card isn't, and may get functions as ever.
    own = device.attachments if device.primary.source in now else ()
    added = [each.source for each in own if each.hostdev is None]
    if gone or added:
        absent = [f" ({each.address} is {each.why})" for each in device.not_attached] if gone else []
        yield f"it comes as {_named([*now, *added])}, and the domain has {_named([*before, *gone])}{''.join(absent)}"


def _named(addresses: Sequence[HostAddress]) -> str:
    """Addresses in order; those of one card by their numbers: ``0000:e1:00.0, .1 and .2``."""
    texts: list[str] = []
    card: CardAddress | None = None
    for address in sorted(addresses, key=_kind_and_number):
        same = isinstance(address, PciAddress) and card == address.slot
        texts.append(str(address)[-2:] if same else str(address))
        card = card_of(address)
    return " and ".join([part for part in (", ".join(texts[:-1]), texts[-1]) if part])


def _kind_and_number(address: HostAddress) -> tuple[str, HostAddress]:
    """For sorting: addresses of two kinds, as a document made by hand has them, don't compare."""
    return type(address).__name__, address


def _other_memory(pairs: Sequence[Replacement], host: HostFacts, policy: Policy) -> Iterator[str]:
    """GPUs of which one has cells for its memory in the guest, and the other doesn't (P7)."""
    for pair in pairs:
        function = host.functions.get(pair.now) if isinstance(pair.now, PciAddress) else None
        if function is None:
            continue
        if pair.hostdev.nodeset is not None and not is_coherent_gpu(function):
            yield "the guest has cells for the memory of the one before, and it is no GPU whose memory the CPUs share"
        elif pair.hostdev.nodeset is None and policy.generic_initiators and is_coherent_gpu(function):
            yield "it gets cells of the guest for its memory, and the one before had none"


def _other_cells(
    pairs: Sequence[Replacement], was: DomainFacts, host: HostFacts, policy: Policy
) -> Mapping[CardAddress, str]:
    """The cards whose places belong to other cells than their host nodes (P4)."""
    reasons: dict[CardAddress, str] = {}
    if not was.cells or topology_for(was, policy.topology) == "flat":
        return reasons
    tree, cells = was.tree, CellMap(was.cells, host.numa)
    for pair in pairs:
        guest = pair.hostdev.guest
        function = host.functions.get(pair.now) if isinstance(pair.now, PciAddress) else None
        expander = None if guest is None else tree.expander_above(guest)
        if function is None or function.numa_node is None or expander is None:
            continue
        cell = find_cell(function.address, cells, was, host)
        place = f"its place {guest} in the guest belongs to cell {expander.cell}"
        if isinstance(cell, str):
            reasons.setdefault(card_of(pair.now), f"{place}, and {cell}")
        elif cell.cell != expander.cell:
            reasons.setdefault(
                card_of(pair.now), f"{place}, and its host node {function.numa_node} is cell {cell.cell}"
            )
    return reasons


# The window (P5).


def keep_window(
    moved: Retargeted,
    devices: Sequence[GuestDevice],
    host: HostFacts,
    space: AddressSpace,
    window: Window | None,
    name: str,
) -> tuple[Window | None, Conflict | None]:
    """The window, which stays as it is unless devices are added; or the error if those of the domain don't fit it.

    Args:
        moved: the hostdevs that got other sources.
        devices: everything that is attached.
        host: has the BARs.
        space: what the document says of the window.
        window: as it would be with all devices.
        name: what messages call the document.
    """
    kept = [device for device in devices if device.primary.hostdev is not None]
    pairs = [
        Replacement(index, moved.was.hostdevs[index], before, device.primary.source)
        for device in kept
        if (index := device.primary.hostdev) is not None and (before := device.primary.replaces) is not None
    ]
    expanders = any(each.model == PCIE_EXPANDER for each in moved.was.controllers)
    beyond = window_beyond_default(kept, moved.was, host, expanders=expanders)
    if beyond is None or window is None or not pairs:
        return window, None
    need, hole = beyond[0], space.hole
    if window.hole is None and (hole is None or hole >= need):
        return (window if len(kept) < len(devices) else window._replace(pass_bits=False)), None
    largest = max(pairs, key=lambda pair: _need(pair.now, host))
    has = "it has the default" if hole is None else f"its <pcihole64> is {size_in_words(hole)}"
    reasons = f"with it the domain needs {size_in_words(need)} of the 64-bit PCI window, and {has}"
    return window, _refusal(largest, moved, reasons, name, _ANEW)


def _need(address: HostAddress, host: HostFacts) -> int:
    return window_need(card_bars([address], host)) if isinstance(address, PciAddress) else 0
