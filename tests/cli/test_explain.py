"""``launcherkit explain`` says what a translation does and why, or what is known where it can't be done."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from launcherkit.cli import main
from launcherkit.cli.pages import all_codes, all_topics, page_of, read_page
from launcherkit.errors import LauncherkitError
from tests.support.called import call
from tests.support.forked import LAUNCHERKIT
from tests.support.hosttree import HostTree
from tests.support.terminal import run_on_terminal

ROOT = Path(__file__).parents[2]

GPU = "nvidia.com/GA102_GEFORCE_RTX_3090"
VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090"
DOMAIN = """<domain type='kvm'>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
    <controller type='pci' index='0' model='pcie-root'/>
  </devices>
</domain>
"""

Result = subprocess.CompletedProcess[bytes]


def command(*arguments: str) -> list[str]:
    return [LAUNCHERKIT, *arguments]


def run(*arguments: str, env: Mapping[str, str] = {}) -> Result:
    return call(main.run, arguments, env)


class Case:
    """Inputs in files below a directory."""

    def __init__(self, directory: Path) -> None:
        self.tree = HostTree(directory / "host")
        self._vmi = directory / "vmi.json"
        self.domain = directory / "vm.xml"
        self.domain.write_text(DOMAIN)

    def asks_for(self, *gpus: str, host_devices: tuple[str, ...] = ()) -> None:
        devices = {
            "gpus": [{"name": f"gpu{number}", "deviceName": name} for number, name in enumerate(gpus, 1)],
            "hostDevices": [
                {"name": f"dev{number}", "deviceName": name} for number, name in enumerate(host_devices, 1)
            ],
        }
        self._vmi.write_text(json.dumps({"spec": {"domain": {"devices": devices}}}))

    def networks(self, *names: str) -> None:
        devices = {"interfaces": [{"name": name, "sriov": {}} for name in names]}
        self._vmi.write_text(json.dumps({"spec": {"domain": {"devices": devices}}}))

    def claims(self, *functions: str) -> str:
        """A GPU by a claim whose metadata names a card's functions; gives their file."""
        gpu = {"name": "gpu1", "claimName": "card", "requestName": "gpu"}
        claims = [{"name": "card", "resourceClaimName": "render-card"}]
        self._vmi.write_text(json.dumps({"spec": {"domain": {"devices": {"gpus": [gpu]}}, "resourceClaims": claims}}))
        file = self._vmi.parent / "dra" / "resourceclaims" / "render-card" / "gpu" / "x-metadata.json"
        if functions:
            first, *rest = functions
            attributes = {"resource.kubernetes.io/pciBusID": {"string": first}, "siblings": {"string": ",".join(rest)}}
            device = {"driver": "x", "pool": "n", "name": "a", "attributes": attributes}
            version = "metadata.resource.k8s.io/v1beta1"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps({"apiVersion": version, "requests": [{"name": "gpu", "devices": [device]}]}))
        return str(file)

    @property
    def arguments(self) -> tuple[str, ...]:
        inputs = ("explain", "--domain", str(self.domain), "--host", str(self.tree.root))
        return (*inputs, "--vmi", str(self._vmi)) if self._vmi.exists() else inputs

    def explain(self, *more: str, **variables: str) -> Result:
        return run(*self.arguments, *more, env=variables)

    def words(self, *more: str, **variables: str) -> str:
        result = self.explain(*more, **variables)
        assert result.returncode == 0, result.stderr.decode()
        assert result.stderr == b""
        return result.stdout.decode()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """A VM that asks for one GPU, on a host with one card of two functions."""
    case = Case(tmp_path)
    case.tree.card("0000:e1:00", group=44)
    case.asks_for(GPU)
    return case


def line_with(text: str, *parts: str) -> str:
    found = [line for line in text.splitlines() if all(part in line for part in parts)]
    assert found, f"no line with {parts} in:\n{text}"
    return found[0]


