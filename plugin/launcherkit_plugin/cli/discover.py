"""``launcherkit-plugin discover``: shows what would be advertised, and what would not and why; needs no kubelet."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import Any

from launcherkit.model.host import HostFacts
from launcherkit.process.edge import print_message, write_stdout
from launcherkit.process.terminal import write_text
from launcherkit.show.layout import columns, visible
from launcherkit_plugin.cli.options import plugin_options
from launcherkit_plugin.cli.resources import LeftOut, add_config_arguments, as_text, config_of, look, notes
from launcherkit_plugin.devices.selectors import with_dra
from launcherkit_plugin.model.config import NODE, Config, DraConfig
from launcherkit_plugin.model.device import Device, Resource

_HEAD: tuple[str, ...] = ("RESOURCE", "DEVICE", "NUMA", "GROUPS", "HEALTH", "SIBLINGS", "VARIABLE", "SOCKET", "ABOUT")
_NARROW = 6
"""How many of these columns a normal table has, in addition to the last; the others are only in a wide one."""


OUTPUTS = ("table", "wide", "json", "yaml")

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


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    options = plugin_options(parser, env)
    add_config_arguments(parser, env)
    options.add(
        "--host",
        "DIR|SNAPSHOT.json|X.umockdev",
        "where host facts come from: the root above sys/ and dev/, a file of `launcherkit snapshot`, or a umockdev "
        "recording",
        "/",
    )
    about = "show the ResourceSlices of the devices for DRA; of all devices where the configuration has no rule for it"
    options.switch("--dra", about)
    about = f"the node in the ResourceSlices (default: the variable {NODE}, else this machine's name)"
    parser.add_argument("--node", metavar="NAME", default=env.get(NODE), help=about)
    options.add("--output", None, "format (default: table; yaml with --dra)", short="-o", choices=OUTPUTS)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Scan the host once, and print.

    Raises:
        LauncherkitError: the configuration is wrong, the host can't be read, or two resources have one name.
    """
    if args.output not in (None, *(OUTPUTS[2:] if args.dra else OUTPUTS[:3])):
        args.usage_error(f"--output is {'json or yaml with' if args.dra else 'table, wide or json without'} --dra")
    config = config_of(args, env)
    if args.dra and config.dra is None:
        config = with_dra(config, every=True)
    facts, resources, left, check, _, vfs = look(config, args.host, env)
    if args.dra:
        text = _slices(config, resources, facts, args)
    elif args.output == "json":
        text = as_text(document(args.host, resources, left, vfs), "json")
    else:
        text = table(resources, wide=args.output == "wide")
    if args.dra or args.output != "json":
        for note in (*vfs, *notes(facts, left, resources)):
            print_message("note", note, env)
    if args.output in (None, *OUTPUTS[:2]) and not args.dra:
        write_text(text, env)
    else:
        write_stdout(text.encode("utf-8", "backslashreplace"))
    check()
    return 0


def _slices(config: Config, resources: Iterable[Resource], facts: HostFacts, args: argparse.Namespace) -> str:
    from launcherkit_plugin.dra.inventory import inventory
    from launcherkit_plugin.dra.slices import slice_list, slices

    dra = config.dra or DraConfig()
    specs = slices(inventory(resources, facts, evict=dra.evict), dra.driver)
    listed = slice_list(specs, args.node or os.uname().nodename)
    return as_text(listed, args.output)


def table(resources: Iterable[Resource], *, wide: bool = False) -> str:
    """A table with a line for each device. Columns are two spaces or more apart; only the last may contain spaces."""
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


def document(
    name: str, resources: Iterable[Resource], left: Iterable[LeftOut], vfs: Iterable[str] = ()
) -> dict[str, Any]:
    """The same as JSON; docs/reference/plugin-cli.md describes it."""
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
                "class": entry.class_name,
                "driver": entry.driver,
                "why": entry.reason,
                "functions": list(map(str, entry.functions)),
            }
            for entry in left
        ],
        "virtualFunctions": list(vfs),
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
