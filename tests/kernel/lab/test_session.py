"""The lab as others use it: the page's own machine comes up, and runs commands."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from select import select
from xml.etree import ElementTree

import pytest

from launcherkit_lab.conformance.device_plugin import DEVICE_PLUGIN
from launcherkit_lab.machine import SHARE
from launcherkit_lab.session import FUNCTIONS, Session
from tests.kernel.lab.asked import program, run
from tests.support.pages import ROOT, blocks, steps
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.kernel

SHOWN = """
for address in %s; do
    cd /sys/bus/pci/devices/$address
    ids=$(cat vendor):$(cat device)
    echo $address $ids $(basename $(readlink iommu_group)) $(cat numa_node) $(basename "$(readlink driver)")
done
"""


def test_functions_have_the_groups_nodes_and_drivers_that_the_machine_says(session: Session) -> None:
    addresses = json.loads((session.folder / FUNCTIONS).read_text())
    assert set(addresses) == {"left.0", "left.1", "right.0", "large.0"}
    code, out, _ = run(session, "sh", "-ec", SHOWN % " ".join(addresses.values()))
    assert code == 0
    lines = (line.split() for line in out.splitlines())
    shown = dict(zip(addresses, ([*words[1:], ""][:4] for words in lines), strict=True))
    groups = {name: words[1] for name, words in shown.items()}
    assert groups["left.0"] == groups["left.1"] == groups["right.0"] != groups["large.0"]
    assert {name: (ids, node) for name, (ids, _, node, _) in shown.items()} == {
        "left.0": ("0x10de:0x2204", "-1"),
        "left.1": ("0x10de:0x1aef", "-1"),
        "right.0": ("0x1b36:0x000d", "-1"),
        "large.0": ("0x1b36:0x0005", "0"),
    }
    drivers = {name: words[3] for name, words in shown.items()}
    assert drivers == {"left.0": "vfio-pci", "left.1": "", "right.0": "", "large.0": "vfio-pci"}


def test_a_command_has_its_output_its_errors_and_its_exit_code(session: Session) -> None:
    assert run(session, "sh", "-c", "echo out; echo err >&2; exit 7") == (7, "out\n", "err\n")
    assert run(session, "cat") == (0, "", "")


def test_the_shared_folder_is_written_on_both_sides(session: Session) -> None:
    (session.folder / "question").write_text("6 * 7\n")
    assert run(session, "sh", "-c", "echo $(($(cat /run/machine/question))) >/run/machine/answer")[0] == 0
    assert (session.folder / "answer").read_text() == "42\n"


def checked(session: Session, monkeypatch: pytest.MonkeyPatch, more: str, *options: str) -> tuple[list[str], str]:
    """What launcherkit's own plugin meets, and the report, by the command and the configuration of the page.

    Args:
        more: the end of the configuration.
        options: of the command, besides.
    """
    page = blocks(ROOT / "docs/how-to/lab.md")
    (config,) = [block.text for block in page if block.reported.get("file") == "plugin.yaml"]
    text = config.replace('"1234:1111"', '"10de:2204", "1b36:0005"') + more
    (session.folder / "plugin.yaml").write_text(text)
    commands = [shlex.split(step.command) for block in page if block.language == "console" for step in steps(block)]
    (words,) = [words for words in commands if {"check", "launcherkit-plugin"} <= {*words}]
    here = {"plugin.yaml": str(SHARE / "plugin.yaml"), "1234:1111": "10de:2204"}
    _, _, _, *words = [here.get(word, word) for word in words]
    # How long health takes here says how slow the machine is.
    words[2:2] = ["--select", "1b36:0005", "--health-seconds", "120", "--patience", "240", *options]
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    code, out, errors = run(session, *words)
    assert code == 0, out + errors
    junit = ElementTree.parse(session.folder / "junit.xml").getroot()
    return [str(case.get("name")) for case in junit.iterfind("testcase") if len(case) == 0], out


def test_launcherkits_own_plugin_is_conformant(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the two cards of this machine and fewer kills."""
    met, out = checked(session, monkeypatch, "", "--pods", "6", "--kills", "1")
    assert met == [f"{one.number} {one.title}" for one in DEVICE_PLUGIN], out


def test_by_cdi_alone_a_container_gets_the_same(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ["DP6", "DP7", "DP8", "DP9", "DP20"]
    only = [word for number in numbers for word in ("--only", number)]
    met, out = checked(session, monkeypatch, "cdi: {only: true}\n", *only)
    assert [name.partition(" ")[0] for name in met] == numbers, out


def test_an_interrupt_ends_the_command_in_the_machine_too(session: Session) -> None:
    command = program(session, "run", "--", "sh", "-c", "echo here; exec sleep 1234")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert run(session, "pgrep", "--full", "sleep 123[4]")[0] == 1


def test_a_shell_has_a_terminal_and_gives_its_exit_code(session: Session) -> None:
    ours, its = os.openpty()
    with subprocess.Popen(
        program(session, "shell"), stdin=its, stdout=its, stderr=its, start_new_session=True
    ) as shell:
        said = b""
        while not said.endswith(b"# "):  # what is typed before there is a prompt is lost
            assert select([ours], [], [], PATIENCE)[0], said
            said += os.read(ours, 1 << 16)
        os.write(ours, b"tty; echo $((6 * 7)); exit 3\r")
        assert shell.wait(PATIENCE) == 3
    said = os.read(ours, 1 << 16)
    os.close(its)
    os.close(ours)
    assert b"/dev/ttyS2\r\n42\r\n" in said