def test_it_tells_which_variable_answers_a_request_and_what_it_holds(case: Case) -> None:
    words = case.words(**{VARIABLE: "0000:e1:00.0,0000:e1:00.1"})
    assert "gpus 'gpu1' asks for nvidia.com/GA102_GEFORCE_RTX_3090" in words
    assert f"answered by {VARIABLE}, which holds\n    0000:e1:00.0, 0000:e1:00.1\n" in words


def test_it_tells_which_metadata_answers_a_request_by_claim_and_what_it_holds(case: Case, tmp_path: Path) -> None:
    """E5."""
    file = case.claims("0000:e1:00.0", "0000:e1:00.1")
    words = case.words("--dra-dir", str(tmp_path / "dra"))
    assert "gpus 'gpu1' asks for what a DRA claim holds" in words
    assert f"answered by {file}, which holds\n    0000:e1:00.0, 0000:e1:00.1\n" in words


def test_it_tells_the_primary_the_sibling_and_where_they_go(case: Case) -> None:
    words = case.words(**{VARIABLE: "0000:e1:00.0"})
    assert "[10de:2204]" in line_with(words, "0000:e1:00.0", "primary")
    assert "[10de:1aef]" in line_with(words, "0000:e1:00.1", "sibling")
    assert "attached: in the same IOMMU group 44" in words
    assert "guest 0000:03:00.0, multifunction, alias ua-gpu-gpu1, added" in words
    assert "guest 0000:03:00.1, alias ua-gpu-gpu1-fn1, added" in words
    assert "pcie-root-port of index 3" in words


def test_it_tells_groups_with_their_members_and_drivers(case: Case) -> None:
    case.tree.function("0000:e0:01.0", class_code=0x060400, header_type=1, driver="pcieport", group=44)
    words = case.words(**{VARIABLE: "0000:e1:00.0"})
    assert "IOMMU group 44" in words
    assert "goes to the guest" in line_with(words, "0000:e1:00.0", "vfio-pci")
    assert "stays, a bridge" in line_with(words, "0000:e0:01.0", "pcieport")
    assert "/dev/vfio/vfio, /dev/vfio/44" in line_with(words, "QEMU opens")


def test_it_tells_why_a_sibling_stays(case: Case) -> None:
    case.tree.function("0000:e1:00.2", device=0x1AD6, class_code=0x0C0330, driver="xhci_hcd", group=45)
    words = case.words(**{VARIABLE: "0000:e1:00.0"})
    assert re.search(r"USB controller: NVIDIA .* \[10de:1ad6\]", line_with(words, "0000:e1:00.2", "stays"))
    reason = "it is in IOMMU group 45, bound to xhci_hcd, not to a VFIO driver"
    assert words.count(reason) == 1, "told once, not again as a note"


def test_it_tells_what_was_allocated_beyond_the_requests(case: Case) -> None:
    case.tree.card("0000:01:00", group=12)
    words = case.words(**{VARIABLE: "0000:e1:00.0,0000:01:00.0,0000:01:00.1"})
    left = words.partition("left alone")[2]
    assert re.search(r"0000:01:00\.0  VGA compatible controller: NVIDIA .* \[10de:2204\]", left)
    assert re.search(r"0000:01:00\.1  Audio device: NVIDIA .* \[10de:1aef\]", left)
    assert "0000:e1" not in left


def test_a_function_that_is_asked_for_by_name_and_rides_along_is_reported_as_both(case: Case) -> None:
    case.asks_for(GPU, host_devices=("nvidia.com/AUDIO",))
    words = case.words(**{VARIABLE: "0000:e1:00.0", "PCI_RESOURCE_NVIDIA_COM_AUDIO": "0000:e1:00.1"})
    assert "attached: hostDevices 'dev1' asks for nvidia.com/AUDIO" in words
    assert "1 device, 2 hostdevs" in words


def test_hostdevs_that_the_domain_has_already_are_reported_as_such(case: Case) -> None:
    hostdev = (
        "<hostdev mode='subsystem' type='pci' managed='no'><source>"
        "<address domain='0x0000' bus='0xe1' slot='0x00' function='0x0'/></source></hostdev>"
    )
    case.domain.write_text(DOMAIN.replace("</devices>", f"{hostdev}</devices>"))
    words = case.words()
    assert "a hostdev of the domain" in words
    assert "in the domain already" in words
    assert "(1 added, 1 there already)" in words


