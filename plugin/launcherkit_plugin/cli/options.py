"""Options that commands share, and the variables that set them: ``LAUNCHERKIT_PLUGIN_KUBELET_DIR``.

All paths that commands use can be set, so that everything runs anywhere without root.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from launcherkit.errors import BAD_SETTING, shown
from launcherkit.process import arguments as options
from launcherkit.process import variables

KUBELET_DIR = "/var/lib/kubelet"
LEDGER = "/run/launcherkit-plugin/binding"
PREFIX = "LAUNCHERKIT_PLUGIN_"

_NAMES = """
AUTO CERTIFICATE CHECK_CONFIG CLIENT_CA CLUSTER_SOCKET CONFIG DEV_ROOT DRA DRIVER FEATURES_DIR FORCE HOST HTTPS_PORT
INJECTIONS KEY KUBELET_DIR LEDGER METRICS_ADDRESS METRICS_TOKEN_FILE NODE_HOOK OUTPUT PAGE PARAMETERS POD_RESOURCES
PROBE_SOCKET PROC PUBLISH_NODE STEP_TIMEOUT WATCH_PODS WEB_SOCKET"""

KNOWN = variables.KNOWN | {PREFIX + name for name in _NAMES.split()}
"""The variables that this program or launcherkit reads."""


def variable_of(flag: str) -> str:
    """The variable that stands in for a flag."""
    return options.variable_of(flag, PREFIX)


def text_from(flag: str, env: Mapping[str, str]) -> str | None:
    """The value of an option's variable; None if it is empty or not set."""
    return options.text_from(flag, env, PREFIX)


def choice_from(flag: str, env: Mapping[str, str], choices: Collection[str]) -> str | None:
    """See `launcherkit.process.arguments.choice_from`."""
    return options.choice_from(flag, env, choices, PREFIX)


def add_option(
    parser: argparse._ActionsContainer,
    env: Mapping[str, str],
    flag: str,
    metavar: str | None,
    text: str,
    default: object = None,
    *,
    choices: Collection[str] | None = None,
    read: Callable[[str], object] | None = None,
) -> None:
    """Declare an option that a variable can set, too.

    Args:
        parser: gets the option.
        env: of the process; an empty variable counts as not set.
        flag: ``--kubelet-dir``.
        metavar: the name of its value in the help; None if it has choices.
        text: its help; the default is appended.
        default: its value without flag and variable.
        choices: its valid values; None: any text.
        read: makes a value of a text, or raises `argparse.ArgumentTypeError`.

    Raises:
        BAD_SETTING: the variable has an invalid value.
    """
    help_text = f"{text} (default: {default})" if default else text
    value: object = text_from(flag, env) if choices is None else choice_from(flag, env, choices)
    if value is not None and read is not None:
        value = _read_variable(variable_of(flag), str(value), read)
    value = default if value is None else value
    parser.add_argument(flag, metavar=metavar, default=value, choices=choices, type=read or str, help=help_text)


def _read_variable(name: str, text: str, read: Callable[[str], object]) -> object:
    try:
        return read(text)
    except argparse.ArgumentTypeError as problem:
        raise BAD_SETTING(f"{name}: {problem}", f"Set {name} to one, or unset it.", variable=name) from problem


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


def add_switch(parser: argparse._ActionsContainer, env: Mapping[str, str], flag: str, text: str) -> None:
    """Declare an option without a value; its variable is ``yes`` or ``no``.

    Raises:
        BAD_SETTING: the variable has another value.
    """
    parser.add_argument(flag, action="store_true", default=options.switch_from(flag, env, PREFIX), help=text)


def warn_of_unknown(names: Iterable[str]) -> Iterator[str]:
    """See `launcherkit.process.variables.warn_of_unknown`; knows the variables of both programs."""
    return variables.warn_of_unknown(names, KNOWN, variables.OF_TESTS)


def add_place_arguments(parser: argparse.ArgumentParser, env: Mapping[str, str], *, ledger: bool = True) -> None:
    """Declare the options for the paths of the host, the kubelet and, with ``ledger``, the ledger."""
    add = partial(add_option, parser.add_argument_group("places"), env)
    add("--host", "DIR", "root of the file system with the host's sys/, dev/ and proc/", "/")
    add("--proc", "DIR", "the host's proc file system (default: proc below --host)")
    add("--kubelet-dir", "DIR", "the kubelet's folder, with device-plugins and pod-resources", KUBELET_DIR)
    add("--pod-resources", "SOCKET", "the kubelet's PodResources (default: pod-resources/kubelet.sock in its folder)")
    if ledger:
        add("--ledger", "DIR", "where previous drivers are recorded", LEDGER)


def add_output_argument(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """Declare ``--output``."""
    add_option(parser, env, "--output", None, "form of the output", "table", choices=("table", "json"))


def proc_of(args: argparse.Namespace) -> str:
    """The path of the host's proc file system."""
    return args.proc or os.path.join(args.host, "proc")


def pod_resources_of(args: argparse.Namespace) -> str:
    """The path of the kubelet's PodResources socket."""
    return args.pod_resources or os.path.join(args.kubelet_dir, "pod-resources/kubelet.sock")
