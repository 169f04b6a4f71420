"""Makes domain documents from Jinja2 templates: sandboxed, with every value escaped for XML, and none undefined.

People write a template as a whole document. Its values may be untrusted: they can neither break its quoting nor run
code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jinja2
from jinja2 import meta
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from launcherkit.errors import BAD_TEMPLATE, BAD_TEMPLATE_VALUE, NO_SUCH_TEMPLATE
from launcherkit.request.fields import read_file

SUFFIX = ".xml.j2"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLACES = (
    os.path.join(_PACKAGE, "_templates", "domain"),
    os.path.join(os.path.dirname(_PACKAGE), "templates", "domain"),
)
"""Folders where templates may be: first as in a wheel, then as in a checkout."""

_REMEDY = "The template is wrong, not its values; `launcherkit explain templates` says what one can do."
_DESCRIPTION = re.compile(r"\{#-?\s*(.*?)\s*-?#\}", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Template:
    """A template as text."""

    name: str
    """The name by which it was asked for, also for messages."""
    text: str

    @property
    def description(self) -> str:
        """The first line of its initial comment."""
        comment = _DESCRIPTION.match(self.text)
        return comment[1].splitlines()[0].strip() if comment and comment[1] else ""

    def variables(self) -> frozenset[str]:
        """The names of its values.

        Raises:
            BAD_TEMPLATE: it is no Jinja2.
        """
        return frozenset(meta.find_undeclared_variables(_parsed(self)))

    def render(self, values: Mapping[str, str]) -> bytes:
        """The document.

        Raises:
            BAD_TEMPLATE: it isn't valid Jinja2, does what a template may not do, or fails.
            BAD_TEMPLATE_VALUE: a value is missing, or the template doesn't use it.
        """
        variables = self.variables()
        for name in values:
            if name not in variables:
                has = ", ".join(sorted(variables)) or "none"
                raise BAD_TEMPLATE_VALUE(
                    f"the template {self.name} has no value {name!r}", f"It has these: {has}.", file=self.name, key=name
                )
        try:
            return _ENVIRONMENT.from_string(self.text).render(values).encode()
        except jinja2.UndefinedError as problem:
            missing = re.match(r"'(\w+)' is undefined", problem.message or "")
            if missing is None:
                raise BAD_TEMPLATE(f"the template {self.name}: {problem.message}", _REMEDY, file=self.name) from problem
            raise BAD_TEMPLATE_VALUE(
                f"the template {self.name} needs a value for {missing[1]}",
                f"Give it: --set {missing[1]}=VALUE",
                file=self.name,
                key=missing[1],
            ) from problem
        except SecurityError as problem:
            raise BAD_TEMPLATE(
                f"the template {self.name} does what it may not do: {problem}", _REMEDY, file=self.name
            ) from problem
        except Exception as problem:  # a template can fail in any way that an expression can
            raise BAD_TEMPLATE(
                f"the template {self.name}: {type(problem).__name__}: {problem}", _REMEDY, file=self.name
            ) from problem


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)


def _parsed(template: Template) -> jinja2.nodes.Template:
    try:
        return _ENVIRONMENT.parse(template.text)
    except jinja2.TemplateSyntaxError as problem:
        raise BAD_TEMPLATE(
            f"the template {template.name}, line {problem.lineno}: {problem.message}",
            _REMEDY,
            file=template.name,
            key=f"line {problem.lineno}",
        ) from problem


def list_templates() -> list[Template]:
    """The templates that come with launcherkit, by name."""
    for place in PLACES:
        if os.path.isdir(place):
            names = sorted(name.removesuffix(SUFFIX) for name in os.listdir(place) if name.endswith(SUFFIX))
            return [_read(name, os.path.join(place, name + SUFFIX)) for name in names]
    return []


def find_template(name: str) -> Template:
    """A bundled template by its name, or a file by its path: anything with a ``/`` or a ``.`` is a path.

    Raises:
        NO_SUCH_TEMPLATE: there is no template of that name.
        UnreadableFile: the file can't be read.
        BAD_TEMPLATE: it is not UTF-8.
    """
    if "/" in name or "." in name:
        return _read(name, name)
    ours = {template.name: template for template in list_templates()}
    if name not in ours:
        raise NO_SUCH_TEMPLATE(
            f"there is no template {name!r}",
            f"There are {', '.join(ours)}; a file of yours is given as ./{name}.",
            file=name,
        )
    return ours[name]


def read_values(settings: Sequence[str]) -> dict[str, str]:
    """The values of ``--set KEY=VALUE``; if a key is given twice, the last one counts.

    Raises:
        BAD_TEMPLATE_VALUE: one is not of that form.
    """
    values = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise BAD_TEMPLATE_VALUE(
                f"--set {setting!r} is not KEY=VALUE", "A key is a name of letters, digits and underscores.", key=name
            )
        values[name] = value
    return values


def _read(name: str, path: str) -> Template:
    try:
        return Template(name, read_file(path).decode())
    except UnicodeDecodeError as problem:
        raise BAD_TEMPLATE(
            f"the template {name} is not UTF-8: {problem.reason}", "Save it as UTF-8.", file=path
        ) from problem
