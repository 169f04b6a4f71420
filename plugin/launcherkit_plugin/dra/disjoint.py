"""Checks that each card belongs either to the DRA driver or to the device plugin (D1)."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit.errors import Collector
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit_plugin.devices.selectors import auto_rules, compile_rules
from launcherkit_plugin.model.config import Config
from launcherkit_plugin.model.device import Device, Resource
from launcherkit_plugin.model.errors import CardInBothWorlds

_REMEDY = (
    "Narrow one of the two: `exclude` takes selectors, vGPU rules have `parents`; or let both say the same for `dra`."
)
_SHOWN = 4


def check_rules(config: Config, host: HostFacts) -> None:
    """Check that no function is selected by configured rules of both. The rules of ``auto`` only take what is left.

    Raises:
        CardInBothWorlds, SeveralErrors: names the rules and the functions.
    """
    implied = () if config.auto is None else auto_rules(config.auto)[0].select
    rules = {id(rule): number for number, rule in enumerate(config.pci, 1) if rule.select != implied}
    ours, theirs = ([rule for rule in config.pci if id(rule) in rules and rule.dra is dra] for dra in (True, False))
    if not ours or not theirs:
        return
    by_dra, by_plugin = compile_rules(ours), compile_rules(theirs)
    both: dict[tuple[int, int], list[PciAddress]] = {}
    for address, function in sorted(host.functions.items()):
        one, other = by_dra(function), by_plugin(function)
        if one is not None and other is not None:
            both.setdefault((rules[id(one)], rules[id(other)]), []).append(address)
    errors = Collector()
    for (one_number, other_number), found in both.items():
        functions = ", ".join(map(str, found[:_SHOWN])) + (", ..." if len(found) > _SHOWN else "")
        words = f"rule {one_number} (for DRA) and rule {other_number} (for the device plugin) both select {functions}"
        errors.add(CardInBothWorlds(words, _REMEDY, device=str(found[0])))
    errors.raise_if_any()


def check_resources(resources: Iterable[Resource]) -> None:
    """Check that devices of the two share no function, and no card on which vGPUs are created.

    Raises:
        CardInBothWorlds, SeveralErrors: names the card and the resources.
    """
    owners: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for resource in resources:
        for device in resource.devices.values():
            owners[resource.dra].update(dict.fromkeys(_parts(device), resource.name))
    errors = Collector()
    reported = set()
    for part, ours in owners[True].items():
        theirs = owners[False].get(part)
        if theirs is not None and (ours, theirs) not in reported:
            reported.add((ours, theirs))
            words = f"{part} is for DRA by the resource {ours} and for the device plugin by {theirs}"
            errors.add(CardInBothWorlds(words, _REMEDY, device=part, resource=ours))
    errors.raise_if_any()


def _parts(device: Device) -> tuple[str, ...]:
    return (device.card,) if device.card else tuple(map(str, device.functions))
