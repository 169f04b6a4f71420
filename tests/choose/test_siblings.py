"""Which functions come along with a primary (S1, S2, C5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pytest

from launcherkit.choose.siblings import assemble_devices
from launcherkit.model.address import GuestAddress, HostAddress, MdevAddress, PciAddress, UsbAddress
from launcherkit.model.domain import DomainFacts, ExistingHostdev
from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction
from launcherkit.model.plan import GuestDevice, Match
from launcherkit.model.policy import Siblings
from tests.support.facts import AUDIO, BRIDGE, NIC, UCSI, USB, UUID, at, card, detail, facts, function

GPU = "0000:e1:00.0"
FOUR = facts(
    function("0000:e1:00.0", group=7),
    function("0000:e1:00.1", AUDIO, group=7),
    function("0000:e1:00.2", USB, group=7),
    function("0000:e1:00.3", UCSI, group=7),
)


def match(address: str | HostAddress, name: str = "g") -> Match:
    primary = at(address) if isinstance(address, str) else address
    return Match("vmi", "gpus", name, "x", "PCI_RESOURCE_X", primary)


def assemble(
    host: HostFacts,
    *matches: str | HostAddress,
    siblings: Siblings = "slot",
    listed: Iterable[str] = (),
    existing: Iterable[str] = (),
    taken: Iterable[str] = (),
    own_nodes: bool = False,
    visible: Iterable[str] = (),
    managed: bool = False,
    declared: Mapping[str, bool] | None = None,
    carried: Mapping[str, str] | None = None,
) -> tuple[GuestDevice, ...]:
    in_domain = [*map(at, existing)]
    in_domain += [at(each) for each in (*visible, *(declared or {})) if at(each) not in in_domain]
    hostdevs = [
        ExistingHostdev(
            "pci",
            address,
            None,
            GuestAddress(0, 1, 0, 0) if address in map(at, visible) else None,
            placed=False,
            managed={None: None, True: "yes", False: "no"}[(declared or {}).get(str(address))],
            display=None,
            ramfb=None,
        )
        for address in in_domain
    ]
    return assemble_devices(
        [match(address, f"g{number}") for number, address in enumerate(matches)],
        siblings,
        host,
        own_nodes=own_nodes,
        domain=DomainFacts(
            "pcie",
            "x86_64/q35",
            (),
            frozenset(),
            has_graphics=False,
            video_ramfb=False,
            aliases=frozenset(),
            hostdevs=tuple(hostdevs),
            taken=frozenset(map(at, taken)),
            iommufd=None,
        ),
        listed=frozenset(map(at, listed)),
        carried={at(sibling): at(primary) for sibling, primary in (carried or {}).items()},
        managed=managed,
    )


def sources(devices: Iterable[GuestDevice]) -> list[list[str]]:
    return [[str(attachment.source) for attachment in device.attachments] for device in devices]


def not_attached(devices: Iterable[GuestDevice]) -> dict[str, str]:
    return {str(each.address): each.why for device in devices for each in device.not_attached}


def test_every_function_of_the_slot_comes_and_the_primary_stands_first() -> None:
    """S1."""
    devices = assemble(FOUR, GPU)
    assert sources(devices) == [["0000:e1:00.0", "0000:e1:00.1", "0000:e1:00.2", "0000:e1:00.3"]]
    assert [attachment.role for attachment in devices[0].attachments] == ["primary", "sibling", "sibling", "sibling"]


def test_what_the_document_shows_to_the_guest_is_not_reserved() -> None:
    """X2: its address stays, so the guest sees it, and its node is one that QEMU opens."""
    there = ["0000:e1:00.1", "0000:e1:00.2"]
    (device,) = assemble(FOUR, GPU, siblings="reserve", existing=there, visible=there[:1])
    assert [attachment.role for attachment in device.attachments] == ["primary", "sibling", "reserved", "reserved"]


def test_functions_of_other_slots_do_not_come_by_default() -> None:
    """S1: slot is domain, bus and device."""
    host = facts(
        *card("0000:e1:00", 7), function("0000:e1:01.1", AUDIO, group=7), function("0001:e1:00.1", AUDIO, group=7)
    )
    assert sources(assemble(host, GPU)) == [[GPU, "0000:e1:00.1"]]


def test_further_functions_of_the_primarys_own_model_stay() -> None:
    """S1: another port is another device."""
    host = facts(function(GPU, NIC), function("0000:e1:00.1", NIC), function("0000:e1:00.2", AUDIO))
    assert sources(assemble(host, GPU)) == [[GPU, "0000:e1:00.2"]]


@pytest.mark.parametrize("policy", ["slot", "group", "listed"])
def test_bridges_and_vfs_never_come(policy: Siblings) -> None:
    """S1; a bridge is told by its class or by its header type."""
    host = facts(
        function(GPU),
        function("0000:e1:00.1", BRIDGE),
        function("0000:e1:00.2", NIC, physfn=GPU),
        function("0000:e1:00.3", AUDIO),
        function("0000:e1:00.4", 0x088000),
        function("0000:e1:00.5", 0x060100, driver=None),
        details={"0000:e1:00.4": detail(header_type=1), "0000:e1:00.5": detail()},
    )
    listed = [str(address) for address in host.functions]
    assert sources(assemble(host, GPU, siblings=policy, listed=listed)) == [[GPU, "0000:e1:00.3"]]


def test_a_vf_brings_nothing() -> None:
    """S1, C2."""
    host = facts(function(GPU, NIC), function("0000:e1:00.1", AUDIO), function("0000:e1:00.2", NIC, physfn=GPU))
    for policy in ("slot", "group"):
        assert sources(assemble(host, "0000:e1:00.2", siblings=policy)) == [["0000:e1:00.2"]]


def test_group_brings_every_endpoint_of_the_group_cards_of_the_same_model_too() -> None:
    """S1."""
    host = facts(
        *card("0000:e1:00", 7), *card("0000:e2:00", 7), function("0000:e0:00.0", BRIDGE, driver="pcieport", group=7)
    )
    assert sources(assemble(host, GPU, siblings="group")) == [[GPU, "0000:e1:00.1", "0000:e2:00.0", "0000:e2:00.1"]]


def test_a_card_of_the_group_that_an_earlier_run_attached_stays_with_its_primary() -> None:
    """X2: it is a match too now, as the document has its hostdev."""
    host = facts(*card("0000:e1:00", 7), *card("0000:e2:00", 7))
    carried = dict.fromkeys(["0000:e1:00.1", "0000:e2:00.0", "0000:e2:00.1"], GPU)
    everything = [GPU, *carried]
    devices = assemble(host, *everything, siblings="group", existing=everything, carried=carried)
    assert sources(devices) == [everything]


def test_group_without_a_group_is_the_slot() -> None:
    host = facts(function(GPU, group=None), function("0000:e1:00.1", AUDIO, group=None))
    assert sources(assemble(host, GPU, siblings="group", listed=["0000:e1:00.1"]))[0][0] == GPU


def test_listed_brings_what_the_environment_names_alone() -> None:
    """S1."""
    assert sources(assemble(FOUR, GPU, siblings="listed", listed=[GPU, "0000:e1:00.1"])) == [[GPU, "0000:e1:00.1"]]


def test_none_brings_nothing_even_where_it_was_listed() -> None:
    """S1."""
    assert sources(assemble(FOUR, GPU, siblings="none", listed=[GPU, "0000:e1:00.1"])) == [[GPU]]


def test_without_host_facts_the_listed_functions_of_the_slot_come() -> None:
    """C3."""
    listed = [GPU, "0000:e1:00.3", "0000:e1:00.1", "0000:e2:00.1"]
    assert sources(assemble(NO_FACTS, GPU, listed=listed)) == [[GPU, "0000:e1:00.1", "0000:e1:00.3"]]


def test_a_sibling_in_the_primarys_group_comes_whatever_its_driver() -> None:
    """S2: whether it can is V1's to decide."""
    host = facts(function(GPU), function("0000:e1:00.1", AUDIO, driver="snd_hda_intel"))
    assert sources(assemble(host, GPU)) == [[GPU, "0000:e1:00.1"]]