def test_a_mediated_device_has_its_type_its_display_and_its_group(case: Case) -> None:
    uuid = "b6f2f8b0-3c77-4d51-9f0a-0a6a1a3b5c01"
    case.domain.write_text(DOMAIN.replace("</devices>", "<graphics type='vnc'/></devices>"))
    case.tree.function("0000:af:00.0", device=0x1EB8, class_code=0x030200, driver="nvidia", group=70)
    case.tree.mdev_type("0000:af:00.0", "nvidia-222", name="GRID T4-1Q", device_api="vfio-pci")
    case.tree.mdev("0000:af:00.0", "nvidia-222", uuid, group=120)
    case.asks_for("nvidia.com/GRID_T4-1Q")
    words = case.words(**{"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": uuid})
    assert "mediated device GRID T4-1Q (nvidia-222) on 0000:af:00.0" in words
    assert "model vfio-pci, display on, ramfb on" in words
    assert "goes to the guest" in line_with(words.partition("IOMMU group 120")[2], uuid)


def test_a_usb_device_is_reported_with_its_node(case: Case) -> None:
    case.asks_for(host_devices=("kubevirt.io/storage",))
    words = case.words(USB_RESOURCE_KUBEVIRT_IO_STORAGE="1:4")
    assert "USB device" in line_with(words, "1:4", "primary")
    assert "QEMU opens /dev/bus/usb/001/004" in words


def test_a_node_that_is_missing_is_told_where_that_is_no_error(case: Case) -> None:
    (case.tree.root / "dev/vfio/44").unlink()
    words = case.words("--no-node-check", **{VARIABLE: "0000:e1:00.0"})
    assert "not here: /dev/vfio/44" in line_with(words, "QEMU opens")


def test_a_vmi_that_asks_for_nothing_is_reported_so(case: Case) -> None:
    case.asks_for()
    assert case.words() == f"The VMI asks for no device; {case.domain} stays as it is.\n"


def test_with_no_host_facts_the_guess_is_reported(case: Case) -> None:
    words = case.words("--host", "none", **{VARIABLE: "0000:e1:00.0,0000:e1:00.1"})
    assert "nothing is known of the host" in words
    assert "note: " in words
    assert "without host facts the lowest function of a slot is assumed to be the primary" in words


