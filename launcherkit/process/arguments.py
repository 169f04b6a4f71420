"""The parser of commands: help that fits the terminal, and the nearest of what could have been written."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Any

from launcherkit.errors import BAD_SETTING, shown
from launcherkit.process.variables import PREFIX


class CommandParser(argparse.ArgumentParser):
    """Names the nearest choice where a value is none; argparse does from Python 3.14 on."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from launcherkit.diff import did_you_mean

            choices = [*map(str, action.choices)]
            why = (
                f"none of {', '.join(choices)}{did_you_mean(str(value), choices)}"
                if choices[1:]
                else f"not {choices[0]}"
            )
            raise argparse.ArgumentError(action, f"{value!r} is {why}")


class CommandHelp(argparse.RawDescriptionHelpFormatter):
    """Fills paragraphs to the width; lines that begin with a blank, such as examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from textwrap import wrap  # not above: only help needs it

        lines: list[str] = []
        for as_it_is, group in groupby(text.splitlines(), key=lambda line: not line or line[0].isspace()):
            own = [*group]
            lines += own if as_it_is else wrap(" ".join(own), width, break_long_words=False, break_on_hyphens=False)
        return "".join(f"{indent}{line}\n" for line in lines)


# Options that variables can set too: ``--env-file`` by ``LAUNCHERKIT_ENV_FILE``.


def variable_of(flag: str, prefix: str = PREFIX) -> str:
    """The variable that can replace a flag: ``LAUNCHERKIT_ENV_FILE`` for ``--env-file``."""
    return prefix + flag.lstrip("-").upper().replace("-", "_")


def switch_from(flag: str, env: Mapping[str, str], prefix: str = PREFIX) -> bool:
    """The default of an on/off flag from its variable, ``yes`` or ``no``; raises what `choice_from` raises."""
    return choice_from(flag, env, ("yes", "no"), prefix) == "yes"


def choice_from(flag: str, env: Mapping[str, str], choices: Collection[str], prefix: str = PREFIX) -> str | None:
    """The default of a flag with choices from its variable; None if it is empty or unset.

    Raises:
        BAD_SETTING: the variable has another value. argparse checks only what the command line has.
    """
    text = text_from(flag, env, prefix)
    if text is not None and text not in choices:
        name = variable_of(flag, prefix)
        raise BAD_SETTING(
            f"{name}={shown(text)} is none of {', '.join(choices)}",
            f"Set {name} to one of them, or unset it.",
            variable=name,
        )
    return text


def text_from(flag: str, env: Mapping[str, str], prefix: str = PREFIX) -> str | None:
    """The default of a flag from its variable; an empty variable counts as unset."""
    return env.get(variable_of(flag, prefix)) or None
