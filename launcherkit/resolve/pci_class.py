"""The kind of a PCI function, by its class code."""

from __future__ import annotations

from launcherkit.model.function import PciFunction

_RANKS = (
    (0x03, None),  # display
    (0x12, None),  # processing accelerator
    (0x0B, 0x40),  # co-processor
    (0x02, None),  # network
    (0x01, None),  # storage
)


def primary_rank(function: PciFunction) -> int:
    """The rank of a function as the primary of its slot; lower is better (C2)."""
    base, sub = function.class_code >> 16, function.class_code >> 8 & 0xFF
    for rank, (wanted_base, wanted_sub) in enumerate(_RANKS):
        if base == wanted_base and wanted_sub in (None, sub):
            return rank
    return len(_RANKS)


_NAMES = {
    0x01: "storage controller",
    0x02: "network controller",
    0x03: "display controller",
    0x0403: "audio device",
    0x0600: "host bridge",
    0x0601: "ISA bridge",
    0x0604: "PCI bridge",
    0x06: "bridge",
    0x0B40: "co-processor",
    0x0C03: "USB controller",
    0x0C80: "serial bus controller",
    0x12: "processing accelerator",
}


def class_name(function: PciFunction) -> str:
    """The class in words, or ``class 0xCCSS`` if it has no name here."""
    base, base_sub = function.class_code >> 16, function.class_code >> 8
    return _NAMES.get(base_sub) or _NAMES.get(base) or f"class 0x{base_sub:04x}"


def is_gpu(function: PciFunction) -> bool:
    """Whether a request for it without a section belongs under ``gpus`` (Q1)."""
    return primary_rank(function) <= 2


def is_chipset(function: PciFunction) -> bool:
    """Whether it is a host bridge or a bridge to ISA, EISA or Micro Channel: an endpoint, but useless to a guest."""
    return 0x0600 <= function.class_code >> 8 <= 0x0603


def describe(function: PciFunction) -> str:
    """An address with class and IDs: ``0000:e1:00.1 audio device 10de:1aef``."""
    vf = f", VF of {function.physfn}" if function.physfn else ""
    return f"{function.address} {class_name(function)} {function.ids}{vf}"
