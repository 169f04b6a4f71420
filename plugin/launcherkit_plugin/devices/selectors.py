"""Which functions a rule selects and which become devices; the rules of ``auto``; rules that get no device."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import NamedTuple, TypeAlias

from launcherkit.errors import counted
from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.model.host import HostFacts, PciFunction, describe, is_bridge, primary_rank
from launcherkit_plugin.model.config import Auto, Config, DraConfig, PciRule, Selector, VgpuRule

Test: TypeAlias = Callable[[PciFunction], bool]

NO_DRIVER = "none"
"""In a selector's ``drivers``: the function has no driver."""


class Selection(NamedTuple):
    """Which functions the rules of a configuration select, and what these are called."""

    match: Callable[[PciFunction], PciRule | None]
    """Returns the rule that applies to a function, if any."""
    name_of: Callable[[PciFunction, PciRule], str]
    """Returns the name of the rule's resource for a function."""
    whatever_driver: Callable[[PciFunction], PciRule | None] | None = None
    """Returns a rule that could apply with another driver or NUMA node. None: no rule selects by these."""
    model_of: Callable[[PciFunction], str] = lambda _: ""
    """Returns the name of a function in pci.ids."""

    def may_match(self, function: PciFunction) -> PciRule | None:
        """A rule that applies to a function, or could with another driver or NUMA node."""
        if function.is_bridge_by_class:
            return None
        return (self.whatever_driver or self.match)(function)


class _Compiled(NamedTuple):
    """A compiled selector."""

    tests: tuple[Test, ...]
    """One for each key that is set, the fast ones first."""
    glob: re.Pattern[str] | None
    """Matches addresses. Formatting an address takes longer than all tests, so it is done last, and only once."""


def compile_rules(rules: Sequence[PciRule], *, bridges: bool = False) -> Callable[[PciFunction], PciRule | None]:
    """Compile rules to a callable that returns the first rule that applies to a PCI function.

    Without ``bridges``, no rule applies to functions with the class of a bridge. Other bridges are recognised by their
    header type, which isn't read for every function.
    """
    compiled = [
        (rule, [_compile(selector) for selector in rule.select], [_compile(selector) for selector in rule.exclude])
        for rule in rules
    ]

    def find(function: PciFunction) -> PciRule | None:
        if function.is_bridge_by_class and not bridges:
            return None
        text: list[str] = []
        for rule, select, exclude in compiled:
            if rule.virtual_functions is not None and function.is_vf:
                continue  # it makes them; another rule advertises them
            if _any(select, function, text) and not _any(exclude, function, text):
                return rule
        return None

    return find


def whatever_driver(rules: Iterable[PciRule]) -> list[PciRule]:
    """Rules that select all that these could select with another driver or NUMA node, which may change at any time."""
    return [
        rule._replace(
            select=tuple(each._replace(drivers=frozenset(), numa_nodes=frozenset()) for each in rule.select),
            exclude=tuple(each for each in rule.exclude if not each.drivers and not each.numa_nodes),
        )
        for rule in rules
    ]


def _any(selectors: Iterable[_Compiled], function: PciFunction, text: list[str]) -> bool:
    """Whether any of the selectors matches; ``text`` caches the formatted address."""
    # Plain loops: generators cost more than the tests, and there may be thousands of functions.
    for tests, glob in selectors:
        for test in tests:
            if not test(function):
                break
        else:
            if glob is None:
                return True
            if not text:
                text.append(str(function.address))
            if glob.match(text[0]):
                return True
    return False


def _compile(selector: Selector) -> _Compiled:
    tests: list[Test] = []
    if selector.vendors:
        tests.append(lambda function: function.vendor in selector.vendors)
    if selector.models:
        tests.append(lambda function: (function.vendor, function.device) in selector.models)
    if selector.devices:
        tests.append(lambda function: function.device in selector.devices)
    if selector.virtual is not None:
        tests.append(lambda function: (function.physfn is not None) == selector.virtual)
    if selector.numa_nodes:
        tests.append(lambda function: function.numa_node in selector.numa_nodes)
    if selector.drivers:
        tests.append(lambda function: (function.driver or NO_DRIVER) in selector.drivers)
    if selector.subsystems:
        tests.append(lambda function: (function.subsystem_vendor, function.subsystem_device) in selector.subsystems)
    if selector.classes:
        tests.append(lambda function: f"{function.class_code:06x}".startswith(selector.classes))
    glob = re.compile("|".join(map(translate, selector.addresses))) if selector.addresses else None
    return _Compiled(tuple(tests), glob)


_DISPLAY = "03"
_ACCELERATOR = "12"
_AUTO: dict[Auto, Selector] = {
    "nvidia": Selector(vendors=frozenset({0x10DE}), classes=(_DISPLAY,)),
    "gpu": Selector(classes=(_DISPLAY, _ACCELERATOR)),
    "all": Selector(),
}
_AUTO_TYPES: dict[Auto, tuple[str, ...]] = {"nvidia": ("nvidia-*",), "gpu": ("*",), "all": ("*",)}
"""Globs over vGPU types; ``nvidia-*`` are the IDs that NVIDIA's driver uses."""


def auto_rules(auto: Auto, exclude: tuple[Selector, ...] = ()) -> tuple[PciRule, ...]:
    """The rules of ``auto``: a resource for each model of functions that are bound to a VFIO driver."""
    return (PciRule(select=(_AUTO[auto],), exclude=exclude, when_bound=True),)


