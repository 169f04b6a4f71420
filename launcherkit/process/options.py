"""Options that variables can set too: ``--env-file`` by ``LAUNCHERKIT_ENV_FILE``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from launcherkit.errors import BadSetting, shown
from launcherkit.process.variables import PREFIX


def variable_of(flag: str, prefix: str = PREFIX) -> str:
    """The variable that can replace a flag: ``LAUNCHERKIT_ENV_FILE`` for ``--env-file``."""
    return prefix + flag.lstrip("-").upper().replace("-", "_")


def switch_from(flag: str, env: Mapping[str, str], prefix: str = PREFIX) -> bool:
    """The default of an on/off flag from its variable, ``yes`` or ``no``; raises what `choice_from` raises."""
    return choice_from(flag, env, ("yes", "no"), prefix) == "yes"


def choice_from(flag: str, env: Mapping[str, str], choices: Collection[str], prefix: str = PREFIX) -> str | None:
    """The default of a flag with choices from its variable; None if it is empty or unset.

    Raises:
        BadSetting: the variable has another value. argparse checks only what the command line has.
    """
    text = text_from(flag, env, prefix)
    if text is not None and text not in choices:
        name = variable_of(flag, prefix)
        raise BadSetting(
            f"{name}={shown(text)} is none of {', '.join(choices)}",
            f"Set {name} to one of them, or unset it.",
            variable=name,
        )
    return text


def text_from(flag: str, env: Mapping[str, str], prefix: str = PREFIX) -> str | None:
    """The default of a flag from its variable; an empty variable counts as unset."""
    return env.get(variable_of(flag, prefix)) or None
