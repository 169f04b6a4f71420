"""Each IOMMU group is opened one way: through iommufd, or through the group (V2)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from launcherkit import translate
from launcherkit.errors import MIXED_BACKENDS, NODE_MISSING
from launcherkit.model.policy import Iommufd, Policy
from tests.support.domains import domain, mdev_hostdev, pci_hostdev
from tests.support.errors import raises_code
from tests.support.facts import AUDIO, UUID, FixedHost, at, detail, function, mdev

GPU, SOUND, OTHER = "0000:e1:00.0", "0000:e1:00.1", "0000:01:00.0"
GROUPS = {"/dev/vfio/vfio", "/dev/vfio/44", "/dev/vfio/12"}
CDEVS = {"/dev/iommu", "/dev/vfio/devices/vfio0", "/dev/vfio/devices/vfio1", "/dev/vfio/devices/vfio2"}
YES, NO, SILENT = True, False, None


def host(nodes: Iterable[str] | None = None, **known: object) -> FixedHost:
    return FixedHost(
        function(GPU, group=44),
        function(SOUND, AUDIO, group=44),
        function(OTHER, device=0x2206, group=12),
        details={address: detail(vfio_dev=f"vfio{number}") for number, address in enumerate((GPU, SOUND, OTHER))},
        nodes=nodes,
        mdevs=[mdev()],
        **known,
    )


def hostdev(address: str, iommufd: bool | None, alias: str | None = None) -> str:
    driver = {None: "", True: "<driver iommufd='yes'/>", False: "<driver iommufd='no'/>"}[iommufd]
    return pci_hostdev(address, alias=alias).replace("<source>", f"{driver}<source>", 1)


def ways(
    *devices: str,
    of_domain: bool | None = None,
    env: str = GPU,
    nodes: Iterable[str] | None = None,
    policy: Iommufd = "auto",
) -> tuple[dict[str, bool | None], bool, list[str]]:
    """What each hostdev says, whether iommufd is used, and what notes tell of it."""
    text = {None: "", True: "<iommufd enabled='yes'/>", False: "<iommufd enabled='no'/>"}[of_domain]
    document = domain(*devices).replace("<devices>", f"{text}<devices>")
    variables = {"PCI_RESOURCE_X": env} if env else {}
    decisions = Policy(iommufd=policy, node_check="never")
    written = translate(document, env=variables, host=host(nodes), policy=decisions)
    functions = [function for device in written.plan.devices for function in device.functions]
    assert written.domain_xml.count(b"iommufd='yes'") == sum(each.iommufd is True for each in functions)
    again = translate(written.domain_xml, env=variables, host=host(nodes), policy=decisions)
    assert again.domain_xml == written.domain_xml
    said = {str(each.source): each.iommufd for each in functions}
    return said, written.plan.iommufd, [note.text for note in written.notes if note.topic == "iommufd"]


@pytest.mark.parametrize("primary", [YES, NO, SILENT])
@pytest.mark.parametrize("of_domain", [YES, NO, SILENT])
def test_a_sibling_says_what_its_primary_says_whatever_the_domain_says(
    primary: bool | None, of_domain: bool | None
) -> None:
    document = hostdev(GPU, primary, "ua-gpu-a")
    text = {None: "", True: "<iommufd enabled='yes'/>", False: "<iommufd enabled='no'/>"}[of_domain]
    written = translate(domain(document).replace("<devices>", f"{text}<devices>"), env={}, host=host())
    gpu, sound = written.plan.devices[0].functions
    assert (gpu.iommufd, sound.iommufd) == (primary, primary)
    assert written.plan.iommufd == bool(of_domain if primary is None else primary)


def test_what_is_added_says_nothing_where_the_domain_says_it() -> None:
    assert ways(of_domain=YES) == ({GPU: None, SOUND: None}, True, [])
    assert ways(of_domain=NO, nodes=CDEVS)[0] == {GPU: True, SOUND: True}
    assert ways() == ({GPU: None, SOUND: None}, False, [])


FDGROUP = "<iommufd enabled='yes' fdgroup='iommu'/>"


@pytest.mark.parametrize("nodes", [None, set(), GROUPS, CDEVS, CDEVS - {"/dev/iommu"}, GROUPS | CDEVS])
def test_a_descriptor_that_is_passed_in_decides_whatever_nodes_are_here(nodes: set[str] | None) -> None:
    """KubeVirt associates it with the domain's ``fdgroup``, and ``<driver iommufd='no'/>`` would go past it."""
    document = domain(hostdev(GPU, SILENT, "ua-gpu-a")).replace("<devices>", f"{FDGROUP}<devices>")
    variables = {"PCI_RESOURCE_X": f"{GPU},{OTHER}"}
    policy = Policy(node_check="never", iommufd="no")
    written = translate(document, env=variables, host=host(nodes), policy=policy)
    functions = [each for device in written.plan.devices for each in device.functions]
    assert {str(each.source): each.iommufd for each in functions} == {GPU: None, SOUND: None, OTHER: None}
    assert FDGROUP.encode() in written.domain_xml
    assert b"<driver" not in written.domain_xml
    assert set(written.plan.nodes) == CDEVS - {"/dev/iommu"}
    assert written.plan.iommufd


