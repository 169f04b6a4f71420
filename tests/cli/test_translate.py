"""``launcherkit translate``: files in, a document out, nothing where anything is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit.cli.main import run
from launcherkit.errors import BAD_SETTING, GROUP_NOT_VIABLE, UNREADABLE_FILE, UNWRITABLE_FILE, Code, LauncherkitError
from tests.support.domains import domain, hostdevs
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree

ROOT = Path(__file__).parents[2]
VMI = {"spec": {"domain": {"devices": {"gpus": [{"name": "a", "deviceName": "x.com/gpu"}]}}}}
VALUE = "0000:e1:00.0,0000:e1:00.1"


class Bench:
    """A directory with a domain, a VMI, an environment and a host."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.domain = directory / "vm.xml"
        self.domain.write_text(domain())
        self.vmi = directory / "vmi.json"
        self.vmi.write_text(json.dumps(VMI))
        self.env_file = directory / "env"
        self.env_file.write_text(f"PCI_RESOURCE_X_COM_GPU={VALUE}\n")
        self.host = directory / "host"
        self.tree = HostTree(self.host)
        self.tree.card("0000:e1:00", group=44)

    def arguments(self, *more: str) -> list[str]:
        inputs = {"domain": self.domain, "vmi": self.vmi, "env-file": self.env_file, "host": self.host}
        return ["translate", *(f"--{name}={path}" for name, path in inputs.items()), *more]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def found(data: bytes) -> list[tuple[str, str | None]]:
    return [(each.source, each.alias) for each in hostdevs(data)]


BOTH = [("0000:e1:00.0", "ua-gpu-a"), ("0000:e1:00.1", "ua-gpu-a-fn1")]


