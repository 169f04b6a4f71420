"""What libvirt does with hostdevs, where our rules rely on it: a release that changes its mind fails here first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
from lxml import etree

from tests.libvirt.capabilities import Guests, made_definable
from tests.libvirt.daemon import Libvirt, Refused
from tests.libvirt.kept import differences

pytestmark = pytest.mark.libvirt

Define: TypeAlias = Callable[..., tuple[list[str], etree._Element]]

PORT = "<controller type='pci' index='1' model='pcie-root-port'/>"
GRAPHICS = "<graphics type='vnc'/>"
MULTI = "multifunction='on'"


def function(number: int, inside: str = "") -> str:
    source = f"<source><address domain='0x0000' bus='0xe1' slot='0x00' function='0x{number}'/></source>"
    return f"<hostdev mode='subsystem' type='pci' managed='no'>{source}{inside}</hostdev>"


def place(number: int, bus: int = 1, slot: int = 0, more: str = "") -> str:
    return f"<address type='pci' domain='0x0000' bus='{bus}' slot='{slot}' function='{number}' {more}/>"


def alias(name: str) -> str:
    return f"<alias name='{name}'/>"


def vgpu(number: int, attributes: str) -> str:
    source = f"<source><address uuid='00000000-0000-0000-0000-00000000000{number}'/></source>"
    return f"<hostdev mode='subsystem' type='mdev' model='vfio-pci' {attributes}>{source}</hostdev>"


@pytest.fixture
def define(libvirt: Libvirt, capabilities: dict[str, Guests]) -> Define:
    """Define a domain of some devices; gives what libvirt lost of it, and what it made of it."""

    def run(*devices: str, arch: str = "x86_64", machine: str = "q35") -> tuple[list[str], etree._Element]:
        system = f"<os><type arch='{arch}' machine='{machine}'>hvm</type></os>"
        head = f"<domain type='kvm'><name>relied-on</name><memory>65536</memory>{system}"
        document = f"{head}<devices>{''.join(devices)}</devices></domain>".encode()
        definable, _ = made_definable(document, capabilities)
        kept = libvirt.keep(definable)
        return differences(definable, kept), etree.fromstring(kept)

    return run


@pytest.mark.parametrize(("arch", "machine"), [("x86_64", "q35"), ("aarch64", "virt")])
def test_two_functions_stay_behind_the_root_port_that_they_were_given(define: Define, arch: str, machine: str) -> None:
    devices = PORT, function(0, place(0, more=MULTI)), function(1, place(1))
    lost, _ = define(*devices, arch=arch, machine=machine)
    assert lost == []


def test_two_functions_stay_in_the_slot_of_bus_0_that_they_were_given(define: Define) -> None:
    lost, _ = define(function(0, place(0, 0, 5, MULTI)), function(1, place(1, 0, 5)), machine="pc")
    assert lost == []


def test_s390x_places_a_function_by_itself(define: Define) -> None:
    _, kept = define(function(0), arch="s390x", machine="s390-ccw-virtio")
    assert kept.find("devices/hostdev/address/zpci") is not None


def test_root_ports_below_a_given_index_are_filled_in(define: Define) -> None:
    lost, kept = define(PORT.replace("index='1'", "index='4'"), function(0, place(0, bus=4)))
    indices = {controller.get("index") for controller in kept.iterfind("devices/controller[@model='pcie-root-port']")}
    assert lost == []
    assert {"1", "2", "3", "4"} <= indices


def test_a_guest_address_is_given_once(define: Define) -> None:
    with pytest.raises(Refused, match="double use of PCI Address"):
        define(PORT, function(0, place(0)), function(1, place(0)))


def test_an_address_of_all_zeros_is_no_place(define: Define) -> None:
    _, kept = define(function(0, place(0, 0, 0)))
    address = kept.find("devices/hostdev/address")
    assert address is not None
    assert address.get("bus") != "0x00"


def test_a_host_function_is_attached_once(define: Define) -> None:
    with pytest.raises(Refused, match="already exists"):
        define(function(0), function(0))


def test_an_interface_counts_as_the_function_that_it_attaches(define: Define) -> None:
    source = "<source><address type='pci' domain='0' bus='0xe1' slot='0' function='0'/></source>"
    with pytest.raises(Refused, match="already exists"):
        define(function(0), f"<interface type='hostdev'>{source}</interface>")


@pytest.mark.parametrize("name", ["ua-gpu-a", "ua-GPU_1", "ua-" + "a" * 300])
def test_a_users_alias_is_kept(define: Define, name: str) -> None:
    _, kept = define(function(0, alias(name)))
    assert kept.xpath("string(devices/hostdev/alias/@name)") == name


@pytest.mark.parametrize("name", ["gpu-a", "ua-gpu.a"])
def test_an_alias_without_prefix_or_with_a_dot_is_lost_in_silence(define: Define, name: str) -> None:
    _, kept = define(function(0, alias(name)))
    assert kept.find("devices/hostdev/alias") is None


def test_an_alias_is_unique_over_all_devices(define: Define) -> None:
    with pytest.raises(Refused, match="non unique alias"):
        define(f"<controller type='usb' model='qemu-xhci'>{alias('ua-a')}</controller>", function(0, alias("ua-a")))


def test_display_needs_a_graphics_device(define: Define) -> None:
    with pytest.raises(Refused, match="graphics device is needed"):
        define(vgpu(1, "display='on'"))


def test_one_ramfb_is_all_that_a_domain_may_have(define: Define) -> None:
    both = vgpu(1, "display='on' ramfb='on'"), vgpu(2, "display='on' ramfb='on'")
    with pytest.raises(Refused, match="Only one vgpu device can have 'ramfb'"):
        define(*both, GRAPHICS)


def test_two_displays_of_which_one_has_ramfb_are_kept(define: Define) -> None:
    lost, _ = define(vgpu(1, "display='on' ramfb='on'"), vgpu(2, "display='on'"), GRAPHICS)
    assert lost == []


def test_a_hostdev_without_mode_is_a_subsystem_one(define: Define) -> None:
    _, kept = define(function(0).replace("mode='subsystem' ", ""))
    assert kept.xpath("string(devices/hostdev/@mode)") == "subsystem"
