"""The developer's commands, as far as they can be tried without making an environment."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nested import run_pytest
from tests.support.scripts import load_script
from tests.tiers import API, CLUSTER, FULL_DEMO_CLUSTER_MIB, FULL_DEMO_DISK_MIB, FULL_DEMO_MIB, TIERS, full_demo_lacks
from tools.dev import environment
from tools.dev.testing import in_memory

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout in which nothing has been made yet, of what `./dev` reads before it makes anything."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "dev", tmp_path)
    shutil.copytree(ROOT / "tools" / "dev", tmp_path / "tools" / "dev", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tests" / "tiers.py", tmp_path / "tests")
    return tmp_path


def test_a_python_that_is_too_old_can_read_dev_and_so_is_told() -> None:
    ast.parse((ROOT / "dev").read_text(), feature_version=(3, 6))


def test_the_full_demonstration_says_what_is_missing_before_it_makes_or_installs_anything(bare: Path) -> None:
    env = os.environ | {CLUSTER.variable: str(bare)}
    before = sorted(bare.rglob("*"))
    done = subprocess.run([bare / "dev", "demo", "--full"], env=env, capture_output=True, text=True)
    assert done.returncode == 69
    assert done.stdout == ""
    assert f"{CLUSTER.variable}: {bare}/cluster is no program" in done.stderr
    assert "docs/how-to/pod-to-guest.md" in done.stderr
    assert sorted(bare.rglob("*")) == before


def test_all_that_the_full_demonstration_lacks_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLUSTER.variable, str(tmp_path))
    lacks = full_demo_lacks(1000, FULL_DEMO_CLUSTER_MIB - 1, FULL_DEMO_DISK_MIB - 1, "aarch64")
    for part in (
        f"{tmp_path}/cluster is no program",
        "aarch64",
        "sudo ./dev demo --full",
        f"{FULL_DEMO_CLUSTER_MIB - 1} MiB",
        f"{FULL_DEMO_DISK_MIB - 1} MiB",
    ):
        assert any(part in line for line in lacks), part
    (tmp_path / "cluster").touch(mode=0o755)
    assert full_demo_lacks(0, FULL_DEMO_CLUSTER_MIB, FULL_DEMO_DISK_MIB, "x86_64") == []


def test_the_full_demonstration_needs_no_cluster_but_root_and_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLUSTER.variable, raising=False)
    assert full_demo_lacks(0, FULL_DEMO_MIB, FULL_DEMO_DISK_MIB, "x86_64") == []
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("tests.tiers.find_program", shutil.which)
    (line,) = full_demo_lacks(0, FULL_DEMO_MIB, FULL_DEMO_DISK_MIB, "x86_64")
    assert "Debian or Ubuntu" in line


def test_a_shell_of_dev_finds_the_programs_and_stays_where_the_user_is(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "$PATH" > seen; pwd >> seen; exit 7\n')
    shell.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHELL", str(shell))
        patch.chdir(tmp_path)
        assert environment.open_shell() == 7
    path, folder = (tmp_path / "seen").read_text().splitlines()
    assert path.split(os.pathsep)[0] == str(environment.VENV / "bin")
    assert folder == str(tmp_path)


# What can't be had is asked for to be left out.


@pytest.fixture
def clusterless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nobody has named a cluster."""
    for tier in (API, CLUSTER):
        monkeypatch.delenv(tier.variable, raising=False)


