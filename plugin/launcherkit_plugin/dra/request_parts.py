"""Which devices of a claim are allocated together, and what containers get for each of them (D9). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from launcherkit.choose.nodes import IOMMUFD_NODE
from launcherkit_plugin.devices.container_card import VISIBLE
from launcherkit_plugin.dra.claim_files import SHARE_ID, GrantedDevice, sibling_attributes
from launcherkit_plugin.dra.inventory import DraDevice
from launcherkit_plugin.dra.labels import Attributes, attribute
from launcherkit_plugin.dra.parameters import check_fits, check_nodes_fit, parameters_of
from launcherkit_plugin.dra.resource_claim import AllocatedClaim, AllocatedDevice
from launcherkit_plugin.model.device import ClaimRef, Device, Grant, share_of
from launcherkit_plugin.model.errors import MIXED_NODES, UNKNOWN_DEVICE
from launcherkit_plugin.model.parameters import Parameters

_EXTENDED = re.compile(r"(container-\d+)-request-\d+")
"""Requests of a claim that the scheduler creates for extended resources; each container gets only its own."""
_GROUP_NODE = re.compile(r"/dev/vfio/(noiommu-)?\d+")


class ListedDevice(NamedTuple):
    """A published device, and the plugin's own device."""

    published: DraDevice
    device: Device


class RequestPart(NamedTuple):
    """The devices of one resource in a request, which are allocated by one call of the resource's provider.

    A container may use a single request of a claim, so the variables of a request list only its own devices.
    """

    request: str
    resource: str
    parameters: Parameters


RequestParts: TypeAlias = dict[RequestPart, dict[str, tuple[AllocatedDevice, ListedDevice]]]
"""By device ID, with the device as it was listed when the claim was read: by the end it may be gone."""


def parts_of(claim: AllocatedClaim, listed: Mapping[str, ListedDevice]) -> RequestParts:
    """The devices that a claim is to hold.

    Args:
        claim: as it is allocated.
        listed: the published devices, by name.

    Raises:
        UNKNOWN_DEVICE: one isn't published any more, though it may be one that is only looked at.
        BAD_DEVICE_CONFIG, DEVICE_CONFIG_REFUSED: the parameters of one are wrong, or it doesn't support them.
    """
    parts: RequestParts = {}
    for result in claim.devices:
        present = listed.get(result.device)
        if present is None:
            raise UNKNOWN_DEVICE(
                f"ResourceClaim {claim.ref}: there is no device {result.device!r} on this node",
                "It has been removed, or the configuration doesn't select it any more. Delete the pod: the next one "
                "gets another device.",
                device=result.device,
                file=f"ResourceClaim {claim.ref}",
            )
        if result.admin:
            continue  # parameters are for who uses it
        parameters = parameters_of(result.configs, str(claim.ref))
        check_fits(parameters, present.device, str(claim.ref), in_container=present.published.in_container)
        part = RequestPart(result.request, present.published.resource, parameters)
        # A card for VMs is never shared, whatever a result says (D14).
        key = share_of(present.published.id, result.share_id if present.published.in_container else "")
        parts.setdefault(part, {})[key] = result, present
    return parts


def granted_devices(
    claim: AllocatedClaim,
    parts: RequestParts,
    grants: Sequence[Grant],
    listed: Mapping[str, ListedDevice],
    *,
    environment: bool,
) -> list[GrantedDevice]:
    """Every device with what containers get for it, in the order of the claim's results.

    Args:
        claim: as it is allocated.
        parts: its devices.
        grants: the grant of each part.
        listed: the published devices, by name, as for `parts_of`.
        environment: whether containers get the variables of E1.

    Raises:
        MIXED_NODES: they can't be in one container.
        DEVICE_CONFIG_REFUSED: their device nodes aren't of the kind that the parameters ask for.
    """
    devices = {
        result.key: GrantedDevice(result, listed[result.device].published.resource, listed[result.device].device.id)
        for result in claim.devices
        if result.admin
    }
    for (part, results), grant in zip(parts.items(), grants, strict=True):
        own = {node for nodes in grant.each.values() for node in nodes}
        beside = tuple(node for node in grant.nodes if node not in own)
        # VISIBLE isn't a variable of E1: without it, NVIDIA's runtime would give the container other cards.
        env = {name: value for name, value in grant.env.items() if environment or name == VISIBLE}
        for key, (result, present) in results.items():
            nodes = (*grant.each.get(key, ()), *beside)
            check_nodes_fit(part.parameters, present.device, nodes, str(claim.ref))
            attributes = _attributes(present, grant.along.get(key, ()), part.parameters)
            if key in grant.usb:
                attributes = {**attributes, "usbAddress": attribute(grant.usb[key])}
            if result.share_id:
                attributes = {**attributes, SHARE_ID: attribute(result.share_id)}
            devices[result.key] = GrantedDevice(result, part.resource, key, nodes, env, attributes)
    granted = [devices[result.key] for result in claim.devices]
    _refuse_mixed(claim.ref, granted)
    return granted


def _container(request: str) -> str:
    extended = _EXTENDED.fullmatch(request)
    return extended[1] if extended else ""


def _attributes(listed: ListedDevice, along: Sequence[str], parameters: Parameters) -> Attributes:
    """The published attributes, and those that are only for the claim's containers."""
    rom = {} if parameters.rom is None else {"rom": attribute(parameters.rom)}
    return {**rom, **sibling_attributes(along), **listed.published.attributes}


def _refuse_mixed(ref: ClaimRef, devices: Sequence[GrantedDevice]) -> None:
    """Check that no container would get device nodes of both kinds (D9): readers use one kind for all devices."""
    by_iommufd: dict[str, str] = {}
    by_group: dict[str, str] = {}
    for device in devices:
        where = _container(device.result.request)
        for node in device.nodes:
            if node == IOMMUFD_NODE:
                by_iommufd.setdefault(where, device.result.device)
            elif _GROUP_NODE.fullmatch(node):
                by_group.setdefault(where, f"{device.result.device} has {node}")
    for where in by_iommufd.keys() & by_group.keys():
        raise MIXED_NODES(
            f"ResourceClaim {ref}: its devices can't go into one container: {by_iommufd[where]} has {IOMMUFD_NODE}, "
            f"{by_group[where]}",
            "Request them in claims of different pods, or let all have the same kind: `nodes` in the configuration, or "
            "the claim's parameters.",
            file=f"ResourceClaim {ref}",
        )