def test_with_no_vmi_every_device_of_the_environment_is_reported(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.tree.card("0000:e1:00", group=44)
    assert "from the environment alone" in case.words(**{VARIABLE: "0000:e1:00.0"})


def test_json_is_the_plan(case: Case) -> None:
    plan = json.loads(case.words("--json", **{VARIABLE: "0000:e1:00.0"}))
    assert plan["format"] == "launcherkit.io/plan/v1"
    assert [function["host"] for function in plan["devices"][0]["functions"]] == ["0000:e1:00.0", "0000:e1:00.1"]


# Where it can't be done


def test_a_failure_tells_its_errors_as_ever_and_what_is_known_besides(case: Case) -> None:
    case.tree.function("0000:e1:00.2", device=0x1AD6, class_code=0x0C0330, driver="xhci_hcd", group=44)
    result = case.explain(**{VARIABLE: "0000:e1:00.0"})
    assert result.returncode == 65
    assert result.stderr.startswith(b"error[LK204]: IOMMU group 44 is not viable: 0000:e1:00.2")
    words = result.stdout.decode()
    assert "this fails" in words
    assert f"from {VARIABLE}" in line_with(words, "gpus 'gpu1'", GPU)
    assert "vfio-pci, group 44" in line_with(words, "0000:e1:00.0", "VGA compatible controller")
    assert "used by the host" in line_with(words, "0000:e1:00.2", "xhci_hcd")
    assert "/dev/vfio/44, /dev/vfio/vfio" in words


def test_a_misspelt_resource_shows_what_was_allocated(case: Case) -> None:
    case.asks_for("nvidia.com/GA102_GEFORCE_RTX_3080")
    result = case.explain(**{VARIABLE: "0000:e1:00.0,gpu0"})
    assert result.returncode == 65
    assert b"error[LK201]" in result.stderr
    words = result.stdout.decode()
    assert "no variable answers it" in line_with(words, "gpus 'gpu1'")
    assert "group 44" in line_with(words.partition(VARIABLE)[2], "0000:e1:00.0")


def test_what_claims_got_is_reported_in_a_failure_too(case: Case, tmp_path: Path) -> None:
    """E5."""
    file = case.claims("0000:e1:00.0", "0000:e1:00.1")
    case.tree.function("0000:e1:00.2", device=0x1AD6, class_code=0x0C0330, driver="xhci_hcd", group=44)
    result = case.explain("--dra-dir", str(tmp_path / "dra"))
    assert b"error[LK204]" in result.stderr
    words = result.stdout.decode()
    assert f"from {file}" in line_with(words, "gpus 'gpu1'", "DRA claim render-card/gpu")
    held = words.partition("variables, and metadata of claims\n")[2]
    assert "vfio-pci, group 44" in line_with(held, "0000:e1:00.1")


def test_the_variable_of_an_sriov_network_is_shown_whether_it_answers_or_not(case: Case) -> None:
    """Q5."""
    case.networks("net1", "net2")
    held = {"PCIDEVICE_EXAMPLE_COM_NIC": "0000:e1:00.0"}
    result = case.explain(**held, KUBEVIRT_RESOURCE_NAME_net2="example.com/other")
    assert b"error[LK201]" in result.stderr
    words = result.stdout.decode()
    assert "from PCIDEVICE_EXAMPLE_COM_NIC" in line_with(words, "interfaces 'net1'", "SR-IOV")
    assert "no variable answers it" in line_with(words, "interfaces 'net2'", "SR-IOV")
    case.networks("net1")
    words = case.words(**held)
    assert "interfaces 'net1' asks for the device of an SR-IOV network" in words
    assert "answered by PCIDEVICE_EXAMPLE_COM_NIC, which holds\n    0000:e1:00.0\n" in words


def test_a_claim_without_metadata_is_reported_with_where_to_give_it(case: Case) -> None:
    """E4, E5."""
    case.claims()
    result = case.explain("--dra-dir", "absent")
    assert "no metadata answers it" in line_with(result.stdout.decode(), "DRA claim render-card/gpu")
    assert b"no *_RESOURCE_* variable is set, no claim has metadata, and the domain has 0 hostdevs" in result.stderr
    assert b"give it the variables and the metadata of the claims of that container" in result.stderr


def test_a_device_that_is_gone_is_reported_as_gone(case: Case) -> None:
    result = case.explain(**{VARIABLE: "0000:e2:00.0"})
    assert b"error[LK203]" in result.stderr
    assert "not on this host" in line_with(result.stdout.decode(), "0000:e2:00.0")


def test_hostdevs_of_the_domain_are_reported_in_a_failure_too(case: Case) -> None:
    (case.tree.path("0000:e1:00.1") / "config").write_bytes(b"\xff" * 64)
    address = "<address domain='0x0000' bus='0xe1' slot='0x00' function='0x0'/>"
    hostdev = f"<hostdev type='pci'><source>{address}</source></hostdev>"
    case.domain.write_text(DOMAIN.replace("</devices>", f"{hostdev}</devices>"))
    result = case.explain()
    assert b"error[LK208]" in result.stderr
    words = result.stdout.decode()
    assert "no *_RESOURCE_* variable is set here" in words
    assert "group 44" in line_with(words.partition("hostdevs of the domain")[2], "0000:e1:00.0")


def test_a_document_that_is_no_xml_still_gets_the_devices_told(case: Case) -> None:
    case.domain.write_text("<domain")
    result = case.explain(**{VARIABLE: "0000:e1:00.0"})
    assert b"error[LK121]" in result.stderr
    assert "group 44" in line_with(result.stdout.decode(), "0000:e1:00.0")


def test_a_host_that_is_not_there_still_gets_the_requests_told(case: Case) -> None:
    result = case.explain("--host", str(case.domain.parent), **{VARIABLE: "0000:e1:00.0"})
    assert b"error[LK501]" in result.stderr
    assert "nothing is known of the host" in line_with(result.stdout.decode(), "0000:e1:00.0")


def test_inputs_that_can_not_be_read_leave_standard_output_empty(case: Case) -> None:
    result = case.explain("--vmi", "absent.json")
    assert result.returncode == 65
    assert result.stdout == b""
    assert b"error[LK131]: absent.json" in result.stderr


def test_json_of_a_failure_is_nothing_at_all(case: Case) -> None:
    result = case.explain("--json")
    assert result.returncode == 65
    assert result.stdout == b""


def test_with_nothing_to_explain_the_usage_is_reported() -> None:
    result = run("explain")
    assert result.returncode == 2
    assert result.stdout == b""
    assert b"nothing to explain" in result.stderr
    assert b"--domain" in result.stderr


# Colours


def test_a_resource_of_the_vmi_can_not_steer_the_terminal(case: Case) -> None:
    case.asks_for("nvidia.com/\x1b[2J\n")
    words = case.explain(**{VARIABLE: "0000:e1:00.0"}).stdout
    assert b"\x1b" not in words
    assert rb"nvidia.com/\x1b[2J\n" in words


def test_a_terminal_gets_the_same_words_in_colour(case: Case) -> None:
    env = {"TERM": "xterm", VARIABLE: "0000:e1:00.0"}
    plain, coloured = case.words(**env), run_on_terminal(command(*case.arguments), env).decode()
    assert "\x1b[1m" in coloured
    assert "\x1b" not in plain
    for code in ("0", "1", "2", "31", "32", "33"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert coloured == plain


def test_on_a_terminal_the_headings_of_a_page_are_bold_and_no_other_line() -> None:
    shown = run_on_terminal(command("explain", "LK204"), {"TERM": "xterm"}).decode().splitlines()
    assert shown[0].startswith("\x1b[1m# ")
    assert [line for line in shown if "\x1b" in line] == [line for line in shown if line.startswith("\x1b[1m#")]


@pytest.mark.parametrize("refusal", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}, {}])
def test_a_terminal_that_wants_no_colour_gets_none(case: Case, refusal: dict[str, str]) -> None:
    assert b"\x1b" not in run_on_terminal(command(*case.arguments), {VARIABLE: "0000:e1:00.0", **refusal})


