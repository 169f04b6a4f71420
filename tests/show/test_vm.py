"""The tree of a host with a VM: what goes where, its siblings, what is in the way."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from lxml.etree import fromstring

from launcherkit.cli import main
from tests.support.called import call_text
from tests.support.hosttree import HostTree
from tests.support.imports import ROOT

DEMO = ROOT / "launcherkit" / "demo_data"


def run(host: Path, *arguments: str, command: str = "topology", across: int = 110) -> subprocess.CompletedProcess[str]:
    inputs = [
        "--domain",
        str(DEMO / "domain.xml"),
        "--vmi",
        str(DEMO / "vmi.json"),
        "--env-file",
        str(DEMO / "env.txt"),
    ]
    return call_text(main.run, [command, "--host", str(host), *inputs, *arguments], {"COLUMNS": str(across)})


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    return with_audio_on_the_host(tmp_path)


def with_audio_on_the_host(directory: Path, **changes: object) -> Path:
    """The demo's host, one of its audio functions on the host's driver."""
    host = json.loads((DEMO / "host.json").read_text())
    del host["groups"]
    (audio,) = (each for each in host["functions"] if each["address"] == "0000:e1:00.1")
    audio |= {"driver": "snd_hda_intel", **changes}
    audio["detail"]["driver_module"] = "snd_hda_intel"
    path = directory / "host.json"
    path.write_text(json.dumps(host))
    return path


def test_each_function_says_which_request_it_goes_to_and_the_guest_where_it_is_from() -> None:
    text = run(DEMO / "host.json").stdout
    host, _, guest = text.partition("\nguest  ")
    arrows = {
        line.split()[1]: line.partition("\u2192 ")[2].partition("  ")[0]
        for line in host.splitlines()
        if "\u2192" in line
    }
    assert arrows == {
        "0000:01:00.0": "gpu2",
        "0000:01:00.1": "gpu2, sibling",
        "0000:e1:00.0": "gpu1",
        "0000:e1:00.1": "gpu1, sibling",
    }
    assert "0000:05:00.0  \u2190 0000:e1:00.0  gpu1\n" in guest


@pytest.mark.parametrize(
    ("slots", "others"),
    [
        (2, "with 0000:02:00.0"),
        (4, "with 0000:02:00.0, 0000:03:00.0, 0000:04:00.0"),
        (6, "with 0000:02:00.0, 0000:03:00.0, 0000:04:00.0 and 2 more"),
    ],
)
def test_a_group_of_several_slots_names_a_few_of_the_others(tmp_path: Path, slots: int, others: str) -> None:
    tree = HostTree(tmp_path)
    for bus in range(1, slots + 1):
        tree.function(f"0000:{bus:02x}:00.0", driver="vfio-pci", group=7)
    text = call_text(main.run, ["topology", "--host", str(tmp_path)], {"COLUMNS": "200"}).stdout
    first = next(line for line in text.splitlines() if "IOMMU group 7" in line)
    assert first.partition("IOMMU group 7")[2].strip() == others


def test_what_stays_on_the_host_says_why(tmp_path: Path) -> None:
    text = run(with_audio_on_the_host(tmp_path, iommu_group=45)).stdout
    assert "stays: in IOMMU group 45" in text
    assert text.count(", sibling") == 2


def test_where_the_vm_could_not_start_the_picture_has_the_code_and_the_errors_follow(blocked: Path) -> None:
    done = run(blocked)
    assert done.returncode == 65
    assert "LK204 0000:e1:00.1 is bound to" in done.stdout
    assert "error[LK204]" in done.stderr
    guest = done.stdout.partition("\nguest  ")[2].splitlines()
    assert guest[0].endswith("  can't start")
    assert guest[1] == "└─ LK204  0000:e1:00.1, IOMMU group 44, bound to snd_hda_intel"


@pytest.mark.parametrize("command", ["topology", "explain"])
def test_where_the_terminal_is_wide_enough_the_guest_stands_beside_the_host(command: str) -> None:
    more = ["--tree"] if command == "explain" else []
    beside, below = (run(DEMO / "host.json", *more, command=command, across=wide).stdout for wide in (160, 110))
    first, *others = beside.splitlines()
    at = first.index("guest  ")
    assert [line for line in others if line[at - 2 : at].strip()] == [], "it is right of all that the host has"
    assert max(map(len, beside.splitlines())) <= 160
    assert [line[at:] for line in others if line[at:]] == below.partition("\nguest  ")[2].splitlines()[1:]


def test_explain_draws_what_topology_draws_and_of_the_host_what_the_vm_touches() -> None:
    drawn, picture = (
        run(DEMO / "host.json", *more, command=command).stdout
        for command, more in (("topology", []), ("explain", ["--tree"]))
    )
    assert picture == drawn.replace("1 other function not shown; --all shows it\n", "")
    assert picture in run(DEMO / "host.json", command="explain").stdout


def test_explain_tree_has_the_codes_of_what_is_in_the_way(blocked: Path) -> None:
    done = run(blocked, "--tree", command="explain")
    assert done.returncode == 65
    assert "IOMMU group 44  LK204 0000:e1:00.1 is bound to snd_hda_intel" in done.stdout
    assert "can't start\n└─ LK204  0000:e1:00.1" in done.stdout


def test_where_nothing_is_known_of_the_host_there_is_the_guest_alone() -> None:
    assert run(Path("none"), "--tree", command="explain").stdout.startswith("guest  ")


@pytest.mark.parametrize("form", ["--svg", "--html"])
def test_a_file_for_a_ticket_says_why_the_vm_could_not_start(blocked: Path, form: str) -> None:
    done = run(blocked, form)
    assert done.returncode == 65
    assert "error[LK204]" in done.stderr
    texts = fromstring(done.stdout.encode()).xpath("//*[@class='guest']//*[local-name()='text']/text()")
    why = ["LK204 0000:e1:00.1, IOMMU group 44,", "bound to snd_hda_intel"]
    assert texts[1:] == ["can't start", *why]
    assert texts[0].startswith("guest /")
    assert len(fromstring(done.stdout.encode()).xpath("//*[starts-with(@class, 'route')]")) == 1


@pytest.mark.parametrize("form", ["--svg", "--html"])
def test_a_line_leads_from_each_card_to_its_slot_of_the_guest(form: str) -> None:
    root = fromstring(run(DEMO / "host.json", form).stdout.encode())
    assert len(root.xpath("//*[starts-with(@class, 'route')]")) == 2
    texts = root.xpath("//*[@class='slot']//*[local-name()='text']/text()")
    assert texts[:2] == ["05:00.0 gpu1 \u2190 e1:00.0", "05:00.1 gpu1, sibling \u2190 e1:00.1"]


def test_as_json_there_is_nothing_where_the_vm_could_not_start(blocked: Path) -> None:
    done = run(blocked, "--json")
    assert (done.returncode, done.stdout) == (65, "")


def test_the_json_has_the_guest() -> None:
    (root,) = json.loads(run(DEMO / "host.json", "--json").stdout)["guest"]["bridges"]
    first = root["bridges"][0]["functions"][0]
    assert (first["source"], first["request"], first["role"]) == ("0000:e1:00.0", "gpu1", "primary")
