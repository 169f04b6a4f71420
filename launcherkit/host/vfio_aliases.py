"""Which variant of vfio-pci the kernel has for a function.

Variants, such as ``mlx5_vfio_pci`` and ``nvgrace_gpu_vfio_pci``, can do more with their devices. No kernel binds one by
itself: whoever passes a function on looks for the best alias ``vfio_pci:`` of its modalias (Linux commit cc6711b0bf36).
As in libvirt, that is the one with the fewest wildcards. Drivers that are built in have no alias there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

_PREFIX = "vfio_pci:"


@dataclass(frozen=True, slots=True)
class VfioAlias:
    """An alias of a module for functions that are passed on."""

    pattern: str
    """``vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i*``."""
    module: str


def vfio_aliases(lines: Iterable[str]) -> tuple[VfioAlias, ...]:
    """Those among the lines of ``modules.alias``."""
    words = [line.split() for line in lines if _PREFIX in line]
    return tuple(
        VfioAlias(line[1], line[2])
        for line in words
        if len(line) == 3 and line[0] == "alias" and line[1].startswith(_PREFIX)
    )


def best_alias(modalias: str, aliases: Iterable[VfioAlias]) -> VfioAlias | None:
    """The best alias for a function; None for that of vfio-pci itself, or if none fits.

    Args:
        modalias: the function's, ``pci:v000010DEd00002342sv...``.
        aliases: the kernel's; of equally good ones the first counts.
    """
    if not modalias.startswith("pci:"):
        return None
    fitting = [alias for alias in aliases if fnmatchcase(f"vfio_{modalias}", alias.pattern)]
    best = min(fitting, key=lambda alias: alias.pattern.count("*"), default=None)
    return None if best is None or best.module == "vfio_pci" else best


def best_module(modalias: str, aliases: Iterable[VfioAlias]) -> str | None:
    """Its module."""
    best = best_alias(modalias, aliases)
    return None if best is None else best.module
