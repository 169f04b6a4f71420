"""What a rehearsal on a snapshot of a machine promises of a guest, to be held against what the guest says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcherkit.errors import LauncherkitError
from launcherkit.host.snapshot import dump
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.model.policy import Policy
from launcherkit.rehearse.rehearsal import NodeOutcome, RehearsedVm, rehearse
from launcherkit.request.vmi import read_vmi
from launcherkit.show.documents import guest_functions
from launcherkit_lab.driver.vgpus import VGPU
from launcherkit_plugin.cli.nodes import recorded

Shape = frozenset[tuple[int, tuple[int, int]]]
"""A slot of a guest: the number of each function, with vendor and device ID."""

_POLICY = Policy()
_PCI, _MDEV = "PCI_RESOURCE_", "MDEV_PCI_RESOURCE_"
_AUDIO = 0x0403


def rehearsed(
    env: Mapping[str, str], domain: bytes, host: Host, folder: Path, policy: Policy = _POLICY, nodes: str = "auto"
) -> NodeOutcome:
    """A rehearsal of a VM with as many devices as the variables list, on a snapshot of a host as it is now.

    The device plugin's configuration has a resource for each variable, with the devices that it lists.

    Args:
        nodes: the configuration's.
    """
    facts = host.scan()
    pci, mdevs, wanted = [], [], []
    for variable, listed in env.items():
        resource = f"test.launcherkit.io/{variable.removeprefix(_MDEV).removeprefix(_PCI)}"
        ids = listed.split(",")
        if variable.startswith(_MDEV):
            types = sorted({facts.mdevs[uuid].type_id for uuid in ids})
            mdevs.append({"name": resource, "types": types})
        else:
            ids = [address for address in ids if not _comes_along(address, facts)]
            pci.append({"name": resource, "select": [{"addresses": ids}]})
        wanted += [resource] * len(ids)
    config = {"resources": pci, "vgpu": {"mediatedDevices": mdevs}, "nodes": nodes}
    return rehearsed_with(config, wanted, domain, facts, folder, policy)


def rehearsed_with(
    config: Mapping[str, Any],
    wanted: Sequence[str],
    domain: bytes,
    facts: HostFacts,
    folder: Path,
    policy: Policy = _POLICY,
) -> NodeOutcome:
    """A rehearsal on a snapshot of a host.

    Args:
        config: the device plugin's.
        wanted: the resource of each device.
        folder: for files.
    """
    settings, snapshot = folder / "rehearsed.yaml", folder / "machine.json"
    settings.write_text(json.dumps(config))
    snapshot.write_text(dump(facts))
    gpus = [{"name": f"gpu{number}", "deviceName": resource} for number, resource in enumerate(wanted)]
    vmi = read_vmi({"spec": {"domain": {"devices": {"gpus": gpus}}}})
    nodes = recorded([str(snapshot)], str(settings), None, {})
    (outcome,) = rehearse(RehearsedVm("vm", domain, vmi, policy), nodes)
    return outcome


def _comes_along(address: str, facts: HostFacts) -> bool:
    """Whether it is listed as a card's audio: the variable of a device plugin would have the card alone."""
    function = facts.functions.get(PciAddress.parse(address))
    return function is not None and function.class_code >> 8 == _AUDIO


@contextmanager
def agreeing(rehearsal: NodeOutcome) -> Iterator[None]:
    """What is tried within comes about where the rehearsal says so; else it is refused by codes that this gave too."""
    try:
        yield
    except LauncherkitError as error:
        if rehearsal.starts or not {each.code for each in error.leaves()} <= {each.code for each in rehearsal.errors}:
            raise AssertionError(f"it was refused: {error}\nrehearsed: {rehearsal.errors or 'it starts'}") from error
        raise
    assert rehearsal.starts, f"it started, against: {rehearsal.errors}"


def check_found(rehearsal: NodeOutcome, listing: Mapping[str, tuple[int, int]]) -> None:
    """A guest has listed what the rehearsal promised; of these models there is nothing else, and no slot is split."""
    found, wanted = _slots(listing), _promised(rehearsal)
    assert {shape: found[shape] for shape in wanted} == wanted, f"{listing}, promised {wanted}"


def _promised(rehearsal: NodeOutcome) -> Counter[Shape]:
    """The slots that the guest's ``lspci`` is promised to list; which model a vGPU has only its driver knows."""
    devices: dict[int, set[tuple[int, tuple[int, int]]]] = {}
    for each in guest_functions(rehearsal):
        model = VGPU if each["id"] is None else tuple(int(part, 16) for part in each["id"].split(":"))
        number = 0 if each["address"] is None else int(each["address"][-1])
        devices.setdefault(each["device"], set()).add((number, (model[0], model[1])))
    return Counter(map(frozenset, devices.values()))


def _slots(listing: Mapping[str, tuple[int, int]]) -> Counter[Shape]:
    slots: dict[str, set[tuple[int, tuple[int, int]]]] = {}
    for address, model in listing.items():
        slots.setdefault(address.partition(".")[0], set()).add((int(address[-1]), model))
    return Counter(map(frozenset, slots.values()))
