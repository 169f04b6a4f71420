"""The names of resources (K6), for each use of a card (K10), and the check that they are unique."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from launcherkit.errors import Collector
from launcherkit.host.pci_ids import PATHS, PciNames, find_names
from launcherkit.model.host import PciFunction
from launcherkit.model.request import resource_suffix
from launcherkit.request.fields import read_file
from launcherkit_plugin.model.config import CardUse, Config, PciRule
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.model.errors import NAME_CLASH
from launcherkit_plugin.model.texts import IN_NAME, LONGEST_NAME, type_key

DOMAINS: Mapping[int, str] = {
    0x10DE: "nvidia.com",
    0x1002: "amd.com",
    0x1022: "amd.com",
    0x8086: "intel.com",
    0x15B3: "mellanox.com",
}
"""The domains of vendors' resource names, unless the configuration has another."""

SHARED = ".shared"
"""What NVIDIA's device plugin adds to the name of a resource that is shared."""

_IN_AUTOMATIC = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def automatic_name(text: str, device: int) -> str:
    """The NAME of a device, formed from its name in ``pci.ids`` as by NVIDIA's plugin.

    Unlike there, the result is always valid: it has no ``_`` at its ends, and is the device ID if the name would be
    empty or too long.

    Args:
        text: its name in ``pci.ids``; may be empty.
        device: its device ID.
    """
    upper = text.upper().replace("/", "_").replace(".", "_")
    name = "".join(c for c in type_key(upper) if c in _IN_AUTOMATIC).strip("_")
    return name if 0 < len(name) <= LONGEST_NAME else f"{device:04x}"


class ModelName(NamedTuple):
    """The resource name of a model."""

    name: str
    """``nvidia.com/A100_PCIE_40GB``."""
    shared: bool
    """The name is from ``pci.ids``. All models with that name there form one resource: boards with the same chip and
    memory look the same to a guest (K6)."""


def model_name(function: PciFunction, config: Config, names: PciNames) -> ModelName:
    """The resource name of a function's model: from its alias, else from ``pci.ids``, else from its device ID (K6)."""
    alias = config.aliases.get(function.ids)
    automatic = automatic_name(names.devices.get(function.model, ""), function.device)
    shared = alias is None and automatic != automatic_name("", function.device)
    return ModelName(f"{_domain(function.vendor, config)}/{alias or automatic}", shared)


def vgpu_name(type_name: str, vendor: int | None, config: Config) -> str:
    """The resource name of a vGPU type, ``nvidia.com/GRID_T4-1Q``: from its alias, else from its own name.

    Args:
        type_name: ``GRID T4-1Q``; its ID if it has no name.
        vendor: of the parent; None if that isn't a PCI device.
        config: aliases and domains.
    """
    key = type_key(type_name)
    own = "".join(c for c in key if c in IN_NAME).strip("-_.")[:LONGEST_NAME].rstrip("-_.")
    return f"{_domain(vendor, config)}/{config.aliases.get(key) or own or 'UNNAMED'}"


def _domain(vendor: int | None, config: Config) -> str:
    if vendor is None:
        return "mdev.launcherkit.io"
    return config.domains.get(vendor) or DOMAINS.get(vendor) or f"{vendor:04x}.pci.launcherkit.io"


