"""Writes the tables of the reference that are made from code: `python docs/generate.py`.

They are those of a policy's keys, and of the fields of public values.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from launcherkit.model.address import HostAddress
from launcherkit.model.plan import Origin, Role
from launcherkit.model.policy import POLICY_KEYS, Iommufd, NodeCheck, Pairing, Siblings, Topology
from launcherkit.model.policy_key import PolicyKey
from launcherkit.model.request import Kind, Section

REFERENCE = Path(__file__).parent / "reference"


def page_text(name: str) -> str:
    """A page of the reference with the rows of its table as they are made from code."""
    text = (REFERENCE / name).read_text(encoding="utf-8")
    head, rows_of = TABLES[name]
    before, rule, after = re.split(rf"({re.escape(head)}\n[-| ]+\n)", text)
    rows = ("".join(f"| {cell} " if cell else "| " for cell in cells) + "|" for cells in rows_of(text))
    return before + rule + "".join(f"{row}\n" for row in rows) + re.sub(r"\A(\|.*\n)*", "", after)


def _of_each_key(rows_of: Callable[[PolicyKey], Iterator[list[str]]]) -> Callable[[str], Iterator[list[str]]]:
    return lambda _: (cells for key in POLICY_KEYS for cells in rows_of(key))


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


ALIASES: dict[object, str] = {HostAddress: "HostAddress", Origin: "Origin", Role: "Role", Kind: "Kind"}
ALIASES |= {Section: "Section", Siblings: "Siblings", Pairing: "Pairing", NodeCheck: "NodeCheck"}
ALIASES |= {Iommufd: "Iommufd", Topology: "Topology"}
"""The types with a name of their own."""


def public_names(page: str) -> dict[str, list[str]]:
    """The names of each public module, by the table of the page of the Python API."""
    table = page.partition("\n## Modules\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", table, re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def _of_fields(page: str) -> Iterator[list[str]]:
    for module, names in public_names(page).items():
        for name in names:
            value = getattr(import_module(module), name)
            for field in getattr(value, "_fields", getattr(value, "__match_args__", ())):
                yield [f"`{name}.{field}`", _type(get_type_hints(value)[field]), _said_of(value, field)]
            for field, computed in getattr(value, "__dict__", {}).items():
                if isinstance(computed, property):
                    gives = get_type_hints(computed.fget)["return"]
                    yield [f"`{name}.{field}`", _type(gives), _on_one_line(inspect.getdoc(computed) or "")]


def _type(hint: Any) -> str:
    """A type as a user writes it, without ``|``, which ends a cell."""
    if hint in ALIASES:
        return f"`{ALIASES[hint]}`"
    if type(None) in get_args(hint):
        rest = [each for each in get_args(hint) if each is not type(None)]
        alias = [name for type_, name in ALIASES.items() if set(get_args(type_)) == set(rest)]
        return " or ".join([*([f"`{alias[0]}`"] if alias else map(_type, rest)), "`None`"])
    text = str(hint) if get_args(hint) else inspect.formatannotation(hint)
    for type_, name in ALIASES.items():
        text = text.replace(str(type_), name)
    text = text.replace("+ErrorT_co", "LauncherkitError")
    return f"`{re.sub(r'[a-z_.]+[.](?=[A-Z])', '', text)}`"


def _said_of(value: type, field: str) -> str:
    """The line about a field in its value's docstring, or else the field's own docstring."""
    lines = re.search(
        rf"^    +{field}: (.*(?:\n +.*)*?)(?=\n +\w+: |\n\n|\Z)", inspect.getdoc(value) or "", re.MULTILINE
    )
    return _on_one_line(lines[1] if lines else getattr(value, field).__doc__ or "")


def _on_one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


TABLES: dict[str, tuple[str, Callable[[str], Iterable[list[str]]]]] = {
    "policy.md": ("| key | values | default | rule |", _of_each_key(_of_policy)),
    "configuration.md": (
        "| setting | flag | variable | key in the policy file | default |",
        _of_each_key(_of_configuration),
    ),
    "cli.md": ("| flag | value | what it decides |", _of_each_key(_of_commands)),
    "python-api.md": ("| field | type | what it is |", _of_fields),
}
"""Each page with the head of its table, and what makes the rows of the page's text."""


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
