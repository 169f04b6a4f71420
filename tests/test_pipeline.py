"""The pipeline from end to end: what no single package decides (Q1-Q3, X1, C4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from launcherkit import Host, LauncherkitError, Policy, translate
from launcherkit.errors import BAD_HOSTDEV, BAD_VMI, NOT_ON_HOST, VARIABLE_CLASH, SeveralErrors
from launcherkit.host.snapshot import dump
from tests.support.domains import domain, hostdevs, pci_hostdev
from tests.support.errors import raises_code
from tests.support.facts import AUDIO, NIC, USB, FixedHost, card, function
from tests.support.hosttree import HostTree

GPU0, AUD0, GPU1, AUD1 = "0000:e1:00.0", "0000:e1:00.1", "0000:01:00.0", "0000:01:00.1"
TWO_CARDS = FixedHost(*card("0000:e1:00", 44), *card("0000:01:00", 12))
X = "PCI_RESOURCE_X"


def vmi(**requests: str) -> dict[str, Any]:
    """Gpus by name and resource."""
    gpus = [{"name": name, "deviceName": resource} for name, resource in requests.items()]
    return {"spec": {"domain": {"devices": {"gpus": gpus}}}}


class NoHost:
    """A host that must not be asked."""

    def facts(self, *_: object, **__: object) -> Any:
        raise AssertionError("nobody needs to know")


@pytest.mark.parametrize(
    "document",
    [
        "<domain/>",
        domain(pci_hostdev(GPU0, attributes=" mode='subsystem'")),
        "<domain><devices><hostdev mode='subsystem' type='pci'/></devices></domain>",
        "<domain><devices><hostdev type='scsi'/><hostdev mode='capabilities' type='net'/></devices></domain>",
        "<?xml version='1.0'?>\n<domain>\r\n</domain>  ",
    ],
)
def test_a_vmi_that_asks_for_nothing_gets_its_document_back_byte_for_byte(document: str) -> None:
    """Q3: bad hostdevs, missing devices and all."""
    translation = translate(document, env={X: "nonsense"}, host=NoHost(), vmi=vmi())
    assert (translation.domain_xml, translation.plan.devices) == (document.encode(), ())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("type='pci' managed='no'", "type='pci' managed='no' mode='subsystem'"),
        ("managed='no'", "managed='no' mode='subsystem' type='pci'"),
        ("mode='subsystem'", "mode='subsystem' type='pci'"),
        ("mode=''  type=''  ", "mode='subsystem'  type='pci'  "),
    ],
)
def test_a_hostdev_that_nobody_asks_about_gets_the_mode_and_type_that_kubevirts_schema_demands(
    given: str, wanted: str
) -> None:
    """Q3: all else stays; in a hook also if the VMI asks for another device. A second pass changes nothing."""
    document = domain(f"<hostdev {given}><source><address bus='0x05' slot='0'/></source></hostdev>")
    nothing = translate(document, env={}, host=NoHost(), vmi=vmi()).domain_xml
    assert nothing == document.replace(f"<hostdev {given}>", f"<hostdev {wanted}>").encode()
    assert translate(nothing, env={}, host=NoHost(), vmi=vmi()).domain_xml == nothing
    other = translate(document, env={X: "0000:e1:00.0"}, host=TWO_CARDS, vmi=vmi(a="x"), hook=True).domain_xml
    assert f"<hostdev {wanted}><source><address bus='0x05' slot='0'/></source></hostdev>".encode() in other


def test_a_mediated_device_gets_its_mode_only_in_a_hook() -> None:
    """Q3: KubeVirt writes it with one, but another hook may have left it out."""
    document = domain(
        "<hostdev type='mdev'><source><address uuid='7f3a0000-0000-0000-0000-000000000001'/></source></hostdev>"
    )
    assert translate(document, env={}, host=NoHost(), vmi=vmi()).domain_xml == document.encode()
    hooked = translate(document, env={}, host=NoHost(), vmi=vmi(), hook=True).domain_xml
    assert hooked == document.replace("'mdev'", "'mdev' mode='subsystem'").encode()


def test_devices_that_were_allocated_to_a_vmi_that_asks_for_none_are_reported() -> None:
    """Q4: often it is another VM's VMI."""
    env = {X: "0000:e1:00.0,0000:e2:00.0", "PCI_RESOURCE_EMPTY": ",", "PCIDEVICE_X": "0000:01:00.0", "HOME": "/"}
    (note,) = translate("<domain/>", env=env, host=NoHost(), vmi=vmi()).notes
    assert (note.topic, note.text) == ("not-asked", f"the VMI asks for no device; left alone: 2 in {X}")
    policy = Policy(extra_prefixes=("PCIDEVICE",))
    (note,) = translate("<domain/>", env=env, host=NoHost(), vmi=vmi(), policy=policy).notes
    assert note.text.endswith(f"left alone: 1 in PCIDEVICE_X, 2 in {X}")
    assert translate("<domain/>", env={"PCI_RESOURCE_EMPTY": ","}, host=NoHost(), vmi=vmi()).notes == ()