@pytest.mark.parametrize(
    ("driver", "nodes", "own_nodes", "listed", "comes"),
    [
        ("vfio-pci", ["/dev/vfio/2"], True, False, True),
        ("vfio-pci", ["/dev/vfio/devices/vfio5"], True, False, True),
        ("nvgrace_gpu_vfio_pci", ["/dev/vfio/2"], True, False, True),
        ("vfio-pci", ["/dev/vfio/2"], False, False, False),
        ("vfio-pci", ["/dev/vfio/2"], False, True, True),
        ("vfio-pci", None, False, True, True),
        ("vfio-pci", ["/dev/vfio/1", "/dev/vfio/22"], True, False, False),
        ("vfio-pci", None, False, False, False),
        ("snd_hda_intel", ["/dev/vfio/2"], True, True, False),
        (None, ["/dev/vfio/2"], True, True, False),
    ],
)
def test_a_sibling_in_another_group_comes_only_on_a_vfio_driver_and_allocated(
    driver: str | None, nodes: list[str] | None, own_nodes: bool, listed: bool, comes: bool
) -> None:
    """S2."""
    host = facts(
        function(GPU, group=1),
        function("0000:e1:00.1", AUDIO, driver=driver, group=2),
        nodes=nodes,
        details={"0000:e1:00.1": detail(vfio_dev="vfio5")},
    )
    devices = assemble(host, GPU, listed=[GPU, "0000:e1:00.1"] if listed else [GPU], own_nodes=own_nodes)
    assert sources(devices) == [[GPU, "0000:e1:00.1"] if comes else [GPU]]
    assert list(not_attached(devices)) == ([] if comes else ["0000:e1:00.1"])