# Pages of errors


@pytest.mark.parametrize("code", ["LK204", "lk204", " Lk204", "204"])
def test_a_code_prints_its_page(code: str) -> None:
    result = run("explain", code)
    assert result.returncode == 0
    assert result.stdout.decode() == read_page("LK204")


def test_every_code_has_a_page_to_print() -> None:
    for code in LauncherkitError.codes():
        assert Path(page_of(code)).read_text().startswith(f"# {code}: ")


def test_codes_of_the_device_plugin_have_pages_too() -> None:
    assert run("explain", "LK714").stdout.startswith(b"# LK714: ")
    assert set(LauncherkitError.codes()) <= set(all_codes())


@pytest.mark.parametrize("topic", ["policy", "Plugin-Configuration"])
def test_a_topic_prints_its_page_of_the_reference(topic: str) -> None:
    result = run("explain", topic)
    assert (result.returncode, result.stderr) == (0, b"")
    page = (ROOT / f"docs/reference/{topic.lower()}.md").read_text()
    shown = result.stdout.decode()
    assert shown.splitlines()[0] == page.splitlines()[0]
    comments = page.count("\n<!-- ")
    assert comments
    assert "<!--" not in shown
    assert shown.count("\n") == page.count("\n") - comments


def test_the_links_of_a_page_are_commands_and_addresses_because_a_package_has_no_other_files() -> None:
    for name in (*all_codes(), *all_topics()):
        prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", read_page(name), flags=re.DOTALL | re.MULTILINE)
        assert re.findall(r"\]\((?!https://)|\.\./", prose) == [], name
    shown = read_page("LK851")
    assert "Related: LK742, LK743." in shown
    assert re.search(r"manifests \(https://.*/docs/how-to/device-plugin\.md#components\)", shown)
    assert "template (`launcherkit explain templates`)" in read_page("cli")


