"""What users of the systems of today run into, and what happens here: one test, one story, from environment to XML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from launcherkit import Host, LauncherkitError, Policy, Translation, translate
from launcherkit.errors import GROUP_NOT_VIABLE, NODE_MISSING, TOO_FEW_DEVICES, VARIABLE_MISSING
from launcherkit.model.policy import Siblings
from tests.support.domains import Hostdev, domain, hostdevs, mdev_hostdev, pci_hostdev, root_ports
from tests.support.errors import raises_code
from tests.support.facts import AUDIO, NIC, UCSI, USB, UUID, UUID2, FixedHost, card, detail, function, mdev
from tests.support.hosttree import HostTree

RESOURCE = "nvidia.com/GA102-A"
VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA102-A"
AUDIO_RESOURCE = "nvidia.com/AUDIO"
AUDIO_VARIABLE = "PCI_RESOURCE_NVIDIA_COM_AUDIO"
GPU0, AUD0, GPU1, AUD1 = "0000:e1:00.0", "0000:e1:00.1", "0000:01:00.0", "0000:01:00.1"
TWO_CARDS = FixedHost(*card("0000:e1:00", 44), *card("0000:01:00", 12))


def vmi(
    *gpus: str | tuple[str, str],
    host_devices: tuple[tuple[str, str], ...] = (),
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Gpus by name, or by name and resource; host devices by name and resource."""
    named = [(gpu, RESOURCE) if isinstance(gpu, str) else gpu for gpu in gpus]
    return {
        "spec": {
            "domain": {
                "devices": {
                    "gpus": [{"name": name, "deviceName": resource} | (options or {}) for name, resource in named],
                    "hostDevices": [{"name": name, "deviceName": resource} for name, resource in host_devices],
                }
            }
        }
    }


def slots(translation: Translation) -> list[tuple[str, str | None, str | None]]:
    return [(each.source, each.guest, each.multifunction) for each in hostdevs(translation.domain_xml)]


def sources(translation: Translation) -> list[str]:
    return [each.source for each in hostdevs(translation.domain_xml)]


def stripped(document: bytes) -> bytes:
    """As KubeVirt's own structs give a document back: no multifunction, rom or driver."""
    root = etree.fromstring(document)
    for hostdev in root.iter("hostdev"):
        for address in hostdev.iterchildren("address"):
            address.attrib.pop("multifunction", "")
        for lost in (*hostdev.iterchildren("rom"), *hostdev.iterchildren("driver")):
            hostdev.remove(lost)
    return etree.tostring(root)


def canonical(document: bytes) -> bytes:
    return etree.tostring(etree.fromstring(document), method="c14n")


EVERY_DIALECT = [
    f"{GPU0},{AUD0},{GPU1},{AUD1}",
    f"{AUD0},{GPU0},{AUD1},{GPU1}",
    f"{GPU0},{AUD0},{GPU1},{AUD1},{GPU0},{AUD0},{GPU1},{AUD1}",
    f"{GPU0},{GPU1}",
    f"{GPU0},{GPU1},",
]


@pytest.mark.parametrize("value", EVERY_DIALECT)
def test_users_1_two_gpus_with_audio_each_get_their_own_audio(value: str) -> None:
    translation = translate(domain(), env={VARIABLE: value}, host=TWO_CARDS, vmi=vmi("a", "b"))
    assert slots(translation) == [
        (GPU0, "0000:03:00.0", "on"),
        (AUD0, "0000:03:00.1", None),
        (GPU1, "0000:04:00.0", "on"),
        (AUD1, "0000:04:00.1", None),
    ]
    assert root_ports(translation.domain_xml) == [3, 4]
    assert [each.alias for each in hostdevs(translation.domain_xml)] == [
        "ua-gpu-a",
        "ua-gpu-a-fn1",
        "ua-gpu-b",
        "ua-gpu-b-fn1",
    ]


