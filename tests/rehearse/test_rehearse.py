"""``launcherkit rehearse``: on which nodes a VM would start, and what it would find there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from launcherkit.cli import main
from launcherkit.errors import on_one_line
from launcherkit.host.snapshot import dump
from launcherkit.host.source import Host
from launcherkit.model.plan import Note
from launcherkit.rehearse.rehearsal import StandIn, stand_in
from tests.plugin.resources import rebind
from tests.support.called import call_text
from tests.support.forked import LAUNCHERKIT
from tests.support.hosttree import HostTree
from tests.support.provoked import provoked
from tests.support.terminal import run_on_terminal

ROOT = Path(__file__).parents[2]
HOSTS = ROOT / "tests" / "data" / "hosts"
GPU = "nvidia.com/GPU"
CONFIG = f"resources:\n- {{name: {GPU}, select: [{{vendors: [10de], classes: ['03']}}]}}\n"

Result = subprocess.CompletedProcess[str]


class Desk:
    """A folder with a VM, snapshots and a configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes = folder / "nodes"
        self.nodes.mkdir()
        (folder / "plugin.yaml").write_text(CONFIG)

    def vm(self, *resources: str, **spec: Any) -> None:
        gpus = [{"name": f"gpu{number}", "deviceName": resource} for number, resource in enumerate(resources)]
        vmi = {"spec": {"domain": {"devices": {"gpus": gpus}, **spec}}}
        vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "train"}}
        (self.folder / "vm.yaml").write_text(json.dumps({**vm, "spec": {"template": vmi}}))

    def node(self, name: str, *cards: tuple[str, int], driver: str | None = "vfio-pci", **more: Any) -> HostTree:
        """A snapshot of a host with cards, each with its slot and group."""
        tree = HostTree(self.folder / name)
        for slot, group in cards:
            tree.card(slot, group=group, driver=driver, **more)
        self.record(name, tree)
        return tree

    def record(self, name: str, tree: HostTree) -> None:
        (self.nodes / f"{name}.json").write_text(dump(Host.from_sysfs(tree.root).scan()))

    def run(self, *arguments: str, config: bool = True) -> Result:
        _, *words = self.command(*arguments, config=config)
        with chdir(self.folder):
            return call_text(main.run, words, {"COLUMNS": "80"})

    def command(self, *arguments: str, config: bool = True) -> list[str]:
        flags = ("--config", "plugin.yaml") if config else ()
        return [LAUNCHERKIT, "rehearse", "vm.yaml", "--nodes", "nodes", *flags, *arguments]

    def outcomes(self, *arguments: str, config: bool = True) -> dict[str, dict[str, Any]]:
        """By node."""
        result = self.run("--json", *arguments, config=config)
        assert result.stderr == ""
        reported = json.loads(result.stdout)
        assert result.returncode == (0 if reported["starts"] else 1)
        return {node["name"]: node for node in reported["nodes"]}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def codes(outcome: dict[str, Any]) -> list[str]:
    return [error["code"] for error in outcome["errors"]]


def test_a_vm_starts_where_its_devices_are_and_the_exit_code_says_so(desk: Desk) -> None:
    desk.vm(GPU, GPU)
    desk.node("two", ("0000:01:00", 1), ("0000:02:00", 2))
    desk.node("one", ("0000:01:00", 1))
    result = desk.run()
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("train starts on 1 of 2 nodes\n\none  no\n  LK861  one has 1 of the 2 ")
    found = desk.outcomes()
    assert [found["two"]["starts"], found["one"]["starts"]] == [True, False]
    (desk.nodes / "two.json").unlink()
    assert desk.run().returncode == 1


