"""What a configuration would advertise on a host, and what it leaves out and why."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from launcherkit.errors import counted
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction, bound_to_vfio, class_name, is_gpu
from launcherkit.process.edge import print_message, print_notes
from launcherkit_plugin.binding.vf_plan import described
from launcherkit_plugin.cli.options import LEDGER, STATE, plugin_options
from launcherkit_plugin.daemon.wiring import Wiring, assemble, virtual_functions
from launcherkit_plugin.devices.selectors import compile_rules, with_auto
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import AUTO, Config, PciRule
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.rehearsal.node_record import NOBODY
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped

_NOT_TEXT = re.compile(r"([-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|[yYnN])$")
"""What other readers of YAML than PyYAML take for a number or a truth value: the device ID 1e04 is 10000 to kubectl."""


def add_config_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare ``--config`` and ``--auto``; without either, ``--auto all`` is the default."""
    options = plugin_options(parser, env)
    options.add("--config", "FILE", "the configuration; - reads standard input")
    options.add(
        "--auto",
        None,
        "as for serve: NVIDIA's GPUs, every GPU and accelerator, or everything that is bound to a VFIO driver "
        "(default: all, if there is no --config)",
        choices=AUTO,
    )


def config_of(args: argparse.Namespace, env: Mapping[str, str]) -> Config:
    """The configuration that the arguments name; its notes are printed to stderr.

    Raises:
        LauncherkitError: see `launcherkit_plugin.config.reading.read_config`.
    """
    if args.config is None:
        return with_auto(Config(auto=args.auto or "all"))
    from launcherkit_plugin.config.reading import read_config

    reading = read_config(args.config, args.auto)
    print_notes(reading.notes, env)
    if reading.cluster:
        print_message("note", "KubeVirt's settings in the cluster are not read here", env)
    return reading.config


def as_text(document: object, output: str) -> str:
    """A document as JSON if ``output`` is ``json``, else as YAML."""
    if output == "json":
        return json.dumps(document, indent=2) + "\n"
    import yaml

    dumper: Any = type("_Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})  # devices share values
    dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NOT_TEXT, list("-+.0123456789yYnN"))
    text: str = yaml.dump(document, Dumper=dumper, sort_keys=False)
    return text


class HostOffer(NamedTuple):
    """What would be advertised on a host."""

    facts: HostFacts
    resources: Sequence[Resource]
    """Those that have devices, sorted by name."""
    left: Sequence[LeftOut]
    check: Callable[[], None]
    """Raises a `LauncherkitError` if two resources have one name."""
    host: Host
    vfs: Sequence[str] = ()
    """What would be made or taken away of virtual functions, a line each."""


def look(config: Config, place: str, env: Mapping[str, str], before: str = "") -> HostOffer:
    """Scan a host once.

    Args:
        config: of the plugin.
        place: the root of the host's ``sys`` and ``dev``, a snapshot, or a recording.
        env: of the process; it determines the format of messages.
        before: prefix of messages.

    Raises:
        LauncherkitError: the host can't be read.
    """
    host = node_host(place)
    reporter = Reporter(
        lambda level, text, **_: print_message("note" if level == "warning" else level, before + text, env)
    )
    # Neither exists for a snapshot or a recording.
    proc, ledger, state = (os.path.join(place, path.removeprefix("/")) for path in ("/proc", LEDGER, STATE))
    wiring = Wiring(host, place, reporter, WorkQueue(), Stopped(), proc=proc, ledger=ledger, state=state)
    setup = assemble(config, wiring)
    facts = read_node(host, setup.wants, vgpu=True)
    setup.update(facts)
    if setup.containers is not None and os.path.isdir(place):  # a file doesn't contain that
        setup.containers.look_at(facts)
    if setup.usb is not None and os.path.isdir(place):
        setup.usb.look_at()
    if setup.fabric is not None and os.path.isdir(place):
        setup.fabric.read()
    if setup.mig is not None and os.path.isdir(place):
        setup.mig.look_at(facts)
    offered = [each for provider in setup.providers for each in provider.resources(facts, NOBODY, time.monotonic())]
    resources = sorted((each for each in offered if each.devices), key=lambda resource: resource.name)
    match = compile_rules(config.pci)
    left = left_out(facts, match, resources)
    making, _ = virtual_functions(config, match, wiring)
    vfs = [line for each in making for line in described(each.plan(facts), facts)]
    return HostOffer(facts, resources, left, partial(setup.check, resources), host, vfs)


