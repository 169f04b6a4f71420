"""Whether the kernel would let QEMU have what is going to be attached (V1, V3)."""

from __future__ import annotations

import pytest

from launcherkit.choose.viability import (
    check_isolation,
    check_viability,
    notes_on_drivers,
    touched_groups,
)
from launcherkit.errors import (
    DEVICE_ASLEEP,
    DEVICE_GONE,
    GROUP_NOT_VIABLE,
    VGPU_PHYSICAL_FUNCTION,
    Code,
    LauncherkitError,
)
from launcherkit.model.address import HostAddress, MdevAddress, UsbAddress
from launcherkit.model.host import NO_FACTS, HostFacts, PciDetail, VgpuVf
from tests.support.facts import AUDIO, BRIDGE, UUID, at, card, detail, facts, function, mdev

GPU = "0000:e1:00.0"
MATE = "0000:e1:00.1"


def problems(host: HostFacts, *attached: str, managed: bool = False) -> list[LauncherkitError]:
    addresses = [at(address) for address in attached]
    return list(check_viability(touched_groups(addresses, host), addresses if managed else (), host))


def topics(host: HostFacts, *attached: str, managed: bool = False) -> list[str]:
    """Of the notes that are made where the kernel has no objection."""
    assert problems(host, *attached, managed=managed) == []
    addresses = [at(address) for address in attached]
    groups = touched_groups(addresses, host)
    return [note.topic for note in notes_on_drivers(groups, addresses if managed else (), host)]


@pytest.mark.parametrize(
    ("driver", "module"),
    [
        ("vfio-pci", None),
        ("nvgrace_gpu_vfio_pci", None),
        ("nvgrace-gpu-vfio-pci", None),
        ("mlx5_vfio_pci", None),
        ("hisi_acc_vfio_pci", None),
        ("pds_vfio_pci", None),
        ("qat_vfio_pci", None),
        ("xe-vfio-pci", None),
        ("some-driver", "some_vfio_pci"),
        ("pci-stub", None),
        (None, None),
    ],
)
def test_a_member_on_a_vfio_driver_on_pci_stub_or_on_none_lets_the_group_pass(
    driver: str | None, module: str | None
) -> None:
    """V1."""
    host = facts(function(GPU), function(MATE, AUDIO, driver=driver), details={MATE: detail(driver_module=module)})
    assert problems(host, GPU) == []


@pytest.mark.parametrize(
    "driver", ["nvidia", "snd_hda_intel", "nouveau", "vfio_pci_core", "vfio", "pcieport", "uio_pci_generic"]
)
def test_a_member_on_another_driver_fails_with_device_group_driver_and_the_command_that_frees_it(driver: str) -> None:
    """V1."""
    (error,) = problems(facts(function(GPU, group=44), function(MATE, AUDIO, driver=driver, group=44)), GPU)
    assert error.code == GROUP_NOT_VIABLE.code
    for part in ("group 44", f"{MATE} audio device 10de:1aef", GPU, driver):
        assert part in error.message
    for part in (f"/sys/bus/pci/devices/{MATE}/driver_override", f"echo {MATE} > /sys/bus/pci/drivers_probe"):
        assert part in error.remedy
    text, *commands = error.remedy.split("\n")
    assert f"`launcherkit-plugin bind {MATE}`" in text
    assert [command.split()[0] for command in commands] == ["echo"] * 3


def test_the_attached_function_itself_must_be_free_too() -> None:
    """V1."""
    (error,) = problems(facts(function(GPU, driver="nvidia")), GPU)
    assert f"{GPU} display controller 10de:2204, which is to be attached, is bound to nvidia" in error.message


def test_bridges_in_the_group_do_no_harm_by_class_or_by_header() -> None:
    """V1."""
    host = facts(
        function(GPU),
        function("0000:e0:00.0", BRIDGE, driver="pcieport"),
        function("0000:e0:01.0", 0x088000, driver="switchtec"),
        details={"0000:e0:01.0": detail(header_type=1)},
    )
    assert problems(host, GPU) == []


@pytest.mark.parametrize(("class_code", "header_type"), [(0x060100, 0), (0x060100, None), (0x068000, 0), (0x060000, 0)])
def test_class_06_without_a_bridges_header_is_in_the_way_with_a_driver(
    class_code: int, header_type: int | None
) -> None:
    """V1: an ISA bridge on lpc_ich, a host bridge on an EDAC driver."""
    isa = function("0000:00:1f.0", class_code, driver="lpc_ich")
    details = {"0000:00:1f.0": detail(header_type=header_type)}
    (error,) = problems(facts(function(GPU), isa, details=details), GPU)
    assert "0000:00:1f.0" in error.message
    assert problems(facts(function(GPU), isa._replace(driver=None), details=details), GPU) == []


def test_a_bridge_on_a_driver_of_its_own_is_a_note() -> None:
    """V1: the kernel went by the header up to Linux 5.18, and goes by the driver since."""
    host = facts(function(GPU), function("0000:e0:00.0", BRIDGE, driver="shpchp"))
    assert topics(host, GPU) == ["bridge-driver"]
    (note,) = notes_on_drivers(touched_groups([at(GPU)], host), (), host)
    assert "is bound to shpchp" in note.text