def with_auto(config: Config, exclude: tuple[Selector, ...] = (), *, vgpu: bool = True) -> Config:
    """A configuration with the rules of its ``auto`` after its own.

    Args:
        config: as it was read.
        exclude: functions that another device plugin advertises.
        vgpu: whether existing vGPUs are advertised too.
    """
    if config.auto is None:
        return config
    vgpus = config.vgpu
    if vgpu:
        types = _AUTO_TYPES[config.auto]
        vgpus = vgpus._replace(
            mdevs=(*vgpus.mdevs, VgpuRule(types)), vfs=(*vgpus.vfs, VgpuRule(("*",), prefix="PCI_RESOURCE"))
        )
    return config._replace(pci=(*config.pci, *auto_rules(config.auto, exclude)), vgpu=vgpus)


def with_dra(config: Config, *, every: bool = False) -> Config:
    """A configuration with ``dra`` set if one of its rules is for DRA; if all are to be, ``dra`` is set in each rule.

    Args:
        config: with the rules of ``auto``.
        every: all rules are for DRA, whatever the configuration says.
    """
    dra = config.dra or (DraConfig() if every or any(rule.dra for rule in config.rules) else None)
    if dra is None or not (every or dra.all):
        return config._replace(dra=dra)
    vgpu = config.vgpu._replace(
        mdevs=tuple(rule._replace(dra=True) for rule in config.vgpu.mdevs),
        vfs=tuple(rule._replace(dra=True) for rule in config.vgpu.vfs),
    )
    pci = tuple(rule._replace(dra=True) if rule.uses == ("vm",) else rule for rule in config.pci)
    usb = tuple(rule._replace(dra=len(rule.selectors) == 1) for rule in config.usb)
    return config._replace(pci=pci, vgpu=vgpu, usb=usb, dra=dra._replace(all=True))


def primaries(match: Callable[[PciFunction], PciRule | None], host: HostFacts) -> Iterator[tuple[PciFunction, PciRule]]:
    """The functions that are devices (K1), each with its rule, sorted by address."""
    slots: dict[tuple[object, ...], list[tuple[PciFunction, PciRule]]] = {}
    for function in host.functions.values():
        rule = match(function)
        if rule is None or rule.virtual_functions is not None or _is_vgpu(function, host):
            continue
        if is_bridge(function, host.details.get(function.address)):
            continue
        # A VF is a device of its own, and so is a companion, which is requested in addition to its card.
        alone = function.is_vf or rule.companion
        key = function.address if alone else (function.address.slot, id(rule))
        slots.setdefault(key, []).append((function, rule))
    chosen = [
        (function, rule)
        for in_slot in slots.values()
        for best in [min(in_slot, key=lambda pair: (primary_rank(pair[0]), pair[0].address))]
        for function, rule in in_slot
        if function.model == best[0].model
    ]
    yield from sorted(chosen, key=lambda pair: tuple(pair[0].address))  # plain tuples are quicker to compare


def _is_vgpu(function: PciFunction, host: HostFacts) -> bool:
    """Whether it belongs to an SR-IOV vGPU card: another provider advertises its VFs, and PFs are no devices (G4)."""
    detail = host.details.get(function.address)
    if detail is None:
        return False
    first = host.details.get(detail.virtfns[0]) if detail.virtfns else None
    return detail.vgpu is not None or (first is not None and first.vgpu is not None)


def companions(named: Iterable[tuple[PciFunction, PciRule, str]]) -> set[str]:
    """The resources whose functions accompany the primaries of another resource's cards.

    NVIDIA's device plugin makes each function of a card a resource of its own, and KubeVirt's list of host devices may
    do so too (K7).
    """
    names = {name for _, rule, name in named if rule.companion}
    slots: dict[PciSlot, list[tuple[PciFunction, str]]] = {}
    for function, _, name in named:
        if not function.is_vf:
            slots.setdefault(function.address.slot, []).append((function, name))
    for in_slot in slots.values():
        if len(in_slot) > 1:
            best = min(primary_rank(function) for function, _ in in_slot)
            first = {name for function, name in in_slot if primary_rank(function) == best}
            names |= {name for function, name in in_slot if primary_rank(function) > best and name not in first}
    return names


def unmet_rules(
    rules: Sequence[PciRule], host: HostFacts, devices: Iterable[tuple[PciFunction, PciRule]]
) -> Iterator[str]:
    """A line for each rule that selects functions but gets no device.

    Rules with ``when_bound`` are skipped, as are those that make virtual functions: it is normal that they get none.

    Args:
        rules: of the configuration, in order.
        host: a scan, with the details of the functions that rules select.
        devices: from `primaries`.
    """
    numbers = {id(rule): number for number, rule in enumerate(rules, 1)}
    if all(rule.when_bound for rule in rules):
        return
    devices = list(devices)
    served = {id(rule) for _, rule in devices}
    for rule in rules:
        if rule.when_bound or rule.virtual_functions is not None or id(rule) in served:
            continue
        selects = compile_rules([rule], bridges=True)
        selected = [function for function in host.functions.values() if selects(function) is not None]
        if selected:
            earlier = {function.address: numbers[id(other)] for function, other in devices}
            whys = dict.fromkeys(_why(function, host, earlier) for function in sorted(selected))
            name = f" ({rule.name})" if rule.name else ""
            yield (
                f"rule {numbers[id(rule)]}{name} selects {counted(len(selected), 'PCI function')}, "
                f"and none of them becomes a device: {'; '.join(list(whys)[:3])}"
            )


def _why(function: PciFunction, host: HostFacts, earlier: Mapping[PciAddress, int]) -> str:
    detail = host.details.get(function.address)
    if is_bridge(function, detail):
        return "bridges can't be passed through, by the header type of their config space"
    if function.address in earlier:
        return f"rule {earlier[function.address]} comes before it and has {describe(function)}"
    if detail is not None and (detail.vgpu is not None or detail.virtfns):
        return f"vGPUs are created on {describe(function)}"
    return f"another function of its card is the device, not {describe(function)}"
