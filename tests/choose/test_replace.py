"""Which device may take the place of another, by the policy's ``replace`` (X2)."""

from __future__ import annotations

from typing import Any

import pytest

from launcherkit import Policy, translate
from launcherkit.errors import CANT_REPLACE, LauncherkitError
from launcherkit.model.host import Bar, HostFacts, NumaNode, VgpuVf
from tests.support.domains import domain, hostdevs, mdev_hostdev, pci_hostdev
from tests.support.facts import AUDIO, USB, UUID, UUID2, FixedHost, card, detail, function, mdev

OLD, OLD_AUDIO = "0000:10:00.0", "0000:10:00.1"
NEW, NEW_AUDIO = "0000:20:00.0", "0000:20:00.1"
ENV = {"PCI_RESOURCE_X_GPU": NEW}
VMI = {"spec": {"domain": {"devices": {"gpus": [{"name": "g", "deviceName": "x/gpu"}]}}}}
BEFORE = domain(
    pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"),
    pci_hostdev(OLD_AUDIO, alias="ua-gpu-g-fn1", guest="0000:05:00.1"),
)
ALONE = domain(pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"))
MIXED = domain(pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"), mdev_hostdev(UUID, alias="ua-gpu-g-fn1"))
"""A former sibling of another kind, as only a document made by hand has it."""
AMPERE, TURING = 0x2204, 0x1E07


def refusal(document: str, host: Any, **options: Any) -> LauncherkitError:
    with pytest.raises(LauncherkitError) as caught:
        translate(document, **{"env": ENV, "host": host, "vmi": VMI, **options})
    assert [leaf.code for leaf in caught.value.leaves()] == [CANT_REPLACE.code]
    return caught.value


def sources(document: str, host: Any, **options: Any) -> list[str]:
    done = translate(document, **{"env": ENV, "host": host, "vmi": VMI, **options})
    return [hostdev.source for hostdev in hostdevs(done.domain_xml)]


# Functions


@pytest.mark.parametrize(
    ("document", "functions", "differ"),
    [
        (BEFORE, [function(NEW)], f"it comes as {NEW}, and the domain has {OLD} and .1"),
        (ALONE, [*card("0000:20:00", 1)], f"it comes as {NEW} and .1, and the domain has {OLD}"),
        (
            BEFORE,
            [function(NEW), function("0000:20:00.2", USB)],
            f"it comes as {NEW} and .2, and the domain has {OLD} and .1",
        ),
        (MIXED, [function(NEW)], f"it comes as {NEW}, and the domain has {UUID} and {OLD}"),
    ],
)
def test_a_card_with_other_functions_is_refused_by_name(document: str, functions: list[Any], differ: str) -> None:
    error = refusal(document, FixedHost(*functions), name="vm.xml")
    assert error.message == (
        f"vm.xml, hostdev 1 (ua-gpu-g): {NEW}, allocated for gpus 'g' here, can't take the place of {OLD}: {differ}"
    )
    assert (error.file, error.key, error.device) == ("vm.xml", "hostdev 1", NEW)
    assert "replace: yes" in (error.remedy or "")


def test_why_a_sibling_stays_is_said() -> None:
    host = FixedHost(function(NEW, group=1), function(NEW_AUDIO, AUDIO, group=2))
    assert f"({NEW_AUDIO} is in IOMMU group 2" in refusal(BEFORE, host).message


def test_a_function_alone_may_have_another_number() -> None:
    """The guest sees it where it was; a VF's number says nothing."""
    vf = "0000:20:10.5"
    host = FixedHost(function("0000:20:00.0", group=3, driver="pf"), function(vf, physfn="0000:20:00.0", group=1))
    assert sources(ALONE, host, env={"PCI_RESOURCE_X_GPU": vf}) == [vf]


def test_all_hostdevs_that_do_not_fit_are_reported_at_once() -> None:
    two = {"spec": {"domain": {"devices": {"gpus": [{"name": name, "deviceName": "x/gpu"} for name in "gh"]}}}}
    before = domain(pci_hostdev(OLD, alias="ua-gpu-g"), pci_hostdev("0000:11:00.0", alias="ua-gpu-h"))
    host = FixedHost(*card("0000:20:00", 20), *card("0000:30:00", 30))
    with pytest.raises(LauncherkitError) as raised:
        translate(before, env={"PCI_RESOURCE_X_GPU": f"{NEW},0000:30:00.0"}, host=host, vmi=two)
    assert [leaf.key for leaf in raised.value.leaves()] == ["hostdev 1", "hostdev 2"]


def test_what_kubevirt_pairs_otherwise_is_no_other_device() -> None:
    """C1: the hostdev has the audio function, which the same variable lists."""
    before = domain(pci_hostdev(NEW_AUDIO, alias="ua-gpu-g"))
    env = {"PCI_RESOURCE_X_GPU": f"{NEW},{NEW_AUDIO}"}
    assert sources(before, FixedHost(*card("0000:20:00", 20)), env=env) == [NEW, NEW_AUDIO]


def test_a_hostdev_of_the_authors_in_the_cards_slot_goes_with_the_card() -> None:
    own = pci_hostdev(OLD_AUDIO, alias="ua-sound", guest="0000:05:00.1")
    before = domain(pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"), own)
    assert sources(before, FixedHost(*card("0000:20:00", 20))) == [NEW, NEW_AUDIO]
    elsewhere = domain(pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"), own.replace("0x05", "0x06"))
    assert sources(elsewhere, FixedHost(function(NEW))) == [NEW, OLD_AUDIO]


# Models


def here(old: int = TURING, driver: str | None = "vfio-pci") -> FixedHost:
    return FixedHost(function(OLD, device=old, group=10, driver=driver), function(NEW, device=AMPERE, group=20))


def test_another_model_is_refused_if_the_device_before_is_here() -> None:
    error = refusal(ALONE, here())
    assert "10de:2204, and on this host the one before is" in error.message
    assert "10de:1e07" in error.message
    assert "replace: model" in (error.remedy or "")
    assert sources(ALONE, here(AMPERE)) == [NEW]
    classes = FixedHost(function(OLD, group=10, device=AMPERE), function(NEW, 0x120000, group=20, device=AMPERE))
    assert "processing accelerator 10de:2204, and on this host the one" in refusal(ALONE, classes).message


@pytest.mark.parametrize("replace", ["model", "yes"])
def test_another_model_comes_if_the_policy_says_so(replace: Any) -> None:
    assert sources(ALONE, here(), policy=Policy(replace=replace)) == [NEW]


def test_an_address_says_nothing_about_a_model_if_the_domain_may_be_of_another_host() -> None:
    assert sources(ALONE, here(driver="nvidia")) == [NEW]
    assert sources(ALONE, here(), hook=True) == [NEW]
    absent = ALONE.replace("  </devices>", pci_hostdev("0000:77:00.0", alias="ua-own") + "</devices>")
    assert sources(absent, here()) == [NEW, "0000:77:00.0"]
    two = {"spec": {"domain": {"devices": {"gpus": [*VMI["spec"]["domain"]["devices"]["gpus"]]}}}}
    two["spec"]["domain"]["devices"]["gpus"].append({"name": "h", "deviceName": "y/gpu"})
    assert sources(ALONE, here(), vmi=two, env={**ENV, "PCI_RESOURCE_Y_GPU": OLD}) == [NEW, OLD]


@pytest.mark.parametrize(("old", "new", "comes"), [(7, 7, True), (7, 8, False), (0, 8, True)])
def test_a_vgpu_of_another_type_is_refused_if_both_are_here(old: int, new: int, comes: bool) -> None:
    details = {OLD: detail(vgpu=VgpuVf(old, ())), NEW: detail(vgpu=VgpuVf(new, ()))}
    vfs = [function(OLD, group=10, physfn="0000:10:00.7"), function(NEW, group=20, physfn="0000:10:00.7")]
    host = FixedHost(*vfs, details=details)
    if comes:
        assert sources(ALONE, host) == [NEW]
    else:
        assert "its vGPU type is 8, and on this host that of 0000:10:00.0 is 7" in refusal(ALONE, host).message


MDEV = {"MDEV_PCI_RESOURCE_X_GPU": UUID}


def mdevs(**of_old: Any) -> FixedHost:
    return FixedHost(mdevs=[mdev(UUID), mdev(UUID2, group=91)._replace(**of_old)])


@pytest.mark.parametrize("replace", ["no", "model"])
def test_an_mdev_of_another_type_is_refused_whatever_models_may_come(replace: Any) -> None:
    """Its UUID is no other host's."""
    before = domain(mdev_hostdev(UUID2, alias="ua-gpu-g"))
    error = refusal(before, mdevs(type_name="GRID T4-2Q"), env=MDEV, policy=Policy(replace=replace))
    assert "it is of type GRID T4-1Q, and the one before of type GRID T4-2Q" in error.message
    assert sources(before, mdevs(type_id="nvidia-9"), env=MDEV) == [UUID]
    assert sources(before, FixedHost(mdevs=[mdev(UUID)]), env=MDEV) == [UUID]


def test_an_mdev_for_another_model_gets_its_model_only_if_the_policy_says_so() -> None:
    before = domain(mdev_hostdev(UUID2, alias="ua-gpu-g", attributes=" model='vfio-ccw'"))
    host = FixedHost(mdevs=[mdev(UUID)])
    assert "it is for the model vfio-pci, and the hostdev has vfio-ccw" in refusal(before, host, env=MDEV).message
    done = translate(before, env=MDEV, host=host, vmi=VMI, policy=Policy(replace="yes")).domain_xml
    assert hostdevs(done)[0].attributes["model"] == "vfio-pci"


# Cells, cells for memory, and the window


NUMA = {0: NumaNode(frozenset({0}), {0: 10, 1: 20}), 1: NumaNode(frozenset({1}), {0: 20, 1: 10})}
CELLS = """<numatune><memnode cellid='0' mode='strict' nodeset='0'/>
  <memnode cellid='1' mode='strict' nodeset='1'/></numatune>
  <cpu><numa><cell id='0' cpus='0' memory='1'/><cell id='1' cpus='1' memory='1'/></numa></cpu>
  <os>"""
EXPANDER = """<controller type='pci' index='4' model='pcie-expander-bus'>
    <target busNr='200'><node>1</node></target></controller>
    <controller type='pci' index='5' model='pcie-root-port'>
      <address type='pci' domain='0x0000' bus='0x04' slot='0x00' function='0x0'/>
    </controller>"""
BEHIND = domain(EXPANDER, pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0")).replace("<os>", CELLS)


class NumaHost(FixedHost):
    def __init__(self, node: int | None, **details: Any) -> None:
        super().__init__(function(NEW)._replace(numa_node=node), details={NEW: detail(**details)})
        self._facts: HostFacts = self._facts._replace(numa=NUMA)


def test_a_device_of_another_cell_is_refused_or_goes_to_its_own() -> None:
    error = refusal(BEHIND, NumaHost(0))
    assert "0000:05:00.0 in the guest belongs to cell 1, and its host node 0 is cell 0" in error.message
    done = translate(BEHIND, env=ENV, host=NumaHost(0), vmi=VMI, policy=Policy(replace="yes"))
    [hostdev] = hostdevs(done.domain_xml)
    assert hostdev.guest not in (None, "0000:05:00.0")
    assert "it gets another place" in str(done.notes)
    assert [controller.cell for controller in done.plan.controllers if controller.cell is not None] == [0]


def test_a_device_of_no_cell_goes_where_libvirt_places_it() -> None:
    host = NumaHost(2)
    assert "no cell of the guest is on its host node 2" in refusal(BEHIND, host).message
    [hostdev] = hostdevs(translate(BEHIND, env=ENV, host=host, vmi=VMI, policy=Policy(replace="yes")).domain_xml)
    assert (hostdev.source, hostdev.guest) == (NEW, None)


@pytest.mark.parametrize(("node", "topology"), [(1, "auto"), (None, "auto"), (0, "flat")])
def test_a_cell_is_compared_only_where_it_is_known_and_counts(node: int | None, topology: Any) -> None:
    assert sources(BEHIND, NumaHost(node), policy=Policy(topology=topology)) == [NEW]


def test_cells_for_memory_are_for_the_gpus_that_have_it() -> None:
    cells = ALONE.replace("<alias", "<acpi nodeset='2-9'/><alias")
    assert "the guest has cells for the memory of the one before" in refusal(cells, FixedHost(function(NEW))).message
    grace = FixedHost(function(NEW, device=0x2342))
    assert sources(cells, grace) == sources(ALONE, grace) == [NEW]
    policy = Policy(generic_initiators=True)
    assert "it gets cells of the guest for its memory" in refusal(ALONE, grace, policy=policy).message


GIB = 1 << 30
HOLE = "<controller type='pci' index='0' model='pcie-root'><pcihole64 unit='KiB'>{}</pcihole64></controller>"
BAR = FixedHost(function(NEW), details={NEW: detail(resources=(Bar(0, 128 * GIB, 256 * GIB - 1, 0x14220C),))})


@pytest.mark.parametrize(("hole", "fits"), [(None, False), (64, False), (127, False), (128, True), (512, True)])
def test_the_window_must_be_large_enough_as_it_is(hole: int | None, fits: bool) -> None:
    root = [] if hole is None else [HOLE.format(hole << 20)]
    before = domain(*root, pci_hostdev(OLD, alias="ua-gpu-g", guest="0000:05:00.0"))
    if fits:
        done = translate(before, env=ENV, host=BAR, vmi=VMI).domain_xml.decode()
        assert done == before.replace("bus='0x10'", "bus='0x20'").replace(
            "managed='no'>", "managed='no' mode='subsystem'>"
        )
        return
    has = "it has the default" if hole is None else f"its <pcihole64> is {hole} GiB"
    assert f"the domain needs 128 GiB of the 64-bit PCI window, and {has}" in refusal(before, BAR).message
    larger = translate(before, env=ENV, host=BAR, vmi=VMI, policy=Policy(replace="yes")).domain_xml.decode()
    assert f"<pcihole64 unit='KiB'>{256 << 20}</pcihole64>" in larger
    assert larger.count("<pcihole64") == 1


def test_a_window_grows_for_what_is_added_only_if_what_is_there_fits() -> None:
    bars = {address: detail(resources=(Bar(0, 128 * GIB, 256 * GIB - 1, 0x14220C),)) for address in (NEW, OLD)}
    host = FixedHost(function(NEW), function(OLD, group=2), details=bars)
    added = {**ENV, "PCI_RESOURCE_Y_GPU": OLD}
    two = {"spec": {"domain": {"devices": {"gpus": [{"name": "g", "deviceName": "x/gpu"}]}}}}
    two["spec"]["domain"]["devices"]["gpus"].append({"name": "h", "deviceName": "y/gpu"})
    former = pci_hostdev("0000:77:00.0", alias="ua-gpu-g", guest="0000:05:00.0")
    done = translate(domain(HOLE.format(256 << 20), former), env=added, host=host, vmi=two)
    assert done.plan.window is not None
    assert done.plan.window.pass_bits
    assert "0000:20:00.0" in refusal(domain(HOLE.format(64 << 20), former), host, env=added, vmi=two).message


def test_a_window_that_is_too_small_for_a_device_that_is_added_stays_with_each_policy() -> None:
    """P5: the author's setting."""
    document = domain(HOLE.format(64 << 20))
    done = translate(document, env=ENV, host=BAR, vmi=VMI, policy=Policy(replace="yes"))
    assert HOLE.format(64 << 20) in done.domain_xml.decode()
    assert [note.topic for note in done.notes] == ["window"]


def test_a_rom_that_the_policy_names_is_not_added() -> None:
    """The guest would see it."""
    policy = Policy(rom={NEW: "off"})
    assert b"<rom" not in translate(ALONE, env=ENV, host=FixedHost(function(NEW)), vmi=VMI, policy=policy).domain_xml
    fresh = translate(domain(), env=ENV, host=FixedHost(function(NEW)), vmi=VMI, policy=policy).domain_xml
    assert b"<rom bar='off'/>" in fresh
