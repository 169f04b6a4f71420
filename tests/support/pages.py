"""The pages of the documentation: their links, their examples, and a shell to run the examples in.

What a reader does with a page is done here, from where the reader stands: commands run one after the other, and folder
and exports stay. A page begins in an empty folder, in a shell that finds the programs; those of `FROM_A_CHECKOUT`
begin in a checkout, in a shell that doesn't.

A line like this above a block, for everybody to see, says that its text is written into that file:

    `policy.yaml`:

What no reader needs is told by HTML comments right above a block:

    <!-- runs: in a cluster -->    don't run it here, only parse it; the places are those of `ELSEWHERE`
    <!-- needs: /sys/bus/pci -->   run it only where this path is
    <!-- exits: 65 -->             its last command ends so; the default is 0
    <!-- prints -->                what the Python block above it prints; that one is run by `python3`
    <!-- is: a policy -->          what it is, where neither its language nor a file's name says so: `test_docs_unrun`

Commands of a ``console`` block begin with ``$ `` and go on with ``> ``. What follows is their output, both streams,
compared exactly; a line ``...`` stands for any lines, and within a line for anything. Where nothing follows, the
command prints nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from typing import NamedTuple, Self

from tests.support.forked import write_program
from tests.tiers import ENVIRONMENT
from tools.dev import environment

ROOT = Path(__file__).resolve().parents[2]

ELSEWHERE = {
    "in a cluster": ("kubectl ", "a unit test has no cluster; the tier api runs or parses them"),
    "with Helm": ("helm ", "the same; the chart is rendered in the tier api"),
    "beside this test": ("./dev test", "it would run itself"),
    "with libvirt": ("launcherkit define ", "the tier guest does, with domains of its own"),
    "in the lab": ("launcherkit-lab ", "it takes minutes to emulate; tests/kernel/lab does"),
    "with a network": ("python3 -m venv ", "it fetches packages"),
}
"""Where a block may say that it runs instead: what its commands begin with, and why they can't run here."""

COMMENTS = {"runs", "needs", "exits", "prints", "is"}
FROM_A_CHECKOUT = {"README.md", "docs/tutorial.md", "docs/how-to/inject.md"}
"""The pages that begin in a checkout."""

_FILE = re.compile(r"^`(?P<path>[^`\s]+\.[^`\s]+)`:$")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)\s*$")
_COMMENT = re.compile(r"^ *<!-- (?P<key>[a-z]+)(?:: (?P<value>.*?))? -->\s*$")
_SCRIPTS = {
    "launcherkit": "launcherkit.cli.main",
    "launcherkit-plugin": "launcherkit_plugin.__main__",
    "onDefineDomain": "launcherkit.hooks.exec_hook",
}
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.*)$")


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    text: str
    reported: Mapping[str, str]
    """What the comments above it say, and under ``file`` the name of the file that it is."""


class Step(NamedTuple):
    """A command of a console block."""

    command: str
    expected: list[str] | None
    """The lines of its output; None where nothing follows."""


class Outcome(NamedTuple):
    """What became of a command."""

    code: int
    lines: list[str]


def all_pages() -> list[Path]:
    """README, the pages of ``docs/``, the other documents at the root, and the READMEs of plugin and lab."""
    return [
        *sorted(ROOT.glob("*.md")),
        ROOT / "plugin" / "README.md",
        ROOT / "lab" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    reported: dict[str, str] = {}
    opened: tuple[int, str, str] | None = None
    text: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is not None:
            start, indent, language = opened
            if fence and not fence["language"]:
                found.append(Block(start, language, "".join(text), reported))
                opened, text, reported = None, [], {}
            else:
                text.append(line.removeprefix(indent) + "\n")
        elif fence:
            opened = number, fence["indent"], fence["language"]
        elif comment := _COMMENT.match(line):
            reported[comment["key"]] = comment["value"] or ""
        elif line.strip():
            file = _FILE.match(line)
            reported = {"file": file["path"]} if file else {}
    assert opened is None, f"{name_of(page)}: the last block has no end"
    return found


def steps(block: Block) -> list[Step]:
    """The commands of a console block with their outputs."""
    found: list[Step] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:], None))
        elif line.startswith("> ") and found and found[-1].expected is None:
            found[-1] = found[-1]._replace(command=f"{found[-1].command}\n{line[2:]}")
        else:
            assert found, f"line {block.line}: a console block begins with a command"
            found[-1] = found[-1]._replace(expected=[*(found[-1].expected or ()), line])
    return found


def matches(expected: list[str], lines: list[str]) -> bool:
    """Whether the lines are the expected ones, with ``...`` for any number of them, or for anything within one."""
    any_lines, any_text = r"(?:.*\n)*?", ".*"
    pattern = "".join(
        any_lines if line == "..." else any_text.join(map(re.escape, line.split("..."))) + r"\n" for line in expected
    )
    return re.fullmatch(pattern, "".join(line + "\n" for line in lines)) is not None


