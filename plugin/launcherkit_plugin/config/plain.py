"""A reading as plain JSON and back: named tuples are lists in the order of their fields, sets are sorted lists."""

from __future__ import annotations

import json
from typing import Any

from launcherkit.model.note import Note
from launcherkit_plugin.config.result import Reading
from launcherkit_plugin.model.config import (
    CdiConfig,
    Config,
    LayoutEntry,
    MdevRule,
    PciRule,
    Selector,
    VgpuConfig,
    VgpuVfRule,
)


def dump(reading: Reading) -> str:
    """The JSON of a reading."""
    return json.dumps(reading, default=sorted)


def load(document: Any) -> Reading:
    """The reading whose JSON this is.

    Raises:
        LookupError, TypeError, ValueError: it is none.
    """
    config, notes, files, *rest = document
    return Reading(_config(config), tuple(Note(*note) for note in notes), tuple(files), *rest)


def _config(document: Any) -> Config:
    auto, pci, vgpu, aliases, domains, pci_ids, nodes, cdi, *rest = document
    return Config(
        auto,
        tuple(map(_pci_rule, pci)),
        _vgpu(vgpu),
        dict(aliases),
        {int(vendor): domain for vendor, domain in domains.items()},  # JSON's keys are text
        pci_ids,
        nodes,
        None if cdi is None else CdiConfig(*cdi),
        *rest,
    )


def _pci_rule(document: Any) -> PciRule:
    select, exclude, *rest = document
    return PciRule(tuple(map(_selector, select)), tuple(map(_selector, exclude)), *rest)


def _selector(document: Any) -> Selector:
    vendors, devices, models, classes, subsystems, addresses, drivers, numa_nodes, *rest = document
    return Selector(
        frozenset(vendors),
        frozenset(devices),
        frozenset(map(tuple, models)),
        tuple(classes),
        frozenset(map(tuple, subsystems)),
        tuple(addresses),
        frozenset(drivers),
        frozenset(numa_nodes),
        *rest,
    )


def _vgpu(document: Any) -> VgpuConfig:
    mdevs, vfs, layout, spread, *rest = document
    return VgpuConfig(
        tuple(MdevRule(tuple(types), name, mode, tuple(parents), *more) for types, name, mode, parents, *more in mdevs),
        tuple(VgpuVfRule(tuple(types), name, mode, tuple(parents), *more) for types, name, mode, parents, *more in vfs),
        tuple(LayoutEntry(*entry) for entry in layout),
        tuple(spread),
        *rest,
    )