def test_the_document_goes_to_stdout_and_nothing_else_does(
    bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(bench.arguments(), {}) == 0
    out, err = capfdbinary.readouterr()
    assert found(out) == BOTH
    assert err == b""


def test_notes_go_to_stderr(bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run(bench.arguments("--host=none"), {})
    out, err = capfdbinary.readouterr()
    assert out.startswith(b"<domain")
    assert err.startswith(b"note: ")


def test_without_an_env_file_the_process_environment_is_read(
    bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    arguments = [each for each in bench.arguments() if not each.startswith("--env-file")]
    run(arguments, {"PCI_RESOURCE_X_COM_GPU": VALUE})
    assert found(capfdbinary.readouterr().out) == BOTH


def test_with_an_env_file_the_process_environment_still_configures(
    bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    bench.env_file.write_text(f"PCI_RESOURCE_X_COM_GPU={VALUE}\nLAUNCHERKIT_SIBLINGS=slot\n")
    run(bench.arguments(), {"LAUNCHERKIT_SIBLINGS": "none", "PCI_RESOURCE_X_COM_GPU": "nonsense"})
    assert found(capfdbinary.readouterr().out) == BOTH[:1]


def test_every_input_can_be_named_by_a_variable(
    bench: Bench, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("managed: true")
    env = {
        "LAUNCHERKIT_DOMAIN": str(bench.domain),
        "LAUNCHERKIT_VMI": str(bench.vmi),
        "LAUNCHERKIT_ENV_FILE": str(bench.env_file),
        "LAUNCHERKIT_HOST": str(bench.host),
        "LAUNCHERKIT_POLICY": str(policy),
        "LAUNCHERKIT_OUTPUT": str(tmp_path / "out.xml"),
        "LAUNCHERKIT_PLAN": str(tmp_path / "plan.json"),
        "LAUNCHERKIT_DIFF": "no",
    }
    assert run(["translate"], env) == 0
    assert capfdbinary.readouterr().out == b""
    assert {each.attributes["managed"] for each in hostdevs((tmp_path / "out.xml").read_bytes())} == {"yes"}
    assert json.loads((tmp_path / "plan.json").read_text())["devices"][0]["request"]["name"] == "a"


def test_a_flag_comes_before_its_variable(bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run(
        bench.arguments("--siblings=slot", "--managed=yes"),
        {"LAUNCHERKIT_SIBLINGS": "none", "LAUNCHERKIT_MANAGED": "no"},
    )
    assert [(each.source, each.attributes["managed"]) for each in hostdevs(capfdbinary.readouterr().out)] == [
        ("0000:e1:00.0", "yes"),
        ("0000:e1:00.1", "yes"),
    ]


def test_pairing_positional_is_kubevirts(bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    bench.env_file.write_text("PCI_RESOURCE_X_COM_GPU=0000:e1:00.1,0000:e1:00.0\n")
    run(bench.arguments("--pairing=positional", "--siblings=none"), {})
    assert found(capfdbinary.readouterr().out) == [("0000:e1:00.1", "ua-gpu-a")]


def test_a_diff_is_of_the_document(bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(bench.arguments("--diff"), {}) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[0] == f"--- {bench.domain}"
    assert not [line for line in lines[2:] if line.startswith("-")], "nothing goes"
    assert any(line.startswith("+") and "ua-gpu-a" in line for line in lines)


def test_the_output_is_written_by_rename(
    bench: Bench, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    out = tmp_path / "out.xml"
    out.write_text("old")
    before = out.stat().st_ino
    run(bench.arguments("-o", str(out)), {})
    assert found(out.read_bytes()) == BOTH
    assert out.stat().st_ino != before
    assert capfdbinary.readouterr().out == b""


def test_where_anything_is_wrong_nothing_is_written(
    bench: Bench, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    bench.tree.function("0000:e1:00.2", class_code=0x0C0330, driver="xhci_hcd", group=44)
    out, plan = tmp_path / "out.xml", tmp_path / "plan.json"
    with raises_code(GROUP_NOT_VIABLE):
        run(bench.arguments("-o", str(out), "--plan", str(plan)), {})
    assert not out.exists()
    assert not plan.exists()
    assert capfdbinary.readouterr().out == b""


def test_nodes_are_checked_unless_told_otherwise(bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """V2."""
    (bench.host / "dev/vfio/44").unlink()
    with pytest.raises(LauncherkitError, match="/dev/vfio/44"):
        run(bench.arguments(), {})
    for flag, env in (
        (["--no-node-check"], {}),
        (["--node-check=never"], {}),
        ([], {"LAUNCHERKIT_NO_NODE_CHECK": "yes"}),
    ):
        assert run(bench.arguments(*flag), env) == 0


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--domain=/no/such.xml"], UNREADABLE_FILE),
        (["--vmi=/no/such.json"], UNREADABLE_FILE),
        (["--env-file=/no/such.env"], UNREADABLE_FILE),
        (["--policy=/no/such.yaml"], UNREADABLE_FILE),
        (["--host=/no/such/host"], UNREADABLE_FILE),
        (["--host=\0"], UNREADABLE_FILE),
        (["-o", "/no/such/dir/out.xml"], UNWRITABLE_FILE),
        (["-o", "/"], UNWRITABLE_FILE),
        (["--plan", "/no/such/dir/plan.json"], UNWRITABLE_FILE),
    ],
)
def test_a_file_that_is_not_there_is_an_error_that_names_it(
    bench: Bench, more: list[str], error: Code[LauncherkitError], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with raises_code(error):
        run(bench.arguments(*more), {})
    assert capfdbinary.readouterr().out == b""


def test_the_document_and_the_plan_go_to_different_places(
    bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    out, link = bench.directory / "out", bench.directory / "link"
    link.symlink_to(out)
    for more in (["--plan", "-"], ["-o", "-", "--plan", "-"], ["-o", str(out), "--plan", str(link)]):
        with raises_code(UNWRITABLE_FILE, match="it can't have both the document and the plan"):
            run(bench.arguments(*more), {})
        assert (out.exists(), capfdbinary.readouterr().out) == (False, b"")
    assert run(bench.arguments("-o", str(out), "--plan", "-"), {}) == 0
    assert json.loads(capfdbinary.readouterr().out)["format"] == "launcherkit.io/plan/v1"
    assert found(out.read_bytes()) == BOTH


def test_a_choice_by_the_other_variable_comes_first(bench: Bench) -> None:
    (bench.host / "dev/vfio/44").unlink()
    with pytest.raises(LauncherkitError, match="/dev/vfio/44"):
        run(bench.arguments(), {"LAUNCHERKIT_NO_NODE_CHECK": "yes", "LAUNCHERKIT_NODE_CHECK": "always"})


@pytest.mark.parametrize("variable", ["LAUNCHERKIT_DIFF", "LAUNCHERKIT_NO_NODE_CHECK"])
def test_a_switch_is_yes_or_no(bench: Bench, variable: str) -> None:
    with raises_code(BAD_SETTING, match=variable):
        run(bench.arguments(), {variable: "1"})


@pytest.mark.parametrize("flag", ["--siblings=all", "--pairing=", "--managed=true", "--node-check=maybe"])
def test_a_choice_is_one_of_its_words(bench: Bench, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        run(bench.arguments(flag), {})
    assert raised.value.code == 2


def command(
    bench: Bench, *more: str, stdin: bytes | None = None, shell: str = ""
) -> subprocess.CompletedProcess[bytes]:
    code = "import sys; from launcherkit.cli.main import main; sys.exit(main())"
    script = f'exec "$0" -c "$@" {shell}'
    env = {name: value for name, value in os.environ.items() if "RESOURCE_" not in name and "LAUNCHERKIT" not in name}
    arguments = ["bash", "-c", script, sys.executable, code, *bench.arguments(*more)]
    return subprocess.run(arguments, input=stdin, capture_output=True, cwd=ROOT, env=env, check=False)


def test_a_dash_reads_standard_input(bench: Bench) -> None:
    done = command(bench, "--domain=-", stdin=domain("<a/>").encode())
    assert (done.returncode, found(done.stdout)) == (0, BOTH)
    assert b"<a/>" in done.stdout


def test_a_closed_standard_input_is_an_error_and_no_bug() -> None:
    code = "import sys; from launcherkit.cli.main import main; sys.exit(main())"
    script = 'exec "$0" -c "$@" <&-'
    arguments = ["bash", "-c", script, sys.executable, code, "translate", "--domain=-", "--host=none"]
    done = subprocess.run(arguments, capture_output=True, cwd=ROOT, check=False)
    assert done.returncode == 65
    assert done.stderr.startswith(b"error[LK131]")


def test_an_error_is_an_exit_code_a_message_and_no_output(bench: Bench) -> None:
    bench.domain.write_text("<domain>")
    done = command(bench)
    assert (done.returncode, done.stdout) == (65, b"")
    assert done.stderr.startswith(b"error[LK121]: " + str(bench.domain).encode())
    assert b"\nhelp: " in done.stderr


def test_names_that_are_no_text_do_no_harm(bench: Bench) -> None:
    done = command(bench, "--domain=no\udcff.xml")
    assert (done.returncode, done.stderr[:12]) == (65, b"error[LK131]")
