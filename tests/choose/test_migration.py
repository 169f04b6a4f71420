"""Which devices can migrate with a guest, by their drivers; the table is written once more here, from the kernel."""

from __future__ import annotations

import pytest

from launcherkit.choose.migration import migration_of, migration_of_all
from launcherkit.model.address import MdevAddress, UsbAddress
from launcherkit.model.host import NO_FACTS, VgpuVf
from tests.support.facts import NIC, UUID, UUID2, at, card, detail, facts, function, mdev

VF, PF = "0000:3b:00.2", "0000:3b:00.0"

# The first release whose driver has vfio_migration_ops; None for drivers that have none.
VARIANTS = {
    "mlx5_vfio_pci": (5, 18),
    "hisi-acc-vfio-pci": (5, 18),
    "pds-vfio-pci": (6, 6),
    "qat_vfio_pci": (6, 10),
    "virtio-vfio-pci": (6, 13),
    "xe-vfio-pci": (6, 19),
    "vfio-pci": None,
    "nvgrace-gpu-vfio-pci": None,
    "ism_vfio_pci": None,
}


@pytest.mark.parametrize(("driver", "since"), VARIANTS.items())
def test_a_vf_of_a_variant_driver_can_from_a_kernel_on_and_others_never(
    driver: str, since: tuple[int, int] | None
) -> None:
    host = facts(function(VF, NIC, driver=driver, physfn=PF))
    before, at_last, unknown = (migration_of(at(VF), host, kernel) for kernel in ((5, 17, 9), (7, 0), None))
    assert [each.can for each in (before, at_last, unknown)] == [False, since is not None, since is not None]
    if since is None:
        assert str(unknown) == f"no: {driver} can't save a device's state"
    else:
        release = ".".join(map(str, since))
        assert before.why == f"{driver} can only from Linux {release} on, and this is 5.17.9"
        assert migration_of(at(VF), host, since).can is True
        assert migration_of(at(VF), host, (since[0], since[1] - 1, 99)).can is False
        assert str(unknown).startswith(f"yes: {driver} can, from Linux {release} on")


def test_the_physical_function_of_a_variant_driver_cant() -> None:
    answer = migration_of(at(PF), facts(function(PF, NIC, driver="mlx5_vfio_pci")))
    assert answer == (False, "mlx5_vfio_pci saves the state of VFs, and this is none")


@pytest.mark.parametrize("driver", [None, "mlx5_core", "nvidia"])
def test_a_function_that_vfio_does_not_have_is_not_known(driver: str | None) -> None:
    answer = migration_of(at(VF), facts(function(VF, driver=driver, physfn=PF)))
    assert answer == (None, "it isn't bound to VFIO, and which driver it will have isn't known")


def test_a_vfio_driver_that_linux_does_not_have_is_not_known() -> None:
    assert migration_of(at(PF), facts(function(PF, driver="acme_vfio_pci"))).can is None
    host = facts(function(PF, driver="acme"), details={PF: detail(driver_module="acme_vfio_pci")})
    assert migration_of(at(PF), host) == (None, "acme_vfio_pci isn't one of Linux' own drivers")


def test_nvidias_vgpus_are_not_known_as_mdevs_or_as_vfs() -> None:
    vgpu = VgpuVf(222, ((222, "GRID T4-1Q"),))
    host = facts(
        function(VF, driver="nvidia", physfn=PF),
        details={VF: detail(driver_module="nvidia", vgpu=vgpu)},
        mdevs=[mdev()],
    )
    for source in (at(VF), MdevAddress(UUID)):
        answer = migration_of(source, host)
        assert answer.can is None
        assert answer.why.startswith("NVIDIA's driver decides")


@pytest.mark.parametrize(
    ("type_id", "device_api", "can"),
    [
        ("mtty-2", "vfio-pci", True),
        ("i915-GVTg_V5_4", "vfio-pci", False),
        ("vfio_ap-passthrough", "vfio-ap", False),
        ("vfio_ccw-io", "vfio-ccw", False),
        ("acme-1", "vfio-pci", None),
        ("acme-1", None, None),
    ],
)
def test_an_mdevs_type_names_its_driver(type_id: str, device_api: str | None, can: bool | None) -> None:
    host = facts(mdevs=[mdev()._replace(type_id=type_id, device_api=device_api)])
    assert migration_of(MdevAddress(UUID), host).can is can


def test_the_kernels_sample_mtty_can_from_6_7_on() -> None:
    host = facts(mdevs=[mdev()._replace(type_id="mtty-1")])
    assert [migration_of(MdevAddress(UUID), host, kernel).can for kernel in ((6, 6, 99), (6, 7))] == [False, True]


def test_what_nothing_is_known_of_is_not_known() -> None:
    for source in (at(VF), MdevAddress(UUID2)):
        assert str(migration_of(source, NO_FACTS)) == "not known: nothing is known of it"
    assert migration_of(UsbAddress(1, 2), NO_FACTS).can is None


def test_a_device_can_if_all_its_functions_can_and_the_worst_is_named() -> None:
    audio = function("0000:3b:00.3", driver="acme_vfio_pci")
    gpu, sound = card("0000:e1:00", 44)
    host = facts(function(VF, NIC, driver="pds-vfio-pci", physfn=PF), audio, gpu, sound)
    able = at(VF)
    assert migration_of_all([able], host) == (True, "pds-vfio-pci can, from Linux 6.6 on")
    assert migration_of_all([able, audio.address], host).why.startswith("0000:3b:00.3: acme_vfio_pci")
    worst = migration_of_all([able, audio.address, sound.address], host)
    assert worst == (False, "0000:e1:00.1: vfio-pci can't save a device's state")