@pytest.mark.parametrize("machine", ["q35", "pc"])
def test_users_2_four_functions_share_a_slot_and_multifunction_stands_on_the_first_alone(machine: str) -> None:
    classes = (0x030000, AUDIO, USB, UCSI)
    host = FixedHost(*(function(f"0000:e1:00.{number}", code, group=44) for number, code in enumerate(classes)))
    found = slots(translate(domain(machine=machine), env={VARIABLE: GPU0}, host=host, vmi=vmi("a")))
    assert [guest.rpartition(".")[2] for _, guest, _ in found if guest] == ["0", "1", "2", "3"]
    assert len({guest.rpartition(".")[0] for _, guest, _ in found if guest}) == 1
    assert [multifunction for _, _, multifunction in found] == ["on", None, None, None]


@pytest.mark.parametrize("machine", ["q35", "pc"])
def test_users_3_a_second_and_a_third_run_give_the_same_document_stripped_or_not(machine: str) -> None:
    mediated = FixedHost(*card("0000:e1:00", 44), *card("0000:01:00", 12), mdevs=[mdev()])
    requests = vmi("a", "b", host_devices=(("m", "x/m"),))
    env = {VARIABLE: EVERY_DIALECT[0], "MDEV_PCI_RESOURCE_X_M": UUID}
    document = domain("<graphics type='vnc'/>", machine=machine)
    once = translate(document, env=env, host=mediated, vmi=requests).domain_xml
    twice = translate(once, env=env, host=mediated, vmi=requests).domain_xml
    assert twice == once
    again = translate(stripped(once), env=env, host=mediated, vmi=requests).domain_xml
    assert canonical(again) == canonical(once)
    in_another_order = env | {VARIABLE: f"{GPU1},{AUD1},{AUD0},{GPU0}"}
    assert translate(once, env=in_another_order, host=mediated, vmi=requests).domain_xml == once


def test_users_3_iommufd_that_a_second_pass_has_lost_comes_back() -> None:
    nodes = ["/dev/iommu", "/dev/vfio/devices/vfio3"]
    host = FixedHost(function(GPU0, group=44), nodes=nodes, details={GPU0: detail(vfio_dev="vfio3")})
    once = translate(domain(), env={VARIABLE: GPU0}, host=host, vmi=vmi("a")).domain_xml
    assert b"iommufd='yes'" in once
    assert translate(once, env={VARIABLE: GPU0}, host=host, vmi=vmi("a")).domain_xml == once
    again = translate(stripped(once), env={VARIABLE: GPU0}, host=host, vmi=vmi("a")).domain_xml
    assert [element.get("iommufd") for element in etree.fromstring(again).iterfind("devices/hostdev/driver")] == ["yes"]


def twice(document: str, env: dict[str, str], host: FixedHost, requests: dict[str, Any] | None) -> list[list[str]]:
    """What is attached after the first and after the second run."""
    first = translate(document, env=env, host=host, vmi=requests)
    second = translate(first.domain_xml, env=env, host=host, vmi=requests)
    return [sources(first), sources(second)]


def test_users_3_a_sibling_that_came_along_never_leads_the_next_run() -> None:
    """X2: with `group` a card of another slot comes, which is the best function of that."""
    host = FixedHost(*card("0000:e1:00", 44), *card("0000:01:00", 44))
    by_group = Policy(siblings="group")
    first = translate(domain(), env={VARIABLE: GPU0}, host=host, vmi=vmi("a"), policy=by_group)
    assert sources(first) == [GPU0, AUD0, GPU1, AUD1]
    second = translate(first.domain_xml, env={}, host=host, policy=by_group)
    assert second.domain_xml == first.domain_xml
    assert [str(device.primary.source) for device in second.plan.devices] == [GPU0]


@pytest.mark.parametrize("asked", [AUD0, "0000:e1:00.2", "0000:e1:00.3"])
@pytest.mark.parametrize("siblings", ["slot", "group", "listed", "reserve", "none"])
def test_whoever_asks_for_a_companion_gets_that_function_alone(asked: str, siblings: Siblings) -> None:
    """S1a: NVIDIA's plugin 1.6 makes the audio function a resource of its own; another pod may have the GPU."""
    classes = (0x030000, AUDIO, USB, UCSI)
    host = FixedHost(*(function(f"0000:e1:00.{number}", code, group=44) for number, code in enumerate(classes)))
    requests = vmi(host_devices=(("a", "x/a"),))
    env = {"PCI_RESOURCE_X_A": asked}
    policy = Policy(siblings=siblings)
    once = translate(domain(), env=env, host=host, vmi=requests, policy=policy)
    assert sources(once) == [asked]
    (device,) = once.plan.devices
    others = [f"0000:e1:00.{number}" for number in range(4) if f"0000:e1:00.{number}" != asked]
    assert [str(each.address) for each in device.not_attached] == (others if siblings not in ("listed", "none") else [])
    # The same in a sidecar, where the hostdev itself is the request, and in a second run.
    for env_then in ({}, env):
        again = translate(once.domain_xml, env=env_then, host=host, vmi=requests, policy=policy)
        assert again.domain_xml == once.domain_xml


