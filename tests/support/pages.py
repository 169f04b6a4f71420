"""The pages of the documentation: their links, their examples, and a shell to run the examples in.

A fenced block may be told about by HTML comments right above it:

    <!-- file: policy.yaml -->     put the block's text into this file of the page's folder
    <!-- in: checkout -->          run it there, or in a folder of the page; else where the last command left off
    <!-- runs: in a cluster -->    don't run it here; only the places of `ELSEWHERE`
    <!-- needs: /sys/bus/pci -->   run it only where this path is
    <!-- exits: 65 -->             its last command ends so; the default is 0
    <!-- prints -->                what the Python block above it prints
    <!-- policy -->                a policy; a YAML file with that word in its name is one anyhow

Commands of a ``console`` block begin with ``$ `` and go on with ``> ``. What follows is their output, both streams,
compared exactly; a line ``...`` stands for any lines, and within a line for anything. Where nothing follows, the
output may be anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

ELSEWHERE = {
    "in a cluster": ("kubectl ", "a unit test has no cluster"),
    "beside this test": ("./dev test", "it would run itself"),
    "with a network": ("python3 -m pip install ", "it fetches packages"),
}
"""Where a block may say that it runs instead: what its commands begin with, and why they can't run here."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)\s*$")
_COMMENT = re.compile(r"^ *<!-- (?P<key>[a-z]+)(?:: (?P<value>.*?))? -->\s*$")
_SCRIPTS = {
    "launcherkit": "launcherkit.cli.main",
    "launcherkit-plugin": "launcherkit_plugin.cli.main",
    "onDefineDomain": "launcherkit.adapters.exec_hook",
}
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.*)$")


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    text: str
    told: Mapping[str, str]
    """What the comments above it say."""


class Step(NamedTuple):
    """A command of a console block."""

    command: str
    expected: list[str] | None
    """The lines of its output; None where the page says nothing of it."""


class Outcome(NamedTuple):
    """What became of a command."""

    code: int
    lines: list[str]


def all_pages() -> list[Path]:
    """README, the pages of ``docs/`` and the other documents at the root."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    told: dict[str, str] = {}
    opened: tuple[int, str, str] | None = None
    text: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is not None:
            start, indent, language = opened
            if fence and not fence["language"]:
                found.append(Block(start, language, "".join(text), told))
                opened, text, told = None, [], {}
            else:
                text.append(line.removeprefix(indent) + "\n")
        elif fence:
            opened = number, fence["indent"], fence["language"]
        elif comment := _COMMENT.match(line):
            told[comment["key"]] = comment["value"] or ""
        elif line.strip():
            told = {}
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
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", _prose(page)))


def anchors(page: Path) -> set[str]:
    """What ``#...`` of a link to the page can be, as GitHub makes it of headings."""
    headings = (match[1] for line in _prose(page).splitlines() if (match := _HEADING.match(line)))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def sections(page: Path) -> dict[str, str]:
    """The text below each heading of the second level, by heading."""
    parts = re.split(r"^## (.*)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _prose(page: Path) -> str:
    """A page without its fenced blocks."""
    lines: list[str] = []
    inside = False
    for line in page.read_text().splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


class Shell:
    """Runs the commands of one page one after the other, as a person would: folder and exports stay.

    Args:
        folder: the page's folder, empty at first.
        aside: a folder for what is not the page's.
    """

    def __init__(self, folder: Path, aside: Path) -> None:
        self.folder = folder
        self._aside = aside
        self._state = aside / "state"
        scripts = Path(sys.executable).parent
        self._env = {
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": os.pathsep.join([str(scripts), str(aside), os.environ.get("PATH", os.defpath)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT),
        }
        for name, module in _SCRIPTS.items():
            call = f"import sys, {module} as it; sys.exit(it.main())"
            stand_in = aside / name  # found only where the project is not installed
            stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{call}" "$@"\n')
            stand_in.chmod(0o755)

    def run(self, command: str, where: str | None = None) -> Outcome:
        """Run a command; ``where`` is ``checkout`` or a folder of the page."""
        at_home = where != "checkout"
        folder = ROOT if not at_home else self.folder / (where or ".")
        begin = f". {self._state}" if where is None and self._state.exists() else f"cd {folder}"
        keep = f'{{ declare -px; printf "cd %q\\n" "$PWD"; }} > {self._state}' if at_home else ""
        result = subprocess.run(
            ["bash", "-c", f"{begin}\n{command}\ncode=$?\n{keep}\nexit $code"],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return Outcome(result.returncode, result.stdout.splitlines())

    def python(self, text: str) -> Outcome:
        """Run a Python example in the page's folder."""
        example = self._aside / "example.py"
        example.write_text(text)
        return self.run(f"{sys.executable} {example}", ".")
