"""Colours on a terminal, nothing in a pipe."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

Tone: TypeAlias = Literal["plain", "head", "faint", "good", "odd", "bad"]
"""What a text is: plain, or one of the colours of `Colours`."""

_CODES: Mapping[Tone, str] = {"head": "1", "faint": "2", "good": "32", "bad": "31", "odd": "33"}


class Colours(NamedTuple):
    """Marks text with ANSI colours, or leaves it as it is."""

    coloured: bool

    def head(self, text: str) -> str:
        """Bold."""
        return self.toned(text, "head")

    def faint(self, text: str) -> str:
        return self.toned(text, "faint")

    def good(self, text: str) -> str:
        """Green: functions that go to the guest, added lines."""
        return self.toned(text, "good")

    def bad(self, text: str) -> str:
        """Red: obstacles, removed lines."""
        return self.toned(text, "bad")

    def odd(self, text: str) -> str:
        """Yellow: functions that stay, and notes."""
        return self.toned(text, "odd")

    def toned(self, text: str, tone: Tone) -> str:
        """In the colour of a tone."""
        return f"\x1b[{_CODES[tone]}m{text}\x1b[0m" if self.coloured and text and tone != "plain" else text


PLAIN = Colours(False)


def colours_for(terminal: bool, env: Mapping[str, str]) -> Colours:
    """Coloured on a terminal that can show it, unless ``NO_COLOR`` is set to anything (no-color.org)."""
    return Colours(terminal and not env.get("NO_COLOR") and env.get("TERM", "dumb") not in ("", "dumb"))


def unmarked(text: str) -> str:
    """Text without its colours: as wide as a terminal shows it."""
    head, *parts = text.split("\x1b[")
    return head + "".join(part.partition("m")[2] for part in parts)


def paint_diff(diff: str, colours: Colours) -> str:
    """A unified diff with added and removed lines marked."""
    return "".join(_paint_line(line, colours) for line in diff.splitlines(keepends=True))


def _paint_line(line: str, colours: Colours) -> str:
    text = line.rstrip("\n")
    end = line[len(text) :]
    if line.startswith(("+++", "---")):
        return colours.head(text) + end
    if line.startswith("@@"):
        return colours.faint(text) + end
    if line.startswith("+"):
        return colours.good(text) + end
    return (colours.bad(text) if line.startswith("-") else text) + end