@pytest.mark.parametrize("siblings", ["slot", "group"])
def test_an_isa_bridge_that_is_asked_for_brings_nothing(siblings: Siblings) -> None:
    """S1a: it is never the best function of a slot."""
    isa = function("0000:e1:00.0", 0x060100)
    host = FixedHost(isa, function("0000:e1:00.1", USB), function("0000:e2:00.0", AUDIO))
    env = {"PCI_RESOURCE_X_A": "0000:e1:00.0"}
    requests = vmi(host_devices=(("a", "x/a"),))
    once = translate(domain(), env=env, host=host, vmi=requests, policy=Policy(siblings=siblings))
    assert sources(once) == ["0000:e1:00.0"]


def test_a_gpu_and_the_audio_of_another_card_are_two_functions() -> None:
    """S1a: the second card's GPU was not allocated."""
    env = {VARIABLE: GPU0, "PCI_RESOURCE_X_A": AUD1}
    requests = vmi("g", host_devices=(("a", "x/a"),))
    assert sources(translate(domain(), env=env, host=TWO_CARDS, vmi=requests)) == [GPU0, AUD0, AUD1]


def test_users_3_a_gpu_leads_its_audio_whatever_kubevirt_has_called_them() -> None:
    """C1: by position the audio has the second request's name."""
    document = domain(pci_hostdev(AUD0, alias="ua-gpu-b"), pci_hostdev(GPU0, alias="ua-gpu-a"))
    translation = translate(document, env={}, host=TWO_CARDS, vmi=vmi("a", "b"))
    assert [(str(device.primary.source), len(device.functions)) for device in translation.plan.devices] == [(GPU0, 2)]


def test_users_4_a_sidecar_completes_what_is_in_the_document_without_any_variable() -> None:
    document = domain(pci_hostdev(GPU0, alias="ua-gpu-a"), pci_hostdev(GPU1, alias="ua-gpu-b", guest="0000:07:00.0"))
    translation = translate(document, env={}, host=TWO_CARDS, vmi=vmi("a", "b"))
    assert {each.source: (each.alias, each.guest, each.multifunction) for each in hostdevs(translation.domain_xml)} == {
        GPU0: ("ua-gpu-a", "0000:02:00.0", "on"),
        AUD0: ("ua-gpu-a-fn1", "0000:02:00.1", None),
        GPU1: ("ua-gpu-b", "0000:07:00.0", "on"),
        AUD1: ("ua-gpu-b-fn1", "0000:07:00.1", None),
    }
    assert (
        translate(translation.domain_xml, env={}, host=TWO_CARDS, vmi=vmi("a", "b")).domain_xml
        == translation.domain_xml
    )


def test_users_4_a_sidecar_with_neither_variables_nor_hostdevs_is_an_error() -> None:
    with raises_code(VARIABLE_MISSING):
        translate(domain(), env={}, host=TWO_CARDS, vmi=vmi("a"))


USB_BY_MODEL = (
    "<hostdev type='usb'><source><vendor id='0x1'/><product id='0x2'/></source><alias name='ua-usb-host-k'/></hostdev>"
)


