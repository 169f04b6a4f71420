"""The parser of commands: help that fits the terminal, and the nearest of what could have been written."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
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
            mismatch = (
                f"none of {', '.join(choices)}{did_you_mean(str(value), choices)}"
                if choices[1:]
                else f"not {choices[0]}"
            )
            raise argparse.ArgumentError(action, f"{value!r} is {mismatch}")


class CommandHelp(argparse.RawDescriptionHelpFormatter):
    """Fills paragraphs to the width; lines that begin with a blank, such as examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from textwrap import wrap  # not above: only help needs it

        lines: list[str] = []
        for as_it_is, group in groupby(text.splitlines(), key=lambda line: not line or line[0].isspace()):
            own = [*group]
            lines += own if as_it_is else wrap(" ".join(own), width, break_long_words=False, break_on_hyphens=False)
        return "".join(f"{indent}{line}\n" for line in lines)


class Options:
    """Declares options that variables can set too: ``--env-file`` by ``LAUNCHERKIT_ENV_FILE``.

    Args:
        parser: gets the options.
        env: of the process; an empty variable counts as not set.
        prefix: of the program's variables.
    """

    def __init__(self, parser: argparse._ActionsContainer, env: Mapping[str, str], prefix: str = PREFIX) -> None:
        self._parser = parser
        self._env = env
        self._prefix = prefix

    def add(
        self,
        flag: str,
        metavar: str | None,
        text: str,
        default: object = None,
        *,
        short: str | None = None,
        choices: Collection[str] | None = None,
        read: Callable[[str], object] | None = None,
    ) -> argparse.Action:
        """Declare an option with a value.

        Args:
            flag: ``--kubelet-dir``.
            metavar: the name of its value in the help; None if it has choices.
            text: its help; the default is appended.
            default: its value without flag and variable.
            short: another flag for the same: ``-o``.
            choices: its valid values; None: any text.
            read: makes a value of a text, or raises `argparse.ArgumentTypeError`.

        Raises:
            BAD_SETTING: the variable has an invalid value.
        """
        value: object = self._text(flag, choices)
        if value is not None and read is not None:
            value = _read_variable(variable_of(flag, self._prefix), str(value), read)
        return self._parser.add_argument(
            *([flag] if short is None else [short, flag]),
            metavar=metavar,
            default=default if value is None else value,
            choices=choices,
            type=read or str,
            help=f"{text} (default: {default})" if default else text,
        )

    def switch(self, flag: str, text: str) -> None:
        """Declare an option without a value; its variable is ``yes`` or ``no``.

        Raises:
            BAD_SETTING: the variable has another value.
        """
        on = self._text(flag, ("yes", "no")) == "yes"
        self._parser.add_argument(flag, action="store_true", default=on, help=text)

    def _text(self, flag: str, choices: Collection[str] | None) -> str | None:
        """The value of an option's variable; None if it is empty or unset. argparse checks only the command line."""
        name = variable_of(flag, self._prefix)
        text = self._env.get(name) or None
        if text is not None and choices is not None and text not in choices:
            raise BAD_SETTING(
                f"{name}={shown(text)} is none of {', '.join(choices)}",
                f"Set {name} to one of them, or unset it.",
                variable=name,
            )
        return text


def variable_of(flag: str, prefix: str = PREFIX) -> str:
    """The variable that can replace a flag: ``LAUNCHERKIT_ENV_FILE`` for ``--env-file``."""
    return prefix + flag.lstrip("-").upper().replace("-", "_")


def _read_variable(name: str, text: str, read: Callable[[str], object]) -> object:
    try:
        return read(text)
    except argparse.ArgumentTypeError as problem:
        raise BAD_SETTING(f"{name}: {problem}", f"Set {name} to one, or unset it.", variable=name) from problem
