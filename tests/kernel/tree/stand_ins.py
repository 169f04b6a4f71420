"""A domain on a machine that has none of its devices: libvirt says how QEMU is started, and stand-ins are plugged in.

The addresses, the controllers and their order are libvirt's own; a hostdev is a ``pci-testdev`` with one BAR of the
size of the function's largest. What else a domain has is left out, and memory and processors are fewer.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from lxml import etree

from launcherkit.domain.reader import Parts, read_pci_address
from launcherkit.model.address import GuestAddress, PciAddress
from launcherkit.model.host import Bar
from tests.kernel.tree.seen import KERNEL_LINE
from tests.libvirt.capabilities import Guests, made_definable
from tests.libvirt.daemon import Libvirt
from tests.tiers import find_program

STAND_IN = (0x1B36, 0x0005)
"""The IDs of every ``pci-testdev``."""
SECONDS = 300

_BRIDGES = (
    "pxb-pcie",
    "pxb",
    "pcie-root-port",
    "x3130-upstream",
    "xio3130-downstream",
    "pcie-pci-bridge",
    "pci-bridge",
)
_KEPT = ("-machine", "-m", "-smp", "-object", "-numa", "-global")
_CELL_MIB = 192
_LARGE = 0x20C
"""Flags of a BAR: memory, 64 bits, prefetchable."""


def placed(domain_xml: bytes) -> dict[PciAddress, GuestAddress]:
    """The PCI hostdevs of a document that say where they are in the guest."""
    found = {}
    for hostdev in etree.fromstring(domain_xml).iterfind("devices/hostdev[@type='pci']"):
        guest, source = Parts(hostdev).guest, hostdev.find("source/address")
        if guest is not None and source is not None:
            found[read_pci_address(source)] = guest
    return found


def large_bar(bars: Sequence[Bar]) -> int:
    """The largest 64-bit prefetchable BAR in bytes, which is what the window is about; 1 MiB where there is none."""
    return max([bar.size for bar in bars if bar.line < 6 and bar.flags & _LARGE == _LARGE], default=1 << 20)


def qemu_command(
    domain_xml: bytes,
    bars: Mapping[PciAddress, int],
    libvirt: Libvirt,
    capabilities: Mapping[str, Guests],
) -> list[str]:
    """The options of QEMU for the tree of a domain, with a stand-in for each hostdev.

    Args:
        domain_xml: for an x86 PCIe machine.
        bars: the size of each function's BAR.
        libvirt: asked for its command line; the domain need not be startable.
        capabilities: of that libvirt.
    """
    smaller, _ = made_definable(_smaller(domain_xml), capabilities)
    path = libvirt.folder / "domain.xml"
    path.write_bytes(smaller)
    words = shlex.split(libvirt("domxml-to-native", "qemu-argv", "--xml", str(path)).replace("\\\n", " "))
    return list(_options(words, {str(address): size for address, size in bars.items()}))


def boot(options: Sequence[str], kernel: Path, initrd: Path) -> str:
    """Start QEMU with a kernel, wait for its end, and give what it said on the serial port."""
    program = find_program("qemu-system-x86_64") or "qemu-system-x86_64"
    command = [
        *("setpriv", "--pdeathsig", "KILL", "--", program, "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-accel", "tcg", "-cpu", "qemu64,phys-bits=46", *options),
        *("-kernel", str(kernel), "-initrd", str(initrd), "-append", KERNEL_LINE, "-serial", "stdio"),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(errors="replace")


def _smaller(domain_xml: bytes) -> bytes:
    """The tree and its NUMA cells, with a processor and little memory each; no file, network or other device."""
    root = etree.fromstring(domain_xml)
    cells = root.findall("cpu/numa/cell")
    for number, cell in enumerate(cells):
        for name in list(cell.attrib):
            if name not in ("id", "distances"):
                del cell.attrib[name]
        cell.attrib.update({"cpus": str(number), "memory": str(_CELL_MIB), "unit": "MiB"})
    count = max(len(cells), 1)
    for tag in (
        "vcpu",
        "memory",
        "currentMemory",
        "maxMemory",
        "memoryBacking",
        "memtune",
        "numatune",
        "cputune",
        "vcpus",
    ):
        etree.strip_elements(root, tag, with_tail=False)
    etree.SubElement(root, "vcpu").text = str(count)
    etree.SubElement(root, "memory", unit="MiB").text = str(_CELL_MIB * count)
    cpu = root.find("cpu")
    if cpu is not None:
        for name in list(cpu.attrib):
            del cpu.attrib[name]
        for child in [child for child in cpu if child.tag != "numa"]:
            cpu.remove(child)
    os_ = root.find("os")
    assert os_ is not None
    os_.attrib.pop("firmware", None)
    for child in [child for child in os_ if child.tag != "type"]:
        os_.remove(child)
    for devices in root.iterfind("devices"):
        for device in list(devices):
            pci = device.get("type") == "pci"
            if not (pci and device.tag in ("controller", "hostdev")):
                devices.remove(device)
            elif device.tag == "hostdev":
                driver = device.find("driver")
                if driver is not None:
                    device.remove(driver)
                device.insert(0, etree.Element("driver", name="vfio"))  # else libvirt 9 asks the host what it has
    return etree.tostring(root)


def _options(words: Sequence[str], bars: Mapping[str, int]) -> Iterator[str]:
    for option, value in pairwise(words):
        if option in _KEPT and "secret" not in value:
            yield from (option, value)
        elif option == "-device":
            device = json.loads(value)
            if device["driver"] in _BRIDGES:
                yield from (option, value)
            elif device["driver"] == "vfio-pci":
                place = {key: device[key] for key in ("id", "bus", "addr", "multifunction") if key in device}
                stand_in = {"driver": "pci-testdev", "membar": bars.get(device["host"], 1 << 20), **place}
                yield from (option, json.dumps(stand_in))
