"""Options that commands share, and the variables that set them: ``LAUNCHERKIT_PLUGIN_KUBELET_DIR``.

All paths that commands use can be set, so that everything runs anywhere without root.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping

from launcherkit.errors import shown
from launcherkit.process import arguments, variables
from launcherkit.process.arguments import Options

KUBELET_DIR = "/var/lib/kubelet"
LEDGER = "/run/launcherkit-plugin/binding"
STATE = "/var/lib/launcherkit-plugin"
PREFIX = "LAUNCHERKIT_PLUGIN_"

_NAMES = """
AUTO CERTIFICATE CHECK_CONFIG CLIENT_CA CLUSTER_SOCKET CONFIG DEV_ROOT DRA DRIVER FEATURES_DIR FORCE HOST HTTPS_PORT
INJECTIONS KEY KUBELET_DIR LEDGER METRICS_ADDRESS METRICS_TOKEN_FILE NAME_HOLDERS NODE_HOOK OUTPUT PAGE PARAMETERS
POD_RESOURCES PROBE_SOCKET PROC PUBLISH_NODE STATE STEP_TIMEOUT WATCH_PODS WEB_SOCKET"""

KNOWN = variables.KNOWN | {PREFIX + name for name in _NAMES.split()}
"""The variables that this program or launcherkit reads."""


def variable_of(flag: str) -> str:
    """The variable that can replace a flag."""
    return arguments.variable_of(flag, PREFIX)


def plugin_options(parser: argparse._ActionsContainer, env: Mapping[str, str]) -> Options:
    """Options that this program's variables can set."""
    return Options(parser, env, PREFIX)


def number_from(text: str, lowest: int, highest: int) -> int:
    """A whole number of a command line.

    Args:
        text: as given.
        lowest, highest: the limits, which are valid.

    Raises:
        argparse.ArgumentTypeError: it isn't one.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and lowest <= int(digits) <= highest):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number from {lowest} to {highest}")
    return int(digits)


def warn_of_unknown(names: Iterable[str]) -> Iterator[str]:
    """See `launcherkit.process.variables.warn_of_unknown`; knows the variables of both programs."""
    return variables.warn_of_unknown(names, KNOWN, variables.OF_TESTS)


def add_place_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str], *, ledger: bool = True) -> None:
    """Declare the options for the paths of the host, the kubelet and, with ``ledger``, the ledger."""
    add = plugin_options(parser.add_argument_group("places"), env).add
    add("--host", "DIR", "root of the file system with the host's sys/, dev/ and proc/", "/")
    add("--proc", "DIR", "the host's proc file system (default: proc below --host)")
    add("--kubelet-dir", "DIR", "the kubelet's folder, with device-plugins and pod-resources", KUBELET_DIR)
    add("--pod-resources", "SOCKET", "the kubelet's PodResources (default: pod-resources/kubelet.sock in its folder)")
    if ledger:
        add("--ledger", "DIR", "where previous drivers are recorded", LEDGER)


def add_state_argument(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare ``--state``."""
    about = "where is recorded what outlives a reboot: which devices must be cleaned, and which VM had which"
    plugin_options(parser, env).add("--state", "DIR", about, STATE)


def add_output_argument(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare ``--output``."""
    plugin_options(parser, env).add("--output", None, "form of the output", "table", choices=("table", "json"))


def proc_of(args: argparse.Namespace) -> str:
    """The path of the host's proc file system."""
    return args.proc or os.path.join(args.host, "proc")


def pod_resources_of(args: argparse.Namespace) -> str:
    """The path of the kubelet's PodResources socket."""
    return args.pod_resources or os.path.join(args.kubelet_dir, "pod-resources/kubelet.sock")