def test_two_functions_without_groups_are_not_in_the_same_group() -> None:
    """S2."""
    host = facts(function(GPU, group=None), function("0000:e1:00.1", AUDIO, group=None, driver="snd_hda_intel"))
    assert sources(assemble(host, GPU)) == [[GPU]]


def test_a_sibling_that_is_asked_for_by_name_is_attached_once_in_the_primarys_device() -> None:
    """C5, in either order of the requests."""
    for order in ((GPU, "0000:e1:00.1"), ("0000:e1:00.1", GPU)):
        devices = assemble(FOUR, *order)
        assert sources(devices) == [["0000:e1:00.0", "0000:e1:00.1", "0000:e1:00.2", "0000:e1:00.3"]]
        audio = devices[0].attachments[1]
        assert audio.match is not None
        assert audio.match.primary == at("0000:e1:00.1")


def test_a_sibling_that_is_asked_for_comes_from_another_group_without_node_too() -> None:
    """C5 before S2: it was allocated."""
    host = facts(function(GPU, group=1), function("0000:e1:00.1", AUDIO, driver="vfio-pci", group=2))
    assert sources(assemble(host, GPU, "0000:e1:00.1")) == [[GPU, "0000:e1:00.1"]]


def test_two_ports_that_are_both_asked_for_are_two_devices() -> None:
    """C2, C5."""
    host = facts(function(GPU, NIC), function("0000:e1:00.1", NIC))
    for policy in ("slot", "group"):
        assert sources(assemble(host, "0000:e1:00.1", GPU, siblings=policy)) == [["0000:e1:00.1"], [GPU]]


def test_with_group_a_card_that_is_asked_for_itself_is_a_device_of_its_own_with_its_own_audio() -> None:
    """C5."""
    host = facts(*card("0000:e1:00", 7), *card("0000:e2:00", 7))
    devices = assemble(host, "0000:e2:00.0", GPU, siblings="group")
    assert [device[0] for device in sources(devices)] == ["0000:e2:00.0", GPU]
    flat = [source for device in sources(devices) for source in device]
    assert sorted(flat) == ["0000:e1:00.0", "0000:e1:00.1", "0000:e2:00.0", "0000:e2:00.1"]


def test_devices_stand_in_the_order_of_the_requests() -> None:
    """Q1."""
    host = facts(*card("0000:e1:00", 7), *card("0000:01:00", 8))
    assert [device[0] for device in sources(assemble(host, GPU, "0000:01:00.0"))] == [GPU, "0000:01:00.0"]
    assert [device[0] for device in sources(assemble(host, "0000:01:00.0", GPU))] == ["0000:01:00.0", GPU]


def test_a_function_that_another_device_of_the_domain_uses_stays() -> None:
    devices = assemble(FOUR, GPU, taken=["0000:e1:00.1"])
    assert sources(devices) == [["0000:e1:00.0", "0000:e1:00.2", "0000:e1:00.3"]]
    assert "another device of the domain" in not_attached(devices)["0000:e1:00.1"]


def test_a_sibling_that_the_document_has_comes_and_is_known_to_be_there() -> None:
    """X2: also from another group with its node elsewhere."""
    host = facts(function(GPU, group=1), function("0000:e1:00.1", AUDIO, group=2), nodes=[])
    (device,) = assemble(host, GPU, existing=["0000:e1:00.1"])
    assert [attachment.hostdev for attachment in device.attachments] == [None, 0]


def test_mdevs_and_usb_devices_bring_nothing() -> None:
    devices = assemble(FOUR, MdevAddress(UUID), UsbAddress(1, 2))
    assert [(device.kind, len(device.attachments)) for device in devices] == [("mdev", 1), ("usb", 1)]