def test_users_5_every_hostdev_leaves_with_mode_managed_and_a_valid_unique_alias() -> None:
    document = domain(
        "<disk><alias name='ua-gpu-a-b'/></disk>",
        pci_hostdev(GPU1, alias="hostdev0"),
        f"<hostdev type='mdev'><source><address uuid='{UUID}'/></source><alias name='ua-gpu-n v'/></hostdev>",
        USB_BY_MODEL,
        "<hostdev type='usb'><source><address bus='1' device='2'/></source></hostdev>",
    )
    host = FixedHost(*card("0000:e1:00", 44), *card("0000:01:00", 12), mdevs=[mdev(), mdev(UUID2, group=91)])
    env = {VARIABLE: f"{GPU0},{GPU1}", "MDEV_PCI_RESOURCE_X_M": UUID2, "USB_RESOURCE_X_U": "1:2"}
    requests = vmi("a.b", "a-b", host_devices=(("m", "x/m"), ("u", "x/u")))
    found = etree.fromstring(translate(document, env=env, host=host, vmi=requests).domain_xml).findall(
        "devices/hostdev"
    )
    aliases = [str(element.xpath("string(alias/@name)")) for element in found]
    assert len(found) == 8
    assert len(set(aliases)) == len(aliases)
    assert "ua-gpu-a-b" not in aliases, "a disk has that alias"
    assert all(re.fullmatch("ua-[A-Za-z0-9_-]+", alias) for alias in aliases)
    for element in found:
        assert element.get("mode") == "subsystem"
        assert element.get("managed") == "no"
        assert element.find("source") is not None
        assert len(element.findall("alias")) == 1


@pytest.mark.parametrize(
    "requests",
    [vmi("a"), None, vmi(), vmi("x", host_devices=(("m", "x/m"),))],
    ids=["another device", "no VMI", "nothing", "too much"],
)
@pytest.mark.parametrize("env", [{VARIABLE: GPU0}, {}], ids=["variables", "none"])
def test_users_5_a_hostdev_that_nobody_asked_about_stays_byte_for_byte(env: dict[str, str], requests: Any) -> None:
    """X1: whatever else is done, and even where libvirt would refuse it."""
    nobodys = (
        "<hostdev type='pci'><source><address bus='0x41'/></source></hostdev>",
        (
            "<hostdev mode='subsystem' type='pci' managed='yes'>\n<driver name='vfio'/>"
            "<source><address domain='0' bus='0x42' slot='0' function='0'/></source><alias name='hostdev1'/></hostdev>"
        ),
        f"<hostdev type='mdev' display='on' ramfb='on'><source><address uuid='{UUID}'/></source></hostdev>",
        mdev_hostdev(UUID2, attributes=" model='vfio-pci' ramfb='on'"),
        "<hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/><product id='0x2'/></source></hostdev>",
        "<hostdev mode='capabilities' type='misc'><source><char>/dev/tty0</char></source></hostdev>",
    )
    host = FixedHost(*card("0000:e1:00", 44), function("0000:41:00.0", NIC, group=41), mdevs=[mdev()])
    try:
        written = translate(domain(*nobodys), env=env, host=host, vmi=requests).domain_xml.decode()
    except LauncherkitError:
        assert requests is not None
        return
    with_mode = "<hostdev type='pci' mode='subsystem'>" if requests == vmi() else "<hostdev type='pci'>"  # Q3
    for hostdev in nobodys:
        assert "    " + hostdev.replace("<hostdev type='pci'>", with_mode) + "\n" in written
    assert written.count("<hostdev") == len(nobodys) + (2 if env and requests != vmi() else 0)


def test_users_5_a_sibling_of_a_physical_function_never_bears_kubevirts_alias_of_networks() -> None:
    """X1: KubeVirt detaches whatever begins with ua-sriov-, and would report the sibling as a network."""
    nic, dma = function("0000:3b:00.0", NIC, group=60), function("0000:3b:00.1", 0x080100, group=60)
    host = FixedHost(nic, dma, function("0000:41:00.0", NIC, group=41))
    document = domain(
        pci_hostdev("0000:3b:00.0", alias="ua-sriov-net1"), pci_hostdev("0000:41:00.0", alias="ua-hostdevice-net1")
    )
    first = translate(document, env={}, host=host).domain_xml
    assert [(each.source, each.alias) for each in hostdevs(first)] == [
        ("0000:3b:00.0", "ua-sriov-net1"),
        ("0000:41:00.0", "ua-hostdevice-net1"),
        ("0000:3b:00.1", "ua-sibling-sriov-net1-fn1"),
    ]
    assert translate(first, env={}, host=host).domain_xml == first
    gone = first.replace(b" multifunction='on'", b"")
    assert translate(gone, env={}, host=host).domain_xml == first