def links(page: Path) -> list[str]:
    """The targets of the links on a page, examples aside."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page)))


def anchors(page: Path) -> set[str]:
    """What ``#...`` of a link to the page can be, as GitHub makes it of headings."""
    headings = (match[1] for line in prose(page).splitlines() if (match := _HEADING.match(line)))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def sections(page: Path) -> dict[str, str]:
    """The text below each heading of the second level, by heading."""
    parts = re.split(r"^## (.*)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    lines: list[str] = []
    inside = False
    for line in page.read_text().splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def _is_made_by_dev(scripts: Path) -> bool:
    """Whether programs are those of the environment that `./dev` makes, and it would leave that as it is."""
    if ENVIRONMENT in os.environ:  # the person's own python3 would make it anew
        return False
    if scripts != environment.VENV / "bin" or not environment.STAMP.exists():
        return False
    return bool(environment.digest() == json.loads(environment.STAMP.read_text())["digest"])


class Shell:
    """A shell that runs the commands of one page one after the other, as it would for a person; a context manager.

    Args:
        folder: where the person stands at first; it is empty.
        aside: a folder for what the person doesn't see.
        in_checkout: the folder is a checkout, and the programs are not on PATH yet.
    """

    def __init__(self, folder: Path, aside: Path, *, in_checkout: bool = False) -> None:
        self._folder = folder
        self._aside = aside
        scripts = Path(sys.executable).parent
        paths = [path for path in os.environ.get("PATH", os.defpath).split(os.pathsep) if path != str(scripts)]
        self._env = {
            "HOME": str(aside),
            "LANG": "C.UTF-8",
            "PATH": os.pathsep.join(paths if in_checkout else [str(scripts), str(aside / "bin"), *paths]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SHELL": "/bin/bash",
        }
        made_by_dev = _is_made_by_dev(scripts)
        if not made_by_dev:
            self._stand_in(scripts)
        self._programs = scripts if made_by_dev else aside / "bin"
        self._forked = aside / "forked"
        """A folder with the programs without their start, to be found before themselves."""
        self._forked.mkdir()
        asked = [
            write_program(self._forked / name, f"{module}:main", str(self._programs / name))
            for name, module in _SCRIPTS.items()
        ]
        if not in_checkout:
            self._env["PATH"] = f"{self._forked}{os.pathsep}{self._env['PATH']}"
        else:
            for path in ROOT.iterdir():
                if not (folder / path.name).exists() and path.name not in ("example", ".venv"):
                    (folder / path.name).symlink_to(path)
            (folder / ".venv").symlink_to(sys.prefix)
        self._bash = subprocess.Popen(
            ["/bin/bash", "--noprofile", "--norc"],
            cwd=folder,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=asked,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._bash:
            self._bash.kill()

    def _stand_in(self, scripts: Path) -> None:
        """Programs and a `./dev`, where the real one would have to make an environment first."""
        (self._aside / "bin").mkdir()
        programs = {
            name: f'exec {sys.executable} -c "import sys, {module} as it; sys.exit(it.main())" "$@"'
            for name, module in _SCRIPTS.items()
        }
        path = f"{self._aside / 'bin'}:{scripts}:$PATH"
        programs["dev"] = f'PATH={path}; export PATH; [ "$1" = shell ] && exec "$SHELL"; exec launcherkit "$@"'
        for name, command in programs.items():
            program = self._aside / "bin" / name
            program.write_text(f"#!/bin/sh\n{command}\n")
            program.chmod(0o755)
        (self._folder / "dev").symlink_to(self._aside / "bin" / "dev")
        self._env["PYTHONPATH"] = f"{ROOT}:{ROOT / 'plugin'}"

    def run(self, command: str) -> Outcome:
        """Run a command where the last one has left off; after `./dev shell` that is in the shell it starts."""
        if command == "./dev shell":  # which goes on with the lines that are read here
            self._give("./dev shell 2>&1")
            program, forked = (shlex.quote(str(path)) for path in (self._programs / "launcherkit", self._forked))
            command = f'[ "$(command -v launcherkit)" = {program} ] && PATH={forked}:$PATH'
        given = self._aside / "command"
        given.write_text(f"{command}\n")
        self._give(f". {shlex.quote(str(given))} </dev/null; printf '\\0%d\\n' $?")
        lines, code = self._answer()
        return Outcome(code, lines)

    def _give(self, line: str) -> None:
        assert self._bash.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which the answer says
            self._bash.stdin.write(f"{line}\n".encode())
            self._bash.stdin.flush()

    def _answer(self) -> tuple[list[str], int]:
        """The lines of a command's output, and its exit code."""
        assert self._bash.stdout is not None
        said = b""
        while not (end := re.search(rb"\0(\d+)\n\Z", said)):
            # Only that nothing hangs: on a busy machine two minutes can be too few.
            ready, _, _ = select([self._bash.stdout], [], [], 600)
            more = os.read(self._bash.stdout.fileno(), 1 << 16) if ready else b""
            assert more, f"the shell {'has ended' if ready else 'hangs'}: {said.decode()}"
            said += more
        return said[: end.start()].decode().splitlines(), int(end[1])

    def write(self, file: str, text: str) -> None:
        """Write a file that the page shows, where the person stands."""
        shown = self._aside / "shown"
        shown.write_text(text)
        folder = str(Path(file).parent)
        outcome = self.run(f"mkdir -p {shlex.quote(folder)} && cp {shlex.quote(str(shown))} {shlex.quote(file)}")
        assert outcome.code == 0, outcome.lines

    def python(self, text: str) -> Outcome:
        """Run a Python example with the `python3` that the person has."""
        example = self._aside / "example.py"
        example.write_text(text)
        return self.run(f"python3 {shlex.quote(str(example))}")
