"""``launcherkit-plugin discover``: what would be advertised, without a kubelet, and what would not and why."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.process.edge import tell, tell_notes, write_stdout
from launcherkit.render.columns import columns, counted, visible
from launcherkit.resolve.pci_class import class_name, is_gpu
from launcherkit.resolve.vfio import bound_to_vfio
from launcherkit_plugin.cli.options import add_option, add_switch, text_from
from launcherkit_plugin.daemon.wiring import Wiring, assemble
from launcherkit_plugin.devices.selectors import compile_rules, with_auto, with_dra
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.model.config import AUTO, Config, DraConfig, PciRule
from launcherkit_plugin.model.device import Device, Resource, Usage
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped

_HEAD: tuple[str, ...] = ("RESOURCE", "DEVICE", "NUMA", "GROUPS", "HEALTH", "SIBLINGS", "VARIABLE", "SOCKET", "ABOUT")
_NARROW = 6
"""How many of them a table that isn't wide has, before the last."""


OUTPUTS = ("table", "wide", "json", "yaml")
NODE = "NODE_NAME"
"""The variable with the node's name, as in the manifests."""

DESCRIPTION = """\
Show what `launcherkit-plugin serve` would advertise with the same configuration: one line for each device, with its
resource, NUMA node, IOMMU groups and health. It only reads, and needs neither a kubelet nor privileges."""

EPILOG = """\
examples:
  launcherkit-plugin discover                             whatever is bound to a VFIO driver
  launcherkit-plugin discover --config plugin.yaml -o wide
  launcherkit-plugin discover --auto nvidia -o json
  launcherkit-plugin discover --dra --node node1          the ResourceSlices, as kubectl would show them
  launcherkit-plugin discover --host host.json            a snapshot by `launcherkit snapshot`, or a *.umockdev"""