def test_a_virtual_machine_is_read_by_its_template_and_what_is_no_vmi_is_an_error() -> None:
    """Q4."""
    machine = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "spec": {"template": vmi(gpu1="x.com/gpu")}}
    env = {"PCI_RESOURCE_X_COM_GPU": "0000:e1:00.0"}
    translated = translate(domain(), env=env, host=Host.none(), vmi=machine).domain_xml
    assert [(each.source, each.alias) for each in hostdevs(translated)] == [(GPU0, "ua-gpu-gpu1")]
    with raises_code(BAD_VMI, match=r"the VMI: expected a VirtualMachineInstance, found a Pod \(v1\)"):
        translate("<domain/>", env=env, host=NoHost(), vmi={"apiVersion": "v1", "kind": "Pod"})


def test_what_is_no_document_is_refused_even_then() -> None:
    """X5."""
    with pytest.raises(LauncherkitError):
        translate("<domain>", env={}, host=NoHost(), vmi={})


def test_with_no_vmi_every_device_of_every_variable_is_attached() -> None:
    """Q1."""
    translation = translate(domain(), env={X: f"{GPU0},{AUD0}", "PCI_RESOURCE_Y": GPU1}, host=TWO_CARDS)
    assert [(each.source, each.alias) for each in hostdevs(translation.domain_xml)] == [
        (GPU0, "ua-gpu-x-0"),
        (AUD0, "ua-gpu-x-0-fn1"),
        (GPU1, "ua-gpu-y-0"),
        (AUD1, "ua-gpu-y-0-fn1"),
    ]


def test_a_document_without_devices_gets_them() -> None:
    """X5."""
    assert translate("<domain/>", env={}, host=NoHost()).domain_xml == b"<domain><devices/></domain>"


def test_what_is_more_than_was_asked_for_is_reported() -> None:
    """C4."""
    translation = translate(domain(), env={X: f"{GPU0},{GPU1}"}, host=TWO_CARDS, vmi=vmi(a="x"))
    assert [note.text for note in translation.notes if note.topic == "left-alone"] == [
        f"{X} holds more than was requested; left alone: {GPU1}"
    ]


def test_what_stays_behind_is_reported_with_the_reason() -> None:
    """S2."""
    host = FixedHost(function(GPU0, group=1), function(AUD0, AUDIO, driver="snd_hda_intel", group=2))
    translation = translate(domain(), env={X: GPU0}, host=host, vmi=vmi(a="x"))
    (note,) = (note for note in translation.notes if note.topic == "stayed")
    assert note.text.startswith(f"{AUD0} is not attached with {GPU0}: it is in IOMMU group 2, bound to snd_hda_intel")


def test_a_hostdev_that_is_not_on_this_host_is_reported_and_left_to_libvirt() -> None:
    """Q2."""
    translation = translate(domain(pci_hostdev("0000:99:00.0")), env={}, host=TWO_CARDS)
    assert [note.topic for note in translation.notes] == ["not-on-host"]
    assert len(hostdevs(translation.domain_xml)) == 1


