"""What a rehearsal on a snapshot of the machine promises of a guest, to be held against what the guest says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from launcherkit.model.policy import Policy
from launcherkit.rehearse.document import guest_functions
from launcherkit.rehearse.rehearsal import NodeOutcome, RehearsedVm, rehearse
from launcherkit.sources.host import Host
from launcherkit.sources.snapshot import dump
from launcherkit.sources.vmi import read_vmi
from launcherkit_plugin.cli.rehearsed import recorded
from tests.kernel import sysfs
from tests.kernel.devices import AUDIO

Shape = frozenset[tuple[int, tuple[int, int]]]
"""A slot of a guest: the number of each function, with vendor and device ID."""

_PREFIX = "PCI_RESOURCE_"


def rehearsed(env: Mapping[str, str], domain: Path, folder: Path) -> NodeOutcome:
    """A rehearsal of a VM with as many devices as the variables list, on a snapshot of this machine as it is now.

    The device plugin's configuration has a resource for each variable, with the devices that it lists.
    """
    resources, gpus = [], []
    for name, listed in env.items():
        resource = f"test.launcherkit.io/{name.removeprefix(_PREFIX)}"
        devices = [address for address in listed.split(",") if address not in sysfs.having(AUDIO)]
        resources.append({"name": resource, "select": [{"addresses": devices}]})
        gpus += [{"name": f"{resource[-1].lower()}{n}", "deviceName": resource} for n in range(len(devices))]
    config, snapshot = folder / "plugin.yaml", folder / "machine.json"
    config.write_text(json.dumps({"resources": resources}))
    snapshot.write_text(dump(Host.from_sysfs("/").scan()))
    vmi = read_vmi({"spec": {"domain": {"devices": {"gpus": gpus}}}})
    nodes = recorded([str(snapshot)], str(config), None, {})
    (outcome,) = rehearse(RehearsedVm("vm", domain.read_bytes(), vmi, Policy()), nodes)
    return outcome


def promised(outcome: NodeOutcome) -> Counter[Shape]:
    """The slots that the guest's ``lspci`` is promised to list."""
    devices: dict[int, set[tuple[int, tuple[int, int]]]] = {}
    for each in guest_functions(outcome):
        vendor, device = (int(part, 16) for part in each["id"].split(":"))
        number = 0 if each["address"] is None else int(each["address"][-1])
        devices.setdefault(each["device"], set()).add((number, (vendor, device)))
    return Counter(map(frozenset, devices.values()))


def slots_of(listing: Mapping[str, tuple[int, int]]) -> Counter[Shape]:
    """The slots that a guest has listed."""
    slots: dict[str, set[tuple[int, tuple[int, int]]]] = {}
    for address, model in listing.items():
        slots.setdefault(address.partition(".")[0], set()).add((int(address[-1]), model))
    return Counter(map(frozenset, slots.values()))
