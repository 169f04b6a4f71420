"""A VM that tests and benchmarks translate: a domain as KubeVirt writes it, and hosts of any number of cards."""

from __future__ import annotations

import json
from typing import NamedTuple

from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciDetail, PciFunction

RESOURCE = "nvidia.com/GA102_GEFORCE_RTX_3090"
VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090"
_DETAIL = PciDetail(None, 0, True, None, "vfio_pci", (), (), None, None, (), False, (), "D0", None, None)


class Sample(NamedTuple):
    """One VM: what it asks for and what it is given."""

    domain_xml: str
    vmi_json: str
    env: dict[str, str]
    facts: HostFacts


def sample(devices: int, functions: int) -> Sample:
    """A VM of some devices, each a card of so many functions, in IOMMU groups of their own."""
    cards = [f"{bus // 128:04x}:{bus % 128 + 1:02x}:00" for bus in range(devices)]
    gpus = [{"name": f"gpu{number}", "deviceName": RESOURCE} for number in range(devices)]
    vmi = {"metadata": {"name": "bench", "annotations": {}}, "spec": {"domain": {"devices": {"gpus": gpus}}}}
    env = {VARIABLE: ",".join(f"{card}.0" for card in cards)}
    return Sample(domain(), json.dumps(vmi), env, facts(cards, functions))


def from_kubevirt(devices: int) -> bytes:
    """The sample's domain as a sidecar gets it: one hostdev a card is there already, as KubeVirt writes it."""
    hostdevs = "".join(
        f"""    <hostdev type="pci" managed="no">
      <source>
        <address domain="0x{card // 128:04x}" bus="0x{card % 128 + 1:02x}" slot="0x00" function="0x0"></address>
      </source>
      <alias name="ua-gpu-gpu{card}"></alias>
    </hostdev>
"""
        for card in range(devices)
    )
    return domain().replace("    <memballoon", hostdevs + "    <memballoon").encode()


def facts(cards: list[str], functions: int) -> HostFacts:
    """A host of these cards and nothing else."""
    functions_of: dict[PciAddress, PciFunction] = {}
    groups: dict[int, tuple[PciAddress, ...]] = {}
    for group, card in enumerate(cards):
        members = tuple(PciAddress.parse(f"{card}.{number}") for number in range(functions))
        groups[group] = members
        for address in members:
            class_code = 0x040300 if address.function else 0x030000
            functions_of[address] = PciFunction(
                address, 0x10DE, 0x2204 + address.function, 0x1458, 0x403B, class_code, "vfio-pci", group, 0, None
            )
    nodes = frozenset({"/dev/vfio/vfio", *(f"/dev/vfio/{group}" for group in groups)})
    return HostFacts(True, functions_of, dict.fromkeys(functions_of, _DETAIL), groups, {}, {}, nodes)


def domain() -> str:
    """About 6 KB, with what KubeVirt writes for a VM of three disks and two interfaces."""
    disks = "\n".join(
        f"""    <disk device="disk" type="file" model="virtio-non-transitional">
      <source file="/var/run/kubevirt-private/vmi-disks/disk{number}/disk.img"></source>
      <target bus="virtio" dev="vd{"abc"[number]}"></target>
      <driver cache="none" error_policy="stop" name="qemu" type="raw" discard="unmap"></driver>
      <alias name="ua-disk{number}"></alias>
    </disk>"""
        for number in range(3)
    )
    interfaces = "\n".join(
        f"""    <interface type="ethernet">
      <source></source>
      <target dev="tap{number}" managed="no"></target>
      <model type="virtio-non-transitional"></model>
      <mac address="52:54:00:00:00:0{number}"></mac>
      <mtu size="1500"></mtu>
      <alias name="ua-net{number}"></alias>
      <rom enabled="no"></rom>
    </interface>"""
        for number in range(2)
    )
    ports = "\n".join('    <controller type="pci" model="pcie-root-port"></controller>' for _ in range(4))
    return _DOMAIN.format(ports=ports, interfaces=interfaces, disks=disks)


_DOMAIN = """\
<domain type="kvm" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
  <name>default_bench</name>
  <memory unit="b">8589934592</memory>
  <os>
    <type arch="x86_64" machine="q35">hvm</type>
    <smbios mode="sysinfo"></smbios>
  </os>
  <sysinfo type="smbios">
    <system>
      <entry name="uuid">5d307ca9-b3ef-428c-8861-06e72d69f223</entry>
      <entry name="manufacturer">KubeVirt</entry>
      <entry name="family">KubeVirt</entry>
      <entry name="product">None</entry>
      <entry name="sku"></entry>
      <entry name="version"></entry>
    </system>
  </sysinfo>
  <devices>
{ports}
    <interface type="user"><alias name="ua-user0"></alias></interface>
{interfaces}
    <channel type="unix">
      <target name="org.qemu.guest_agent.0" type="virtio"></target>
    </channel>
    <controller type="usb" index="0" model="none"></controller>
    <controller type="scsi" index="0" model="virtio-non-transitional"></controller>
    <controller type="virtio-serial" index="0" model="virtio-non-transitional"></controller>
    <video>
      <model type="vga" heads="1" vram="16384"></model>
    </video>
    <graphics type="vnc">
      <listen type="socket" socket="/var/run/kubevirt-private/uid/virt-vnc"></listen>
    </graphics>
    <memballoon model="virtio-non-transitional">
      <stats period="10"></stats>
    </memballoon>
{disks}
    <serial type="unix">
      <target port="0"></target>
      <source mode="bind" path="/var/run/kubevirt-private/uid/virt-serial0"></source>
      <log file="/var/run/kubevirt-private/uid/virt-serial0-log" append="on"></log>
    </serial>
    <console type="pty">
      <target type="serial" port="0"></target>
    </console>
  </devices>
  <metadata>
    <kubevirt xmlns="http://kubevirt.io">
      <uid>uid</uid>
      <graceperiod><deletionGracePeriodSeconds>30</deletionGracePeriodSeconds></graceperiod>
    </kubevirt>
  </metadata>
  <features>
    <acpi></acpi>
  </features>
  <cpu mode="host-model">
    <topology sockets="1" cores="4" threads="1"></topology>
  </cpu>
  <vcpu placement="static">4</vcpu>
  <iothreads>1</iothreads>
</domain>"""