def test_every_sibling_says_why_it_came() -> None:
    assert all(attachment.why for attachment in assemble(FOUR, GPU)[0].attachments)
    assert "IOMMU group 7" in assemble(FOUR, GPU)[0].attachments[1].why


def test_a_thousand_cards_keep_their_own_siblings() -> None:
    functions = [each for bus in range(250) for each in card(f"{bus:04x}:{bus:02x}:00", bus)]
    devices = assemble(facts(*functions), *(str(PciAddress(bus, bus, 0, 0)) for bus in range(250)))
    assert all([source[:10] for source in device] == [device[0][:10]] * 2 for device in sources(devices))


class WholeHost(dict[PciAddress, PciFunction]):
    """Functions of a host that nobody walks over."""

    def __iter__(self) -> Iterator[PciAddress]:
        raise AssertionError("thousands of functions are looked at")


def test_one_card_is_looked_for_without_a_walk_over_the_host() -> None:
    """The device plugin asks for each card by itself, on nodes with thousands of functions."""
    others = facts(*[each for bus in range(250) for each in card(f"{bus:04x}:{bus:02x}:00", bus)])
    host = FOUR._replace(functions=WholeHost({**others.functions, **FOUR.functions}))
    assert sources(assemble(host, GPU)) == [["0000:e1:00.0", "0000:e1:00.1", "0000:e1:00.2", "0000:e1:00.3"]]


def test_a_port_of_a_card_that_is_asked_for_is_not_reserved_with_another_function_of_it() -> None:
    """S1: `reserve` attaches nothing that `slot` wouldn't. Both the card and its audio function are asked for."""
    host = facts(function(GPU, NIC), function("0000:e1:00.1", NIC), function("0000:e1:00.2", AUDIO))
    for siblings in ("slot", "reserve"):
        attached = sources(assemble(host, GPU, "0000:e1:00.2", siblings=siblings))
        assert sorted(each for device in attached for each in device) == [GPU, "0000:e1:00.2"]


@pytest.mark.parametrize("asked", ["0000:e1:00.1", "0000:e1:00.2", "0000:e1:00.3"])
@pytest.mark.parametrize("policy", ["slot", "group", "listed", "reserve"])
def test_a_function_that_is_not_the_best_of_its_slot_comes_alone(asked: str, policy: Siblings) -> None:
    """S1a: the rest of the card was not allocated, and another pod may have it."""
    devices = assemble(
        FOUR, asked, siblings=policy, listed=[str(address) for address in FOUR.functions], own_nodes=True
    )
    assert sources(devices) == [[asked]]
    why = not_attached(devices)
    assert sorted([asked, *why]) == sorted(map(str, FOUR.functions))
    assert "was not asked for" in why[GPU]
    assert all("a sibling of 0000:e1:00.0" in text for address, text in why.items() if address != GPU)


def test_another_card_of_the_group_is_not_said_to_be_a_sibling() -> None:
    host = facts(
        function(GPU, group=7), function("0000:e1:00.1", AUDIO, group=7), function("0000:e2:00.0", NIC, group=7)
    )
    why = not_attached(assemble(host, "0000:e1:00.1", siblings="group"))
    assert why["0000:e2:00.0"] == (
        "of another card, and comes only with 0000:e1:00.0, the main function of the slot that was asked for"
    )


def test_two_companions_that_are_asked_for_are_two_devices() -> None:
    """S1a: neither is the other's sibling, in any order, with or without host facts."""
    for asked in (("0000:e1:00.1", "0000:e1:00.2"), ("0000:e1:00.2", "0000:e1:00.1")):
        assert sources(assemble(FOUR, *asked)) == [[asked[0]], [asked[1]]]


def test_the_second_port_of_a_card_has_none_of_its_companions() -> None:
    """S1a: a BlueField's management function goes with port 0, which another pod may have."""
    host = facts(function(GPU, NIC), function("0000:e1:00.1", NIC), function("0000:e1:00.2", 0x080100))
    assert sources(assemble(host, "0000:e1:00.1")) == [["0000:e1:00.1"]]
    assert sources(assemble(host, "0000:e1:00.1", GPU)) == [["0000:e1:00.1"], [GPU, "0000:e1:00.2"]]