NOBODY = Usage("pod-resources", {})
"""As if no pod had anything."""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    add = partial(add_option, parser, env)
    add("--config", "FILE", "the configuration; - reads standard input")
    add(
        "--auto",
        None,
        "as for serve: NVIDIA's GPUs, every GPU and accelerator, or everything that is bound to a VFIO driver "
        "(default: all, where there is no --config)",
        choices=AUTO,
    )
    add(
        "--host",
        "DIR|SNAPSHOT.json|X.umockdev",
        "where host facts come from: the root above sys/ and dev/, a file of `launcherkit snapshot`, or a umockdev "
        "recording",
        "/",
    )
    about = "show the ResourceSlices of the devices for DRA; of all devices where the configuration has no rule for it"
    add_switch(parser, env, "--dra", about)
    about = f"the node in the ResourceSlices (default: the variable {NODE}, else this machine's name)"
    parser.add_argument("--node", metavar="NAME", default=env.get(NODE), help=about)
    output = text_from("--output", env)
    about = "format (default: table; yaml with --dra)"
    parser.add_argument("-o", "--output", choices=OUTPUTS, default=output, help=about)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Look once, and print.

    Raises:
        LauncherkitError: the configuration is wrong, the host can't be read, or two resources have one name.
    """
    if args.output not in (None, *(OUTPUTS[2:] if args.dra else OUTPUTS[:3])):
        args.usage_error(f"--output is {'json or yaml with' if args.dra else 'table, wide or json without'} --dra")
    # Looking leaves no CDI files behind.
    config = _config(args, env)._replace(cdi=None)
    host = node_host(args.host)
    reporter = Reporter(lambda level, text, **_: tell("note" if level == "warning" else level, text, env))
    wiring = Wiring(host, args.host, reporter, Guarded(), Stopped())
    setup = assemble(config, wiring)
    facts = read_node(host, setup.wants, vgpu=True)
    setup.learn(facts)
    offered = [each for provider in setup.providers for each in provider.resources(facts, NOBODY, time.monotonic())]
    resources = sorted((each for each in offered if each.devices), key=lambda resource: resource.name)
    left = left_out(facts, compile_rules(config.pci), resources)
    if args.dra:
        text = _slices(config, resources, facts, args)
    elif args.output == "json":
        text = json.dumps(document(args.host, resources, left), indent=2) + "\n"
    else:
        text = table(resources, wide=args.output == "wide")
    if args.dra or args.output != "json":
        for note in notes(facts, left, resources):
            tell("note", note, env)
    write_stdout(text.encode("utf-8", "backslashreplace"))
    setup.check(resources)
    return 0


def _config(args: argparse.Namespace, env: Mapping[str, str]) -> Config:
    if args.config is None:
        config = with_auto(Config(auto=args.auto or "all"))
    else:
        from launcherkit_plugin.config.reading import read_config

        reading = read_config(args.config, args.auto)
        tell_notes(reading.notes, env)
        if reading.cluster:
            tell("note", "KubeVirt's settings in the cluster are not read here", env)
        config = reading.config
    return with_dra(config, every=True) if args.dra and config.dra is None else config


def _slices(config: Config, resources: Iterable[Resource], facts: HostFacts, args: argparse.Namespace) -> str:
    from launcherkit_plugin.dra.inventory import inventory
    from launcherkit_plugin.dra.slices import slice_list, slices

    dra = config.dra or DraConfig()
    specs = slices(inventory(resources, facts, evict=dra.evict), dra.driver)
    listed = slice_list(specs, args.node or os.uname().nodename)
    if args.output == "json":
        return json.dumps(listed, indent=2) + "\n"
    import yaml

    text: str = yaml.safe_dump(listed, sort_keys=False)
    return text


class LeftOut(NamedTuple):
    """Functions of one model that a rule selects and that no pod would get, all for one reason."""

    model: str
    """``10de:2204``."""
    what: str
    """``display controller``."""
    gpu: bool
    driver: str | None
    why: str
    functions: tuple[PciAddress, ...]

    def __str__(self) -> str:
        first = ", ".join(map(str, self.functions[:4])) + (", ..." if len(self.functions) > 4 else "")
        return f"{counted(len(self.functions), self.what)} {self.model} left out: {self.why} ({first})"


def left_out(
    host: HostFacts, match: Callable[[PciFunction], PciRule | None], resources: Iterable[Resource]
) -> tuple[LeftOut, ...]:
    """What rules select and no pod would get.

    Args:
        host: a scan.
        match: the rule that a function falls under, if any.
        resources: what would be advertised.
    """
    devices = [device for resource in resources for device in resource.devices.values()]
    given = {function for device in devices for function in device.functions}
    parents = {parent.address for parent in host.mdev_parents.values()}
    found: dict[tuple[str, str, bool, str | None, str], list[PciAddress]] = {}
    for address, function in sorted(host.functions.items()):
        if address in given or match(function) is None:
            continue
        why = "vGPUs are created on it" if address in parents or _has_vgpus(address, host) else _why(function, host)
        key = (f"{function.vendor:04x}:{function.device:04x}", class_name(function), is_gpu(function), function.driver)
        found.setdefault((*key, why), []).append(address)
    return tuple(LeftOut(*key, tuple(functions)) for key, functions in found.items())


def _has_vgpus(address: PciAddress, host: HostFacts) -> bool:
    """A function of an SR-IOV vGPU card (G4)."""
    detail = host.details.get(address)
    family = [address, *(detail.virtfns if detail else ())]
    return any(host.details[member].vgpu is not None for member in family if member in host.details)


def _why(function: PciFunction, host: HostFacts) -> str:
    if bound_to_vfio(function, host.details.get(function.address)):
        return "it is attached with another function of its card"
    return f"bound to {function.driver}, not to a VFIO driver" if function.driver else "bound to no driver"


def notes(host: HostFacts, left: Sequence[LeftOut], resources: Sequence[Resource]) -> Iterator[str]:
    """Why a person may see less than was hoped for, a line each."""
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


def table(resources: Iterable[Resource], *, wide: bool = False) -> str:
    """A line a device under a line of headings, columns parted by two blanks or more; what has blanks stands last."""
    rows = [_HEAD]
    for resource in resources:
        rows += [_row(resource, device) for device in resource.devices.values()]
    if not wide:
        rows = [row[:_NARROW] + row[-1:] for row in rows]
    return "".join(f"{line}\n" for line in columns(rows, "")) if len(rows) > 1 else ""


def _row(resource: Resource, device: Device) -> tuple[str, ...]:
    about = device.description if device.problem is None else f"{device.problem.reason}: {device.problem.text}"
    return (
        resource.name,
        device.id,
        _or_dash("" if device.numa_node is None else str(device.numa_node)),
        _or_dash(",".join(map(str, sorted(device.groups)))),
        "Healthy" if device.healthy else "Unhealthy",
        _or_dash(",".join(map(str, device.functions[1:]))),
        resource.variable,
        _or_dash("" if resource.dra else resource.socket),
        visible(about),
    )


def _or_dash(text: str) -> str:
    return text or "-"


def document(name: str, resources: Iterable[Resource], left: Iterable[LeftOut]) -> dict[str, Any]:
    """The same as JSON; docs/reference/plugin-cli.md has its shape."""
    return {
        "host": name,
        "resources": [
            {
                "name": resource.name,
                "variable": resource.variable,
                "socket": resource.socket,
                "companion": resource.companion,
                "dra": resource.dra,
                "devices": [_device_document(device) for device in resource.devices.values()],
            }
            for resource in resources
        ],
        "leftOut": [
            {
                "model": entry.model,
                "class": entry.what,
                "driver": entry.driver,
                "why": entry.why,
                "functions": list(map(str, entry.functions)),
            }
            for entry in left
        ],
    }


def _device_document(device: Device) -> dict[str, Any]:
    return {
        "id": device.id,
        "numaNode": device.numa_node,
        "groups": sorted(device.groups),
        "functions": list(map(str, device.functions)),
        "healthy": device.healthy,
        "problem": None if device.problem is None else {"reason": device.problem.reason, "text": device.problem.text},
        "description": device.description,
    }
