"""``launcherkit-plugin bind``: binds functions, with their IOMMU groups, to vfio-pci (K8)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

from launcherkit.errors import Collector, shown
from launcherkit.host.use import read_uses
from launcherkit.model.address import PciAddress
from launcherkit_plugin.binding.binder import Binder, Changed
from launcherkit_plugin.binding.group import GroupPlan, plan_groups, refuse_needed_by_host
from launcherkit_plugin.cli.binding import add_function_arguments, begin, write_changes
from launcherkit_plugin.cli.options import plugin_options
from launcherkit_plugin.daemon.wiring import Wiring
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.host.kernel_modules import VFIO_PCI, require_driver
from launcherkit_plugin.host.vfio_variants import choose_drivers

_AUTO = "auto"

DESCRIPTION = """\
Bind PCI functions to vfio-pci, each with its IOMMU group except bridges: a whole group, or nothing. The previous
drivers are recorded, and `launcherkit-plugin unbind` restores them. Functions that already have a VFIO driver
stay as they are. A group with a member that the host itself needs is refused."""

EPILOG = """\
examples:
  launcherkit-plugin bind 0000:e1:00.0
  launcherkit-plugin bind --dry-run 0000:e1:00.0 0000:e2:00.0
  launcherkit-plugin status
exit codes: 0 done, or nothing to do; 65 refused; 69 held, or a step failed and what was done is undone"""


def add_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare the command's arguments."""
    text = "a VFIO driver, or auto: the variant that the running kernel has for each function, else vfio-pci"
    plugin_options(parser, env).add("--driver", "NAME", text, VFIO_PCI, read=_vfio_driver)
    add_function_arguments(parser, env)


def _vfio_driver(name: str) -> str:
    """Check that a name is ``auto`` or one of a VFIO driver (V1)."""
    if name == _AUTO:
        return name
    if not name.replace("-", "_").endswith("vfio_pci") or not name.replace("-", "_").isidentifier():
        raise argparse.ArgumentTypeError(f"{shown(name)} is not a VFIO driver")
    return name


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Bind, and print the drivers of each member.

    Raises:
        LauncherkitError: a group can't be bound; it is unchanged.
    """
    wiring, binder, addresses = begin(args, env)
    plans = _plans(addresses, wiring, binder, force=args.force)
    if args.dry_run:
        groups = [(plan.number, plan.members, _planned(plan, args.driver, binder.sysfs)) for plan in plans]
        write_changes(groups, args.output, env)
        return 0
    driver = VFIO_PCI if args.driver == _AUTO else args.driver
    if any(plan.change for plan in plans):
        require_driver(driver, binder.sysfs)
    errors = Collector()
    done = []
    for plan in plans:
        with errors:
            change = [member.address for member in plan.change]
            variants = choose_drivers(change, binder.sysfs, load=True) if args.driver == _AUTO else {}
            changed = binder.bind(plan.addresses, change, driver, variants=variants, asked=plan.asked)
            done.append((plan.number, plan.members, changed))
    write_changes(done, args.output, env)
    errors.raise_if_any()
    return 0


def _plans(addresses: Iterable[PciAddress], wiring: Wiring, binder: Binder, *, force: bool) -> tuple[GroupPlan, ...]:
    """The groups to bind. All of them are checked before the first is changed."""
    addresses = tuple(addresses)
    facts = wiring.host.facts(addresses)
    plans = plan_groups(addresses, facts)
    uses = read_uses(wiring.root, wiring.proc, [member.address for plan in plans for member in plan.change])
    errors = Collector()
    for plan in plans:
        with errors:
            refuse_needed_by_host(plan, facts, uses, force=force)
            binder.holders.check([member.address for member in plan.change], giving_back=False)
    errors.raise_if_any()
    return plans


def _planned(plan: GroupPlan, driver: str, sysfs: Sysfs) -> list[Changed]:
    variants: Mapping[PciAddress, str] = {}
    if driver == _AUTO:
        driver, variants = VFIO_PCI, choose_drivers([member.address for member in plan.change], sysfs, load=False)
    return [Changed(member.address, member.driver, variants.get(member.address, driver)) for member in plan.change]
