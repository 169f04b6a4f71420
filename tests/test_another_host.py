"""A domain that was translated on one host, and then on another that has the same under other addresses (X2).

Whatever the hosts, the domain and the policy are: the guest sees nothing, and the text differs in sources alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hypothesis import assume, given
from hypothesis import strategies as st

from launcherkit import LauncherkitError, Policy, translate
from launcherkit.errors import CANT_REPLACE
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import Bar, HostFacts, Mdev, NumaNode, PciFunction
from launcherkit.model.policy import SIBLINGS, Topology
from tests.support.facts import AUDIO, DISPLAY, NVME, UCSI, USB, detail
from tests.support.facts import function as pci_function

GIB = 1 << 30
NUMA = {0: NumaNode(frozenset({0, 1}), {0: 10, 1: 20}), 1: NumaNode(frozenset({2, 3}), {0: 20, 1: 10})}
GPUS, DISKS, MDEVS = "PCI_RESOURCE_X_GPU", "PCI_RESOURCE_X_NVME", "MDEV_PCI_RESOURCE_X_VGPU"


class Card(NamedTuple):
    classes: tuple[int, ...]
    """Of its functions, from 0 on."""
    group: int
    own_groups: bool
    """Whether its further functions are in groups of their own."""
    node: int
    bar: int
    """GiB."""


cards = st.lists(
    st.builds(
        Card,
        st.sampled_from([(DISPLAY,), (DISPLAY, AUDIO), (DISPLAY, AUDIO, USB, UCSI), (NVME,), (NVME, UCSI)]),
        st.integers(1, 3),
        st.booleans(),
        st.integers(0, 1),
        st.sampled_from([0, 1, 16, 128]),
    ),
    min_size=1,
    max_size=4,
)
uuids = st.lists(st.uuids().map(str), min_size=4, max_size=4, unique=True)
TOPOLOGIES: tuple[Topology, ...] = ("auto", "flat", "numa", "switches")
policies = st.tuples(st.sampled_from(SIBLINGS), st.booleans(), st.sampled_from(TOPOLOGIES)).map(
    lambda drawn: Policy(siblings=drawn[0], managed=drawn[1], topology=drawn[2])
)

CELLS = """  <numatune>
    <memnode cellid="0" mode="strict" nodeset="0"/>
    <memnode cellid="1" mode="strict" nodeset="1"/>
  </numatune>
  <cpu mode='host-passthrough'><numa><cell id='0' cpus='0' memory='1'/><cell id='1' cpus='1' memory='1'/></numa></cpu>
