"""Which functions a rule is about, and which rules get nothing."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction
from launcherkit_plugin.devices.selectors import auto_rules, compile_rules, unmet_rules, whatever_driver, with_auto
from launcherkit_plugin.model.config import AUTO, Config, PciRule, Selector, VgpuConfig, VgpuRule
from tests.support.facts import AUDIO, BRIDGE, DISPLAY, NIC, NVME, facts, function


def matches(selector: Selector, each: PciFunction) -> bool:
    """Whether a rule with this selector alone has a function."""
    return compile_rules([PciRule(select=(selector,))])(each) is not None


GPU = function("e1:00.0")._replace(numa_node=1, subsystem_vendor=0x1458, subsystem_device=0x403B)
ACCELERATOR = function("02:00.0", 0x120000, vendor=0x8086, driver=None)


@pytest.mark.parametrize(
    ("selector", "yes", "no"),
    [
        (Selector(vendors=frozenset({0x10DE, 0x1002})), GPU, ACCELERATOR),
        (Selector(devices=frozenset({0x2204})), GPU, ACCELERATOR),
        (Selector(models=frozenset({(0x10DE, 0x2204)})), GPU, GPU._replace(vendor=0x1002)),
        (Selector(classes=("0300",)), GPU, function("01:00.0", 0x030200)),
        (Selector(classes=("0302", "03")), GPU, function("01:00.1", AUDIO)),
        (Selector(classes=("030000",)), GPU, GPU._replace(class_code=0x030001)),
        (Selector(subsystems=frozenset({(0x1458, 0x403B)})), GPU, GPU._replace(subsystem_device=0)),
        (Selector(addresses=("0000:e1:00.*",)), GPU, GPU._replace(address=PciAddress(0, 0xE2, 0, 0))),
        (Selector(addresses=("0000:0[12]:*", "0000:e1:00.0")), GPU, GPU._replace(address=PciAddress(1, 0xE1, 0, 0))),
        (Selector(drivers=frozenset({"vfio-pci"})), GPU, ACCELERATOR),
        (Selector(drivers=frozenset({"none"})), ACCELERATOR, GPU),
        (Selector(numa_nodes=frozenset({0, 1})), GPU, ACCELERATOR),
        (Selector(virtual=True), function("01:00.1", physfn="01:00.0"), GPU),
        (Selector(virtual=False), GPU, function("01:00.1", physfn="01:00.0")),
    ],
)
def test_a_property_selects_what_has_it(selector: Selector, yes: PciFunction, no: PciFunction) -> None:
    assert matches(selector, yes)
    assert not matches(selector, no)


def test_all_that_a_selector_says_must_hold() -> None:
    assert matches(Selector(vendors=frozenset({0x10DE}), numa_nodes=frozenset({1})), GPU)
    assert not matches(Selector(vendors=frozenset({0x10DE}), numa_nodes=frozenset({0})), GPU)


def test_a_selector_that_says_nothing_selects_everything() -> None:
    assert matches(Selector(), GPU)
    assert matches(Selector(), ACCELERATOR)


def test_any_selector_of_a_rule_will_do_but_none_of_those_that_exclude() -> None:
    rule = PciRule(
        select=(Selector(classes=("03",)), Selector(classes=("12",))),
        exclude=(Selector(addresses=("0000:01:*",)), Selector(drivers=frozenset({"nvidia"}))),
    )
    find = compile_rules([rule])
    assert find(GPU) == find(ACCELERATOR) == rule
    assert find(function("01:00.0")) is None
    assert find(function("e1:00.0", driver="nvidia")) is None
    assert find(function("02:00.0", NIC)) is None


def test_the_first_rule_that_selects_a_function_has_it() -> None:
    first = PciRule(select=(Selector(numa_nodes=frozenset({1})),), name="a/NEAR")
    second = PciRule(select=(Selector(vendors=frozenset({0x10DE})),), name="a/REST")
    find = compile_rules([first, second])
    assert find(GPU) is first
    assert find(GPU._replace(numa_node=0)) is second
    assert find(ACCELERATOR) is None


def test_no_rule_has_a_bridge() -> None:
    assert compile_rules([PciRule(select=(Selector(),))])(function("00:01.0", BRIDGE)) is None


@pytest.mark.parametrize(
    ("auto", "wanted"),
    [
        ("nvidia", {"gpu"}),
        ("gpu", {"gpu", "radeon", "accelerator"}),
        ("all", {"gpu", "radeon", "accelerator", "nic", "nvme", "audio"}),
    ],
)
def test_auto_selects_what_it_says(auto: str, wanted: set[str]) -> None:
    functions = {
        "gpu": function("01:00.0"),
        "radeon": function("02:00.0", vendor=0x1002),
        "accelerator": ACCELERATOR,
        "nic": function("03:00.0", NIC),
        "nvme": function("04:00.0", NVME),
        "audio": function("01:00.1", AUDIO),
        "bridge": function("00:01.0", BRIDGE),
    }
    (mode,) = (each for each in AUTO if each == auto)
    find = compile_rules(auto_rules(mode))
    assert {name for name, each in functions.items() if find(each)} == wanted


@pytest.mark.parametrize("auto", AUTO)
def test_auto_takes_only_what_is_bound_to_vfio_and_binds_nothing(auto: str) -> None:
    (mode,) = (each for each in AUTO if each == auto)
    assert all(rule.when_bound and not rule.bind and rule.name is None for rule in auto_rules(mode))


def test_written_rules_come_before_those_of_auto() -> None:
    written = PciRule(select=(Selector(models=frozenset({(0x10DE, 0x2204)})),), name="a/B")
    config = with_auto(Config(auto="gpu", pci=(written,), vgpu=VgpuConfig(mdevs=(VgpuRule(("x",)),))))
    find = compile_rules(config.pci)
    assert find(GPU) is written
    assert find(ACCELERATOR) is not None
    assert [rule.types for rule in config.vgpu.mdevs] == [("x",), ("*",)]
    assert {rule.mode for rule in config.vgpu.mdevs} == {rule.mode for rule in config.vgpu.vfs} == {"static"}


def test_auto_leaves_to_others_what_is_theirs() -> None:
    others = (Selector(models=frozenset({GPU.model})),)
    config = with_auto(Config(auto="all"), others, vgpu=False)
    assert compile_rules(config.pci)(GPU) is None
    assert compile_rules(config.pci)(ACCELERATOR) is not None
    assert config.vgpu == VgpuConfig()


def test_without_auto_a_configuration_stays_as_it_is() -> None:
    config = Config(pci=(PciRule(select=(Selector(vendors=frozenset({1})),)),))
    assert with_auto(config) == config


ids = st.sampled_from([0x10DE, 0x1002, 0x8086])
functions_of_all_kinds = st.builds(
    PciFunction,
    address=st.builds(PciAddress, st.sampled_from([0, 1]), st.sampled_from([1, 0xE1]), st.just(0), st.integers(0, 1)),
    vendor=ids,
    device=ids,
    subsystem_vendor=ids,
    subsystem_device=ids,
    class_code=st.sampled_from([DISPLAY, 0x030200, AUDIO, NIC]),
    driver=st.sampled_from([None, "vfio-pci", "nvidia"]),
    iommu_group=st.none(),
    numa_node=st.sampled_from([None, 0, 1]),
    physfn=st.sampled_from([None, PciAddress(0, 1, 0, 0)]),
)
selectors = st.builds(
    Selector,
    vendors=st.frozensets(ids, max_size=2),
    devices=st.frozensets(ids, max_size=2),
    models=st.frozensets(st.tuples(ids, ids), max_size=2),
    classes=st.lists(st.sampled_from(["03", "0302", "040300"]), max_size=2).map(tuple),
    subsystems=st.frozensets(st.tuples(ids, ids), max_size=2),
    addresses=st.lists(st.sampled_from(["*", "0000:e1:00.*", "0001:??:00.1", "0000:01:00.0"]), max_size=2).map(tuple),
    drivers=st.frozensets(st.sampled_from(["vfio-pci", "none"])),
    numa_nodes=st.frozensets(st.integers(0, 1)),
    virtual=st.sampled_from([None, True, False]),
)


def holds(selector: Selector, each: PciFunction) -> bool:
    """What `Selector` says, word for word."""
    return (
        (not selector.vendors or each.vendor in selector.vendors)
        and (not selector.devices or each.device in selector.devices)
        and (not selector.models or each.model in selector.models)
        and (not selector.classes or any(f"{each.class_code:06x}".startswith(start) for start in selector.classes))
        and (not selector.subsystems or (each.subsystem_vendor, each.subsystem_device) in selector.subsystems)
        and (not selector.addresses or any(fnmatchcase(str(each.address), glob) for glob in selector.addresses))
        and (not selector.drivers or (each.driver or "none") in selector.drivers)
        and (not selector.numa_nodes or each.numa_node in selector.numa_nodes)
        and (selector.virtual is None or each.is_vf == selector.virtual)
    )


@given(
    st.lists(st.tuples(st.lists(selectors, max_size=2), st.lists(selectors, max_size=2)), max_size=3),
    functions_of_all_kinds,
)
def test_compiled_rules_select_as_the_words_say(
    written: list[tuple[list[Selector], list[Selector]]], each: PciFunction
) -> None:
    rules = [
        PciRule(select=tuple(select), exclude=tuple(exclude), name=f"a/R{n}")
        for n, (select, exclude) in enumerate(written)
    ]
    fitting = [
        rule
        for rule in rules
        if any(holds(selector, each) for selector in rule.select)
        and not any(holds(selector, each) for selector in rule.exclude)
    ]
    assert compile_rules(rules)(each) == (fitting[0] if fitting else None)


def test_what_another_driver_or_node_would_bring_under_a_rule_is_looked_at_closely() -> None:
    bound = Selector(vendors=frozenset({0x10DE}), drivers=frozenset({"vfio-pci"}), numa_nodes=frozenset({1}))
    rule = PciRule(select=(bound,), exclude=(Selector(drivers=frozenset({"nvidia"})), Selector(classes=("04",))))
    may_match = compile_rules(whatever_driver([rule]))
    assert compile_rules([rule])(GPU._replace(driver="nvidia")) is None
    assert may_match(GPU._replace(driver="nvidia", numa_node=0)) is not None
    assert may_match(GPU._replace(class_code=0x040300)) is None
    assert may_match(GPU._replace(vendor=0x1002)) is None


BRIDGES = PciRule(select=(Selector(classes=("06",)),), name="a.b/BRIDGES")
GPUS = PciRule(select=(Selector(classes=("03",)),))
HOST = facts(function("00:01.0", BRIDGE, driver="pcieport"), function("01:00.0"), function("01:00.1", AUDIO))


def warnings_about(*rules: PciRule, devices: tuple[str, ...] = ("01:00.0",)) -> list[str]:
    match = compile_rules(rules)
    by_rule = ((each, match(each)) for address, each in HOST.functions.items() if str(address)[5:] in devices)
    return list(unmet_rules(rules, HOST, [(each, rule) for each, rule in by_rule if rule is not None]))


def test_a_rule_that_gets_a_device_and_one_that_selects_nothing_are_not_reported() -> None:
    assert warnings_about(GPUS, PciRule(select=(Selector(classes=("02",)),))) == []


def test_the_warning_about_a_rule_for_bridges_says_so() -> None:
    (line,) = warnings_about(GPUS, BRIDGES)
    assert line == (
        "rule 2 (a.b/BRIDGES) selects 1 PCI function, and none of them becomes a device: bridges can't be passed "
        "through, by the header type of their config space"
    )


def test_the_warning_about_a_rule_behind_another_names_the_other() -> None:
    (line,) = warnings_about(GPUS, PciRule(select=(Selector(vendors=frozenset({0x10DE}), classes=("03",)),)))
    assert line.startswith("rule 2 selects 1 PCI function, ")
    assert line.endswith("rule 1 comes before it and has 0000:01:00.0 display controller 10de:2204")


def test_the_warning_about_a_rule_for_what_comes_along_says_so() -> None:
    every = PciRule(select=(Selector(classes=(f"{DISPLAY >> 16:02x}", f"{AUDIO >> 16:02x}")),))
    (line,) = warnings_about(every, PciRule(select=(Selector(classes=("0403",)),)))
    assert line.endswith("another function of its card is the device, not 0000:01:00.1 audio device 10de:1aef")


def test_rules_for_what_is_bound_may_get_nothing() -> None:
    assert warnings_about(BRIDGES._replace(when_bound=True)) == []
