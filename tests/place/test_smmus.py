"""Which root complexes of a guest get a virtual SMMUv3 (P9)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from launcherkit import Host, Policy, Translation, translate
from launcherkit.model.address import GuestAddress, HostAddress
from launcherkit.model.domain import Controller, GuestTree
from launcherkit.model.plan import Attachment, GuestDevice, GuestPlace
from launcherkit.place.smmus import smmus_of
from tests.support.facts import at

GOLDEN = Path(__file__).parents[1] / "golden"
GPUS = {"PCI_RESOURCE_NVIDIA_COM_GB200": "0008:01:00.0,0018:01:00.0"}
ACCELERATED = Policy(smmuv3=True)


def translated(domain: str, policy: Policy = ACCELERATED, libvirt: tuple[int, ...] | None = None) -> Translation:
    host = Host.from_snapshot(GOLDEN / "smmuv3" / "host.json")
    return translate(domain, env=GPUS, host=host, policy=policy, libvirt=libvirt)


def grace() -> str:
    return (GOLDEN / "smmuv3" / "domain.xml").read_text()


def smmus(translation: Translation) -> list[dict[str, str]]:
    """The attributes of the drivers of all IOMMUs of the result."""
    return [dict(each.attrib) for each in etree.fromstring(translation.domain_xml).iterfind("devices/iommu/driver")]


def remarks(translation: Translation) -> list[str]:
    return [note.text for note in translation.notes if note.topic == "smmuv3"]


def test_each_root_complex_with_a_device_has_its_own() -> None:
    result = translated(grace(), libvirt=(12, 7, 0))
    assert smmus(result) == [{"pciBus": "3", "accel": "on"}, {"pciBus": "5", "accel": "on"}]
    assert (result.plan.smmus, remarks(result)) == ((3, 5), [])


def test_without_the_policy_there_is_none() -> None:
    assert smmus(translated(grace(), Policy())) == []


def test_an_older_libvirt_gets_none_and_a_note() -> None:
    result = translated(grace(), libvirt=(12, 6, 0))
    assert (smmus(result), result.plan.smmus) == ([], ())
    assert remarks(result) == ["no SMMUv3 is written: its attribute accel needs libvirt 12.7 or later"]


@pytest.mark.parametrize("iommu", ["<iommu model='smmuv3'/>", "<iommu model='virtio'><driver granule='4'/></iommu>"])
def test_beside_an_iommu_of_the_whole_machine_there_is_none(iommu: str) -> None:
    result = translated(grace().replace("<devices>", f"<devices>{iommu}"))
    assert result.plan.smmus == ()
    assert "for the whole machine" in remarks(result)[0]


def test_a_guest_without_expanders_has_none_and_a_note_says_what_adds_them() -> None:
    result = translated(grace(), Policy(smmuv3=True, topology="flat"))
    assert smmus(result) == []
    assert "`genericInitiators` add them" in remarks(result)[0]


def test_q35_gets_none_and_no_note() -> None:
    pc = grace().replace("arch='aarch64' machine='virt'", "arch='x86_64' machine='q35'")
    result = translated(pc)
    assert [each.model for each in result.plan.controllers if each.model == "pcie-expander-bus"]
    assert (smmus(result), remarks(result)) == ([], [])


BUSES = range(10)
"""Behind an expander each are two root ports, and on the root bus too."""


@given(
    st.dictionaries(st.integers(0, 31), st.tuples(st.sampled_from(BUSES), st.booleans(), st.booleans()), max_size=12),
    st.sets(st.integers(1, 5)),
)
def test_an_expander_gets_one_exactly_if_all_behind_it_goes_through_iommufd_and_it_has_none(
    functions: dict[int, tuple[int, bool, bool]], present: set[int]
) -> None:
    """``functions``: the root port of each, whether it goes through iommufd, and whether its guest address is known."""
    controllers = [Controller(number, "pcie-expander-bus", None, 256 - 10 * number, 0) for number in range(1, 6)]
    ports = {bus: 10 + bus for bus in BUSES}
    controllers += [
        Controller(ports[bus], "pcie-root-port", GuestAddress(0, bus // 2, bus % 2 + 1, 0)) for bus in BUSES
    ]
    sources = {number: at(f"{number:02x}:00.0") for number in functions}
    places: dict[HostAddress, GuestPlace] = {
        sources[number]: GuestPlace(GuestAddress(0, ports[bus], 0, 0))
        for number, (bus, _, placed) in functions.items()
        if placed
    }
    through: set[HostAddress] = {sources[number] for number, (_, iommufd, _) in functions.items() if iommufd}
    result = smmus_of(_devices(sources.values()), places, GuestTree(controllers), present, through)

    behind = {number: bus // 2 for number, (bus, _, placed) in functions.items() if placed and bus // 2}
    complete = {
        expander for expander in behind.values() if all(functions[n][1] for n in behind if behind[n] == expander)
    }
    assert result.buses == tuple(sorted(complete - present))
    if not behind:
        assert len(result.notes) == bool(places)
    else:
        without = {str(sources[n]) for n, expander in behind.items() if expander not in complete | present}
        noted = {word.rstrip(",") for note in result.notes for word in note.text.partition(" get ")[0].split()}
        assert noted == without


def _devices(sources: Iterable[HostAddress]) -> list[GuestDevice]:
    return [GuestDevice("pci", (Attachment(source, "primary", "", None, None),)) for source in sources]
