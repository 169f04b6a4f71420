"""The command of the lab, as far as it needs no machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from launcherkit_lab.check import options_of
from launcherkit_lab.conformance.node import Limits
from launcherkit_lab.description import read_description
from launcherkit_lab.session import CannotStart, Session
from tests.support import forked
from tests.support.apiserver import NODES, ApiServer


def lab(cache: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "LAUNCHERKIT_KERNEL_CACHE": str(cache), **env}
    return forked.run([forked.LAB, *words], capture_output=True, text=True, env=variables)


def test_the_ready_machines_are_listed_on_standard_output(tmp_path: Path) -> None:
    done = lab(tmp_path, "machines")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "hgx",
        "memory-nodes",
        "nic-vfs",
        "nvme-vfs",
        "rtx2",
        "vgpu",
        "vgpu-vfs",
        "workstation",
    ]


@pytest.mark.parametrize(
    "words", [("run", "--", "true"), ("shell",), ("fault", "removed", "gpu0.0"), ("recover", "gpu0"), ("down",)]
)
def test_without_a_machine_a_command_says_how_to_start_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = lab(tmp_path, *words)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == "launcherkit-lab: error: no machine is up; `launcherkit-lab up` starts one\n"


def test_a_machine_that_can_not_be_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("memory: 1\n")
    done = lab(tmp_path, "up", "--machine", str(path))
    assert (done.returncode, done.stdout) == (65, "")
    assert done.stderr.startswith(f"launcherkit-lab: error: {path}: memory: Input should be greater than")


CHECK = ("check", "--resource", "example.com/GPU", "--select", "10de:2204")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "check takes the command that starts the driver, after --, or its --manifest, and not both"),
        (("--manifest", "m.yaml", "--", "x"), "check takes the command that starts the driver, after --, or its"),
        (("--manifest", "m.yaml"), "--manifest takes the image of its containers: --image ARCHIVE"),
    ],
)
def test_check_takes_a_command_or_a_manifest_with_an_image(
    tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    done = lab(tmp_path, *CHECK, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"launcherkit-lab: error: {problem}")


def test_a_manifest_that_can_not_be_read_is_bad_input(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    log = str(tmp_path / "log")
    done = lab(tmp_path, *CHECK, "--manifest", str(missing), "--image", "i.tar", "--log", log)
    assert (done.returncode, done.stdout) == (65, "")
    assert str(missing) in done.stderr


def test_run_takes_a_command(tmp_path: Path) -> None:
    assert lab(tmp_path, "run").returncode == 2


def test_missing_programs_are_named_with_the_command_that_gets_them(tmp_path: Path) -> None:
    """Which are missing depends on this machine, but for those of /usr/sbin all are on PATH."""
    done = lab(tmp_path, "up", PATH=str(tmp_path))
    assert done.returncode == 69
    assert "apt-get install --no-install-recommends " in done.stderr or "x86_64" in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("check", "--", "true"), "required: --resource, --select"),
        (("check", "--resource", "example.com/GPU", "--select", "10DE2204", "--", "true"), "'10DE2204' is not VENDOR:"),
        (CHECK, "check takes the command that starts the driver, after --"),
        ((*CHECK, "--only", "DP99", "--", "true"), "there is no expectation DP99, only DP1, "),
        ((*CHECK, "--skip", "DRA1", "--", "true"), "there is no expectation DRA1, only DP1, "),
    ],
)
def test_check_says_what_it_is_to_be_given(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    done = lab(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--log", "FOLDER/log", "--", "/no/such/plugin"), "/no/such/plugin: No such file or directory"),
        (("--log", "FOLDER/none/log", "--", "true"), "there is no folder that can be written to"),
    ],
)
def test_check_that_can_not_begin_says_why(tmp_path: Path, folder: Path, words: tuple[str, ...], problem: str) -> None:
    places = ("--kubelet-dir", str(folder))
    done = lab(tmp_path, *CHECK, *places, *(word.replace("FOLDER", str(tmp_path)) for word in words))
    assert (done.returncode, done.stdout) == (69, "")
    assert problem in done.stderr


def test_a_kubelet_whose_path_is_too_long_for_a_socket_is_told_before_anything_is_started(tmp_path: Path) -> None:
    """On Linux that of a socket has at most 107 bytes; those of a letter beyond ASCII count too."""
    socket = "/device-plugins/kubelet.sock"
    for letter in "xé":
        length = 107 - len(f"{tmp_path}/{socket}".encode()) + 1
        folder = tmp_path / (letter * (length // len(letter.encode()) + 1))
        done = lab(tmp_path, *CHECK, "--kubelet-dir", str(folder), "--log", str(tmp_path / "log"), "--", "true")
        assert (done.returncode, done.stdout) == (69, "")
        problem = f"{folder}{socket}: too long a path for a socket; --kubelet-dir names a shorter folder"
        assert done.stderr == f"launcherkit-lab: error: {problem}\n"


def test_check_dra_wants_a_kubeconfig_with_its_own_login(tmp_path: Path) -> None:
    places = (f"--log={tmp_path}/log", f"--kubeconfig={tmp_path}/config", "--node=node-1", "--", "true")
    user = {"name": "u", "user": {"exec": {"command": "login"}}}
    context = {"name": "c", "context": {"cluster": "s", "user": "u"}}
    cluster = {"name": "s", "cluster": {"server": "http://127.0.0.1:1"}}
    config = {"current-context": "c", "contexts": [context], "clusters": [cluster], "users": [user]}
    problems = []
    for text in ("", json.dumps(config), json.dumps({**config, "users": []})):
        (tmp_path / "config").write_text(text)
        done = lab(tmp_path, "check-dra", *places)
        assert (done.returncode, done.stdout) == (69, "")
        problems.append(done.stderr.partition("error: ")[2])
    assert problems[0].startswith(f"{tmp_path}/config: no kubeconfig with a current context")
    assert problems[1].endswith("its user logs in by another program; make one with a token\n")
    assert "GET http://127.0.0.1:1/api/v1/nodes/node-1: <urlopen error" in problems[2]


def test_a_dra_driver_that_can_not_be_started_is_said_once(tmp_path: Path, folder: Path) -> None:
    server = ApiServer()
    server.put(NODES, {"metadata": {"name": "node-1"}})
    server.accounts.add(("default", "default"))
    places = [f"--log={tmp_path / 'log'}", f"--cdi-dir={tmp_path / 'cdi'}", f"--kubelet-dir={folder}"]
    manifest = tmp_path / "pod.yaml"
    manifest.write_text("kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n")
    with server.running(tmp_path) as kubeconfig:
        check = ("check-dra", "--kubeconfig", str(kubeconfig), "--node", "node-1", *places)
        command = lab(tmp_path, *check, "--", "no-such-driver")
        pod = lab(tmp_path, *check, "--manifest", str(manifest), "--image", "i.tar", "--container", "d")
        plain = lab(tmp_path, *check, "--manifest", str(manifest), "--image", "i.tar")
    assert (command.returncode, command.stdout) == (69, "")
    assert command.stderr == "launcherkit-lab: error: no-such-driver: No such file or directory\n"
    assert (pod.returncode, pod.stdout) == (65, "")
    assert pod.stderr == "launcherkit-lab: error: Pod p: containers: d is not there; there are c\n"
    assert plain.returncode == 69
    assert plain.stderr.endswith("programs in a pod ask an API server by https alone\n")


def test_a_plugin_that_ends_at_once_is_not_waited_for(tmp_path: Path, folder: Path) -> None:
    """The reports say so, and how to try it again."""
    places = [f"--{name}={tmp_path / name}" for name in ("log", "json", "junit")]
    plugin = ("--kubelet-dir", str(folder), "--", "sh", "-c", "echo no card here; exit 3")
    done = lab(tmp_path, *CHECK, "--only", "DP1", "--only", "DP5", *places, *plugin)
    assert done.returncode == 1
    problem = "example.com/GPU has no devices, and the driver has ended"
    assert "DP1   must    FAILED     It registers" in done.stdout
    assert f"seen    {problem}" in done.stdout
    assert "log     no card here" in done.stdout
    assert "repeat  launcherkit-lab check --only DP1 --resource example.com/GPU --select 10de:2204" in done.stdout
    assert "must: 1 failed\nshould: 1 not tried\nNOT conformant" in done.stdout
    report = json.loads((tmp_path / "json").read_text())
    assert [(one["number"], one["status"]) for one in report["expectations"]] == [
        ("DP1", "failed"),
        ("DP5", "not tried"),
    ]
    assert (report["conformant"], report["expectations"][0]["seen"]) == (False, problem)
    suite = ElementTree.parse(tmp_path / "junit").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")
    assert [problem in one.get("message", "") for one in suite.iterfind("testcase/failure")] == [True]


def test_the_command_to_repeat_has_the_prefix_and_skips_nothing(tmp_path: Path, folder: Path) -> None:
    plugin = ("--kubelet-dir", str(folder), "--log", str(tmp_path / "log"), "--", "false")
    words = ("--variable-prefix", "PCIDEVICE_", "--only", "DP1", "--only", "DP6", "--skip", "DP6")
    done = lab(tmp_path, *CHECK, *words, *plugin)
    assert done.returncode == 1
    assert "DP6   must    SKIPPED" in done.stdout
    prefix = "--select 10de:2204 --variable-prefix PCIDEVICE --kubelet-dir"
    assert f"repeat  launcherkit-lab check --only DP1 --resource example.com/GPU {prefix}" in done.stdout
    done = lab(tmp_path, *CHECK, "--only", "DP6", "--skip", "DP6", *plugin)
    assert (done.returncode, done.stdout.count("\n")) == (0, 5)


def test_what_is_expected_is_listed_with_its_level_and_its_source(tmp_path: Path) -> None:
    lines = lab(tmp_path, "expectations").stdout.splitlines()
    assert lines[0].startswith("DP1   must    It registers every resource")
    assert "api.proto, RegisterRequest" in lines[1]


def test_a_machine_that_this_qemu_can_not_make_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qemu-system-x86_64").write_text("""#!/bin/sh\necho 'name "nvme", bus PCI'\n""")
    (tmp_path / "qemu-system-x86_64").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(CannotStart, match=r"this QEMU has no igb \(kind nic\)"):
        Session(tmp_path / "up").up(read_description("nic-vfs"), tmp_path, print)
    assert not (tmp_path / "up").exists()


def test_a_command_that_repeats_an_expectation_has_the_limits_that_are_not_the_usual_ones() -> None:
    assert [*options_of(Limits())] == []
    assert [*options_of(Limits(kills=3, health_seconds=2.5))] == ["--kills", "3", "--health-seconds", "2.5"]