def test_users_6_a_group_that_is_not_viable_fails_before_define() -> None:
    host = FixedHost(function(GPU0, group=44), function(AUD0, AUDIO, driver="snd_hda_intel", group=44))
    with raises_code(GROUP_NOT_VIABLE) as raised:
        translate(domain(), env={VARIABLE: GPU0}, host=host, vmi=vmi("a"))
    for part in (AUD0, "group 44", "snd_hda_intel"):
        assert part in raised.value.message
    assert f"/sys/bus/pci/devices/{AUD0}/driver_override" in raised.value.remedy


def test_users_6_a_stranger_in_the_group_fails_too_and_a_bridge_does_not() -> None:
    bridge = function("0000:e0:00.0", 0x060400, driver="pcieport", group=44)
    translate(domain(), env={VARIABLE: GPU0}, host=FixedHost(*card("0000:e1:00", 44), bridge), vmi=vmi("a"))
    stranger = function("0000:05:00.0", NIC, driver="igb", group=44)
    with raises_code(GROUP_NOT_VIABLE, match=r"0000:05:00\.0"):
        translate(domain(), env={VARIABLE: GPU0}, host=FixedHost(*card("0000:e1:00", 44), stranger), vmi=vmi("a"))


@pytest.mark.parametrize(
    "value",
    [
        f"{GPU0},{GPU1},",
        f",{GPU0},,{GPU1}",
        f" {GPU0} , {GPU1} ",
        f"{GPU0},{GPU0},{GPU1}",
        f"{GPU0.upper()},{GPU1.upper()}",
        f"{GPU0[5:]},{GPU1[5:]}",
        f"0000{GPU0},0000{GPU1}",
    ],
)
def test_users_8_any_spelling_of_the_variable_is_read(value: str) -> None:
    assert sources(translate(domain(), env={VARIABLE: value}, host=TWO_CARDS, vmi=vmi("a", "b"))) == [
        GPU0,
        AUD0,
        GPU1,
        AUD1,
    ]


def test_users_8_long_domains_are_kept() -> None:
    host = FixedHost(*card("10000:e1:00", 44))
    assert sources(translate(domain(), env={VARIABLE: "10000:E1:00.0"}, host=host, vmi=vmi("a"))) == [
        "10000:e1:00.0",
        "10000:e1:00.1",
    ]


def test_users_9_missing_says_expected_present_and_nearest() -> None:
    near = VARIABLE[:-1] + "B"
    with raises_code(VARIABLE_MISSING) as raised:
        translate(domain(), env={near: f"{GPU0},{GPU1}", "MDEV_PCI_RESOURCE_T4": UUID}, host=TWO_CARDS, vmi=vmi("a"))
    for part in (VARIABLE, f"{near} (2)", "MDEV_PCI_RESOURCE_T4 (1)", f"the nearest is {near}"):
        assert part in raised.value.message


def test_users_9_short_says_what_each_address_is() -> None:
    with raises_code(TOO_FEW_DEVICES) as raised:
        translate(domain(), env={VARIABLE: f"{GPU0},{AUD0}"}, host=TWO_CARDS, vmi=vmi("a", "b"))
    assert f"{AUD0} audio device" in raised.value.message


def test_users_9_the_alternate_of_a_variable_that_is_there_is_never_warned_about() -> None:
    translation = translate(domain(), env={VARIABLE: GPU0}, host=TWO_CARDS, vmi=vmi("a"))
    assert not [note for note in translation.notes if "RESOURCE" in note.text]


def test_users_10_one_resource_under_gpus_and_host_devices_gives_two_devices() -> None:
    requests = vmi("a", host_devices=(("b", RESOURCE),))
    translation = translate(domain(), env={VARIABLE: EVERY_DIALECT[0]}, host=TWO_CARDS, vmi=requests)
    found = {each.source: each.alias for each in hostdevs(translation.domain_xml)}
    assert found == {GPU0: "ua-gpu-a", AUD0: "ua-gpu-a-fn1", GPU1: "ua-hostdevice-b", AUD1: "ua-hostdevice-b-fn1"}


