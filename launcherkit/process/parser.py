"""The parser of commands: help that fits the terminal, and the nearest of what could have been written."""

from __future__ import annotations

import argparse
from itertools import groupby
from typing import Any


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