def test_a_misspelt_topic_gets_the_nearest() -> None:
    result = run("explain", "polcy")
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"policy" in result.stderr


def test_the_list_has_every_code_and_topic_with_its_title() -> None:
    result = run("explain", "--list")
    assert (result.returncode, result.stderr) == (0, b"")
    rows = dict(line.split("\t") for line in result.stdout.decode().splitlines())
    assert list(rows) == [*all_codes(), *all_topics()]
    assert rows["policy"] == "Policy"
    assert rows["LK204"] == "the IOMMU group is not viable"


@pytest.mark.parametrize(
    ("code", "near"), [("218", b"LK2"), ("LK219", b"LK2"), ("LK24", b"LK204"), ("nonsense", b"LK101")]
)
def test_an_unknown_code_gets_the_nearest(code: str, near: bytes) -> None:
    result = run("explain", code)
    assert result.returncode == 2
    assert result.stdout == b""
    assert near in result.stderr
    assert b"launcherkit explain --list" in result.stderr


def explained(case: str) -> str:
    """What is said of a golden case."""
    folder = ROOT / "tests/golden" / case
    written = yaml.safe_load((folder / "case.yaml").read_text())
    policy = [word for key, value in (written.get("policy") or {}).items() for word in (f"--{key}", value)]
    done = run(
        "explain", "--domain", f"{folder}/domain.xml", "--host", f"{folder}/host.json", *policy, env=written["env"]
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_it_shows_where_each_function_is_on_the_host_and_in_the_guest() -> None:
    host, _, guest = explained("topology-switches").partition("PCI tree\n")[2].partition("\nguest  ")
    names = [line.lstrip(" │├└┌─").partition("  ")[0] for line in (*host.splitlines(), *guest.splitlines())]
    for way in (
        ["NUMA node 0", "pci0000:15", "0000:17:02.0 switch port", "slot 0000:1a:00", "0000:1a:00.1"],
        ["expander 4, bus fa, NUMA cell 0", "root port 5", "switch 6", "switch port 8", "0000:08:00.1"],
    ):
        assert [each for each in names if each in way] == way


def test_it_shows_the_bars_and_what_is_written_for_the_window() -> None:
    words = explained("window-h100")
    assert "BARs of 16 MiB + 128 GiB + 32 MiB\n" in words
    assert "64-bit window: the BARs need 128.0 GiB" in words
    assert "written for it: <pcihole64> of 256 GiB and <maxphysaddr mode='passthrough'>\n" in words


def test_from_sysfs_it_knows_where_a_function_is_though_the_guest_has_no_cells(case: Case) -> None:
    words = case.words(**{VARIABLE: "0000:e1:00.0"})
    assert "NUMA node 0\n└─ pci0000:00\n" in words
    assert words.count("BARs of 16 MiB") == 2


def test_a_function_that_is_reserved_is_not_shown_to_the_guest(case: Case) -> None:
    words = case.words("--siblings", "reserve", **{VARIABLE: "0000:e1:00.0"})
    assert "attached: in the same IOMMU group 44\n" in words
    assert "not shown  ← 0000:e1:00.1" in words


def test_what_libvirt_places_is_said_to_be_libvirts(case: Case) -> None:
    case.domain.write_text(DOMAIN.replace("machine='q35'", "machine='s390-ccw-virtio'").replace("x86_64", "s390x"))
    assert "address left to libvirt  ← 0000:e1:00.0" in case.words("--siblings", "none", **{VARIABLE: "0000:e1:00.0"})