def test_a_member_that_can_not_be_read_counts_as_in_the_way() -> None:
    """T2."""
    host = facts(function(GPU, group=44))
    host = host._replace(groups={44: (at(GPU), at(MATE))}, unknown={at(MATE): "uevent: Input/output error"})
    (error,) = problems(host, GPU)
    assert error.code == GROUP_NOT_VIABLE.code
    assert f"{MATE}, a member of it, can't be read: uevent: Input/output error" in error.message


def test_every_member_that_is_in_the_way_is_reported() -> None:
    """V1."""
    functions = [function(f"0000:e1:00.{number}", AUDIO, driver="snd_hda_intel") for number in (1, 2, 3)]
    assert len(problems(facts(function(GPU), *functions), GPU)) == 3


def test_groups_that_are_not_touched_are_not_looked_at() -> None:
    """V1."""
    host = facts(function(GPU, group=1), function("0000:02:00.0", driver="nvidia", group=2))
    assert problems(host, GPU) == []
    assert [group.number for group in touched_groups([at(GPU)], host)] == [1]


def test_a_touched_group_has_all_its_members_and_says_which_are_attached() -> None:
    host = facts(*card("0000:e1:00", 44), function("0000:e0:00.0", BRIDGE, driver="pcieport", group=44))
    (group,) = touched_groups([at(GPU)], host)
    assert [(str(member.address), member.driver, member.attached, member.bridge) for member in group.members] == [
        ("0000:e0:00.0", "pcieport", False, True),
        (GPU, "vfio-pci", True, False),
        (MATE, "vfio-pci", False, False),
    ]


def test_an_mdev_has_a_group_of_its_own() -> None:
    assert [group.number for group in touched_groups([MdevAddress(UUID)], facts(mdevs=[mdev(group=90)]))] == [90]


def test_a_typed_vgpu_vf_is_viable_on_its_vendors_driver_and_one_without_a_type_is_not() -> None:
    """V1, G4."""

    def host(current: int) -> HostFacts:
        vf = function(GPU, driver="nvidia", physfn="0000:e1:00.4")
        return facts(vf, details={GPU: detail(vgpu=VgpuVf(current, ((557, "A40-1B"),)))})

    assert problems(host(557), GPU) == []
    assert [error.code for error in problems(host(0), GPU)] == [GROUP_NOT_VIABLE.code]


def test_managed_lets_libvirt_bind_what_is_attached_and_nothing_else() -> None:
    """V1."""
    host = facts(function(GPU, driver="nvidia"), function(MATE, AUDIO, driver="snd_hda_intel"))
    (error,) = problems(host, GPU, managed=True)
    assert MATE in error.message
    assert problems(host, GPU, MATE, managed=True) == []
    assert len(problems(host, GPU, MATE, managed=False)) == 2


def test_an_attached_function_without_a_driver_is_viable_but_noted_where_libvirt_does_not_bind_it() -> None:
    """V1."""
    assert topics(facts(function(GPU, driver=None)), GPU) == ["no-driver"]
    assert topics(facts(function(GPU, driver=None)), GPU, managed=True) == []


@pytest.mark.parametrize(
    ("state", "error"),
    [(detail(power_state="D3cold"), DEVICE_ASLEEP), (detail(config_readable=False), DEVICE_GONE)],
)
def test_an_attached_function_that_sleeps_or_is_gone_is_an_error(
    state: PciDetail, error: Code[LauncherkitError]
) -> None:
    """V3; of what is not attached it doesn't matter."""
    host = facts(*card("0000:e1:00", 44), details={GPU: state})
    assert [each.code for each in problems(host, GPU)] == [error.code]
    assert problems(host, MATE) == []


@pytest.mark.parametrize("state", ["D0", "D3hot", "unknown", None])
def test_other_power_states_do_no_harm(state: str | None) -> None:
    """V3."""
    assert problems(facts(function(GPU), details={GPU: detail(power_state=state)}), GPU) == []


def test_the_physical_function_of_a_vgpu_card_is_no_guests() -> None:
    """V3."""
    vf = "0000:e1:00.4"
    functions = function(GPU), function(vf, physfn=GPU, group=2)
    details = {GPU: detail(virtfns=(at(vf),)), vf: detail(vgpu=VgpuVf(0, ()))}
    (error,) = problems(facts(*functions, details=details), GPU)
    assert error.code == VGPU_PHYSICAL_FUNCTION.code
    plain_nic = details | {vf: detail()}
    assert problems(facts(*functions, details=plain_nic), GPU) == []


def test_what_no_iommu_isolates_is_refused_and_of_what_is_not_known_nothing_is_said() -> None:
    host = facts(
        function(GPU, group=None),
        function("0000:01:00.0", group=0),
        function("0000:02:00.0", group=7),
        mdevs=[mdev(UUID, group=None)],
    )._replace(noiommu=frozenset({0}))
    attached: list[HostAddress] = [
        at(GPU),
        at("0000:01:00.0"),
        at("0000:02:00.0"),
        at("0000:03:00.0"),
        MdevAddress(UUID),
        UsbAddress(1, 4),
    ]
    found = list(check_isolation(attached, host))
    assert [each.device for each in found] == [GPU, "0000:01:00.0", UUID]
    assert "/dev/vfio/noiommu-0" in found[1].message
    assert "enable_unsafe_noiommu_mode" in found[1].remedy
    assert list(check_isolation(attached, NO_FACTS)) == []


def test_the_parent_of_a_mediated_device_needs_no_group() -> None:
    host = facts(function(GPU, group=None), mdevs=[mdev(UUID, parent=GPU)])
    assert list(check_isolation([MdevAddress(UUID)], host)) == []
