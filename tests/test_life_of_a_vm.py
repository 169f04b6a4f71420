"""The calls of a VM's life in their order: boot, a second define, a migration target (X2, Q2)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lxml import etree

from launcherkit import Host, translate
from tests.support.hosttree import HostTree

VMI = {"spec": {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": "nvidia.com/GA102"}]}}}}


def by_kubevirt(bus: str) -> bytes:
    """The domain as KubeVirt writes it on a node where the card has this bus: one function, and no guest address."""
    return f"""<domain type="kvm">
	<os><type arch="x86_64" machine="q35">hvm</type></os>
	<devices>
		<controller type="pci" index="0" model="pcie-root"></controller>
		<interface type="ethernet"><alias name="ua-default"></alias></interface>
		<hostdev type="pci" managed="no">
			<source><address domain="0x0000" bus="{bus}" slot="0x00" function="0x0"></address></source>
			<alias name="ua-gpu-gpu1"></alias>
		</hostdev>
	</devices>
</domain>""".encode()


def read_back(document: bytes) -> bytes:
    """What KubeVirt's structs leave of libvirt's read-back."""
    root = etree.fromstring(document)
    for hostdev in root.iter("hostdev"):
        for dropped in hostdev.findall("rom") + hostdev.findall("driver"):
            hostdev.remove(dropped)
        for address in hostdev.iter("address"):
            address.attrib.pop("multifunction", None)
    return etree.tostring(root)


def guest_view(document: bytes) -> list[tuple[str | None, dict[str, str]]]:
    """What must not change for the guest: each hostdev's alias and guest address."""
    root = etree.fromstring(document)
    found = []
    for hostdev in root.iterfind("devices/hostdev"):
        alias, address = hostdev.find("alias"), hostdev.find("address")
        assert alias is not None
        assert address is not None
        found.append((alias.get("name"), {str(key): str(value) for key, value in address.items()}))
    return found


@pytest.fixture
def source(tmp_path: Path) -> Host:
    tree = HostTree(tmp_path / "source", nodes=False)
    tree.card("0000:e1:00", group=44)
    return Host.from_sysfs(tree.root)


@pytest.fixture
def target(tmp_path: Path) -> Host:
    tree = HostTree(tmp_path / "target", nodes=False)
    tree.card("0000:3b:00", group=7)
    return Host.from_sysfs(tree.root)


def test_boot_second_define_and_migration_target_give_the_guest_the_same_card(source: Host, target: Host) -> None:
    boot = translate(by_kubevirt("0xe1"), env={}, host=source, vmi=VMI).domain_xml
    assert [address["function"] for _, address in guest_view(boot)] == ["0x0", "0x1"]

    again = translate(read_back(boot), env={}, host=source, vmi=VMI).domain_xml
    assert etree.canonicalize(again.decode()) == etree.canonicalize(boot.decode())
    third = translate(read_back(again), env={}, host=source, vmi=VMI).domain_xml
    assert third == again

    arrived = translate(by_kubevirt("0x3b"), env={}, host=target, vmi=VMI).domain_xml
    assert guest_view(arrived) == guest_view(boot)
    assert re.sub(rb'bus="0x3b"', b'bus="0xe1"', arrived) == boot


def test_a_target_that_gets_the_sources_guest_addresses_keeps_them(source: Host, target: Host) -> None:
    boot = translate(by_kubevirt("0xe1"), env={}, host=source, vmi=VMI).domain_xml
    moved = read_back(boot).replace(b'bus="0xe1"', b'bus="0x3b"')
    arrived = translate(moved, env={}, host=target, vmi=VMI).domain_xml
    assert guest_view(arrived) == guest_view(boot)
