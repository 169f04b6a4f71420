"""Puts together what binds by configuration on this node."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from launcherkit.model.function import PciFunction
from launcherkit.sources.host import Host
from launcherkit_plugin.binding.ledger import Ledger, boot_id
from launcherkit_plugin.binding.reconciler import BindingReconciler, ReconcilerParts
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.host.modules import modprobe, no_modprobe
from launcherkit_plugin.host.open_nodes import read_open_nodes
from launcherkit_plugin.model.config import PciRule
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.reporter import Reporter


def binder_of(
    match: Callable[[PciFunction], PciRule | None],
    host: Host,
    *,
    root: str,
    proc: str,
    ledger: str,
    guarded: Guarded,
    reporter: Reporter,
    metrics: Metrics,
) -> BindingReconciler:
    """What binds by rules with ``bind``, and gives back what such rules had bound.

    Args:
        match: the rule that a function falls under, if any.
        host: facts are read from.
        root: where its ``sys/`` is.
        proc: where its proc file system is mounted.
        ledger: folder of the records; below ``/run``.
        guarded: does what may hang.
        reporter, metrics: take what was done.
    """
    this_machine = os.path.realpath(root) == "/"
    machine = ReconcilerParts(
        host,
        root,
        proc,
        partial(Sysfs, root),
        Ledger(ledger, boot_id(proc)),
        lambda: read_open_nodes(proc),
        modprobe if this_machine else no_modprobe,
    )
    return BindingReconciler(match, machine, guarded, reporter, metrics)