def test_with_group_the_companion_of_another_card_doesnt_keep_that_card_away() -> None:
    """S1, S1a: every endpoint of the group comes with the best function, what was asked for too, in any order."""
    host = facts(*card("0000:e1:00", 7), *card("0000:e2:00", 7))
    for asked in ((GPU, "0000:e2:00.1"), ("0000:e2:00.1", GPU)):
        (device,) = sources(assemble(host, *asked, siblings="group"))
        assert sorted(device) == ["0000:e1:00.0", "0000:e1:00.1", "0000:e2:00.0", "0000:e2:00.1"]


def test_bridges_and_the_chipsets_are_never_the_best() -> None:
    """S1a: no guest gets them, so nobody could have them with siblings."""
    host = facts(function(GPU, 0x060100, driver=None), function("0000:e1:00.3", AUDIO), function("0000:e1:00.4", USB))
    assert sources(assemble(host, "0000:e1:00.3")) == [["0000:e1:00.3", "0000:e1:00.4"]]


def test_beside_a_function_that_cant_be_read_nothing_comes() -> None:
    """S1a, T2: that one may be the best."""
    host = FOUR._replace(
        functions={address: each for address, each in FOUR.functions.items() if address.function},
        unknown={at(GPU): "Input/output error"},
    )
    devices = assemble(host, "0000:e1:00.1")
    assert sources(devices) == [["0000:e1:00.1"]]
    assert all("can't be read" in why for why in not_attached(devices).values())


@pytest.mark.parametrize("driver", [None, "pci-stub", "pcieport"])
def test_a_sibling_that_no_vfio_driver_has_stays_unless_libvirt_binds_it(driver: str | None) -> None:
    """S2: libvirt says "Unmanaged PCI device must be manually detached"."""
    host = facts(function(GPU), function("0000:e1:00.1", AUDIO), function("0000:e1:00.3", UCSI, driver=driver))
    devices = assemble(host, GPU)
    assert sources(devices) == [[GPU, "0000:e1:00.1"]]
    assert "launcherkit-plugin bind 0000:e1:00.3" in not_attached(devices)["0000:e1:00.3"]
    assert sources(assemble(host, GPU, managed=True)) == [[GPU, "0000:e1:00.1", "0000:e1:00.3"]]
    # The hostdev of the primary decides before the policy.
    assert sources(assemble(host, GPU, managed=True, declared={GPU: False})) == [[GPU, "0000:e1:00.1"]]
    assert sources(assemble(host, GPU, declared={GPU: True})) == [[GPU, "0000:e1:00.1", "0000:e1:00.3"]]


def test_a_sibling_in_no_group_is_said_to_be_in_none() -> None:
    host = facts(function(GPU, group=7), function("0000:e1:00.1", AUDIO, group=None, driver=None))
    (device,) = assemble(host, GPU)
    assert [each.why for each in device.not_attached] == ["in no IOMMU group, bound to no driver, not to a VFIO driver"]


def test_with_group_what_an_earlier_run_attached_to_one_card_doesnt_go_to_another() -> None:
    """X2: also where that card is asked for first."""
    other, nic = "0000:e2:00.0", "0000:e3:00.0"
    host = facts(function(GPU, group=7), function(other, group=7), function(nic, NIC, group=7))
    devices = assemble(host, GPU, other, nic, siblings="group", existing=[GPU, other, nic], carried={nic: other})
    assert sources(devices) == [[GPU], [other, nic]]


def test_with_group_the_functions_of_the_primarys_own_slot_come_first() -> None:
    """X1: so ``-fn1`` is its own function 1."""
    host = facts(*card("0000:e1:00", 7), *card("0000:e2:00", 7))
    (device,) = sources(assemble(host, "0000:e2:00.0", siblings="group"))
    assert device == ["0000:e2:00.0", "0000:e2:00.1", "0000:e1:00.0", "0000:e1:00.1"]


def test_what_is_listed_beside_a_function_that_is_not_on_a_known_host_is_not_its_sibling() -> None:
    """C3 is for hosts of which nothing is known."""
    host = facts(function("0000:e1:00.1", AUDIO, group=7))
    assert sources(assemble(host, GPU, listed=["0000:e1:00.1"])) == [[GPU]]


def test_what_came_with_the_first_of_two_ports_is_not_missed_at_the_second() -> None:
    host = facts(function(GPU, group=7), function("0000:e1:00.1", group=7), function("0000:e1:00.2", AUDIO, group=7))
    devices = assemble(host, GPU, "0000:e1:00.1")
    assert sources(devices) == [[GPU, "0000:e1:00.2"], ["0000:e1:00.1"]]
    assert not_attached(devices) == {}
