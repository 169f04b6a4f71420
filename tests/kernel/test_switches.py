"""What a guest's program finds out about the way between devices: switches, and NVIDIA's cliques (P4, P8)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from lxml import etree

from launcherkit.domain.reader import read_tree
from launcherkit.host.snapshot import dump
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit_lab import sysfs
from launcherkit_lab.devices import DISPLAY, NIC
from tests.kernel.bus import above, cliques
from tests.kernel.guests import Guests
from tests.kernel.tree.seen import Spot, spot_of
from tests.kernel.tree.stand_ins import placed

pytestmark = pytest.mark.kernel

UPSTREAM_PORT = 0x8232
"""The device ID of QEMU's x3130-upstream."""
NVIDIA = (0x10DE, 0x2204)
PROPERTIES = "".join(
    f"<qemu:property name='x-pci-{name}-id' type='unsigned' value='{number}'/>"
    for name, number in zip(("vendor", "device"), NVIDIA, strict=True)
)


def switch_above(address: str) -> str | None:
    """The port of the machine's switch that a device is behind, by the machine's own sysfs."""
    above_port = (sysfs.DEVICES / address).resolve().parts[-3]
    is_switch = above_port in sysfs.addresses() and sysfs.number(above_port, "device") == UPSTREAM_PORT
    return above_port if is_switch else None


def taken_for_nvidias(folder: Path, gpus: list[str]) -> Path:
    """A snapshot of this machine in which display functions are GPUs of NVIDIA's."""
    facts = Host.from_sysfs("/").scan()
    functions = dict(facts.functions)
    for each in map(PciAddress.parse, gpus):
        functions[each] = functions[each]._replace(vendor=NVIDIA[0], device=NVIDIA[1])
    path = folder / "nvidia.json"
    path.write_text(dump(facts._replace(functions=functions)))
    return path


def test_a_guest_sees_which_devices_share_a_switch_and_which_gpus_a_clique(
    bound: Callable[..., None], guests: Guests, tmp_path: Path
) -> None:
    gpus = [address for address in sysfs.having(DISPLAY) if switch_above(address)]
    nics = [address for address in sysfs.having(NIC) if switch_above(address)]
    alone = sysfs.cards()[0]
    on_host = {address: switch_above(address) for address in [*gpus, *nics, alone.display]}
    assert sorted(list(on_host.values()).count(switch) for switch in set(on_host.values())) == [1, 2, 3]
    bound(*gpus, *nics, *alone)
    gpus.append(alone.display)

    env = {"PCI_RESOURCE_GPU": ",".join(gpus), "PCI_RESOURCE_NIC": ",".join(nics)}
    overrides = "".join(
        f"<qemu:device alias='ua-gpu-gpu-{number}'><qemu:frontend>{PROPERTIES}</qemu:frontend></qemu:device>"
        for number in range(len(gpus))
    )
    snapshot = taken_for_nvidias(tmp_path, gpus)
    guests.start(
        *(env, "--host", str(snapshot), "--topology", "switches", "--p2p", "auto"),
        head=f"<qemu:override>{overrides}</qemu:override>",
        host=Host.from_snapshot(snapshot),
        unrehearsed="it is about what is said to be NVIDIA's here",
    )
    listing, text = guests.listed(), guests.serial("vm").read_text()
    assert list(listing.values()).count(NVIDIA) == len(gpus)

    bridges, told = above(text), cliques(text)
    seen = {Spot(0, tuple(each[8:] for each in [*(one for one, _ in way), own])): own for own, way in bridges.items()}
    domain_xml = guests.pod.libvirt("dumpxml", "vm").encode()
    tree = read_tree(etree.fromstring(domain_xml))
    inside = {str(source): seen[spot_of(guest, tree)] for source, guest in placed(domain_xml).items()}
    switches = {
        address: next((bridge for bridge, kind in bridges[inside[address]] if kind == "upstream port"), None)
        for address in on_host
    }
    for one, other in combinations(on_host, 2):
        assert (switches[one] == switches[other] is not None) == (on_host[one] == on_host[other] is not None), switches
    assert switches[alone.display] is None
    shared = {gpu: [each for each in gpus if on_host[gpu] and on_host[each] == on_host[gpu]] for gpu in gpus}
    assert {gpu: told.get(inside[gpu]) for gpu in gpus} == {gpu: 0 if len(shared[gpu]) > 1 else None for gpu in gpus}
    assert len(told) == 2