@pytest.mark.usefixtures("clusterless")
def test_every_tier_without_a_cluster_fails_before_anything_is_made_and_says_how_to_leave_them_out(bare: Path) -> None:
    before = sorted(bare.rglob("*"))
    done = subprocess.run([bare / "dev", "test", "--all", "--without", "kubelet"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (69, "")
    assert "the api tier can't run: set LAUNCHERKIT_TEST_API=" in done.stderr
    assert "the cluster tier can't run: set LAUNCHERKIT_TEST_CLUSTER=" in done.stderr
    assert done.stderr.endswith("or leave them out by name: --without api --without cluster\n")
    assert sorted(bare.rglob("*")) == before


@pytest.mark.usefixtures("clusterless")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["kubelet"], 69, "the kubelet tier can't run: set LAUNCHERKIT_TEST_CLUSTER="),
        (["--without", "kubelet"], 2, "--without leaves a tier out of --all, which isn't given"),
        (["--all", "--without", "cubelet"], 2, "invalid choice: 'cubelet'"),
    ],
)
def test_a_tier_is_left_out_of_all_by_its_name_alone(bare: Path, words: list[str], code: int, said: str) -> None:
    done = subprocess.run([bare / "dev", "test", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


@pytest.mark.usefixtures("clusterless")
def test_the_tests_that_were_left_out_are_counted() -> None:
    left_out = [f"--without={tier.name}" for tier in TIERS]
    done = run_pytest(["-p", "no:cacheprovider", "--all-tiers", *left_out, "tests/cluster/test_page.py"], cwd=ROOT)
    assert done.returncode == 0, done.stdout
    lines = [re.sub(" +", " ", line) for line in done.stdout.splitlines()]
    assert "kubelet: SKIPPED 0, left out by --without" in lines
    (count,) = (match[1] for line in lines if (match := re.fullmatch(r"cluster: SKIPPED (\d+), left out .*", line)))
    assert int(count) == len(re.findall(r"^def test_", (ROOT / "tests/cluster/test_page.py").read_text(), re.MULTILINE))


@pytest.mark.usefixtures("clusterless")
def test_a_tier_that_is_asked_for_and_has_no_cluster_is_an_error() -> None:
    done = run_pytest(["-p", "no:cacheprovider", "--tier=cluster", "tests/cluster/test_page.py"], cwd=ROOT)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "the cluster tier can't run: no LAUNCHERKIT_TEST_CLUSTER" in done.stderr


@pytest.fixture
def ci(tmp_path: Path) -> Path:
    """A checkout in which `./dev` is a stand-in: it notes its words, and has no cluster."""
    (tmp_path / "checkout" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / "checkout" / ".ci")
    stand_in = tmp_path / "checkout" / "dev"
    stand_in.write_text('#!/bin/sh\necho "$*" >> words\ncase "$*" in *--without*) ;; *--all*) exit 69 ;; esac\n')
    stand_in.chmod(0o755)
    return stand_in.parent


@pytest.mark.usefixtures("clusterless")
def test_ci_without_a_cluster_fails_or_leaves_out_by_name_what_needs_one(ci: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        (ci / "words").unlink(missing_ok=True)
        return subprocess.run([ci / ".ci" / "run", *words], capture_output=True, text=True)

    assert run().returncode == 1
    done = run("--without", "api,cluster", "--without", "kubelet")
    left_out = "--without api --without cluster --without kubelet"
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(f"LEFT OUT, as asked: {left_out}\n")
    every_tier = [words for words in (ci / "words").read_text().splitlines() if "--all" in words]
    assert len(every_tier) == 4
    assert all(words.startswith(f"test --all {left_out} -- ") for words in every_tier)
    assert run("--without", "kernel").returncode == 2
    assert not (ci / "words").exists()


@pytest.mark.usefixtures("clusterless")
def test_ci_leaves_out_by_name_what_repeats_tests_where_it_is_late(ci: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_BEGIN_BY", "-1")
    words = [str(ci / ".ci" / "run"), "--without", "api,cluster,kubelet"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    late = re.findall(r"^LEFT OUT, for want of time: \./dev test (\S+)", done.stdout, re.MULTILINE)
    assert sorted(late) == ["--bare", "--python", "--python", "kernel", "kernel", "kernel", "libvirt", "libvirt"]
    ran = (ci / "words").read_text().splitlines()
    assert "test" in ran
    assert not [line for line in ran if "--system" in line or "--python" in line or "--bare" in line]


@pytest.mark.parametrize(("slow", "clusters"), [("-1", 0), ("1000", 1)])
def test_ci_starts_no_cluster_in_an_emulated_machine_where_the_tests_were_slow(
    slow: str, clusters: int, ci: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = '#!/bin/sh\necho "${LAUNCHERKIT_TEST_CLUSTER:+a cluster} for $*" >>words\n'
    (ci / "dev").write_text(stand_in)
    for variable, value in {"CI_SLOW": slow, CLUSTER.variable: "/", API.variable: "/"}.items():
        monkeypatch.setenv(variable, value)
    done = subprocess.run([ci / ".ci" / "run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    [images] = [line for line in (ci / "words").read_text().splitlines() if "tests/images" in line]
    assert images.count("a cluster for") == clusters
    assert done.stdout.count("LEFT OUT, for want of time: Kubernetes") == 1 - clusters


# The program `cluster` around kind, which is not run here: what it would run.


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("up", "kind create cluster --name launcherkit-test --wait 4m --kubeconfig S/kubeconfig"),
        ("up cluster", "kind create cluster --name launcherkit-test --wait 4m --kubeconfig S/kubeconfig"),
        ("down", "kind delete cluster --name launcherkit-test --kubeconfig S/kubeconfig"),
        ("status", "kubectl --kubeconfig S/kubeconfig get --raw /readyz"),
        ("kubectl get -o json pods", "kubectl --kubeconfig S/kubeconfig get -o json pods"),
        ("kubectl create --dry-run=server -f -", "kubectl --kubeconfig S/kubeconfig create --dry-run=server -f -"),
    ],
)
def test_the_cluster_by_kind_runs(words: str, command: str) -> None:
    kind = load_script(ROOT / "tests" / "cluster" / "kind" / "cluster")
    assert " ".join(kind.command_of(kind.parse(["--state", "S", *words.split()], {}))) == command


def test_the_cluster_by_kind_says_where_its_files_are_and_what_is_missing(tmp_path: Path) -> None:
    program = ROOT / "tests" / "cluster" / "kind" / "cluster"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
        return subprocess.run([sys.executable, program, *words], env=env, capture_output=True, text=True)

    assert run("env").stdout == f"KUBECONFIG={tmp_path}/launcherkit-test/kubeconfig\n"
    for words in ("install", "up", "status"):
        done = run(words)
        assert (done.returncode, done.stderr) == (69, "cluster: not on PATH: kind, kubectl, docker or podman\n")
    assert run("up", "standalone").returncode == 2


def test_files_of_tests_are_in_memory_where_there_is_room_and_nobody_says_otherwise(tmp_path: Path) -> None:
    assert in_memory(tmp_path, {}, room_mib=0) == {"TMPDIR": str(tmp_path)}
    assert in_memory(tmp_path, {}, room_mib=1 << 50) == {}
    assert in_memory(tmp_path, {"TMPDIR": "/var/tmp"}, room_mib=0) == {}
    assert in_memory(tmp_path / "absent", {}, room_mib=0) == {}


def test_an_environment_that_runs_something_else_than_the_checkout_is_not_taken_for_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install .` in the shell that ./dev opened takes the link to the checkout away."""
    stamp = tmp_path / "stamp"
    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(environment, "STAMP", stamp)
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch(mode=0o755)
    stamp.write_text(json.dumps({"digest": environment.digest(), "profile": "dev"}))
    links = [
        packages / f"_editable_impl_{name}.pth" for name in ("launcherkit", "launcherkit_plugin", "launcherkit_lab")
    ]
    made = []
    for link in links:
        made.append([environment.is_made(profile) for profile in ("demo", "dev", "release")])
        link.touch()
    made.append([environment.is_made(profile) for profile in ("demo", "dev", "release")])
    assert made == [[False, False, False], [True, False, False], [True, False, False], [True, True, False]]


def test_lint_ends_with_what_was_not_clean(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    dev = load_script(ROOT / "dev")
    monkeypatch.setattr(dev, "make_environment", lambda *extras: None)
    monkeypatch.setattr(dev, "call", lambda *words: 3 if "mypy" in words else 0)
    monkeypatch.setattr(sys, "argv", ["dev", "lint"])
    assert dev.main() == 3
    assert capsys.readouterr().out.splitlines() == ["not clean, see above: python -m mypy"]
