"""Writes the tables of the reference that are made from the keys of a policy: `python docs/generate.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from launcherkit.model.policy import POLICY_KEYS
from launcherkit.model.policy_key import PolicyKey

REFERENCE = Path(__file__).parent / "reference"


def page_text(name: str) -> str:
    """A page of the reference with the rows of its table as they are made from the keys."""
    text = (REFERENCE / name).read_text(encoding="utf-8")
    head, rows_of = TABLES[name]
    before, rule, after = re.split(rf"({re.escape(head)}\n[-| ]+\n)", text)
    rows = (
        "".join(f"| {cell} " if cell else "| " for cell in cells) + "|" for key in POLICY_KEYS for cells in rows_of(key)
    )
    return before + rule + "".join(f"{row}\n" for row in rows) + re.sub(r"\A(\|.*\n)*", "", after)


def _of_policy(key: PolicyKey) -> Iterator[list[str]]:
    rules = ", ".join(f"[{rule}](rules.md#{_anchors()[rule[0]]})" for rule in key.rules.split(", ") if rule)
    yield [f"`{key.name}`", key.kind.values, _default(key), rules]


def _of_configuration(key: PolicyKey) -> Iterator[list[str]]:
    yield [key.help, _code(key.option), _code(key.variable), _code(key.name), _default(key)]
    if key.off:
        same = f"the same as `{key.option} {key.off}`; ignored if the one above is set"
        yield [same, _code(key.off_option), f"{_code(key.off_variable)} (`yes`, `no`)", "", ""]


def _of_commands(key: PolicyKey) -> Iterator[list[str]]:
    if key.option:
        about = f"{key.help[0].upper()}{key.help[1:]} ([policy](policy.md#{key.name.lower()}))."
        yield [_code(key.option), key.kind.values, about]
    if key.off:
        same = f"The same as `{key.option} {key.off}`; only one of the two can be given."
        yield [_code(key.off_option), "", same]


TABLES: dict[str, tuple[str, Callable[[PolicyKey], Iterator[list[str]]]]] = {
    "policy.md": ("| key | values | default | rule |", _of_policy),
    "configuration.md": ("| setting | flag | variable | key in the policy file | default |", _of_configuration),
    "cli.md": ("| flag | value | what it decides |", _of_commands),
}
"""Each page with the head of its table, and the rows of a key."""


def _code(text: str) -> str:
    return text and f"`{text}`"


def _default(key: PolicyKey) -> str:
    return key.default_word if key.default_word == key.no_default else f"`{key.default_word}`"


def _anchors() -> dict[str, str]:
    """The headings of the rules by their letter."""
    heads = re.findall(r"^## ((\w)\. .*)", (REFERENCE / "rules.md").read_text(encoding="utf-8"), re.MULTILINE)
    return {letter: re.sub(r"[^\w-]", "", head.lower().replace(" ", "-")) for head, letter in heads}


if __name__ == "__main__":
    for page in TABLES:
        (REFERENCE / page).write_text(page_text(page), encoding="utf-8")
