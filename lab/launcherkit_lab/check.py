"""The command ``launcherkit-lab check``: a suite on a driver, and its report."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from launcherkit_lab.conformance.device_plugin import DEVICE_PLUGIN
from launcherkit_lab.conformance.dra import DRA
from launcherkit_lab.conformance.driver import Driver
from launcherkit_lab.conformance.expectation import Expectation, Result
from launcherkit_lab.conformance.machine import KUBEVIRT_PREFIX, Machine
from launcherkit_lab.conformance.node import Limits, Node
from launcherkit_lab.conformance.report import Tried, as_json, as_junit, as_text, write
from launcherkit_lab.conformance.trial import acceptable, numbered, selected, tried
from launcherkit_lab.container.driver import ContainerDriver
from launcherkit_lab.container.manifest import Pod, read_pod

SUITE = "device-plugin"


class CannotWrite(Exception):
    """A report's file can't be written; the text names it."""


def _limits(arguments: argparse.Namespace) -> Limits:
    return Limits(arguments.pods, arguments.kills, arguments.health_seconds, arguments.patience)


def _again(arguments: argparse.Namespace, program: str) -> Iterator[str]:
    """The command that does the same, but for expectations that are named, and for reports."""
    yield from (program, "check")
    for resource in arguments.resource:
        yield from ("--resource", resource)
    for model in arguments.select:
        yield from ("--select", model)
    if arguments.variable_prefix != KUBEVIRT_PREFIX:
        yield from ("--variable-prefix", arguments.variable_prefix)
    yield from ("--kubelet-dir", str(arguments.kubelet_dir), "--cdi-dir", str(arguments.cdi_dir))
    yield from options_of(_limits(arguments))
    yield from tested(arguments)


def tested(arguments: argparse.Namespace) -> Iterator[str]:
    """The options that say what is tested."""
    for file in arguments.manifest:
        yield from ("--manifest", str(file))
    for name, archive in arguments.image:
        yield from ("--image", f"{name}={archive}" if name else str(archive))
    for name in arguments.container:
        yield from ("--container", name)
    if arguments.words:
        yield from ("--", *arguments.words)


def driver_of(arguments: argparse.Namespace, complete: Callable[[Pod], Pod] = lambda pod: pod) -> Driver:
    """What is tested: the containers of a manifest, or a command.

    Args:
        complete: adds to the pod what the manifest doesn't say.

    Raises:
        BadManifest, CannotStartDriver: it can't be made.
    """
    arguments.log.write_bytes(b"")
    if not arguments.manifest:
        return Driver(arguments.words, arguments.log)
    pod = complete(read_pod(arguments.manifest, arguments.container))
    return ContainerDriver(pod, dict(arguments.image), arguments.kubelet_dir, arguments.log)


def name_of(arguments: argparse.Namespace) -> list[str]:
    """What reports call the driver."""
    return arguments.words or [str(file) for file in arguments.manifest]


def options_of(limits: Limits) -> Iterator[str]:
    """The options that say them, but for what is usual."""
    for (name, value), usual in zip(limits._asdict().items(), Limits(), strict=True):
        if value != usual:
            yield from (f"--{name.replace('_', '-')}", f"{value:g}")


def check(arguments: argparse.Namespace, program: str) -> int:
    """Try the expectations, and report; see `deliver`.

    Raises:
        UnknownNumber, CannotWrite, CannotServe, CannotStartDriver, BadImage, BadManifest: it can't begin.
    """
    suite, skip = selected(DEVICE_PLUGIN, arguments.only), numbered(DEVICE_PLUGIN, arguments.skip)
    report = begin(arguments, program)
    driver = driver_of(arguments)
    models, limits, prefix = arguments.select, _limits(arguments), arguments.variable_prefix
    node = Node(arguments.kubelet_dir, driver, arguments.resource, models, Machine(), limits, prefix, arguments.cdi_dir)
    with node.running():
        driver.start()
        results = tried(suite, node, report, skip)
    return deliver(Tried(SUITE, name_of(arguments), [*_again(arguments, program)], arguments.log, results), arguments)


def begin(arguments: argparse.Namespace, program: str) -> Callable[[Result], None]:
    """See that the reports can be written; gives what tells of each result.

    Raises:
        CannotWrite: one can't.
    """
    for path in filter(None, (arguments.log, arguments.json, arguments.junit)):
        if not os.access(path.parent, os.W_OK):
            raise CannotWrite(f"{path}: there is no folder that can be written to")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the driver is ended, too
    began = time.monotonic()

    def report(result: Result) -> None:
        print(
            f"{program}: {time.monotonic() - began:5.1f} s  {result.number} {result.status.value}: {result.title}",
            file=sys.stderr,
            flush=True,
        )

    return report


def deliver(outcome: Tried, arguments: argparse.Namespace) -> int:
    """Write the reports; 0 if every must is met that wasn't to be skipped, else 1."""
    if arguments.json:
        write(arguments.json, as_json(outcome))
    if arguments.junit:
        write(arguments.junit, as_junit(outcome))
    print(as_text(outcome), end="")
    return 0 if acceptable(outcome.results) else 1


def list_expectations() -> int:
    """Print what is expected, with its sources."""
    every: list[Expectation[Any]] = [*DEVICE_PLUGIN, *DRA]
    for one in every:
        print(f"{one.number:5} {one.level.value:7} {one.title}\n{'':13} {one.source}")
    return 0
