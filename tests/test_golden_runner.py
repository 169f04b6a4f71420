"""The golden runner: what makes a case pass, fail, or be updated."""

from __future__ import annotations

import gzip
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from lxml import etree

from launcherkit.cli.main import run
from launcherkit.errors import UNWRITABLE_FILE, LauncherkitError
from launcherkit.golden.case import find_cases
from launcherkit.golden.run import CaseResult, Difference, check_case, junit_report
from launcherkit.golden.update import update_case
from launcherkit.process.edge import guarded
from tests.support.nested import run_pytest

ROOT = Path(__file__).parents[1]
Captured = pytest.CaptureFixture[bytes]

DOMAIN = """\
<domain type='kvm'>
  <name>vm</name>
  <os><type machine='q35'>hvm</type></os>
  <devices>
    <controller type='pci' index='0' model='pcie-root'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""
CASE = """\
description: A function goes to the guest as the environment has it.
env:
  PCI_RESOURCE_EXAMPLE_COM_NIC: "0000:e1:00.0"
"""
ADDED = """\
    <hostdev mode='subsystem' type='pci' managed='no'>
      <source>
        <address domain='0x0000' bus='0xe1' slot='0x00' function='0x0'/>
      </source>
      <alias name='ua-hostdevice-example_com_nic-0'/>
    </hostdev>
"""
EXPECTED = DOMAIN.replace("  </devices>", ADDED + "  </devices>")
BAD_ADDRESS = CASE.replace("e1:00.0", "e1:00.9")


class Cases:
    """A directory of cases, written file by file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, name: str = "nic", *, case: str = CASE, domain: str | None = DOMAIN, **files: str) -> Path:
        """Write a case; ``expected_xml`` among the files is ``expected.xml``."""
        directory = self.root / name
        directory.mkdir(parents=True)
        (directory / "case.yaml").write_text(case)
        if domain is not None:
            (directory / "domain.xml").write_text(domain)
        for file, text in files.items():
            (directory / file.replace("_", ".")).write_text(text)
        return directory

    def golden(self, *arguments: str, env: dict[str, str] | None = None) -> int:
        """``launcherkit golden ACTION DIR ...`` as the command line runs it."""
        action, *rest = arguments
        variables = env or {}
        return guarded(lambda: run(["golden", action, str(self.root), *rest], variables), variables)


@pytest.fixture
def cases(tmp_path: Path) -> Cases:
    return Cases(tmp_path / "golden")


def problems(directory: Path) -> str:
    return str(check_case(directory))


