"""Options that commands share, and the variables that set them: ``LAUNCHERKIT_PLUGIN_KUBELET_DIR``.

Each place where a command looks can be moved, so that everything runs anywhere without root.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping

from launcherkit.process import options, variables

KUBELET_DIR = "/var/lib/kubelet"
LEDGER = "/run/launcherkit-plugin/binding"


PREFIX = "LAUNCHERKIT_PLUGIN_"


def variable_of(flag: str) -> str:
    """The variable that stands in for a flag."""
    return options.variable_of(flag, PREFIX)


def switch_from(flag: str, env: Mapping[str, str]) -> bool:
    """The default of an on/off flag from its variable, ``yes`` or ``no``.

    Raises:
        BadSetting: the variable says something else.
    """
    return options.switch_from(flag, env, PREFIX)


def text_from(flag: str, env: Mapping[str, str]) -> str | None:
    """The default of a flag from its variable; an empty one says nothing."""
    return options.text_from(flag, env, PREFIX)


KNOWN = variables.KNOWN | frozenset(
    PREFIX + name
    for name in [
        "AUTO",
        "CHECK_CONFIG",
        "CLUSTER_SOCKET",
        "CONFIG",
        "DEV_ROOT",
        "DRIVER",
        "FEATURES_DIR",
        "FORCE",
        "HOST",
        "KUBELET_DIR",
        "LEDGER",
        "METRICS_ADDRESS",
        "METRICS_TOKEN_FILE",
        "NODE_HOOK",
        "OUTPUT",
        "POD_RESOURCES",
        "PROBE_SOCKET",
        "PROC",
        "STEP_TIMEOUT",
        "WATCH_PODS",
    ]
)
"""Those that this program or launcherkit reads."""


def warn_of_unknown(names: Iterable[str]) -> Iterator[str]:
    """As launcherkit's, of the variables of both."""
    return variables.warn_of_unknown(names, KNOWN, variables.OF_TESTS)


def add_place_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str], *, ledger: bool = True) -> None:
    """Declare where the host, the kubelet and, with ``ledger``, the records of what was bound are."""
    group = parser.add_argument_group("places")
    group.add_argument(
        "--host",
        metavar="DIR",
        default=text_from("--host", env) or "/",
        help="root of the file system with the host's sys/, dev/ and proc/ (default: /)",
    )
    group.add_argument(
        "--proc", metavar="DIR", default=text_from("--proc", env), help="the host's proc (default: proc below --host)"
    )
    group.add_argument(
        "--kubelet-dir",
        metavar="DIR",
        default=text_from("--kubelet-dir", env) or KUBELET_DIR,
        help=f"the kubelet's folder, with device-plugins and pod-resources (default: {KUBELET_DIR})",
    )
    group.add_argument(
        "--pod-resources",
        metavar="SOCKET",
        default=text_from("--pod-resources", env),
        help="the kubelet's PodResources (default: pod-resources/kubelet.sock in its folder)",
    )
    if ledger:
        group.add_argument(
            "--ledger",
            metavar="DIR",
            default=text_from("--ledger", env) or LEDGER,
            help=f"where former drivers are recorded (default: {LEDGER})",
        )


def add_output_argument(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare ``--output``."""
    parser.add_argument(
        "--output",
        choices=("table", "json"),
        default=text_from("--output", env) or "table",
        help="form of the output (default: table)",
    )


def proc_of(args: argparse.Namespace) -> str:
    """The host's proc file system."""
    return args.proc or os.path.join(args.host, "proc")


def pod_resources_of(args: argparse.Namespace) -> str:
    """The socket of the kubelet's PodResources."""
    return args.pod_resources or os.path.join(args.kubelet_dir, "pod-resources/kubelet.sock")
