"""Options that variables can set too: ``--env-file`` by ``LAUNCHERKIT_ENV_FILE``."""

from __future__ import annotations

from collections.abc import Mapping

from launcherkit.errors import BadSetting
from launcherkit.process.variables import PREFIX


def variable_of(flag: str, prefix: str = PREFIX) -> str:
    """The variable that can replace a flag: ``LAUNCHERKIT_ENV_FILE`` for ``--env-file``."""
    return prefix + flag.lstrip("-").upper().replace("-", "_")


def switch_from(flag: str, env: Mapping[str, str], prefix: str = PREFIX) -> bool:
    """The default of an on/off flag from its variable, ``yes`` or ``no``."""
    name = variable_of(flag, prefix)
    text = env.get(name) or "no"
    if text not in ("yes", "no"):
        raise BadSetting(
            f"{name}={text!r} is none of yes, no", f"Set {name} to one of them, or unset it.", variable=name
        )
    return text == "yes"


def text_from(flag: str, env: Mapping[str, str], prefix: str = PREFIX) -> str | None:
    """The default of a flag from its variable; an empty variable counts as unset."""
    return env.get(variable_of(flag, prefix)) or None