def test_users_10_a_device_of_an_interface_is_never_given_twice() -> None:
    host = FixedHost(*(function(f"0000:01:10.{number}", NIC, physfn="0000:01:00.0", group=number) for number in (0, 1)))
    used = "<interface type='hostdev'><source><address bus='1' slot='0x10'/></source></interface>"
    translation = translate(domain(used), env={VARIABLE: "0000:01:10.0,0000:01:10.1"}, host=host, vmi=vmi("a"))
    assert sources(translation) == ["0000:01:10.1"]


OLD, NEW = ("/dev/vfio/vfio", "/dev/vfio/44"), ("/dev/iommu", "/dev/vfio/devices/vfio3")


def host_with(*nodes: str) -> FixedHost:
    return FixedHost(
        function(GPU0, group=44), nodes=nodes, details={GPU0: detail(vfio_dev="vfio3")}, mdevs=[mdev(group=90)]
    )


@pytest.mark.parametrize(("nodes", "needed"), [(OLD, OLD), (NEW, NEW), ((*OLD, *NEW), OLD)])
def test_users_17_either_set_of_nodes_will_do(nodes: tuple[str, ...], needed: tuple[str, ...]) -> None:
    translation = translate(domain(), env={VARIABLE: GPU0}, host=host_with(*nodes), vmi=vmi("a"))
    assert translation.plan.nodes == needed
    assert (b"iommufd" in translation.domain_xml) == (needed == NEW)


@pytest.mark.parametrize("nodes", [(), OLD[:1], OLD[1:], NEW[:1], NEW[1:], (OLD[0], NEW[1]), (OLD[1], NEW[0])])
def test_users_17_half_a_set_is_not_enough(nodes: tuple[str, ...]) -> None:
    with pytest.raises(LauncherkitError) as raised:
        translate(domain(), env={VARIABLE: GPU0}, host=host_with(*nodes), vmi=vmi("a"))
    assert all(leaf.code == NODE_MISSING.code for leaf in raised.value.leaves())


def test_users_17_an_mdev_forces_the_old_nodes_and_nothing_goes_through_iommufd() -> None:
    env = {VARIABLE: GPU0, "MDEV_PCI_RESOURCE_X_M": UUID}
    host = host_with(*OLD, *NEW, "/dev/vfio/90")
    requests = vmi("a", host_devices=(("m", "x/m"),))
    translation = translate(domain(), env=env, host=host, vmi=requests)
    assert set(translation.plan.nodes) == {*OLD, "/dev/vfio/90"}
    assert b"iommufd" not in translation.domain_xml
    with pytest.raises(LauncherkitError, match="/dev/vfio/90"):
        translate(domain(), env=env, host=host_with(*OLD, *NEW), vmi=requests)


def test_users_17_nodes_are_looked_for_only_where_the_vm_will_run() -> None:
    """V2: a sidecar has no /dev/vfio."""
    translate(domain(pci_hostdev(GPU0)), env={}, host=host_with(), vmi=vmi("a"))
    translate(domain(), env={VARIABLE: GPU0}, host=host_with(), vmi=vmi("a"), policy=Policy(node_check="never"))
    with raises_code(NODE_MISSING):
        translate(
            domain(pci_hostdev(GPU0)),
            env={},
            host=host_with("/dev/vfio/vfio"),
            vmi=vmi("a"),
            policy=Policy(node_check="always"),
        )


def displays(translation: Translation) -> list[tuple[str | None, str | None]]:
    return [(each.attributes.get("display"), each.attributes.get("ramfb")) for each in hostdevs(translation.domain_xml)]


@pytest.mark.parametrize("enabled", [True, None])
def test_users_22_at_most_one_ramfb_whoever_asks(enabled: bool | None) -> None:
    host = FixedHost(mdevs=[mdev(), mdev(UUID2, group=91)])
    env = {"MDEV_PCI_RESOURCE_X_T4": f"{UUID},{UUID2}"}
    options = {"virtualGPUOptions": {"display": {"enabled": enabled, "ramFB": {"enabled": enabled}}}}
    requests = vmi(("a", "x/t4"), ("b", "x/t4"), options=options)
    document = domain("<graphics type='vnc'/>")
    assert displays(translate(document, env=env, host=host, vmi=requests)) == [("on", "on"), ("on", None)]
    with_video = domain("<graphics type='vnc'/>", "<video><model type='ramfb'/></video>")
    assert displays(translate(with_video, env=env, host=host, vmi=requests)) == [("on", None), ("on", None)]


