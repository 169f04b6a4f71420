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
EDU = (0x1234, 0x11E8)
"""What the tests' own mdev driver binds."""


def port(number: int, functions: Mapping[int, str]) -> list[str]:
    """A root port with a card behind it, function by function."""
    parent = f"port{number}"
    found = [f"pcie-root-port,id={parent},chassis={number},slot={number},bus=pcie.0,addr={number + 4:#x}"]
    for at, function in functions.items():
        many = ",multifunction=on" if at == 0 and len(functions) > 1 else ""
        found.append(f"{function},bus={parent},addr=0.{at}{many}")
    return found


def graphics_card(number: int) -> list[str]:
    """A display function, and audio with a codec, so that the sound driver takes it."""
    return [
        *port(number, {0: "secondary-vga", 1: f"ich9-intel-hda,id=audio{number}"}),
        f"hda-output,bus=audio{number}.0,audiodev=silence",
    ]


def nvme(name: str) -> str:
    """An NVMe controller with two virtual functions."""
    return f"nvme,serial={name},subsys={name},sriov_max_vfs=2,sriov_vq_flexible=4,sriov_vi_flexible=2"


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
)


def options(devices: Sequence[str]) -> Iterator[str]:
    """QEMU's options for them."""
    yield from ("-audiodev", "none,id=silence")
    for device in devices:
        yield from ("-device", device)
