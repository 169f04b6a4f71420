"""Domains of devices mixed at random, of every kind that libvirt places."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

NICS = (*["virtio", "virtio-non-transitional"] * 3, "virtio-transitional", "e1000", "e1000e", "rtl8139", "")
SOUNDS = ("ich6", "ich9", "ac97", "usb")
SCSI = ("virtio-scsi", "virtio-non-transitional", "lsilogic")
USB = ("none", "none", "qemu-xhci", "nec-xhci", "piix3-uhci", "")
VIDEOS = ("vga", "virtio", "bochs", "cirrus", "")
VIDEOS_OF_VIRT = ("virtio", "ramfb", "")
BALLOONS = ("none", "virtio", "virtio-non-transitional", "virtio-transitional")

ONE: tuple[tuple[float, str], ...] = (
    (0.3, "<console type='pty'><target type='virtio'/></console>"),
    (0.3, "<controller type='virtio-serial' index='0' model='virtio-non-transitional'/>"),
    (0.3, "<vsock model='virtio'><cid auto='yes'/></vsock>"),
    (0.2, "<watchdog model='i6300esb' action='reset'/>"),
    (0.2, "<tpm model='tpm-tis'><backend type='passthrough'><device path='/dev/tpm0'/></backend></tpm>"),
    (0.1, "<serial type='pty'><target type='pci-serial'/></serial>"),
    (0.1, "<shmem name='s'><model type='ivshmem-plain'/><size unit='M'>4</size></shmem>"),
    (0.3, "<filesystem><source dir='/tmp'/><target dir='t'/></filesystem>"),
    (0.4, "<graphics type='vnc'/>"),
    (0.2, "<input type='tablet' bus='usb'/>"),
)
"""Devices of which a domain has one, with the probability of each."""


def mixed_devices(random: Random, arch: str) -> list[str]:
    """Devices of a PCIe machine, most without an address, in an order of their own."""
    x86 = arch == "x86_64"
    usb = random.choice(USB)
    # What libvirt takes where no model is said differs by version on aarch64, and where another controller's is said.
    said = not x86 or random.random() < 0.7
    scsi = _some(random, 3, lambda number: _scsi(number, random.choice(SCSI) if said else ""))
    disks = "ab" if scsi and said else "ah"
    devices = [
        *_some(random, 4, lambda number: _nic(random.choice(NICS))),
        *_some(random, 4, lambda number: _disk("virtio", f"vd{'abc'[number]}")),
        *scsi,
        *(_some(random, 3, lambda number: _disk("scsi", f"sd{disks[number]}")) if scsi or x86 else []),
        *([_scsi_hostdev(random.randrange(3))] if x86 and random.random() < 0.2 else []),
        *_some(random, 3, _rng),
        *_some(random, 2, lambda number: f"<sound model='{random.choice(SOUNDS)}'/>" if x86 else ""),
        *_some(random, 3, lambda number: f"<input type='{('keyboard', 'tablet')[number]}' bus='virtio'/>"),
        *_some(random, 3, lambda number: f"<channel type='pty'><target type='virtio' name='c{number}'/></channel>"),
        *[device for probability, device in ONE if random.random() < probability],
        *([f"<memballoon model='{random.choice(BALLOONS)}'/>"] if random.random() < 0.6 else []),
        *([f"<controller type='usb' index='0'{_model(usb)}/>"] if random.random() < 0.7 else []),
        *random.choice(([], [_video(random.choice(VIDEOS if x86 else VIDEOS_OF_VIRT))], 2 * [_video("virtio")])),
        *([_disk("sata", random.choice(("sdf", "sdz")))] if x86 and random.random() < 0.2 else []),
    ]
    random.shuffle(devices)
    if usb == "none" or not x86:
        devices = [device for device in devices if "bus='usb'" not in device and "model='usb'" not in device]
    return [*filter(None, devices), *_pci_controllers(random)]


def _some(random: Random, below: int, make: Callable[[int], str]) -> list[str]:
    return [make(number) for number in range(random.randrange(below))]


def _model(name: str) -> str:
    return f" model='{name}'" if name else ""


def _nic(model: str) -> str:
    return f"<interface type='user'>{f'<model type={model!r}/>' if model else ''}</interface>"


def _disk(bus: str, target: str) -> str:
    return f"<disk type='file' device='disk'><source file='/{target}'/><target dev='{target}' bus='{bus}'/></disk>"


def _scsi(number: int, model: str) -> str:
    return f"<controller type='scsi' index='{number}'{_model(model)}/>"


def _scsi_hostdev(controller: int) -> str:
    source = "<source><adapter name='scsi_host0'/><address bus='0' target='0' unit='0'/></source>"
    address = f"<address type='drive' controller='{controller}' bus='0' target='0' unit='6'/>" if controller else ""
    return f"<hostdev mode='subsystem' type='scsi'>{source}{address}</hostdev>"


def _rng(number: int) -> str:
    return f"<rng model='virtio'><backend model='random'>/dev/{('random', 'urandom')[number]}</backend></rng>"


def _video(model: str) -> str:
    return f"<video><model type='{model}'/></video>" if model else "<video/>"


def _pci_controllers(random: Random) -> list[str]:
    """None, as a user writes it, or root ports with and without gaps, or a bridge."""
    ports = random.choice(((), (), (), (1,), (1, 2, 3), (2, 5), range(1, 11)))
    found = [f"<controller type='pci' index='{index}' model='pcie-root-port'/>" for index in ports]
    if random.random() < 0.1:
        found.append(f"<controller type='pci' index='{len(ports) + 6}' model='pcie-to-pci-bridge'/>")
    return found
