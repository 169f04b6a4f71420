"""What is plugged into the machine, as QEMU's ``-device`` options.

Cards are behind root ports of their own, so each has an IOMMU group to itself; its functions share one, as on real
cards without ACS. QEMU has no GPU to pass through, but what VFIO, libvirt and launcherkit look at is all there: a
display function with audio beside it, SR-IOV, a group whose members don't agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

DISPLAY = (0x1234, 0x1111)
AUDIO = (0x8086, 0x293E)
NVME = (0x1B36, 0x0010)
DISK = (0x8086, 0x5845)
"""An NVMe controller with a namespace; it has Intel's numbers, so that it is none of the others."""
EDU = (0x1234, 0x11E8)
"""What the tests' own mdev driver binds."""
NIC = (0x1AF4, 0x1041)
"""Below a switch, beside a display function."""
TESTDEV = (0x1B36, 0x0005)
"""QEMU's device with a 64-bit BAR of any size."""
IGB = (0x8086, 0x10C9)
IGB_VF = (0x8086, 0x10CA)
"""A NIC with seven virtual functions, which QEMU has from 8.0 on."""


def port(number: int, functions: Mapping[int, str]) -> list[str]:
    """A root port with a card behind it, function by function."""
    parent = f"port{number}"
    devices = [f"pcie-root-port,id={parent},chassis={number},slot={number},bus=pcie.0,addr={number + 4:#x}"]
    for at, function in functions.items():
        many = ",multifunction=on" if at == 0 and len(functions) > 1 else ""
        devices.append(f"{function},bus={parent},addr=0.{at}{many}")
    return devices


def graphics_card(number: int) -> list[str]:
    """A display function, and audio with a codec, so that the sound driver takes it."""
    return [
        *port(number, {0: "secondary-vga", 1: f"ich9-intel-hda,id=audio{number}"}),
        f"hda-output,bus=audio{number}.0,audiodev=silence",
    ]


def nvme(name: str) -> str:
    """An NVMe controller with two virtual functions."""
    return f"nvme,serial={name},subsys={name},{nvme_vfs(2)}"


def nvme_vfs(number: int) -> str:
    """The options of an NVMe controller that can have so many virtual functions."""
    return f"sriov_max_vfs={number},sriov_vq_flexible={2 * number},sriov_vi_flexible={number}"


def root_complex(bus: int, node: int, slot: int) -> str:
    """A root complex of its own on a NUMA node; ``bus`` is the number of its first bus, and names it: ``root64``."""
    return f"pxb-pcie,id=root{bus},bus_nr={bus},numa_node={node},bus=pcie.0,addr={slot:#x}"


def large_card(parent: str, size: str) -> list[str]:
    """A device with a 64-bit BAR of a size, and audio that no driver of the host is asked to take."""
    return [
        f"pci-testdev,membar={size},bus={parent},addr=0.0,multifunction=on",
        f"intel-hda,bus={parent},addr=0.1",
    ]


# Two root complexes on two NUMA nodes. On the first one card; on the second one with the BAR of a large GPU, and two
# behind a switch. What is behind one port has 64-bit BARs alone: the port has a single window for what is prefetchable.
ROOT_COMPLEXES: Sequence[str] = (
    root_complex(0x40, 0, 0x10),
    "pcie-root-port,id=near,bus=root64,chassis=21,slot=21,addr=0x0",
    *large_card("near", "16M"),
    root_complex(0x80, 1, 0x11),
    "pcie-root-port,id=far,bus=root128,chassis=22,slot=22,addr=0x0",
    *large_card("far", "64G"),
    "pcie-root-port,id=switched,bus=root128,chassis=23,slot=23,addr=0x1",
    "x3130-upstream,id=switch,bus=switched,addr=0x0",
    "xio3130-downstream,id=left,bus=switch,chassis=24,slot=24,addr=0x0",
    *large_card("left", "32M"),
    "xio3130-downstream,id=right,bus=switch,chassis=25,slot=25,addr=0x1",
    *large_card("right", "64M"),
)


def switch(number: int, *cards: str) -> list[str]:
    """A root port with a switch behind it, and a card at each of its ports."""
    upper = f"switch{number}"
    devices = [*port(number, {0: f"x3130-upstream,id={upper}"})]
    for at, card in enumerate(cards):
        lower = f"{upper}-{at}"
        slot = 10 * number + at
        devices.append(f"xio3130-downstream,id={lower},bus={upper},chassis={slot},slot={slot},addr={at:#x}")
        devices.append(f"{card},bus={lower},addr=0.0")
    return devices


# Unlike secondary-vga it has a list of capabilities: to a device without one QEMU adds no clique.
_GPU = "bochs-display"
_NIC = "virtio-net-pci,romfile="

DEVICES: Sequence[str] = (
    *graphics_card(1),
    *graphics_card(2),
    "nvme-subsys,id=disk",
    *port(3, {0: nvme("disk")}),
    # A group with a member that VFIO can be made to refuse: a physical function with its VFs switched on. These get the
    # functions after it, so the display function is further up.
    "nvme-subsys,id=mixed",
    *port(4, {0: nvme("mixed"), 3: "secondary-vga"}),
    *port(5, {0: "edu"}),
    *port(6, {0: "edu"}),
    *port(7, {0: "qemu-xhci,id=usb"}),
    "usb-tablet,bus=usb.0",
    *port(8, {0: "nvme,serial=erased,use-intel-id=on,drive=namespace"}),
    *switch(10, _GPU, _GPU, _NIC),
    *switch(11, _GPU, _NIC),
    *ROOT_COMPLEXES,
)


def nic(help_text: str) -> list[str]:
    """A NIC with SR-IOV, if QEMU knows one; ``help_text`` is what it says to ``-device help``."""
    return port(9, {0: "igb"}) if '"igb"' in help_text else []


NAMESPACE_BYTES = 16 << 20
"""The size of the file `namespace` that is in the namespace of `DISK`."""


def options(devices: Sequence[str], memory_mib: int, memory_nodes: int = 0) -> Iterator[str]:
    """QEMU's options for them, and for two NUMA nodes of a processor each where a device belongs to one.

    Args:
        memory_nodes: further NUMA nodes, without processors. They have 64 MiB each, of all the memory.
    """
    if memory_nodes or any("numa_node=" in device for device in devices):
        rest = memory_mib - 64 * memory_nodes
        for node, mebibytes in enumerate([rest - rest // 2, rest // 2, *[64] * memory_nodes]):
            yield from ("-object", f"memory-backend-ram,id=node{node},size={mebibytes}M")
            yield from ("-numa", f"node,nodeid={node}{f',cpus={node}' if node < 2 else ''},memdev=node{node}")
    yield from ("-audiodev", "none,id=silence")
    for device in devices:
        yield from ("-device", device)
