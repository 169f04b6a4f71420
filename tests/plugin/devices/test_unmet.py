"""Rules that select something and get nothing say why."""

from __future__ import annotations

from launcherkit_plugin.devices.selectors import compile_rules
from launcherkit_plugin.devices.unmet import unmet_rules
from launcherkit_plugin.model.config import PciRule, Selector
from tests.support.facts import AUDIO, BRIDGE, DISPLAY, facts, function

BRIDGES = PciRule((Selector(classes=("06",)),), name="a.b/BRIDGES")
GPUS = PciRule((Selector(classes=("03",)),))
HOST = facts(function("00:01.0", BRIDGE, driver="pcieport"), function("01:00.0"), function("01:00.1", AUDIO))


def told(*rules: PciRule, devices: tuple[str, ...] = ("01:00.0",)) -> list[str]:
    match = compile_rules(rules)
    by_rule = ((each, match(each)) for address, each in HOST.functions.items() if str(address)[5:] in devices)
    return list(unmet_rules(rules, HOST, [(each, rule) for each, rule in by_rule if rule is not None]))


def test_a_rule_that_gets_a_device_and_one_that_selects_nothing_are_not_told_of() -> None:
    assert told(GPUS, PciRule((Selector(classes=("02",)),))) == []


def test_a_rule_for_bridges_is_told_that_they_are_bridges() -> None:
    (line,) = told(GPUS, BRIDGES)
    assert line == (
        "rule 2 (a.b/BRIDGES) selects 1 PCI function, and none of them becomes a device: bridges can't be passed "
        "through, by the header type of their config space"
    )


def test_a_rule_behind_another_is_told_which_one_has_its_functions() -> None:
    (line,) = told(GPUS, PciRule((Selector(vendors=frozenset({0x10DE}), classes=("03",)),)))
    assert line.startswith("rule 2 selects 1 PCI function, ")
    assert line.endswith("rule 1 comes before it and has 0000:01:00.0 display controller 10de:2204")


def test_a_rule_for_what_comes_along_is_told_so() -> None:
    every = PciRule((Selector(classes=(f"{DISPLAY >> 16:02x}", f"{AUDIO >> 16:02x}")),))
    (line,) = told(every, PciRule((Selector(classes=("0403",)),)))
    assert line.endswith("another function of its card is the device, not 0000:01:00.1 audio device 10de:1aef")


def test_rules_for_what_is_bound_may_get_nothing() -> None:
    assert told(BRIDGES._replace(only_vfio=True)) == []