class TestCheck:
    def test_a_case_that_gives_what_is_expected_passes(self, cases: Cases) -> None:
        result = check_case(cases(expected_xml=EXPECTED))
        assert result.ok
        assert result.description == "A function goes to the guest as the environment has it."

    def test_nothing_is_written_to_the_case(self, cases: Cases) -> None:
        directory = cases(expected_xml=EXPECTED)
        before = sorted(os.listdir(directory))
        check_case(directory)
        assert sorted(os.listdir(directory)) == before

    @pytest.mark.parametrize(
        "spelt",
        [
            pytest.param(EXPECTED.replace("'", '"'), id="quotes"),
            pytest.param(
                EXPECTED.replace("type='pci' managed='no'", "managed='no' type='pci'"), id="order of attributes"
            ),
            pytest.param(EXPECTED.replace("<name>vm", "<name>&#118;m"), id="a character reference"),
            pytest.param(
                EXPECTED.replace("'pcie-root'/>", "'pcie-root'></controller>"), id="an empty element's long form"
            ),
            pytest.param("<?xml version='1.0'?>\n" + EXPECTED, id="a declaration"),
        ],
    )
    def test_spelling_does_not_matter(self, cases: Cases, spelt: str) -> None:
        assert check_case(cases(expected_xml=spelt)).ok

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param(EXPECTED.replace("nic-0", "nic-1"), id="a value"),
            pytest.param(EXPECTED.replace("    <hostdev", "  <hostdev"), id="white space between elements"),
            pytest.param(EXPECTED.replace("  <devices>", "  <!-- ours -->\n  <devices>"), id="a comment"),
            pytest.param(EXPECTED.replace(" managed='no'", ""), id="an attribute"),
        ],
    )
    def test_everything_else_does_and_is_shown(self, cases: Cases, changed: str) -> None:
        reported = problems(cases(expected_xml=changed))
        assert "nic: it gives another document" in reported
        assert "--- expected.xml" in reported
        assert "\n-" in reported or "\n+" in reported

    def test_one_long_line_is_shown_by_elements(self, cases: Cases) -> None:
        domain = "".join(map(str.strip, DOMAIN.splitlines()))
        directory = cases(domain=domain)
        update_case(directory)
        expected = (directory / "expected.xml").read_text()
        (directory / "expected.xml").write_text(expected.replace("nic-0", "nic-1"))
        assert '\n+<alias name="ua-hostdevice-example_com_nic-0"/>' in problems(directory)

    def test_a_missing_expectation_fails_and_names_the_switch(self, cases: Cases) -> None:
        reported = problems(cases())
        assert any(
            f"golden update {shlex.quote(str(shown))} --case nic`" in reported
            for shown in (cases.root, os.path.relpath(cases.root))
        )
        assert "+      <alias name='ua-hostdevice-example_com_nic-0'/>" in reported
        assert "+<domain" not in reported, "only what is new"

    def test_two_expectations_fail(self, cases: Cases) -> None:
        reported = problems(cases(expected_xml=EXPECTED, expected_error="LK101: x\n"))
        assert "expected.xml and expected.error are both there" in reported

    def test_an_expected_document_that_is_no_xml_fails(self, cases: Cases) -> None:
        assert "expected.xml is not XML" in problems(cases(expected_xml="<domain>"))

    def test_an_error_is_compared_by_code_and_message(self, cases: Cases) -> None:
        directory = cases(case=BAD_ADDRESS)
        update_case(directory)
        reported = (directory / "expected.error").read_text()
        assert reported.startswith("LK101: PCI_RESOURCE_EXAMPLE_COM_NIC, entry 1: ")
        assert check_case(directory).ok
        (directory / "expected.error").write_text(reported.replace("LK101", "LK102"))
        assert "it fails in another way" in problems(directory)

    def test_paths_in_an_error_are_the_case_s_own(self, cases: Cases) -> None:
        directory = cases(case=CASE + "flags: [--vmi, vm.json, --plan, x/plan.json]\n")
        update_case(directory)
        assert (directory / "expected.error").read_text() == "LK131: vm.json: No such file or directory\n"

    def test_an_error_where_a_document_is_expected_is_reported(self, cases: Cases) -> None:
        reported = problems(cases(case=BAD_ADDRESS, expected_xml=EXPECTED))
        assert "it fails, where a document is expected\nLK101: " in reported

    def test_a_document_where_an_error_is_expected_is_reported(self, cases: Cases) -> None:
        assert "it gives a document, where an error is expected" in problems(cases(expected_error="LK101: x\n"))

    def test_a_plan_is_compared_as_json(self, cases: Cases) -> None:
        directory = cases(expected_xml=EXPECTED)
        update_case(directory, plan=True)
        plan = json.loads((directory / "expected.plan.json").read_text())
        (directory / "expected.plan.json").write_text(json.dumps(plan))
        assert check_case(directory).ok
        plan["devices"][0]["kind"] = "usb"
        (directory / "expected.plan.json").write_text(json.dumps(plan, indent=2))
        assert '+      "kind": "pci",' in problems(directory)

    def test_a_document_that_a_second_run_changes_fails(self, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
        from launcherkit import inputs as translate

        def appends_each_time(args: object, env: object) -> int:
            Path(args.output).write_bytes(Path(args.domain).read_bytes() + b"<!-- again -->\n")  # type: ignore[attr-defined]
            Path(args.plan).write_text("{}")  # type: ignore[attr-defined]
            return 0

        monkeypatch.setattr(translate, "run", appends_each_time)
        reported = problems(cases(expected_xml=DOMAIN + "<!-- again -->\n"))
        assert "translating it once more changes it (X2)" in reported
        assert "+<!-- again -->" in reported

    def test_a_bug_is_reported_with_its_case_and_can_not_be_expected(
        self, cases: Cases, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from launcherkit import inputs as translate

        def breaks(args: object, env: object) -> int:
            raise ZeroDivisionError("by zero")

        monkeypatch.setattr(translate, "run", breaks)
        directory = cases()
        assert "nic: internal error, a bug in launcherkit: ZeroDivisionError: by zero" in problems(directory)
        assert not update_case(directory).written


class TestInputs:
    def test_nothing_of_this_machine_has_a_part(self, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PCI_RESOURCE_EXAMPLE_COM_GPU", "0000:01:00.0")
        monkeypatch.setenv("LAUNCHERKIT_MANAGED", "yes")
        monkeypatch.setenv("LAUNCHERKIT_HOST", "/nowhere")
        assert check_case(cases(expected_xml=EXPECTED)).ok

    @pytest.mark.parametrize(
        "said",
        [
            pytest.param("policy: {managed: yes}\n", id="a policy"),
            pytest.param('flags: [--managed, "yes"]\n', id="flags"),
            pytest.param('  LAUNCHERKIT_MANAGED: "yes"\n', id="a variable"),
            pytest.param("flags: [--policy, policy.yaml]\n", id="a policy file of the case"),
            pytest.param('  LAUNCHERKIT_POLICY: "policy.yaml"\n', id="a variable that names a file of the case"),
        ],
    )
    def test_a_case_decides_as_a_command_line_does(self, cases: Cases, said: str) -> None:
        expected = EXPECTED.replace("managed='no'", "managed='yes'")
        assert check_case(cases(case=CASE + said, expected_xml=expected, policy_yaml="managed: true\n")).ok

    def test_a_vmi_may_be_yaml(self, cases: Cases) -> None:
        vmi = "spec: {domain: {devices: {hostDevices: [{name: nic1, deviceName: example.com/nic}]}}}\n"
        directory = cases(vmi_yaml=vmi, expected_xml=EXPECTED.replace("example_com_nic-0", "nic1"))
        assert check_case(directory).ok, problems(directory)

    def test_an_environment_file_may_stand_for_the_variables(self, cases: Cases) -> None:
        case = "description: The variables are in a file.\nflags: [--env-file, env.txt]\n"
        directory = cases(case=case, env_txt="PCI_RESOURCE_EXAMPLE_COM_NIC=0000:e1:00.0\n", expected_xml=EXPECTED)
        assert check_case(directory).ok

    def test_a_large_domain_may_be_packed(self, cases: Cases) -> None:
        directory = cases(domain=None, expected_xml=EXPECTED)
        (directory / "domain.xml.gz").write_bytes(gzip.compress(DOMAIN.encode()))
        assert check_case(directory).ok

    def test_a_relative_output_never_lands_in_the_case(self, cases: Cases) -> None:
        directory = cases(case=CASE + "flags: [--output, domain.xml, --plan, plan.json]\n", expected_xml=EXPECTED)
        assert check_case(directory).ok
        assert (directory / "domain.xml").read_text() == DOMAIN
        assert not (directory / "plan.json").exists()

    @pytest.mark.parametrize(
        ("case", "reported"),
        [
            pytest.param("description: short\n", "description: ", id="no sentence"),
            pytest.param("env: {}\n", "description: ", id="no description"),
            pytest.param(CASE + "host: none\n", "host: ", id="a key that there is not"),
            pytest.param(CASE + "  USB_RESOURCE_X: 1:4\n", "put it in quotes", id="text that YAML takes for a number"),
            pytest.param(CASE + "policy: {siblings: all}\n", "policy.siblings", id="a policy that is wrong"),
            pytest.param(CASE + "policy: {}\nflags: [--policy, p.yaml]\n", "also a flag --policy", id="two policies"),
            pytest.param(CASE + "flags: [--sibling]\n", "flags: ", id="a flag that there is not"),
            pytest.param(CASE + "flags: [--diff]\n", "--diff makes no document", id="a diff"),
            pytest.param(CASE + "flags: [--domain, '-']\n", "standard input", id="standard input"),
            pytest.param(CASE + "libvirt: {minVersion: '11.0'}\n", "libvirt: ", id="a libvirt version and no reason"),
            pytest.param(CASE + "libvirt: {minVersion: new, why: x}\n", "libvirt.minVersion", id="no libvirt version"),
            pytest.param("- a\n- b\n", "case.yaml, the document", id="no mapping"),
            pytest.param("a: [\n", "not YAML", id="no YAML"),
        ],
    )
    def test_a_case_that_is_wrong_is_reported(self, cases: Cases, case: str, reported: str) -> None:
        said = problems(cases(case=case, expected_xml=EXPECTED))
        assert "LK404: case.yaml" in said
        assert reported in said

    def test_two_vmis_are_one_too_many(self, cases: Cases) -> None:
        assert "are both there" in problems(cases(vmi_json="{}", vmi_yaml="{}"))

    def test_a_directory_with_no_case_file_is_a_case_that_is_wrong(self, cases: Cases) -> None:
        directory = cases()
        (directory / "case.yaml").unlink()
        assert "LK404: case.yaml is not there" in problems(directory)


class TestUpdate:
    def test_it_writes_what_the_case_gives(self, cases: Cases) -> None:
        directory = cases()
        update = update_case(directory)
        assert update.written == ("expected.xml",)
        assert update.result.ok
        assert (directory / "expected.xml").read_text() == EXPECTED
        assert not (directory / "expected.plan.json").exists()

    def test_it_leaves_what_says_the_same_as_it_is(self, cases: Cases) -> None:
        spelt = EXPECTED.replace("'", '"')
        directory = cases(expected_xml=spelt)
        assert not update_case(directory).written
        assert (directory / "expected.xml").read_text() == spelt

    def test_it_keeps_up_a_plan_that_is_there(self, cases: Cases) -> None:
        directory = cases(expected_xml=EXPECTED)
        (directory / "expected.plan.json").touch()
        assert update_case(directory).written == ("expected.plan.json",)
        assert check_case(directory).ok

    def test_it_removes_the_error_of_a_case_that_succeeds_now(self, cases: Cases) -> None:
        directory = cases(expected_error="LK101: x\n")
        update = update_case(directory)
        assert (update.written, update.removed) == (("expected.xml",), ("expected.error",))
        assert check_case(directory).ok

    def test_it_removes_document_and_plan_of_a_case_that_fails_now(self, cases: Cases) -> None:
        directory = cases(case=BAD_ADDRESS, expected_xml=EXPECTED)
        (directory / "expected.plan.json").write_text("{}")
        update = update_case(directory)
        assert (update.written, update.removed) == (("expected.error",), ("expected.xml", "expected.plan.json"))
        assert check_case(directory).ok

    def test_a_case_that_is_wrong_gets_no_expectation_by_accident(self, cases: Cases) -> None:
        directory = cases(case=CASE + "evn: {}\n", expected_xml=EXPECTED)
        update = update_case(directory)
        assert not update.written
        assert not update.removed
        assert "the case itself is wrong" in str(update.result)

    def test_that_a_file_of_a_case_is_missing_is_not_expected_by_accident(self, cases: Cases) -> None:
        directory = cases(expected_xml=EXPECTED)
        (Path(directory) / "domain.xml").unlink()
        update = update_case(directory)
        assert (update.written, update.removed) == ((), ())
        assert "LK131" in str(update.result)
        (Path(directory) / "expected.xml").unlink()
        assert update_case(directory).written == ("expected.error",), "nothing else was expected"

    def test_an_error_that_is_expected_of_a_wrong_case_is_kept_up(self, cases: Cases) -> None:
        directory = cases(case="description: x\n", expected_error="")
        assert update_case(directory).written == ("expected.error",)
        assert check_case(directory).ok


class TestCommandLine:
    def test_check_says_what_became_of_each_case(self, cases: Cases, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        cases("a", expected_xml=EXPECTED)
        cases("b", expected_xml=DOMAIN)
        assert cases.golden("check") == 1
        out = capfdbinary.readouterr().out.decode()
        assert out.startswith("ok       a\nDIFFERS  b: it gives another document\n--- expected.xml\n")
        assert out.endswith("2 cases: 1 as expected, 1 not\n")
        assert cases.golden("check", "--case", "a") == 0

    def test_update_says_what_it_did(self, cases: Cases, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        cases("a", expected_xml=EXPECTED)
        cases("b", expected_error="LK101: x\n")
        assert cases.golden("update") == 0
        assert capfdbinary.readouterr().out.decode() == (
            "left     a\nwrote    b: expected.xml\nremoved  b: expected.error\n"
            "2 cases: 1 updated, 0 still not as expected\n"
        )

    @pytest.mark.parametrize("ci", ["true", "1"])
    def test_update_refuses_in_ci(self, cases: Cases, capfdbinary: pytest.CaptureFixture[bytes], ci: str) -> None:
        directory = cases()
        assert cases.golden("update", env={"CI": ci}) == 2
        out, err = capfdbinary.readouterr()
        assert out == b""
        assert b"help: Update on your own machine" in err
        assert not (directory / "expected.xml").exists()

    def test_update_runs_where_ci_is_off(self, cases: Cases) -> None:
        cases()
        assert cases.golden("update", env={"CI": "false"}) == 0

    def test_list_has_a_line_a_case(self, cases: Cases, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        cases("a")
        cases("b", case="env: {}\n")
        assert cases.golden("list") == 0
        first, second = capfdbinary.readouterr().out.decode().splitlines()
        assert first == "a\tA function goes to the guest as the environment has it."
        assert second.startswith("b\t(")

    def test_a_case_that_there_is_not_is_reported_with_the_nearest(
        self, cases: Cases, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        cases("two-gpus")
        assert cases.golden("check", "--case", "two-gpu") == 78
        assert b"holds no case 'two-gpu'; the nearest is two-gpus" in capfdbinary.readouterr().err

    def test_an_action_that_there_is_not_is_a_usage_error(self, cases: Cases) -> None:
        with pytest.raises(SystemExit, match="2"):
            cases.golden("chekc")


class TestReports:
    def test_json_has_each_case_with_its_differences(self, cases: Cases, capfdbinary: Captured) -> None:
        cases("good", expected_xml=EXPECTED)
        cases("other", expected_xml=DOMAIN)
        assert cases.golden("check", "--json") == 1
        report = json.loads(capfdbinary.readouterr().out)
        good, other = report["cases"]
        assert (good["name"], good["ok"], good["differences"]) == ("good", True, [])
        assert (other["name"], other["ok"], report["failed"]) == ("other", False, 1)
        assert other["differences"][0]["what"] == "it gives another document"
        assert "+    <hostdev " in other["differences"][0]["diff"]

    def test_junit_has_a_test_for_each_case_and_a_failure_for_each_difference(
        self, cases: Cases, tmp_path: Path
    ) -> None:
        cases("good", expected_xml=EXPECTED)
        cases("other", expected_xml=DOMAIN)
        path = tmp_path / "report.xml"
        path.write_text("of the last run")
        assert cases.golden("check", "--junit", str(path)) == 1
        suite = etree.parse(path).getroot()[0]
        assert dict(suite.attrib) == {
            "name": "launcherkit golden",
            "tests": "2",
            "failures": "1",
            "errors": "0",
            "skipped": "0",
        }
        good, other = suite
        assert (good.get("name"), len(good)) == ("good", 0)
        assert other[0].get("message") == "it gives another document"
        assert "+    <hostdev " in str(other[0].text)

    def test_junit_can_say_what_xml_has_no_way_to_say(self) -> None:
        result = CaseResult('a"<b', "", (Difference("\x1b[31m & <", "\x00]]>\udc80"),))
        case = etree.fromstring(junit_report([result]))[0][0]
        assert case.get("name") == 'a"<b'
        assert case[0].get("message") == "\ufffd[31m & <"

    def test_a_report_that_can_not_be_written_is_an_error(self, cases: Cases, capfdbinary: Captured) -> None:
        cases(expected_xml=EXPECTED)
        assert cases.golden("check", "--junit", "/proc/report.xml") == UNWRITABLE_FILE.exit_code
        assert capfdbinary.readouterr().out == b""


class TestPytestPlugin:
    @pytest.fixture
    def collected(self, cases: Cases) -> Callable[..., tuple[int, str]]:
        def call(*arguments: str) -> tuple[int, str]:
            plugin = ["-p", "launcherkit.golden.pytest_cases", "-p", "no:cacheprovider", "-o", "addopts="]
            env = {"PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            done = run_pytest(["-q", *plugin, *arguments], cwd=cases.root.parent, env=env)
            return done.returncode, done.stdout + done.stderr

        return call

    def test_every_case_is_a_test_beside_ones_own(
        self, cases: Cases, collected: Callable[..., tuple[int, str]]
    ) -> None:
        cases("good", expected_xml=EXPECTED)
        cases("other", expected_xml=DOMAIN)
        (cases.root.parent / "test_own.py").write_text("def test_own():\n    pass\n")
        code, text = collected("test_own.py", "--launcherkit-golden", str(cases.root))
        assert (code, "1 failed, 2 passed" in text) == (1, True), text
        assert "other: it gives another document" in text

    def test_without_the_option_nothing_is_collected(
        self, cases: Cases, collected: Callable[..., tuple[int, str]]
    ) -> None:
        cases("good", expected_xml=EXPECTED)
        code, text = collected(str(cases.root))
        assert (code, "no tests ran" in text) == (5, True), text

    def test_a_directory_without_cases_is_an_error(
        self, cases: Cases, collected: Callable[..., tuple[int, str]]
    ) -> None:
        cases.root.mkdir()
        code, text = collected("--launcherkit-golden", str(cases.root))
        assert (code, "holds no case" in text) == (2, True), text


class TestFindCases:
    def test_what_begins_with_a_dot_or_an_underscore_is_no_case(self, cases: Cases) -> None:
        cases("b")
        cases("a")
        for other in (".git", "_hosts", "__pycache__"):
            (cases.root / other).mkdir()
        (cases.root / "README.md").touch()
        assert find_cases(str(cases.root)) == ("a", "b")

    @pytest.mark.parametrize(
        ("make", "reported"),
        [
            pytest.param(lambda root: root.mkdir(), "holds no case", id="an empty one"),
            pytest.param(lambda root: None, "No such file or directory", id="none"),
            pytest.param(
                lambda root: Cases(root.parent)(root.name), "is a case, not a directory of cases", id="a case"
            ),
        ],
    )
    def test_a_directory_of_no_cases_is_an_error(
        self, tmp_path: Path, make: Callable[[Path], object], reported: str
    ) -> None:
        root = tmp_path / "golden"
        make(root)
        with pytest.raises(LauncherkitError, match=reported):
            find_cases(str(root))
