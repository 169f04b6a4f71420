"""The kernel as it is before it is packed, for guests whose processor is emulated twice.

Unpacking itself takes such a guest minutes. QEMU starts what was unpacked as well, by the kernel's PVH entry.
"""

from __future__ import annotations

import lzma
import struct
from pathlib import Path

from launcherkit.atomic import write_atomically
from launcherkit_lab.packages import Kernel

_SECTOR = 512


def vmlinux(kernel: Kernel, cache: Path) -> Path:
    """The unpacked kernel, made once and kept; the packed one itself where it is packed in a way other than xz.

    Raises:
        OSError: the cache can't be written.
    """
    kept = cache / f"vmlinux-{kernel.release}"
    if not kept.exists():
        unpacked = unpack(kernel.image.read_bytes())
        if unpacked is None:
            return kernel.image
        write_atomically(str(kept), unpacked)
    return kept


def unpack(image: bytes) -> bytes | None:
    """The ELF file in a bzImage, by the fields of Linux' boot protocol (Documentation/arch/x86/boot)."""
    (sectors,) = struct.unpack_from("<B", image, 0x1F1)
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * _SECTOR + offset
    packed = image[start : start + length]
    return lzma.LZMADecompressor().decompress(packed) if packed.startswith(b"\xfd7zXZ\0") else None
