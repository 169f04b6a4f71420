"""Quantities as Kubernetes writes them: ``8Gi``, ``1.5G``, ``500m``, ``1e9``."""

from __future__ import annotations

import re
from decimal import Decimal

_POWERS = {power: Decimal(1024) ** (1 + at) for at, power in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))} | {
    power: Decimal(1000) ** (at - 3) for at, power in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"))
}


def amount_of(quantity: object) -> Decimal | None:
    """The number that a quantity, text or an integer, stands for; None for anything else."""
    if not isinstance(quantity, str | int) or isinstance(quantity, bool):
        return None
    parts = re.fullmatch(
        r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE])?)", str(quantity)
    )
    return None if parts is None else Decimal(parts[1] + (parts[2] or "")) * _POWERS[parts[3] or ""]
