"""Which functions a rule is about, the rules that nobody has to write, and those that get nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import TypeAlias

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.model.value import NamedTuple
from launcherkit.render.columns import counted
from launcherkit.resolve.pci_class import describe, primary_rank
from launcherkit.resolve.vfio import is_bridge
from launcherkit_plugin.model.config import Auto, Config, DraConfig, PciRule, Selector, VgpuRule

Test: TypeAlias = Callable[[PciFunction], bool]

NO_DRIVER = "none"
"""What a selector calls having no driver."""


class _Compiled(NamedTuple):
    """What a selector says."""

    tests: tuple[Test, ...]
    """One for each key that says anything, the quick ones first."""
    glob: re.Pattern[str] | None
    """Of addresses. To write an address down takes longer than all tests, so that is done once, and only if need be."""


def compile_rules(rules: Sequence[PciRule], *, bridges: bool = False) -> Callable[[PciFunction], PciRule | None]:
    """A function that finds the first rule which a PCI function falls under. What its class calls a bridge falls under
    none, unless ``bridges`` is said; others are recognised by their header, which not every look reads."""
    compiled = [
        (rule, [_compile(selector) for selector in rule.select], [_compile(selector) for selector in rule.exclude])
        for rule in rules
    ]

    def find(function: PciFunction) -> PciRule | None:
        if function.is_bridge_by_class and not bridges:
            return None
        text: list[str] = []
        for rule, select, exclude in compiled:
            if _any(select, function, text) and not _any(exclude, function, text):
                return rule
        return None

    return find


def whatever_driver(rules: Iterable[PciRule]) -> list[PciRule]:
    """Rules for whatever these could select with another driver or NUMA node; both change while a function stays."""
    return [
        rule._replace(
            select=tuple(each._replace(drivers=frozenset(), numa_nodes=frozenset()) for each in rule.select),
            exclude=tuple(each for each in rule.exclude if not each.drivers and not each.numa_nodes),
        )
        for rule in rules
    ]


def _any(selectors: Iterable[_Compiled], function: PciFunction, text: list[str]) -> bool:
    """Whether any of the selectors holds; ``text`` is the address as soon as somebody has needed it."""
    # Plain loops: a generator for each costs more than the tests, and there may be thousands of functions.
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
"""vGPU types: NVIDIA's driver numbers its types so."""


def auto_rules(auto: Auto, exclude: tuple[Selector, ...] = ()) -> tuple[PciRule, ...]:
    """The rules that ``auto`` stands for: resources by model, of what is bound to a VFIO driver."""
    return (PciRule((_AUTO[auto],), exclude, only_vfio=True),)


def with_auto(config: Config, exclude: tuple[Selector, ...] = (), *, vgpu: bool = True) -> Config:
    """A configuration with the rules of its ``auto`` behind its own, which come first.

    Args:
        config: as it was read.
        exclude: what somebody else advertises.
        vgpu: whether vGPUs that exist are advertised too.
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
    """A configuration with ``dra`` set where one of its rules is for DRA, and in every rule where all of them are.

    Args:
        config: with the rules of ``auto``.
        every: all of them are, whatever it says.
    """
    dra = config.dra or (DraConfig() if every or any(rule.dra for rule in config.rules) else None)
    if dra is None or not (every or dra.all):
        return config._replace(dra=dra)
    vgpu = config.vgpu._replace(
        mdevs=tuple(rule._replace(dra=True) for rule in config.vgpu.mdevs),
        vfs=tuple(rule._replace(dra=True) for rule in config.vgpu.vfs),
    )
    pci = tuple(rule._replace(dra=True) if rule.uses == ("vm",) else rule for rule in config.pci)
    return config._replace(pci=pci, vgpu=vgpu, dra=dra._replace(all=True))


def primaries(match: Callable[[PciFunction], PciRule | None], host: HostFacts) -> Iterator[tuple[PciFunction, PciRule]]:
    """The functions that are devices (K1), each with its rule, by address."""
    slots: dict[tuple[object, ...], list[tuple[PciFunction, PciRule]]] = {}
    for function in host.functions.values():
        rule = match(function)
        if rule is None or is_bridge(function, host.details.get(function.address)) or _is_vgpu(function, host):
            continue
        # A VF is a device of its own, and so is what is asked for beside its card.
        alone = function.is_vf or rule.companion
        key = function.address if alone else (*function.address.slot, id(rule))
        slots.setdefault(key, []).append((function, rule))
    chosen = [
        (function, rule)
        for in_slot in slots.values()
        for best in [min(in_slot, key=lambda each: (primary_rank(each[0]), each[0].address))]
        for function, rule in in_slot
        if function.model == best[0].model
    ]
    yield from sorted(chosen, key=lambda pair: pair[0].address)


def _is_vgpu(function: PciFunction, host: HostFacts) -> bool:
    """A function of an SR-IOV vGPU card, which is the business of another provider: VFs, and PFs never (G4)."""
    detail = host.details.get(function.address)
    if detail is None:
        return False
    first = host.details.get(detail.virtfns[0]) if detail.virtfns else None
    return detail.vgpu is not None or (first is not None and first.vgpu is not None)


def companions(named: Iterable[tuple[PciFunction, PciRule, str]]) -> set[str]:
    """The resources that have functions of cards of which others have the best: those are asked for beside the card.

    NVIDIA's device plugin makes each function of a card a resource of its own, and so may KubeVirt's own list (K7).
    """
    found = {name for _, rule, name in named if rule.companion}
    slots: dict[object, list[tuple[PciFunction, str]]] = {}
    for function, _, name in named:
        if not function.is_vf:
            slots.setdefault(function.address.slot, []).append((function, name))
    for in_slot in slots.values():
        if len(in_slot) > 1:
            best = min(primary_rank(function) for function, _ in in_slot)
            first = {name for function, name in in_slot if primary_rank(function) == best}
            found |= {name for function, name in in_slot if primary_rank(function) > best and name not in first}
    return found


def unmet_rules(
    rules: Sequence[PciRule], host: HostFacts, devices: Iterable[tuple[PciFunction, PciRule]]
) -> Iterator[str]:
    """A line for each rule that selects something and gets nothing.

    Rules of which only what is bound to a VFIO driver is advertised are left out: to get nothing is usual for them.

    Args:
        rules: of the configuration, in order.
        host: a scan, with the details of what rules select.
        devices: from `primaries`.
    """
    numbers = {id(rule): number for number, rule in enumerate(rules, 1)}
    if all(rule.only_vfio for rule in rules):
        return
    devices = list(devices)
    served = {id(rule) for _, rule in devices}
    for rule in rules:
        if rule.only_vfio or id(rule) in served:
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
        return f"vGPUs are made of {describe(function)}"
    return f"another function of its card is the device, not {describe(function)}"
