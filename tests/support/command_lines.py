"""Our commands as the pages write them, parsed by the programs' own parsers and not run."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from launcherkit.cli.main import PROGRAM
from launcherkit.errors import EX_USAGE, LauncherkitError
from launcherkit.hooks import exec_hook
from launcherkit.process.program import parsers_of
from launcherkit_lab import __main__ as lab
from launcherkit_plugin.__main__ import PROGRAM as PLUGIN_PROGRAM
from tests.support.imports import ROOT
from tests.support.scripts import load_script

PROGRAMS = {program.name: program for program in (PROGRAM, PLUGIN_PROGRAM)}
_OF_DEV = {
    "build": "tools.release.build",
    "images": "tools.release.images",
    "mutate": "tests.mutation.__main__",
    "release": "tools.release.options",
}
"""Commands of ./dev whose arguments another module parses."""
_END = re.compile(r"[;&|<>()\n]+")


def commands_in(script: str) -> Iterator[list[str]]:
    """The simple commands of a shell's script, as words: without variables before them, redirections and comments.

    Raises:
        ValueError: a quote has no end.
    """
    lexer = shlex.shlex(script.replace("\\\n", " "), posix=True, punctuation_chars=";&|<>()\n")
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in [*lexer, "\n"]:
        if _END.fullmatch(word):
            redirected = bool(re.search("[<>]", word))
            if not redirected and words:
                yield words
                words = []
        elif redirected:
            redirected = False
        elif words or not re.match(r"\w+=|(exec|sudo|do|then|!)$", word):
            words.append(word)


def parse(words: Sequence[str], *, whole: bool = True) -> bool:
    """Parse one of our commands; False where it is another program's.

    Args:
        words: program and arguments. What kubectl runs in a container is what follows its ``--``.
        whole: it has all that it needs. In a sentence a command may be only named.

    Raises:
        ValueError: says what the program would say.
    """
    program, *arguments = words
    if program == "kubectl":
        inside = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
        return bool(inside) and parse(inside, whole=whole)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            return _parse(program, arguments, whole)
    except SystemExit as end:
        if end.code:
            raise ValueError(f"{shlex.join(words)}: {said.getvalue() or end.code}") from None
        return True  # --help


def _parse(program: str, arguments: list[str], whole: bool) -> bool:
    if program in PROGRAMS:
        wanted = next((word for word in arguments if word in PROGRAMS[program].commands), None)
        _parser_of(program, wanted, whole).parse_args(arguments)
    elif program == lab.NAME:
        _completed(lab.parser(), whole).parse_args(arguments)
    elif program == "onDefineDomain":
        if (arguments or whole) and not _hook_takes(arguments):
            raise ValueError(f"{program} {shlex.join(arguments)}: {exec_hook.USAGE}")
    elif program.removeprefix("~/launcherkit/") == "./dev":
        _parse_dev(arguments, whole)
    elif re.fullmatch(r"(\.venv/bin/)?python3?", program) and arguments:
        _find_python(arguments)
    else:
        return False
    return True


def _hook_takes(arguments: Sequence[str]) -> bool:
    """Whether KubeVirt's exec hook finds its options; what a page has as their texts need not be a VMI and a domain."""
    try:
        return exec_hook.run(arguments, {"LAUNCHERKIT_HOST": "none"}) != EX_USAGE
    except LauncherkitError:
        return True


@functools.cache
def _parser_of(program: str, command: str | None, whole: bool) -> argparse.ArgumentParser:
    return _completed(parsers_of(PROGRAMS[program], {}, [command] if command else [])[0], whole)


def _completed(parser: argparse.ArgumentParser, whole: bool) -> argparse.ArgumentParser:
    """A parser that, unless the command is whole, misses nothing."""
    if not whole:
        for inner in _with_those_below(parser):
            for action in inner._actions:
                action.required = False
            for group in inner._mutually_exclusive_groups:
                group.required = False
    return parser


def arguments_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of those below it."""
    for inner in _with_those_below(parser):
        yield from (action for action in inner._actions if not isinstance(action, argparse._SubParsersAction))


def _with_those_below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _with_those_below(below)


_dev = functools.cache(partial(load_script, ROOT / "dev"))


def _parse_dev(arguments: list[str], whole: bool) -> None:
    own, passed_on = _dev().split(arguments)
    parsed, rest = _completed(_dev().parser_of_arguments(), whole).parse_known_args(own)
    if rest and parsed.command not in ("mutate", "release"):
        raise ValueError(f"./dev {shlex.join(arguments)}: {rest}")
    if module := _OF_DEV.get(parsed.command):
        import_module(module).parser_of_arguments().parse_args([*rest, *passed_on])


def _find_python(arguments: list[str]) -> None:
    """What Python runs is there."""
    if arguments[0] == "-m":
        assert find_spec(arguments[1]), arguments[1]
    elif not arguments[0].startswith("-"):
        assert (ROOT / arguments[0]).is_file(), arguments[0]