def test_the_node_of_iommufd_is_missed_only_where_it_is_opened() -> None:
    nodes = CDEVS - {"/dev/iommu"}
    passed = domain().replace("<devices>", f"{FDGROUP}<devices>")
    assert translate(passed, env={"PCI_RESOURCE_X": GPU}, host=host(nodes)).plan.iommufd
    with raises_code(NODE_MISSING, match="/dev/vfio/devices/vfio1"):
        translate(passed, env={"PCI_RESOURCE_X": GPU}, host=host(nodes - {"/dev/vfio/devices/vfio1"}))
    opened = passed.replace(" fdgroup='iommu'", "")
    with raises_code(NODE_MISSING, match="/dev/iommu"):
        translate(opened, env={"PCI_RESOURCE_X": GPU}, host=host(nodes))


@pytest.mark.parametrize("says", [YES, NO])
def test_what_a_hostdev_says_comes_before_the_descriptor_too(says: bool) -> None:
    """KubeVirt's way to take one device out of it; its siblings go with it."""
    document = domain(hostdev(GPU, says, "ua-gpu-a")).replace("<devices>", f"{FDGROUP}<devices>")
    written = translate(document, env={}, host=host())
    assert [each.iommufd for each in written.plan.devices[0].functions] == [says, says]
    assert ("/dev/vfio/vfio" in written.plan.nodes) is not says


def test_the_nodes_that_are_here_decide_where_nothing_is_said_with_a_note() -> None:
    said, iommufd, notes = ways(env=f"{GPU},{OTHER}", nodes=CDEVS)
    assert (said, iommufd) == ({GPU: True, SOUND: True, OTHER: True}, True)
    (note,) = notes
    assert note.startswith(f"{GPU}, {OTHER}: ")
    assert "libvirt 12.1" in note
    assert ways(nodes=CDEVS | GROUPS) == ({GPU: None, SOUND: None}, False, [])
    said, iommufd, notes = ways(of_domain=YES, nodes=GROUPS)
    assert (said, iommufd, len(notes)) == ({GPU: False, SOUND: False}, False, 1)


def test_what_could_go_either_way_goes_with_what_can_only_go_through_iommufd() -> None:
    """X2: a second run finds `<driver iommufd='yes'/>` in the document, and must not choose otherwise by it."""
    nodes = CDEVS | {"/dev/vfio/vfio", "/dev/vfio/44"}
    said, iommufd, notes = ways(env=f"{GPU},{OTHER}", nodes=nodes)
    assert (said, iommufd) == ({GPU: True, SOUND: True, OTHER: True}, True)
    assert [note.partition(";")[0] for note in notes] == [
        f"{GPU}: through iommufd, as another device has to",
        f"{OTHER}: through iommufd, because only its nodes are present",
    ]
    only_by_group = nodes - {"/dev/vfio/devices/vfio0"}
    said, _, notes = ways(env=f"{GPU},{OTHER}", nodes=only_by_group)
    assert said == {GPU: None, SOUND: None, OTHER: True}
    assert notes[0].startswith(f"{GPU}: through the group, whose nodes alone are present")


def test_a_hostdev_that_says_its_way_does_not_decide_for_others_by_its_nodes() -> None:
    nodes = CDEVS | {"/dev/vfio/vfio", "/dev/vfio/44"}
    said, _, notes = ways(hostdev(OTHER, NO, "ua-gpu-b"), nodes=nodes)
    assert (said, notes) == ({GPU: None, SOUND: None, OTHER: False}, [])


SHARED = ("0000:21:00.0", "0000:22:00.0", "0000:23:00.0")