def test_what_was_allocated_but_is_not_on_this_host_is_an_error() -> None:
    with raises_code(NOT_ON_HOST, match=r"0000:99:00\.0"):
        translate(domain(), env={X: "0000:99:00.0"}, host=TWO_CARDS, vmi=vmi(a="x"))


def test_what_a_snapshot_does_not_have_may_be_on_another_node(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.card("0000:e1:00", group=44)
    snapshot = tmp_path / "host.json"
    snapshot.write_text(dump(Host.from_sysfs(tree.root).scan()))
    for host, asked in ((Host.from_snapshot(snapshot), True), (Host.from_sysfs(tree.root), False)):
        with raises_code(NOT_ON_HOST) as raised:
            translate(domain(), env={X: "0000:99:00.0"}, host=host, vmi=vmi(a="x"))
        assert raised.value.remedy.startswith("Is the snapshot one of the node where the variable was set") is asked


@pytest.mark.parametrize(("said", "policy", "expected"), [("yes", False, "yes"), ("no", True, "no")])
def test_siblings_are_managed_as_the_document_says_of_their_primary(said: str, policy: bool, expected: str) -> None:
    """X1: libvirt binds a card whole or not at all."""
    there = pci_hostdev(GPU0).replace("managed='no'", f"managed='{said}'")
    translation = translate(domain(there), env={}, host=TWO_CARDS, policy=Policy(managed=policy))
    assert [each.attributes["managed"] for each in hostdevs(translation.domain_xml)] == [expected, expected]


def test_managed_of_the_policy_frees_a_card_from_its_drivers_viability() -> None:
    """V1, X1."""
    host = FixedHost(*card("0000:e1:00", 44, driver="nvidia"))
    translation = translate(domain(), env={X: GPU0}, host=host, vmi=vmi(a="x"), policy=Policy(managed=True))
    assert {each.attributes["managed"] for each in hostdevs(translation.domain_xml)} == {"yes"}
    with pytest.raises(LauncherkitError, match="not viable"):
        translate(domain(), env={X: GPU0}, host=host, vmi=vmi(a="x"))


def test_errors_of_several_packages_are_reported_together() -> None:
    """Slot taken and not viable: both, before anything is written."""
    host = FixedHost(function(GPU0, group=1), function(AUD0, AUDIO, driver="snd_hda_intel", group=1))
    document = domain(
        pci_hostdev(GPU0, guest="0000:00:05.0"), "<disk><address type='pci' slot='5' function='1'/></disk>"
    )
    with pytest.raises(SeveralErrors) as raised:
        translate(document, env={}, host=host)
    assert [leaf.code for leaf in raised.value.leaves()] == ["LK301", "LK204"]


def test_in_a_sidecar_the_hostdevs_of_the_document_count_as_listed() -> None:
    """Q2, S1: the audio function that is there is its GPU's sibling, and no other function comes."""
    host = FixedHost(*card("0000:e1:00", 44), function("0000:e1:00.2", USB, group=44))
    document = domain(pci_hostdev(GPU0, guest="0000:05:00.0"), pci_hostdev(AUD0))
    translation = translate(document, env={}, host=host, policy=Policy(siblings="listed"))
    assert [(each.source, each.guest) for each in hostdevs(translation.domain_xml)] == [
        (GPU0, "0000:05:00.0"),
        (AUD0, "0000:05:00.1"),
    ]


def test_for_usb_devices_alone_the_host_is_not_read() -> None:
    translation = translate(domain(), env={"USB_RESOURCE_X": "1:2"}, host=NoHost(), vmi=vmi(a="x"))
    assert [each.source for each in hostdevs(translation.domain_xml)] == ["1:2"]


def test_two_resources_with_one_variable_are_refused_although_there_would_be_enough() -> None:
    """E2."""
    with raises_code(VARIABLE_CLASH):
        translate(domain(), env={"PCI_RESOURCE_X_A": f"{GPU0},{GPU1}"}, host=TWO_CARDS, vmi=vmi(a="x/a", b="x.a"))


def test_a_document_is_called_by_its_name() -> None:
    with raises_code(BAD_HOSTDEV, match=r"vm\.xml, hostdev 1"):
        translate("<domain><devices><hostdev type='pci'/></devices></domain>", env={}, host=NoHost(), name="vm.xml")


def test_two_ports_of_one_card_are_two_devices_that_libvirt_places() -> None:
    """C2, P3."""
    host = FixedHost(function("0000:01:00.0", NIC, group=1), function("0000:01:00.1", NIC, group=1))
    document = domain("<memballoon model='none'/>")
    translation = translate(document, env={X: "0000:01:00.0,0000:01:00.1"}, host=host, vmi=vmi(a="x", b="x"))
    assert [(each.alias, each.guest) for each in hostdevs(translation.domain_xml)] == [
        ("ua-gpu-a", None),
        ("ua-gpu-b", None),
    ]


@pytest.fixture
def two_nodes(tmp_path: Path) -> HostTree:
    """A host with eight CPUs on each of two NUMA nodes, and three cards."""
    tree = HostTree(tmp_path / "host")
    for group, (address, node) in enumerate(ON_NODES.items()):
        above = [f"pci0000:{address[5:7]}", f"0000:{address[5:7]}:1f.0"]
        tree.function(address, driver="vfio-pci", group=group, numa=node, parents=above)
    for node in (0, 1):
        folder = tree.root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{node * 8}-{node * 8 + 7}\n")
        (folder / "distance").write_text(("10 21\n", "21 10\n")[node])
    return tree


ON_NODES = {"0000:05:00.0": 0, "0000:af:00.0": 1, "0000:c1:00.0": 1}


def of_two_cells() -> str:
    """A guest whose first cell is pinned to the second node."""
    pins = "".join(f"<vcpupin vcpu='{cpu}' cpuset='{(8, 9, 0, 1)[cpu]}'/>" for cpu in range(4))
    cells = "<cell id='0' cpus='0-1' memory='1' unit='GiB'/><cell id='1' cpus='2-3' memory='1' unit='GiB'/>"
    inside = f"<vcpu>4</vcpu><cputune>{pins}</cputune><cpu><numa>{cells}</numa></cpu>"
    return domain().replace("<devices>", f"{inside}<devices>")


def test_a_guests_tree_follows_a_live_sysfs_as_it_follows_a_snapshot(two_nodes: HostTree, tmp_path: Path) -> None:
    """P4: what a hook reads by need has the nodes, the CPUs and the root complexes that a snapshot has."""
    snapshot = tmp_path / "host.json"
    snapshot.write_text(dump(Host.from_sysfs(two_nodes.root).scan()))
    found = [
        translate(of_two_cells(), env={X: ",".join(ON_NODES)}, host=host).domain_xml
        for host in (Host.from_sysfs(two_nodes.root), Host.from_snapshot(snapshot))
    ]
    assert found[0] == found[1]
    assert cells_of(found[0]) == {"0000:05:00.0": "1", "0000:af:00.0": "0", "0000:c1:00.0": "0"}
    assert found[0].count(b"pcie-expander-bus") == 3, "one for each root complex"


def test_the_distances_of_a_live_host_are_read_whatever_the_tree_is(two_nodes: HostTree) -> None:
    """P10."""
    policy = Policy(topology="flat", numa_distances=True)
    result = translate(of_two_cells(), env={X: ",".join(ON_NODES)}, host=Host.from_sysfs(two_nodes.root), policy=policy)
    assert result.plan.distances == {0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}}


def cells_of(document: bytes) -> dict[str, str | None]:
    """The guest's cell that each hostdev is on, by its controllers."""
    root = etree.fromstring(document)
    controllers = {element.get("index"): element for element in root.iterfind("devices/controller")}
    found = {}
    for hostdev in hostdevs(document):
        assert hostdev.guest is not None
        port = controllers[str(int(hostdev.guest.split(":")[1], 16))]
        address = port.find("address")
        assert address is not None
        found[hostdev.source] = controllers[str(int(address.attrib["bus"], 16))].findtext("target/node")
    return found
