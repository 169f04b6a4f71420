"""Warns of variables ``LAUNCHERKIT_*`` that nothing reads: a misspelt one would silently do nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from launcherkit.model.policy import POLICY_KEYS

PREFIX = "LAUNCHERKIT_"
_OF_POLICY = {variable for key in POLICY_KEYS for variable in (key.variable, key.off_variable) if variable}
KNOWN = _OF_POLICY.union(
    PREFIX + name
    for name in [
        "ALL",
        "CONDITION",
        "CONNECT",
        "CONSOLE",
        "DEBUG",
        "DIFF",
        "DIR",
        "DOMAIN",
        "DOMAIN_HOOK",
        "DRA_DIR",
        "ENV_FILE",
        "GRACE",
        "HOST",
        "JSON",
        "KUBELET_SOCKET",
        "LIVENESS",
        "LOG_FORMAT",
        "NETWORK_STATUS",
        "NO_DAEMON",
        "OUTPUT",
        "OWNER",
        "PLAN",
        "PLUGIN_DIR",
        "PODS",
        "POLICY",
        "PROMETHEUS",
        "ROOT",
        "SOCKET_DIR",
        "START",
        "STRICT",
        "TEMPLATE",
        "VMI",
        "WAIT",
    ]
)
"""The variables that launcherkit's commands read."""

OF_TESTS = tuple(PREFIX + name for name in ("TEST_", "KERNEL_CACHE", "IN_MACHINE"))
"""Prefixes of variables that this project's tests read."""
_OTHERS = (*OF_TESTS, PREFIX + "PLUGIN_")
"""Prefixes of variables that tests or launcherkit-plugin read."""


def warn_of_unknown(
    names: Iterable[str], declared: Collection[str] = KNOWN, others: tuple[str, ...] = _OTHERS
) -> Iterator[str]:
    """A sentence about each unknown variable ``LAUNCHERKIT_*``, with the nearest known one.

    Args:
        names: all variables of the environment.
        declared: variables that this program reads.
        others: prefixes of variables that something else reads.
    """
    for name in sorted(names):
        if (
            name.startswith(PREFIX)
            and name not in declared
            and not name.startswith(others)
            and not _is_of_service(name)
        ):
            from launcherkit.diff import did_you_mean  # rarely needed

            endings = [each.removeprefix(PREFIX) for each in declared]
            nearest = did_you_mean(name.removeprefix(PREFIX), endings, PREFIX)
            yield f"the variable {name} is set, and nothing reads it{nearest}"


def _is_of_service(name: str) -> bool:
    """Whether Kubernetes sets it for a Service ``launcherkit``, as for every Service of the namespace."""
    return name.endswith("_PORT") or "_PORT_" in name or "_SERVICE_" in name