@pytest.mark.parametrize(
    ("group_nodes", "cdevs", "iommufd"),
    [
        (("7", "8"), ("vfio0",), None),
        (("7",), ("vfio0", "vfio1", "vfio2"), True),
        (("8",), ("vfio0", "vfio1", "vfio2"), True),
        ((), ("vfio0", "vfio1"), None),
    ],
)
def test_devices_that_share_a_group_go_the_same_way(
    group_nodes: tuple[str, ...], cdevs: tuple[str, ...], iommufd: bool | None
) -> None:
    """V2: the first and the last have no group in common, but the one between them has both."""
    first, between, last = SHARED
    functions = [
        function(first, group=7),
        function(between, group=7),
        function(between[:-1] + "1", AUDIO, group=8),
        function(last, group=8),
    ]
    names = {first: "vfio0", between: "vfio1", between[:-1] + "1": "vfio1b", last: "vfio2"}
    nodes = {
        "/dev/vfio/vfio",
        "/dev/iommu",
        "/dev/vfio/devices/vfio1b",
        *(f"/dev/vfio/{group}" for group in group_nodes),
    }
    nodes |= {f"/dev/vfio/devices/{name}" for name in cdevs}
    here = FixedHost(
        *functions,
        details={address: detail(vfio_dev=name) for address, name in names.items()},
        nodes=nodes,
    )
    variables = {"PCI_RESOURCE_X": ",".join((*SHARED, between[:-1] + "1"))}
    written = translate(domain(), env=variables, host=here, policy=Policy(node_check="never"))
    assert {each.iommufd for device in written.plan.devices for each in device.functions} == {iommufd}


def test_the_documents_word_on_a_group_counts_for_all_that_are_linked_to_it() -> None:
    first, between, last = SHARED
    functions = function(first, group=7), function(between, group=7), function(between[:-1] + "1", AUDIO, group=8)
    here = FixedHost(*functions, function(last, group=8))
    variables = {"PCI_RESOURCE_X": ",".join((last, between, between[:-1] + "1"))}
    policy = Policy(node_check="never", iommufd="yes")
    written = translate(domain(hostdev(first, NO)), env=variables, host=here, policy=policy)
    assert not written.plan.iommufd


def test_a_sibling_that_would_open_another_devices_group_the_other_way_is_refused() -> None:
    """V2: it follows its primary, and the other device what the document says of it."""
    functions = function(GPU, group=44), function(SOUND, AUDIO, group=12), function(OTHER, device=0x2206, group=12)
    document = domain(hostdev(GPU, YES, "ua-gpu-a"), hostdev(OTHER, NO, "ua-gpu-b"))
    variables = {"PCI_RESOURCE_X": f"{GPU},{SOUND},{OTHER}"}
    with raises_code(MIXED_BACKENDS, match=f"group 12 .*{SOUND} through iommufd, {OTHER} through the group"):
        translate(document, env=variables, host=FixedHost(*functions), policy=Policy(node_check="never"))


@pytest.mark.parametrize("iommufd", ["auto", "yes"])
def test_what_the_guest_does_not_see_needs_no_character_device(iommufd: Iommufd) -> None:
    """S1's `reserve`: QEMU doesn't open it."""
    here = FixedHost(
        function(GPU, group=44),
        function(SOUND, AUDIO, group=44),
        details={GPU: detail(vfio_dev="vfio0"), SOUND: detail()},
        nodes={"/dev/iommu", "/dev/vfio/devices/vfio0"},
    )
    policy = Policy(iommufd=iommufd, siblings="reserve")
    written = translate(domain(), env={"PCI_RESOURCE_X": GPU}, host=here, policy=policy)
    assert written.plan.nodes == ("/dev/iommu", "/dev/vfio/devices/vfio0")


def test_no_note_says_that_nodes_are_present_which_are_not() -> None:
    said, _, notes = ways(env=f"{GPU},{OTHER}", nodes=CDEVS - {"/dev/vfio/devices/vfio2"})
    assert said == {GPU: True, SOUND: True, OTHER: True}
    assert [("only its nodes" in note, note.partition(":00.0: ")[0]) for note in notes] == [
        (True, "0000:e1"),
        (False, "0000:01"),
    ]


def test_a_function_without_a_character_device_can_not_go_through_iommufd() -> None:
    """V2: as with any node that is missing; not where libvirt binds it first, or the nodes aren't known."""
    here = FixedHost(function(GPU, group=44), details={GPU: detail()}, nodes=GROUPS | {"/dev/iommu"})
    variables = {"PCI_RESOURCE_X": GPU}
    with raises_code(NODE_MISSING, match=f"{GPU} has no character device"):
        translate(domain(), env=variables, host=here, policy=Policy(iommufd="yes"))
    unbound = FixedHost(function(GPU, group=44, driver="nouveau"), details={GPU: detail()}, nodes=here.facts(()).nodes)
    translate(domain(), env=variables, host=unbound, policy=Policy(iommufd="yes", managed=True))
    translate(domain(), env=variables, host=here, policy=Policy(iommufd="no"))
    unseen = FixedHost(function(GPU, group=44), details={GPU: detail()})
    translate(domain(), env=variables, host=unseen, policy=Policy(iommufd="yes"))


