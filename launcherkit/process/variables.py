"""Warns of variables ``LAUNCHERKIT_*`` that nothing reads: a misspelt one would silently do nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

PREFIX = "LAUNCHERKIT_"
KNOWN = frozenset(
    PREFIX + name
    for name in [
        "ALIAS_PREFIX_GPU",
        "ALIAS_PREFIX_HOSTDEVICE",
        "ALIAS_PREFIX_USB",
        "ALL",
        "ANNOTATIONS",
        "CONNECT",
        "CONSOLE",
        "DEBUG",
        "DIFF",
        "DIR",
        "DOMAIN",
        "DOMAIN_HOOK",
        "DRA_DIR",
        "ENV_FILE",
        "EXTRA_PREFIXES",
        "GRACE",
        "GENERIC_INITIATORS",
        "HOST",
        "IOMMUFD",
        "JSON",
        "KUBELET_SOCKET",
        "LIVENESS",
        "LOG_FORMAT",
        "MANAGED",
        "NETWORK_STATUS",
        "NODE_CHECK",
        "NO_DAEMON",
        "NO_NODE_CHECK",
        "OUTPUT",
        "OWNER",
        "PAIRING",
        "PLAN",
        "PLUGIN_DIR",
        "PODS",
        "POLICY",
        "ROOT",
        "SIBLINGS",
        "SOCKET_DIR",
        "START",
        "STRICT",
        "SYSFS_ROOT",
        "TEMPLATE",
        "TOPOLOGY",
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
    names: Iterable[str], known: Collection[str] = KNOWN, others: tuple[str, ...] = _OTHERS
) -> Iterator[str]:
    """A sentence about each unknown variable ``LAUNCHERKIT_*``, with the nearest known one.

    Args:
        names: all variables of the environment.
        known: variables that this program reads.
        others: prefixes of variables that something else reads.
    """
    for name in sorted(names):
        if name.startswith(PREFIX) and name not in known and not name.startswith(others) and not _is_of_service(name):
            from launcherkit.diff import did_you_mean  # rarely needed

            endings = [each.removeprefix(PREFIX) for each in known]
            nearest = did_you_mean(name.removeprefix(PREFIX), endings, PREFIX)
            yield f"the variable {name} is set, and nothing reads it{nearest}"


def _is_of_service(name: str) -> bool:
    """Whether Kubernetes sets it for a Service ``launcherkit``, as for every Service of the namespace."""
    return name.endswith("_PORT") or "_PORT_" in name or "_SERVICE_" in name
