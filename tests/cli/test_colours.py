"""What a terminal shows in colour, and a pipe gets plain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import forked
from tests.support.terminal import run_on_terminal

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
CASE = GOLDEN / "basic"
TERMINAL = {"TERM": "xterm"}
RED, GREEN, BOLD, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[0m"


def command(*arguments: str) -> list[str]:
    return [forked.LAUNCHERKIT, *arguments]


def on_terminal(*arguments: str, **env: str) -> str:
    """Both of its outputs."""
    return run_on_terminal(command(*arguments), {**TERMINAL, "PYTHONPATH": str(ROOT), **env}, errors=True).decode()


def piped(*arguments: str, **env: str) -> str:
    done = forked.run(
        command(*arguments),
        env={**TERMINAL, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{done.stdout}{done.stderr}"


def without_colour(text: str) -> str:
    for mark in (RED, GREEN, BOLD, PLAIN, "\x1b[2m", "\x1b[33m"):
        text = text.replace(mark, "")
    return text


@pytest.fixture
def translate(tmp_path: Path) -> tuple[str, ...]:
    domain = tmp_path / "vm.xml"
    domain.write_text("<domain type='kvm'><name>vm</name><devices>\n</devices></domain>\n")
    return ("translate", "--domain", str(domain), "--host", "none", "--diff")


DEVICE = {"PCI_RESOURCE_EXAMPLE_COM_NIC": "0000:e1:00.0"}


def test_a_diff_is_coloured(translate: tuple[str, ...]) -> None:
    shown, plain = on_terminal(*translate, **DEVICE), piped(*translate, **DEVICE)
    assert f"{GREEN}+    <hostdev" in shown
    assert sorted(without_colour(shown).splitlines()) == sorted(
        plain.splitlines()
    )  # of two outputs the order is chance
    assert "\x1b" not in piped(*translate, **DEVICE)
    assert "\x1b" not in on_terminal(*translate, NO_COLOR="1", **DEVICE)


def test_an_error_is_red(translate: tuple[str, ...]) -> None:
    wrong = {"PCI_RESOURCE_EXAMPLE_COM_NIC": "nonsense"}
    shown = on_terminal(*translate, **wrong)
    assert shown.startswith(f"{RED}error[LK"), shown
    assert without_colour(shown) == piped(*translate, **wrong)
    assert "\x1b" not in on_terminal(*translate, NO_COLOR="1", **wrong)


def test_golden_cases_that_differ_are_red(tmp_path: Path) -> None:
    case = tmp_path / "golden" / "case"
    case.mkdir(parents=True)
    (case / "case.yaml").write_text("description: Nothing is done here.\n")
    (case / "domain.xml").write_text("<domain><devices/></domain>")
    (case / "expected.xml").write_text("<domain>\n<devices/></domain>")
    shown = on_terminal("golden", "check", str(tmp_path / "golden"))
    assert f"{RED}DIFFERS{PLAIN}  case" in shown
    assert f"{RED}-" in shown
    assert f"{GREEN}+" in shown
    assert without_colour(shown) == piped("golden", "check", str(tmp_path / "golden"))