def test_another_function_of_the_group_that_the_document_has_decides_for_it() -> None:
    there = hostdev(SOUND, YES)
    written = translate(domain(there), env={"PCI_RESOURCE_X": GPU}, host=host(GROUPS | CDEVS))
    assert {str(each.source): each.iommufd for each in written.plan.devices[0].functions} == {GPU: True, SOUND: True}


def test_a_mediated_device_does_not_split_the_group_of_a_card_that_goes_through_iommufd() -> None:
    gpu = hostdev(GPU, YES, "ua-gpu-a")
    said, iommufd, notes = ways(gpu, mdev_hostdev(UUID, alias="ua-gpu-v"), env=OTHER)
    assert (said, iommufd) == ({OTHER: None, GPU: True, SOUND: True, UUID: None}, True)
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("gpu", "sound", "of_domain"), [(YES, NO, SILENT), (NO, YES, YES), (SILENT, NO, YES), (YES, SILENT, NO)]
)
def test_a_document_that_opens_a_group_both_ways_is_refused(
    gpu: bool | None, sound: bool | None, of_domain: bool | None
) -> None:
    with raises_code(MIXED_BACKENDS, match=r"group 44 .*0000:e1:00\.\d through iommufd"):
        ways(hostdev(GPU, gpu, "ua-gpu-a"), hostdev(SOUND, sound, "ua-hostdevice-b"), of_domain=of_domain, env="")


def test_a_hostdev_that_nobody_asked_about_keeps_to_its_way() -> None:
    """X1, V2."""
    nobodys = hostdev(OTHER, SILENT)
    written = translate(
        domain(nobodys), env={"PCI_RESOURCE_X": GPU}, host=host(CDEVS | {"/dev/vfio/12", "/dev/vfio/vfio"})
    )
    assert nobodys.encode() in written.domain_xml
    assert {"/dev/vfio/12", "/dev/vfio/devices/vfio0"} <= set(written.plan.nodes)
    assert at(OTHER) in [device.primary.source for device in written.plan.devices]


@pytest.mark.parametrize(
    ("policy", "of_domain", "said", "through"),
    [
        ("yes", SILENT, True, True),
        ("no", SILENT, None, False),
        ("yes", NO, None, False),
        ("no", YES, None, True),
    ],
)
def test_the_policy_decides_where_the_document_is_silent(
    policy: Iommufd, of_domain: bool | None, said: bool | None, through: bool
) -> None:
    for nodes in (None, GROUPS, CDEVS, GROUPS | CDEVS):
        if of_domain is None or nodes is None:
            found, iommufd, notes = ways(of_domain=of_domain, nodes=nodes, policy=policy)
            assert (found, iommufd, notes) == ({GPU: said, SOUND: said}, through, [])


def test_what_a_hostdev_says_comes_before_the_policy() -> None:
    for says in (YES, NO):
        found, _, _ = ways(hostdev(GPU, says, "ua-gpu-a"), env="", policy="no" if says else "yes")
        assert found == {GPU: says, SOUND: says}


def test_the_policy_doesnt_overrule_a_mediated_device() -> None:
    _, iommufd, notes = ways(mdev_hostdev(UUID), policy="yes")
    assert not iommufd
    assert "mediated device" in notes[0]


def test_a_sibling_in_another_group_keeps_what_its_own_hostdev_says() -> None:
    functions = function(GPU, group=44), function(SOUND, AUDIO, group=45)
    document = domain(hostdev(GPU, YES, "ua-gpu-a"), hostdev(SOUND, NO, "ua-gpu-a-fn1"))
    (device,) = translate(document, env={}, host=FixedHost(*functions)).plan.devices
    assert {str(each.source): each.iommufd for each in device.functions} == {GPU: True, SOUND: False}


def test_of_a_hostdev_that_nobody_asked_about_nothing_is_decided() -> None:
    written = translate(domain(hostdev(OTHER, YES)), env={}, host=host())
    assert [each.iommufd for device in written.plan.devices for each in device.functions] == [None]
    assert written.plan.iommufd
