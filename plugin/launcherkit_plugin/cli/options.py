"""Options that variables can set too: ``--kubelet-dir`` by ``LAUNCHERKIT_PLUGIN_KUBELET_DIR``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from launcherkit.process import options, variables

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
