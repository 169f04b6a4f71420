"""The comparison that the libvirt tier stands on sees what is lost, and nothing else."""

from __future__ import annotations

import pytest

from tests.libvirt.kept import differences

GPU = (
    "<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x0000' bus='0xe1' slot='0x00' "
    "function='0x0'/></source><alias name='ua-gpu-a'/><address type='pci' domain='0x0000' bus='0x01' slot='0x00' "
    "function='0x0' multifunction='on'/></hostdev>"
)
PORT = "<controller type='pci' index='1' model='pcie-root-port'/>"


def domain(*devices: str) -> bytes:
    return f"<domain><devices>{''.join(devices)}</devices></domain>".encode()


def test_a_domain_that_came_back_as_it_was_has_no_differences() -> None:
    assert differences(domain(PORT, GPU), domain(PORT, GPU)) == []


def test_what_libvirt_adds_is_no_difference() -> None:
    more = GPU.replace("</hostdev>", "<rom bar='on'/></hostdev>")
    assert (
        differences(domain(PORT, GPU), domain(PORT, "<controller type='pci' index='0' model='pcie-root'/>", more)) == []
    )


@pytest.mark.parametrize(
    ("was", "now", "reported"),
    [
        (" multifunction='on'", "", "guest multifunction was on, is gone"),
        ("managed='no'", "managed='yes'", "managed was no, is yes"),
        ("'ua-gpu-a'", "'ua-gpu-b'", "alias was ua-gpu-a, is ua-gpu-b"),
        ("bus='0x01'", "bus='0x02'", "guest bus was 1, is 2"),
        ("bus='0xe1'", "bus='0xe2'", "gone"),
    ],
)
def test_a_change_is_reported(was: str, now: str, reported: str) -> None:
    found = differences(domain(PORT, GPU), domain(PORT, GPU.replace(was, now)))
    assert any(reported in line for line in found)


def test_a_function_that_becomes_multifunction_by_itself_is_reported() -> None:
    plain = GPU.replace(" multifunction='on'", "")
    assert differences(domain(plain), domain(GPU)) != []


def test_a_hostdev_that_nobody_asked_for_is_reported() -> None:
    assert differences(domain(), domain(GPU)) != []


def test_a_controller_of_another_model_is_reported() -> None:
    bridge = PORT.replace("pcie-root-port", "pcie-to-pci-bridge")
    assert differences(domain(PORT), domain(bridge)) == [
        "controller 1: model was pcie-root-port, is pcie-to-pci-bridge"
    ]


def test_numbers_are_compared_as_libvirt_reads_them() -> None:
    other_spelling = GPU.replace("bus='0xe1'", "bus='225'").replace("domain='0x0000' bus='0x01'", "bus='01'")
    assert differences(domain(other_spelling), domain(GPU)) == []


def test_an_address_that_is_no_place_to_libvirt_may_become_any() -> None:
    nowhere = GPU.replace("bus='0x01' slot='0x00' function='0x0' multifunction='on'", "bus='0' slot='0' function='0'")
    assert differences(domain(nowhere), domain(GPU)) == []


def test_what_kubevirt_writes_into_a_source_address_beyond_it_does_not_count() -> None:
    kept = "<hostdev type='mdev'><source><address uuid='4b20d080-0000-0000-0000-000000000001'/></source></hostdev>"
    said = kept.replace("uuid='4b20d080", "type='' bus='' uuid='4B20D080")
    assert differences(domain(said), domain(kept)) == []