class Namer:
    """Finds the names of resources, looks each model up only once, and checks that names are unique.

    Names count as taken from one `check` to the next, so devices that were unplugged cause no clash.
    """

    def __init__(self, config: Config, tables: Sequence[str] = PATHS) -> None:
        """Use a configuration.

        Args:
            config: aliases, domains, rules.
            tables: paths at which ``pci.ids`` may be, unless the configuration names it.
        """
        self._config = config
        self._tables = tables if config.pci_ids is None else (config.pci_ids,)
        self._rules = {id(rule): f"rule {number}" for number, rule in enumerate(config.pci, 1)}
        self._by_model: dict[tuple[int, int], ModelName] = {}
        self._texts: dict[tuple[int, int], str] = {}
        """The names of models in ``pci.ids``."""
        self._given: dict[tuple[tuple[int, int], int], tuple[str, object, str]] = {}
        """By model and rule: the name, its owner, and the owner in words."""
        self._owners: dict[str, dict[object, str]] = {}
        """The owners of each name, with a description. Models that share a name are one owner."""

    def update(self, functions: Iterable[PciFunction]) -> None:
        """Look up the names of these functions in one pass over ``pci.ids``, which takes some milliseconds.

        Raises:
            UnreadableFile: the file that the configuration names can't be read.
        """
        new = {function.model: function for function in functions if function.model not in self._by_model}
        if new and self._config.pci_ids is not None:
            read_file(self._config.pci_ids, 0)  # a configured file that is missing must not go unnoticed
        names = find_names(new.values(), self._tables)
        self._by_model |= {model: model_name(function, self._config, names) for model, function in new.items()}
        self._texts |= {model: names.devices.get(model, "") for model in new}

    def text(self, function: PciFunction) -> str:
        """The name of a function's model in ``pci.ids``; empty if it has none."""
        if function.model not in self._texts:
            self.update([function])
        return self._texts[function.model]

    def function(self, function: PciFunction, rule: PciRule) -> str:
        """The name of the resource to which a rule assigns a function."""
        entry = self._given.get((function.model, id(rule)))
        if entry is None:
            which = self._rules.get(id(rule), "a rule")
            if rule.name is not None:
                entry = rule.name, which, which
            else:
                self.update([function])
                name, shared = self._by_model[function.model]
                whose = ("the table", which) if shared else (function.model, which)
                entry = name, whose, f"model {function.ids} by {which}"
            self._given[function.model, id(rule)] = entry
        name, owner, words = entry
        self._owners.setdefault(name, {}).setdefault(owner, words)
        return name

    def vgpu(self, type_name: str, vendor: int | None) -> str:
        """See `vgpu_name`."""
        name = vgpu_name(type_name, vendor, self._config)
        words = f"vGPU type {type_key(type_name)}"
        self._owners.setdefault(name, {})[words] = words
        return name

    def check(self, resources: Iterable[Resource]) -> None:
        """Check that no name returned since the last check has two owners, and that resources don't clash (K6).

        Args:
            resources: all that are to be advertised, of all providers.

        Raises:
            NAME_CLASH, SeveralErrors: each names both owners or resources.
        """
        errors = Collector()
        owned, self._owners = self._owners, {}
        for name, owners in owned.items():
            for one, other in pairwise(owners.values()):
                errors.add(NAME_CLASH(f"{one} and {other} are both called {name}", _REMEDY, resource=name))
        for name, text in clashes((resource.name, resource.variable) for resource in resources):
            errors.add(NAME_CLASH(text, _REMEDY, resource=name))
        errors.raise_if_any()


_REMEDY = "Give one of them another name: `aliases` has names for models and vGPU types, a rule takes `name`."


def clashes(named: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Names, sockets and variables that two resources share (K6, E2): yields a resource's name and a sentence.

    Args:
        named: name and variable of each resource.
    """
    names: set[str] = set()
    sockets: dict[str, str] = {}
    variables: dict[str, str] = {}
    for name, variable in named:
        if name in names:
            yield name, f"two resources are called {name}"
            continue
        names.add(name)
        socket = Resource(name, variable, {}).socket
        for kind, key, taken in (("socket", socket, sockets), ("variable", variable, variables)):
            other = taken.setdefault(key, name)
            if other != name:
                yield name, f"the resources {other} and {name} have the same {kind}, {key}"


def variable_name(name: str, prefix: str) -> str:
    """The variable of a resource (E1): ``PCI_RESOURCE_NVIDIA_COM_GA102``."""
    return f"{prefix}_{resource_suffix(name)}"


def name_for(name: str, rule: PciRule, use: CardUse) -> str:
    """The name of a rule's resource for a use.

    Args:
        name: of the rule, or of the model.
        rule: it may have a separate name for each use.
        use: one of the rule's.
    """
    own_name = None if rule.names is None else rule.names.of(use)
    if own_name is None:
        own_name = name if use == "vm" or len(rule.uses) == 1 else _with_end(name, f"-{use}")
    shared = use == "container" and rule.sharing is not None and rule.sharing.rename
    return _with_end(own_name, SHARED) if shared else own_name


def configured_names(rules: Iterable[PciRule]) -> list[tuple[str, PciRule, CardUse]]:
    """The configured names, each with its rule and what its devices are for."""
    return [
        (name_for(rule.name or "", rule, use), rule, use)
        for rule in rules
        for use in rule.uses
        if rule.name is not None or rule.names is not None
    ]


def _with_end(name: str, end: str) -> str:
    domain, slash, short = name.partition("/")
    return f"{domain}{slash}{short[: LONGEST_NAME - len(end)]}{end}"