"""
DEVICES = (
    "<graphics type='vnc'/>",
    "<interface type='user'><model type='virtio'/></interface>",
    "<memballoon model='virtio'/>",
    "<controller type='pci' index='7' model='pcie-root-port'/>",
    "<disk type='file'><target dev='vda' bus='virtio'/></disk>",
    """<hostdev type="pci"><source><address domain="1" bus="0xfe" slot="0" function="0"/></source></hostdev>""",
)


@st.composite
def domains(draw: st.DrawFn) -> str:
    devices = draw(st.lists(st.sampled_from(DEVICES), unique=True))
    cells, machine = draw(st.sampled_from(["", CELLS])), draw(st.sampled_from(["q35", "pc"]))
    glue = draw(st.sampled_from(["\n    ", ""]))
    inside = "".join(glue + device for device in devices) + glue[:-2]
    return (
        f"<domain type='kvm'>\n  <memory unit='GiB'>8</memory>\n{cells}  <os>"
        f"<type arch='x86_64' machine='{machine}'>hvm</type></os>\n  <devices>{inside}</devices>\n</domain>"
    )


class Machine:
    """A host with the cards at these buses, and two mediated devices."""

    def __init__(self, found: Iterable[tuple[int, Card]], mdevs: Iterable[str]) -> None:
        self._functions = {each.address: each for bus, card in found for each in _functions(bus, card)}
        self._bars = {PciAddress(0, bus, 0, 0): card.bar for bus, card in found}
        self.mdevs = [*mdevs]

    def facts(self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = (), **_: bool) -> HostFacts:
        groups: dict[int, list[PciAddress]] = {}
        for function in self._functions.values():
            groups.setdefault(function.iommu_group or 0, []).append(function.address)
        details = {
            address: detail(
                parents=(f"pci0000:{address.bus:02x}",),
                resources=(Bar(0, GIB, GIB + (self._bars.get(address, 0) or 1) * GIB - 1, 0x14220C),)
                if self._bars.get(address)
                else (),
            )
            for address in self._functions
        }
        return HostFacts(
            known=True,
            functions=self._functions,
            details=details,
            groups={number: tuple(sorted(members)) for number, members in groups.items()},
            mdevs={
                uuid: Mdev(uuid, "parent", "t-1", "T4-1Q", "vfio-pci", 90 + at) for at, uuid in enumerate(self.mdevs)
            },
            mdev_parents={},
            nodes=None,
            numa=NUMA,
        )

    def env(self, left: int = 0) -> dict[str, str]:
        """What a device plugin sets that lists primaries alone; without the last few cards, which may be siblings."""
        first = [function for address, function in sorted(self._functions.items()) if address.function == 0]
        first = first[: len(first) - left]
        gpus = ",".join(str(function.address) for function in first if function.class_code == DISPLAY)
        disks = ",".join(str(function.address) for function in first if function.class_code == NVME)
        held = {GPUS: gpus, DISKS: disks, MDEVS: ",".join(self.mdevs)}
        return {name: value for name, value in held.items() if value}


def _functions(bus: int, card: Card) -> list[PciFunction]:
    return [
        pci_function(
            f"0000:{bus:02x}:00.{number}",
            code,
            group=card.group + (10 * bus + number if card.own_groups and number else 0),
        )._replace(numa_node=card.node)
        for number, code in enumerate(card.classes)
    ]


def with_other_sources(text: bytes, buses: Mapping[int, int], names: Mapping[str, str]) -> bytes:
    """The oracle: every source in the text has the bus or the name that the device has on the other host."""

    def other(source: re.Match[bytes]) -> bytes:
        found = re.sub(
            rb"(bus=.0x)(..)", lambda at: at[1] + b"%02x" % buses.get(int(at[2], 16), int(at[2], 16)), source[0]
        )
        return re.sub(rb"(?<=uuid=.)[-\w]+", lambda at: names[at[0].decode()].encode(), found)

    return re.sub(rb"<source>.*?</source>", other, text, flags=re.DOTALL)


@given(cards, uuids, domains(), policies, st.integers(0, 2), st.data())
def test_the_domain_of_another_host_differs_in_sources_alone(
    found: list[Card], mdevs: list[str], domain: str, policy: Policy, left: int, data: st.DataObject
) -> None:
    numbers = data.draw(st.lists(st.integers(1, 0xF0), min_size=2 * len(found), max_size=2 * len(found), unique=True))
    here, there = sorted(numbers[: len(found)]), sorted(numbers[len(found) :])
    old, new = (
        Machine([*zip(buses, found, strict=True)], names) for buses, names in ((here, mdevs[:2]), (there, mdevs[2:]))
    )
    try:
        first = translate(domain, env=old.env(left), host=old, policy=policy).domain_xml
    except LauncherkitError:
        assume(False)
    second = translate(first, env=new.env(left), host=new, policy=policy)
    expected = with_other_sources(
        first, dict(zip(here, there, strict=True)), dict(zip(mdevs[:2], mdevs[2:], strict=True))
    )
    assert second.domain_xml == expected
    assert translate(expected, env=new.env(left), host=new, policy=policy).domain_xml == expected


@given(cards, uuids, domains(), policies, st.integers(0, 3), st.data())
def test_a_card_of_another_shape_is_an_error_or_placed_anew(
    found: list[Card], mdevs: list[str], domain: str, policy: Policy, changed: int, data: st.DataObject
) -> None:
    """One card has other functions: either both translations keep the guest's places, or the second one is refused."""
    numbers = data.draw(st.lists(st.integers(1, 0xF0), min_size=2 * len(found), max_size=2 * len(found), unique=True))
    here, there = sorted(numbers[: len(found)]), sorted(numbers[len(found) :])
    position = changed % len(found)
    card = found[position]
    another = card._replace(classes=card.classes[:1] if len(card.classes) > 1 else (*card.classes, UCSI))
    moved = [*found[:position], another, *found[position + 1 :]]
    old, new = Machine([*zip(here, found, strict=True)], mdevs), Machine([*zip(there, moved, strict=True)], mdevs)
    try:
        first = translate(domain, env=old.env(), host=old, policy=policy).domain_xml
    except LauncherkitError:
        assume(False)
    before = with_other_sources(first, dict(zip(here, there, strict=True)), {name: name for name in mdevs})
    second = document_or_codes(first, new, policy)
    if not isinstance(second, bytes):
        assert CANT_REPLACE.code in second
        anew = translate(first, env=new.env(), host=new, policy=policy._replace(replace="yes"))
        assert f"0000:{there[position]:02x}:00" in str([note.text for note in anew.notes if note.topic == "replaced"])
    else:
        assert second == before


def document_or_codes(domain: bytes, host: Machine, policy: Policy) -> bytes | list[str]:
    """What becomes of a domain: the document, or the codes of the errors."""
    try:
        return translate(domain, env=host.env(), host=host, policy=policy).domain_xml
    except LauncherkitError as error:
        return [leaf.code for leaf in error.leaves()]