def test_what_it_would_get_comes_with_its_siblings_and_shows_in_the_domain(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("node", ("0000:01:00", 1))
    outcome = desk.outcomes()["node"]
    assert outcome["allocation"] == [
        {
            "resource": GPU,
            "device": "0000:01:00.0",
            "functions": ["0000:01:00.0", "0000:01:00.1"],
            "groups": [1],
            "numaNode": 0,
            "choice": "all",
        }
    ]
    assert outcome["environment"] == {"PCI_RESOURCE_NVIDIA_COM_GPU": "0000:01:00.0"}
    assert [(each["class"], each["id"]) for each in outcome["guest"]] == [("0300", "10de:2204"), ("0403", "10de:1aef")]
    assert outcome["domain"].count("<hostdev") == 2
    assert desk.run("--node", "node", "--xml").stdout == outcome["domain"]


def test_where_it_would_not_start_there_is_no_domain_and_the_exit_code_is_that_of_every_rehearsal(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("node", ("0000:01:00", 1), driver="nvidia")
    result = desk.run("--node", "node", "--xml")
    assert (result.returncode, result.stdout) == (1, "")
    assert "error[LK861]: " in result.stderr
    assert "help: `launcherkit explain LK861` says more.\n" in result.stderr


def test_the_namespace_is_a_clusters(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("node", ("0000:01:00", 1))
    result = desk.run("--namespace", "gpus")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--cluster" in result.stderr


def test_an_error_says_where_there_is_more_and_on_one_node_what_to_do(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("one", ("0000:01:00", 1), driver="nvidia")
    desk.node("two")
    of_all, of_one = desk.run().stdout, desk.run("--node", "one").stdout
    assert of_all.count("`launcherkit explain LK861` says more.\n") == 1
    assert "\n--node NAME says what to do.\n" in of_all
    remedies = [f"  help   {on_one_line(each['help'])}" for each in desk.outcomes()["one"]["errors"]]
    assert [line for line in of_one.splitlines() if line.startswith("  help ")] == remedies
    assert of_one.endswith("`launcherkit explain LK204` says more.\n")
    assert "--node" not in of_one.splitlines()[-3:]


def test_where_more_are_free_the_plugins_preference_decides_and_that_is_said(desk: Desk) -> None:
    """Two cards in one group and one alone: a VM with one gets the one that leaves the group whole (K3)."""
    desk.vm(GPU)
    desk.node("node", ("0000:01:00", 1), ("0000:02:00", 1), ("0000:03:00", 3))
    (device,) = desk.outcomes()["node"]["allocation"]
    assert (device["device"], device["choice"]) == ("0000:03:00.0", "preferred")
    assert "preferred among those that are free" in desk.run().stdout


def test_what_keeps_a_card_from_the_vm_is_told_by_its_code(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("unbound", ("0000:01:00", 1), driver="nvidia")
    tree = desk.node("audio", ("0000:01:00", 1))
    rebind(tree, "0000:01:00.1", "snd_hda_intel")
    desk.record("audio", tree)
    found = desk.outcomes()
    assert codes(found["unbound"]) == ["LK861", "LK204", "LK204"]
    assert codes(found["audio"])[0] == "LK861"


def test_a_card_without_a_driver_lacks_its_node(desk: Desk) -> None:
    """As the translation says of it where it is allocated all the same (V2)."""
    desk.vm(GPU)
    desk.node("unbound", ("0000:01:00", 7), driver=None)
    first, *others = desk.outcomes()["unbound"]["errors"]
    assert first["code"] == "LK861"
    assert [(error["code"], error["file"]) for error in others] == [("LK205", "/dev/vfio/7")]
    assert "launcherkit-plugin bind 0000:01:00.0" in others[0]["help"]


def test_the_cpus_of_the_nodes_numa_nodes_decide_where_the_guest_finds_it(desk: Desk) -> None:
    """As in the pod, though the device plugin itself doesn't go by them (P4)."""
    golden = ROOT / "tests" / "golden" / "topology-by-pins"
    plan = json.loads((golden / "expected.plan.json").read_text())
    cards = [device["functions"][0]["host"] for device in plan["devices"]]
    desk.vm(*[GPU] * len(cards))
    (desk.folder / "plugin.yaml").write_text(
        json.dumps({"resources": [{"name": GPU, "select": [{"addresses": cards}]}]})
    )
    (desk.nodes / "node.json").write_bytes((golden / "host.json").read_bytes())
    outcome = desk.outcomes("--domain", str(golden / "domain.xml"))["node"]

    def places(plan: dict[str, Any]) -> dict[str, str]:
        return {each["host"]: each["guest"] for device in plan["devices"] for each in device["functions"]}

    assert places(outcome["plan"]) == places(plan)
    assert outcome["domain"].count("pcie-expander-bus") == 2


def test_what_is_bound_to_no_vfio_driver_is_reported_with_the_names_that_the_plugin_gives_by_itself(desk: Desk) -> None:
    """It isn't advertised at all then."""
    desk.vm("nvidia.com/fffe")
    tree = HostTree(desk.folder / "unbound")
    tree.function("0000:01:00.0", device=0xFFFE, group=1, driver="nvidia")  # of a model that nobody's pci.ids has
    desk.record("unbound", tree)
    (first, *others) = desk.outcomes("--auto", "gpu", config=False)["unbound"]["errors"]
    assert "it advertises nothing" in first["message"]
    assert {error["code"] for error in others} == {"LK204"}


def test_what_is_bound_on_demand_is_rehearsed_as_if_it_were_bound(desk: Desk) -> None:
    desk.vm(GPU)
    (desk.folder / "plugin.yaml").write_text(CONFIG.replace("}]}", "}], bind: on-demand}"))
    desk.node("node", ("0000:01:00", 7), driver="nvidia")
    outcome = desk.outcomes()["node"]
    assert outcome["errors"] == []
    assert outcome["plan"]["nodes"] == ["/dev/vfio/vfio", "/dev/vfio/7"]


def test_a_vm_that_asks_for_nothing_starts_anywhere(desk: Desk) -> None:
    desk.vm()
    desk.node("node")
    assert desk.outcomes()["node"]["starts"]


def test_sriov_interfaces_are_left_out_with_a_note(desk: Desk) -> None:
    """Q5: their devices are another device plugin's."""
    desk.vm(devices={"gpus": [], "interfaces": [{"name": "fast", "sriov": {}}]})
    desk.node("node")
    result = desk.run()
    assert result.returncode == 0
    assert "SR-IOV interfaces fast" in " ".join(result.stderr.split())


def test_the_domain_may_be_given(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("node", ("0000:01:00", 1))
    (desk.folder / "vm.xml").write_text("<domain type='kvm'><name>own</name><devices/></domain>")
    assert "<name>own</name>" in desk.outcomes("--domain", "vm.xml")["node"]["domain"]


def test_a_domain_that_is_too_large_is_refused_for_that(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("node", ("0000:01:00", 1))
    head, tail = "<domain type='kvm'><name>own</name>", "<devices/></domain>"
    (desk.folder / "vm.xml").write_text(head + " " * ((8 << 20) + 1 - len(head + tail)) + tail)
    done = desk.run("--domain", "vm.xml")
    assert done.returncode == 65
    assert "has more than 8388608 bytes" in " ".join((done.stdout + done.stderr).split())


def test_the_policy_of_its_pod_may_be_given(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("node", ("0000:01:00", 1))
    (desk.folder / "policy.yaml").write_text("siblings: none\n")
    hostdevs = [
        desk.outcomes(*given)["node"]["domain"].count("<hostdev ") for given in ([], ["--policy", "policy.yaml"])
    ]
    assert hostdevs == [2, 1]


@pytest.mark.parametrize(
    ("host", "name", "count", "expected"),
    [
        ("workstation", "AD102_GEFORCE_RTX_4090", 1, []),
        ("workstation", "GB202_GEFORCE_RTX_5090", 1, ["LK861", "LK204"]),
        ("hgx", "GA100_A100_SXM4_40GB", 7, []),
        ("hgx", "GA100_A100_SXM4_40GB", 8, ["LK861", "LK204"]),
        ("a2-vfs", "NVIDIA_A2-4Q", 1, ["LK861"]),
        ("laptop", "GA107M_GEFORCE_RTX_3050_MOBILE", 1, ["LK861", "LK207"]),
    ],
)
def test_a_vm_on_a_recorded_machine(desk: Desk, host: str, name: str, count: int, expected: list[str]) -> None:
    """With the names that the device plugin gives by itself."""
    (desk.folder / "plugin.yaml").write_text(f"auto: all\npciIds: {HOSTS / 'pci.ids'}\n")
    (desk.nodes / f"{host}.json").write_bytes((HOSTS / f"{host}.json").read_bytes())
    desk.vm(*[f"nvidia.com/{name}"] * count)
    found = json.loads(desk.run("--json").stdout)["nodes"][0]
    assert codes(found) == expected
    assert found["starts"] == (not expected)


VGPU = "nvidia.com/GRID_T4-1Q"


def test_a_mediated_device_that_is_made_on_demand_is_rehearsed_as_if_it_were_there(desk: Desk) -> None:
    desk.vm(VGPU)
    tree = HostTree(desk.folder / "t4")
    tree.function("0000:3b:00.0", device=0x1EB8, class_code=0x030200, driver="nvidia", group=5)
    tree.mdev_type("0000:3b:00.0", "nvidia-222", name="GRID T4-1Q", device_api="vfio-pci", available_instances="16")
    desk.record("t4", tree)
    (desk.folder / "plugin.yaml").write_text("vgpu: {mediatedDevices: [{types: ['GRID T4-1Q'], mode: dynamic}]}\n")
    outcome = desk.outcomes()["t4"]
    assert outcome["errors"] == []
    assert outcome["domain"].count("type='mdev'") == 1
    assert outcome["allocation"][0]["device"] in outcome["domain"]


def test_the_vf_of_a_vgpu_card_is_rehearsed_with_the_type_that_it_will_get(desk: Desk) -> None:
    desk.vm("nvidia.com/NVIDIA_A40-1B")
    tree = HostTree(desk.folder / "a40")
    tree.function("0000:ae:00.0", device=0x25B6, class_code=0x030200, driver="nvidia", group=39)
    tree.vf("0000:ae:00.0", "0000:ae:00.4", vgpu="0", driver="nvidia", device=0x25B6, group=40)
    tree.node("vfio/40")
    desk.record("a40", tree)
    (desk.folder / "plugin.yaml").write_text("vgpu: {virtualFunctions: [{types: ['NVIDIA A40-1B'], mode: dynamic}]}\n")
    outcome = desk.outcomes()["a40"]
    assert outcome["errors"] == []
    assert [each["host"] for each in outcome["guest"]] == ["0000:ae:00.4"]


def test_on_a_terminal_lines_fit_its_width_and_in_a_pipe_an_error_is_one_line(desk: Desk) -> None:
    desk.vm(GPU, GPU)
    desk.node("one", ("0000:01:00", 1), ("0000:02:00", 1))
    desk.node("none", ("0000:01:00", 1), driver="nvidia")
    for arguments in ((), ("--node", "one")):
        shown = run_on_terminal(
            desk.command(*arguments), {"COLUMNS": "80", "NO_COLOR": "1"}, folder=desk.folder
        ).decode()
        assert max(map(len, shown.splitlines())) <= 80
        assert " ".join(shown.split()) == " ".join(desk.run(*arguments).stdout.split())
    (error, *_) = desk.outcomes()["none"]["errors"]
    assert f"\n  LK861  {error['message']}\n" in desk.run().stdout


def test_one_node_alone_is_reported_with_what_its_guest_finds(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("node", ("0000:01:00", 1))
    text = desk.run("--node", "node").stdout
    assert re.search(r"└─ root port \d+", text)
    assert re.search(r"^    \d\d:00\.0  VGA compatible controller\s+NVIDIA .*\[10de:2204\]$", text, re.M)


def reported(result: Result, code: str) -> None:
    """That it ended with the error as its page shows it."""
    (line,) = provoked("rehearsal", code)
    assert f"error[{code}]: {line.partition(': ')[2]}\n" in result.stderr
    assert result.stdout == ""
    assert result.returncode not in (0, 1)


def test_a_node_that_has_too_few_says_what_it_has(desk: Desk) -> None:
    desk.vm(GPU, GPU)
    desk.node("worker-1", ("0000:01:00", 1))
    (error,) = desk.outcomes()["worker-1"]["errors"]
    assert f"LK861: {error['message']}" in provoked("rehearsal", "LK861")
    assert error["resource"] == GPU


def test_a_device_by_resource_claim_is_not_rehearsed(desk: Desk) -> None:
    gpus = [{"name": "gpu1", "claimName": "card", "requestName": "gpu"}]
    vmi = {"kind": "VirtualMachineInstance", "spec": {"domain": {"devices": {"gpus": gpus}}}}
    (desk.folder / "vm.yaml").write_text(json.dumps(vmi))
    desk.node("node")
    reported(desk.run(), "LK862")


def test_a_folder_without_snapshots_is_an_error(desk: Desk) -> None:
    desk.vm(GPU)
    reported(desk.run(), "LK864")


def test_two_nodes_of_one_name_and_a_name_that_there_isnt_are_errors(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("node", ("0000:01:00", 1))
    twice = desk.run("--nodes", "nodes", "nodes/node.json")
    assert "error[LK864]: nodes/node.json and nodes/node.json are both the node node\n" in twice.stderr
    assert "--node nod: there is no such node; did you mean node?" in desk.run("--node", "nod").stderr


def test_a_file_that_is_no_snapshot_is_bad_input(desk: Desk) -> None:
    desk.vm(GPU)
    (desk.nodes / "node.json").write_text("{}")
    result = desk.run()
    assert result.returncode == 65
    assert "nodes/node.json" in result.stderr


def test_without_the_plugin_it_says_what_to_install(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("node", ("0000:01:00", 1))
    program = "import importlib.metadata as m, sys; m.entry_points = lambda **_: []\n"
    program += "from launcherkit.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "rehearse", "vm.yaml", "--nodes", "nodes"]
    reported(subprocess.run(command, cwd=desk.folder, env={}, capture_output=True, text=True, check=False), "LK863")


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ({}, {}),
        ({"memory": {"guest": "8Gi"}}, {"memory_mib": "8192"}),
        ({"resources": {"requests": {"memory": "2G"}}}, {"memory_mib": "1907"}),
        ({"memory": {"guest": "1.5Gi"}}, {"memory_mib": "1536"}),
        ({"cpu": {"sockets": 2, "cores": 4}}, {"vcpus": "8"}),
        ({"firmware": {"bootloader": {"efi": {}}}}, {"firmware": "efi"}),
    ],
)
def test_the_domain_has_what_the_vmi_says(domain: dict[str, Any], expected: dict[str, str]) -> None:
    vmi = {"metadata": {"name": "vm1"}, "spec": {"domain": domain}}
    assert stand_in(vmi) == StandIn("q35", {"name": "vm1", **expected})


@pytest.mark.parametrize(
    ("domain", "values", "said"),
    [
        (
            {"memory": {"guest": "much"}},
            {},
            "memory.guest: 'much' isn't understood, and counts as the template's memory",
        ),
        (
            {"memory": {"guest": "-8Gi"}, "resources": {"requests": {"memory": 4e9}}},
            {},
            "memory.guest: '-8Gi' isn't understood, and counts as the template's memory",
        ),
        (
            {"resources": {"requests": {"memory": "64 Gi"}}},
            {},
            "resources.requests.memory: '64 Gi' isn't understood, and counts as the template's memory",
        ),
        (
            {"cpu": {"sockets": 2, "cores": "four"}},
            {"vcpus": "2"},
            "cpu.cores: 'four' isn't understood, and counts as 1",
        ),
    ],
)
def test_what_of_the_size_of_a_vm_is_not_understood_is_reported(
    domain: dict[str, Any], values: dict[str, str], said: str
) -> None:
    vmi = {"metadata": {"name": "vm1"}, "spec": {"domain": domain}}
    note = Note("domain", f"spec.domain.{said}")
    assert stand_in(vmi) == StandIn("q35", {"name": "vm1", **values}, (note,))


def test_a_vm_of_arm_stands_on_virt() -> None:
    assert stand_in({"spec": {"architecture": "arm64", "domain": {}}}).template == "virt-aarch64"


def test_known_problems_of_the_devices_and_of_named_programs_are_said(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("n1", ("0000:01:00", 12))
    assert "known problem" not in desk.run().stdout
    text = desk.run("--program", "KubeVirt=v1.9.0", "--program", "QEMU=10.0").stdout
    assert "known problem  kubevirt-plugins: KubeVirt 1.9.0: " in text
    assert "qemu-" not in text


def test_json_has_known_problems_with_what_to_do(desk: Desk) -> None:
    desk.vm(GPU)
    desk.node("n1", ("0000:01:00", 12))
    (found,) = desk.outcomes("--program", "KubeVirt=1.9.1")["n1"]["knownProblems"]
    assert found["id"] == "kubevirt-plugins"
    assert found["help"].startswith("Have no Plugin")


@pytest.mark.parametrize("suffix", ["-rc1", "+k3s1", "~ds1-6+deb13u1"])
def test_a_version_may_have_a_suffix(desk: Desk, suffix: str) -> None:
    """As programs and packages print it."""
    desk.vm(GPU)
    desk.node("n1", ("0000:01:00", 12))
    text = desk.run("--program", f"KubeVirt=v1.9.0{suffix}").stdout
    assert "known problem  kubevirt-plugins: KubeVirt 1.9.0: " in text


@pytest.mark.parametrize(
    "program", ["KubeVirt", "KubeVirt=", "Kubevirt=1.9", "KubeVirt=new", "=1.9", "KubeVirt=1.9 x", "kubelet=1.27"]
)
def test_a_program_without_a_version_is_a_usage_error(desk: Desk, program: str) -> None:
    desk.vm(GPU)
    desk.node("n1", ("0000:01:00", 12))
    result = desk.run("--program", program)
    assert result.returncode == 2
    assert "is not NAME=VERSION" in result.stderr
