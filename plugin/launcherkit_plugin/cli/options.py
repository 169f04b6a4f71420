"""Options that variables can set too: ``--kubelet-dir`` by ``LAUNCHERKIT_PLUGIN_KUBELET_DIR``."""

from __future__ import annotations

from collections.abc import Mapping

from launcherkit.process import options

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
