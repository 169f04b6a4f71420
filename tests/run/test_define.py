"""Defining at a stand-in for libvirt: what stays, and what its errors become."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

from launcherkit import Host, translate
from launcherkit.cli.main import run
from launcherkit.errors import (
    DEVICE_BUSY,
    DOMAIN_IN_THE_WAY,
    DOMAIN_REFUSED,
    GUEST_NOT_STARTED,
    LIBVIRT_MODULE_MISSING,
    NO_INITIATORS,
    Code,
    LauncherkitError,
    LibvirtNotThere,
)
from launcherkit.model.address import PciAddress
from launcherkit.model.plan import Attachment, PlannedDevice, PlannedFunction
from launcherkit.model.policy import Policy
from launcherkit.pipeline import EMPTY_PLAN, Translation
from launcherkit.run.children import Children, Wakeups
from launcherkit.run.connection import SYSTEM, Connection, LibvirtFailure, connect
from launcherkit.run.daemons import Daemons
from launcherkit.run.define import define
from launcherkit.run.launcher import Settings, World, clean, hold, run_guest
from launcherkit.run.libvirt_errors import not_defined, not_started, too_old
from tests.support.errors import raises_code

PROVOKED = (Path(__file__).parents[1] / "provoked" / "libvirt.error").read_text().splitlines()
DOMAIN = b"<domain type='kvm'><name>gpu-vm</name><devices/></domain>"


def translated() -> Translation:
    env = {"PCI_RESOURCE_GPU1": "0000:e1:00.0"}
    vmi = {"spec": {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": "gpu1"}]}}}}
    return translate(DOMAIN, env=env | {"LAUNCHERKIT_NODE_CHECK": "never"}, host=Host.none(), vmi=vmi)


class FakeGuest:
    def __init__(self, libvirt: FakeLibvirt, name: str, *, active: bool = False, owner: str | None = None) -> None:
        self.libvirt, self._name, self.active, self._owner = libvirt, name, active, owner

    def name(self) -> str:
        return self._name

    def owner(self) -> str | None:
        return self._owner

    def uuid(self) -> str:
        return "11111111-1111-1111-1111-111111111111"

    def is_active(self) -> bool:
        return self.active

    def is_persistent(self) -> bool:
        return True

    def xml(self) -> bytes:
        return self.libvirt.defined[self._name]

    def start(self) -> None:
        if self.libvirt.start_fails:
            raise LibvirtFailure(self.libvirt.start_fails)
        self.active = True

    def destroy(self) -> None:
        self.active = False

    def undefine(self) -> None:
        self.libvirt.defined.pop(self._name)


class FakeLibvirt:
    """Domains by name; each can refuse to start."""

    def __init__(self, start_fails: str = "", define_fails: str = "", version: tuple[int, ...] = (11, 7, 0)) -> None:
        self._version = version
        self.asked = list[bytes]()
        self.defined: dict[str, bytes] = {}
        self.start_fails, self.define_fails = start_fails, define_fails
        self.running: set[str] = set()

    def find(self, name: str) -> FakeGuest | None:
        return FakeGuest(self, name, active=name in self.running) if name in self.defined else None

    def version(self) -> tuple[int, ...]:
        return self._version

    def guests(self) -> list[FakeGuest]:
        return []

    def close(self) -> None:
        pass

    def define(self, domain_xml: bytes, *, validate: bool = True) -> FakeGuest:
        self.asked.append(domain_xml)
        if self.define_fails:
            raise LibvirtFailure(self.define_fails)
        self.defined["gpu-vm"] = domain_xml
        return FakeGuest(self, "gpu-vm")


def reported(error: LauncherkitError) -> str:
    return f"{error.code}: {error.message}"


def test_a_new_domain_is_defined() -> None:
    libvirt = FakeLibvirt()
    assert define(libvirt, DOMAIN, EMPTY_PLAN, start=False) == "gpu-vm"
    assert libvirt.defined == {"gpu-vm": DOMAIN}


def test_a_domain_that_was_there_keeps_its_uuid() -> None:
    libvirt = FakeLibvirt()
    libvirt.defined["gpu-vm"] = b"former"
    define(libvirt, DOMAIN, EMPTY_PLAN, start=False)
    assert b"<name>gpu-vm</name><uuid>11111111-1111-1111-1111-111111111111</uuid>" in libvirt.defined["gpu-vm"]


def test_a_libvirt_before_11_8_is_not_asked_for_generic_initiators() -> None:
    libvirt, attachment = FakeLibvirt(), Attachment(PciAddress(9, 1, 0, 0), "primary", "", None, None)
    gpu = PlannedFunction(attachment, "ua-gpu-0", None, None, managed=False, nodeset=frozenset(range(1, 9)))
    plan = EMPTY_PLAN._replace(devices=(PlannedDevice("pci", (gpu,), ()),))
    with raises_code(NO_INITIATORS, match=r"^0009:01:00\.0 .*libvirt 11\.7\.0") as raised:
        define(libvirt, DOMAIN, plan, start=False)
    assert "libvirt 11.8 or later" in raised.value.remedy
    assert libvirt.defined == {}
    assert too_old(plan, (11, 8, 0)) is None


LARGE_BARS = Path(__file__).parents[1] / "golden" / "window-eight-h100-host-model"
FOUR_H100 = {"PCI_RESOURCE_NVIDIA_COM_GH100_H100": "0000:1b:00.0,0000:3d:00.0,0000:4d:00.0,0000:5d:00.0"}
OLD_AND_NEW = pytest.mark.parametrize(("version", "passes"), [((8, 6, 0), False), ((8, 7, 0), True)])


@OLD_AND_NEW
def test_a_libvirt_before_8_7_is_not_asked_for_address_bits(
    version: tuple[int, ...], passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5. Its schema lacks the element, and with 40 bits QEMU would not start with such a window."""
    libvirt = FakeLibvirt(version=version)
    monkeypatch.setattr("launcherkit.cli.define.connect", lambda uri: libvirt)
    arguments = ["define", "--domain", str(LARGE_BARS / "domain.xml"), "--host", str(LARGE_BARS / "host.json")]
    assert run([*arguments, "--no-node-check"], FOUR_H100) == 0
    (document,) = libvirt.defined.values()
    assert (b"<maxphysaddr mode='passthrough'/>" in document) is passes
    assert (b"<pcihole64" in document) is passes