class LeftOut(NamedTuple):
    """Functions of one model that a rule selects but no pod would get, all for the same reason."""

    model: str
    """``10de:2204``."""
    class_name: str
    """``display controller``."""
    gpu: bool
    driver: str | None
    reason: str
    functions: tuple[PciAddress, ...]

    def __str__(self) -> str:
        first = ", ".join(map(str, self.functions[:4])) + (", ..." if len(self.functions) > 4 else "")
        return f"{counted(len(self.functions), self.class_name)} {self.model} left out: {self.reason} ({first})"


def left_out(
    host: HostFacts, match: Callable[[PciFunction], PciRule | None], resources: Iterable[Resource]
) -> tuple[LeftOut, ...]:
    """Functions that rules select but no pod would get.

    Args:
        host: a scan.
        match: returns the rule that applies to a function, if any.
        resources: what would be advertised.
    """
    devices = [device for resource in resources for device in resource.devices.values()]
    offered = {function for device in devices for function in device.functions}
    parents = {parent.address for parent in host.mdev_parents.values()}
    left: dict[tuple[str, str, bool, str | None, str], list[PciAddress]] = {}
    for address, function in sorted(host.functions.items()):
        rule = match(function)
        if address in offered or rule is None or rule.virtual_functions is not None:
            continue
        reason = "vGPUs are created on it" if address in parents or _has_vgpus(address, host) else _why(function, host)
        key = (function.ids, class_name(function), is_gpu(function), function.driver)
        left.setdefault((*key, reason), []).append(address)
    return tuple(LeftOut(*key, tuple(functions)) for key, functions in left.items())


def _has_vgpus(address: PciAddress, host: HostFacts) -> bool:
    """Whether it is a function of an SR-IOV vGPU card (G4)."""
    detail = host.details.get(address)
    family = [address, *(detail.virtfns if detail else ())]
    return any(host.details[member].vgpu is not None for member in family if member in host.details)


def _why(function: PciFunction, host: HostFacts) -> str:
    if bound_to_vfio(function, host.details.get(function.address)):
        return "it is attached with another function of its card"
    return f"bound to {function.driver}, not to a VFIO driver" if function.driver else "bound to no driver"


def notes(host: HostFacts, left: Sequence[LeftOut], resources: Sequence[Resource]) -> Iterator[str]:
    """Notes on why there may be fewer devices than expected, or odd names."""
    yield from (str(entry) for entry in left if entry.gpu)
    for resource in resources:
        if _is_numbered(resource, host):
            yield f"{resource.name} is named by its device ID: pci.ids has no name for it"
    if resources:
        return
    selected = sum(len(entry.functions) for entry in left)
    if not host.functions:
        yield "nothing would be advertised: no PCI function is known here"
    elif not selected:
        yield f"nothing would be advertised: no rule selects any of the {counted(len(host.functions), 'PCI function')}"
    else:
        yield (
            f"nothing would be advertised: {counted(selected, 'PCI function')} selected, none bound to a VFIO driver; "
            "`launcherkit-plugin bind` binds them, and so does `bind: true` in their rule"
        )


def _is_numbered(resource: Resource, host: HostFacts) -> bool:
    primaries = (device.functions[0] for device in resource.devices.values() if device.functions)
    models = {host.functions[address].device for address in primaries if address in host.functions}
    return resource.name.rpartition("/")[2] in {f"{model:04x}" for model in models}