def test_users_22_a_second_ramfb_that_kubevirt_has_written_is_turned_off() -> None:
    host = FixedHost(mdevs=[mdev(), mdev(UUID2, group=91)])
    shown = " model='vfio-pci' display='on' ramfb='on'"
    document = domain(
        "<graphics type='vnc'/>",
        mdev_hostdev(UUID, alias="ua-gpu-a", attributes=shown),
        mdev_hostdev(UUID2, alias="ua-gpu-b", attributes=shown),
    )
    assert displays(translate(document, env={}, host=host)) == [("on", "on"), ("on", "off")]


def test_users_22_a_sibling_has_no_second_ramfb_either() -> None:
    """X3: KubeVirt pairs by position, so that a gpu's display may stand on an audio function."""
    shown = " display='on' ramfb='on'"
    hostdevs_there = [
        pci_hostdev(GPU0, alias="ua-gpu-a", attributes=shown),
        pci_hostdev(AUD0, alias="ua-gpu-b", attributes=shown),
    ]
    with_graphics = domain("<graphics type='vnc'/>", *hostdevs_there)
    found = displays(translate(with_graphics, env={}, host=TWO_CARDS, vmi=vmi("a", "b")))
    assert [ramfb for _, ramfb in found].count("on") == 1
    without = displays(translate(domain(*hostdevs_there), env={}, host=TWO_CARDS, vmi=vmi("a", "b")))
    assert not [display for display, _ in without if display == "on"]


def test_users_closing_a_sibling_that_another_request_asks_for_is_attached_once() -> None:
    for requests in (
        vmi("a", host_devices=(("sound", AUDIO_RESOURCE),)),
        vmi(("sound", AUDIO_RESOURCE), "a"),
    ):
        env = {VARIABLE: GPU0, AUDIO_VARIABLE: AUD0}
        found = hostdevs(translate(domain(), env=env, host=TWO_CARDS, vmi=requests).domain_xml)
        assert sorted((each.source, each.guest, each.multifunction) for each in found) == [
            (GPU0, "0000:03:00.0", "on"),
            (AUD0, "0000:03:00.1", None),
        ]
        assert {(each.alias or "").rpartition("-")[2] for each in found} == {"a", "sound"}


def test_users_closing_audio_of_one_card_asked_for_beside_another_card_goes_with_its_own_gpu() -> None:
    """The other card's audio is a sibling of a GPU that is there, not of the one before it in the list."""
    env = {VARIABLE: f"{GPU0},{GPU1}", AUDIO_VARIABLE: f"{AUD1},{AUD0}"}
    requests = vmi("a", "b", host_devices=(("s", AUDIO_RESOURCE), ("t", AUDIO_RESOURCE)))
    found = {
        each.source: each for each in hostdevs(translate(domain(), env=env, host=TWO_CARDS, vmi=requests).domain_xml)
    }
    assert [found[source].guest for source in (GPU0, AUD0, GPU1, AUD1)] == [
        "0000:03:00.0",
        "0000:03:00.1",
        "0000:04:00.0",
        "0000:04:00.1",
    ]
    assert (found[AUD1].alias, found[AUD0].alias) == ("ua-hostdevice-s", "ua-hostdevice-t")


def test_a_host_of_files_is_read_the_same(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:e1:00", group=44)
    tree.card("0000:01:00", group=12)
    tree.function("0000:00:01.0", class_code=0x060400, driver="pcieport", group=44)
    translation = translate(
        domain(), env={VARIABLE: EVERY_DIALECT[0]}, host=Host.from_sysfs(tmp_path), vmi=vmi("a", "b")
    )
    assert hostdevs(translation.domain_xml)[1] == Hostdev(
        AUD0, "ua-gpu-a-fn1", "0000:03:00.1", None, {"mode": "subsystem", "type": "pci", "managed": "no"}
    )
    assert translation.plan.nodes == ("/dev/vfio/vfio", "/dev/vfio/44", "/dev/vfio/12")