@OLD_AND_NEW
def test_a_launcher_asks_for_what_its_libvirt_knows(
    version: tuple[int, ...], passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    libvirt = FakeLibvirt(define_fails="as the test wants", version=version)
    document, host = (LARGE_BARS / "domain.xml").read_bytes(), Host.from_snapshot(LARGE_BARS / "host.json")

    def make(version: tuple[int, ...] | None) -> Translation:
        return translate(document, env=FOUR_H100, host=host, policy=Policy(node_check="never"), libvirt=version)

    children = Children()
    with Wakeups() as wakeups:
        daemons = Daemons(SYSTEM, children, allowed=False)
        connection = cast("Connection", libvirt)
        world = World(lambda uri: connection, daemons, children, wakeups, time.monotonic, lambda text: None)
        with raises_code(DOMAIN_REFUSED):
            run_guest(Settings(SYSTEM, str(uuid4()), 1, 1, console=False, liveness=None), world, make)
    assert [b"<maxphysaddr" in each for each in libvirt.asked] == [passes]


def test_where_the_start_fails_it_is_as_it_was() -> None:
    libvirt = FakeLibvirt(start_fails="no")
    with raises_code(GUEST_NOT_STARTED):
        define(libvirt, DOMAIN, EMPTY_PLAN, start=True)
    assert libvirt.defined == {}
    libvirt.defined["gpu-vm"] = b"former"
    with raises_code(GUEST_NOT_STARTED):
        define(libvirt, DOMAIN, EMPTY_PLAN, start=True)
    assert libvirt.defined == {"gpu-vm": b"former"}


def test_a_running_domain_is_not_started() -> None:
    libvirt = FakeLibvirt()
    libvirt.defined["gpu-vm"] = b"former"
    libvirt.running.add("gpu-vm")
    with raises_code(DOMAIN_IN_THE_WAY) as raised:
        define(libvirt, DOMAIN, EMPTY_PLAN, start=True)
    assert reported(raised.value) in PROVOKED
    assert libvirt.defined == {"gpu-vm": b"former"}


def test_a_domain_without_a_name_is_refused() -> None:
    with raises_code(DOMAIN_REFUSED, match="no <name>"):
        define(FakeLibvirt(), b"<domain/>", EMPTY_PLAN, start=False)


def test_a_refused_domain_is_reported_in_libvirts_words() -> None:
    message = "XML error: Invalid PCI address 0000:00:01.0. slot must be <= 0"
    assert reported(not_defined(LibvirtFailure(message), "vm", EMPTY_PLAN)) in PROVOKED
    with raises_code(DOMAIN_REFUSED):
        define(FakeLibvirt(define_fails=message), DOMAIN, EMPTY_PLAN, start=False)


@pytest.mark.parametrize(
    ("message", "error", "remedy"),
    [
        ("vfio 0000:e1:00.0: group 30 is not viable", GUEST_NOT_STARTED, "LK204"),
        (
            "cannot limit locked memory of process 60 to 1140850688: Operation not permitted",
            GUEST_NOT_STARTED,
            "memlock",
        ),
        ("VFIO_MAP_DMA failed: Cannot allocate memory", GUEST_NOT_STARTED, "memlock"),
        ("Could not open '/dev/vfio/44': Permission denied", GUEST_NOT_STARTED, "node"),
        ("vfio 0000:e1:00.0: failed to open /dev/vfio/30: Device or resource busy", DEVICE_BUSY, "fuser"),
        ("host doesn't support passthrough of host PCI devices", GUEST_NOT_STARTED, "no VFIO"),
        ("VFIO PCI device assignment is not supported by the host", GUEST_NOT_STARTED, "no VFIO"),
        ("Property 'vfio-pci.ramfb' not found", GUEST_NOT_STARTED, "ramfb"),
        ("Could not access KVM kernel module: Permission denied", GUEST_NOT_STARTED, "/dev/kvm"),
        ("Device 0000:07:00.0 not found: could not access /sys", GUEST_NOT_STARTED, "lspci"),
        ("operation failed: domain 'vm' already exists with uuid 1", DOMAIN_IN_THE_WAY, "another name"),
        ("something new", GUEST_NOT_STARTED, "The message is libvirt's"),
    ],
)
def test_what_we_know_of_has_a_remedy(message: str, error: Code[LauncherkitError], remedy: str) -> None:
    found = not_started(LibvirtFailure(message), "vm", EMPTY_PLAN)
    assert found.code == error.code
    assert message in found.message
    assert remedy in found.remedy


@pytest.mark.parametrize(
    "message",
    [
        "vfio 0000:e1:00.0: group 30 is not viable",
        "Requested operation is not valid: PCI device 0000:e1:00.0 is in use by driver QEMU, domain other",
    ],
)
def test_the_device_that_it_is_about_is_named_by_its_request(message: str) -> None:
    assert reported(not_started(LibvirtFailure(message), "gpu-vm", translated().plan)) in PROVOKED


def test_an_alias_names_the_device_too() -> None:
    error = not_started(LibvirtFailure("-device vfio-pci,id=ua-gpu-gpu1: no"), "gpu-vm", translated().plan)
    assert error.message.endswith("(about gpu1: 0000:e1:00.0)")


def test_a_lost_connection_is_no_fault_of_the_domain() -> None:
    assert isinstance(not_started(LibvirtFailure("End of file", lost=True), "vm", EMPTY_PLAN), LibvirtNotThere)


def test_without_libvirts_module_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)
    with raises_code(LIBVIRT_MODULE_MISSING) as raised:
        connect("qemu:///system")
    assert raised.value.code == "LK622"
    assert "extra `libvirt`" in raised.value.remedy


def test_only_what_our_owner_has_lost_is_cleaned() -> None:
    owner = str(uuid4())
    libvirt = FakeLibvirt()
    libvirt.defined = dict.fromkeys(("lost", "alive", "other", "foreign"), b"")
    guests = [
        FakeGuest(libvirt, "lost", active=True, owner=owner),
        FakeGuest(libvirt, "alive", active=True, owner=owner),
        FakeGuest(libvirt, "other", owner="you"),
        FakeGuest(libvirt, "foreign"),
    ]
    lock = hold(owner, "alive")
    assert lock is not None
    said: list[str] = []
    with lock:
        clean(guests, owner, "new", said.append)
    assert set(libvirt.defined) == {"alive", "other", "foreign"}
    assert len(said) == 1
    with raises_code(DOMAIN_IN_THE_WAY, match="belongs to you"):
        clean(guests[2:], owner, "other", said.append)


def test_a_name_is_held_once_and_free_again_when_it_is_let_go() -> None:
    owner = str(uuid4())  # other tests may run in this network namespace, too
    first = hold(owner, "held")
    assert first is not None
    with first:
        assert hold(owner, "held") is None
    again = hold(owner, "held")
    assert again is not None
    again.close()
