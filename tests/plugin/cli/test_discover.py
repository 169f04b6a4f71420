"""``launcherkit-plugin discover``: what would be advertised, and why what would not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from launcherkit.host.snapshot import dump
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import VgpuVf
from launcherkit.process.edge import guarded
from launcherkit_plugin.__main__ import PROGRAM, run
from launcherkit_plugin.binding.ledger import Entry, Ledger, Record
from launcherkit_plugin.binding.vf_records import VfRecord, VfRecords
from launcherkit_plugin.cli.resources import left_out
from launcherkit_plugin.devices.container_card import CardUuids
from launcherkit_plugin.model.config import PciRule, Selector
from tests.support.facts import at, detail, facts, function
from tests.support.hosttree import HostTree

UUID = "b4f0fe60-9b5e-4b53-9d5f-5f0a83f21f0d"


class Outcome(NamedTuple):
    code: int
    lines: list[str]
    notes: list[str]

    @property
    def rows(self) -> list[dict[str, str]]:
        """The table's lines by its headings; the last column is the rest of the line."""
        heads, *lines = self.lines
        names = heads.split()
        return [dict(zip(names, line.split(maxsplit=len(names) - 1), strict=True)) for line in lines]

    @property
    def document(self) -> Any:
        return json.loads("\n".join(self.lines))


Discover = Callable[..., Outcome]


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host")


@pytest.fixture
def discover(tree: HostTree, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Discover:
    def discovered(*arguments: str, config: str | None = None, host: str = str(tree.root)) -> Outcome:
        if config is not None:
            (tmp_path / "plugin.yaml").write_text(config)
            arguments = (*arguments, "--config", str(tmp_path / "plugin.yaml"))
        code = guarded(lambda: run(["discover", "--host", host, *arguments], {}), {})
        out, err = capfd.readouterr()
        return Outcome(code, out.splitlines(), err.splitlines())

    return discovered


def test_a_card_that_is_bound_is_a_line(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44, numa=1)
    outcome = discover(config="auto: all\naliases: {'10de:2204': CARD}")
    assert outcome.code == 0
    assert outcome.notes == []
    assert [line.split() for line in outcome.lines[:1]] == [
        ["RESOURCE", "DEVICE", "NUMA", "GROUPS", "HEALTH", "SIBLINGS", "ABOUT"]
    ]
    (row,) = outcome.rows
    assert row["DEVICE"] == "0000:e1:00.0"
    assert (row["NUMA"], row["GROUPS"], row["HEALTH"], row["SIBLINGS"]) == ("1", "44", "Healthy", "0000:e1:00.1")
    assert "display controller 10de:2204" in row["ABOUT"]


def test_the_wide_table_has_variable_and_socket(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44)
    (row,) = discover("-o", "wide", config="resources: [{name: a.b/GPU, select: [{vendors: [10de]}]}]").rows
    assert (row["RESOURCE"], row["VARIABLE"], row["SOCKET"]) == ("a.b/GPU", "PCI_RESOURCE_A_B_GPU", "kubevirt-GPU.sock")


def test_a_device_that_can_not_be_had_is_listed_with_the_reason(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44)
    tree.function("0000:e2:00.0", class_code=0x010802, driver="nvme", group=44)
    (row,) = discover().rows
    assert row["HEALTH"] == "Unhealthy"
    assert row["ABOUT"].startswith("not-viable: ")
    assert "0000:e2:00.0" in row["ABOUT"]


def test_a_gpu_that_another_driver_has_is_reported(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44)
    for bus in (1, 2, 3):
        tree.function(f"0000:{bus:02x}:00.0", driver="nvidia", group=bus)
    outcome = discover("--auto", "nvidia")
    assert len(outcome.rows) == 1
    why = "bound to nvidia, not to a VFIO driver"
    places = "0000:01:00.0, 0000:02:00.0, 0000:03:00.0"
    assert f"note: 3 display controllers 10de:2204 left out: {why} ({places})" in outcome.notes


def test_where_nothing_is_found_nothing_is_printed_and_it_is_told_why(tree: HostTree, discover: Discover) -> None:
    assert discover().notes == ["note: nothing would be advertised: no PCI function is known here"]
    tree.function("0000:01:00.0", driver=None, group=1)
    unselected = discover(config="resources: [{select: [{vendors: [1002]}]}]")
    assert unselected.notes == ["note: nothing would be advertised: no rule selects any of the 1 PCI function"]
    outcome = discover()
    assert (outcome.code, outcome.lines) == (0, [])
    assert outcome.notes[0].startswith(
        "note: 1 display controller 10de:2204 left out: bound to no driver (0000:01:00.0)"
    )
    assert "none bound to a VFIO driver" in outcome.notes[1]


def test_a_written_rule_lists_what_is_not_bound(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44, driver="nvidia")
    rule = "select: [{vendors: [10de], classes: ['03']}]"
    (row,) = discover(config=f"resources: [{{{rule}}}]").rows
    assert (row["HEALTH"], row["ABOUT"].partition(":")[0]) == ("Unhealthy", "driver")
    assert discover(config=f"resources: [{{{rule}, whenBound: true}}]").lines == []


def test_a_rule_that_gets_nothing_says_why(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44)
    tree.function("0000:00:01.0", class_code=0x060400, header_type=1, driver="pcieport", group=1)
    rules = "[{name: a.b/CARD, select: [{classes: ['03']}]}, {name: a.b/PORT, select: [{classes: ['06']}]}]"
    outcome = discover(config=f"resources: {rules}")
    assert [row["RESOURCE"] for row in outcome.rows] == ["a.b/CARD"]
    (note,) = outcome.notes
    assert note == (
        "note: rule 2 (a.b/PORT) selects 1 PCI function, and none of them becomes a device: bridges can't be passed "
        "through, by the header type of their config space"
    )


def test_an_nvswitch_is_advertised_by_its_model(tree: HostTree, discover: Discover) -> None:
    tree.function("0000:07:00.0", device=0x22A3, class_code=0x068000, header_type=0, driver="vfio-pci", group=30)
    outcome = discover(config="resources: [{name: nvidia.com/NVSWITCH, select: [{models: ['10de:22a3']}]}]")
    assert [(row["DEVICE"], row["HEALTH"]) for row in outcome.rows] == [("0000:07:00.0", "Healthy")]


def test_names_come_from_the_table_that_is_configured(tree: HostTree, discover: Discover, tmp_path: Path) -> None:
    (tmp_path / "pci.ids").write_text("10de  NVIDIA Corporation\n\t2204  GA102 [GeForce RTX 3090]\n")
    tree.card("0000:e1:00", group=44)
    (row,) = discover(config=f"pciIds: {tmp_path}/pci.ids\nauto: nvidia").rows
    assert row["RESOURCE"] == "nvidia.com/GA102_GEFORCE_RTX_3090"


def test_a_model_that_has_no_name_but_its_number_is_reported(
    tree: HostTree, discover: Discover, tmp_path: Path
) -> None:
    (tmp_path / "pci.ids").write_text("10de  NVIDIA Corporation\n\t2203  GA102 [GeForce RTX 3090 Ti]\n")
    tree.card("0000:e1:00", group=44)
    outcome = discover(config=f"pciIds: {tmp_path}/pci.ids\nauto: nvidia")
    assert outcome.rows[0]["RESOURCE"] == "nvidia.com/2204"
    assert outcome.notes == ["note: nvidia.com/2204 is named by its device ID: pci.ids has no name for it"]


def test_a_companion_is_a_resource_of_its_own(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44)
    config = (
        "aliases: {'10de:2204': CARD, '10de:1aef': SOUND}\n"
        "resources:\n"
        "  - select: [{vendors: [10de], classes: ['03']}]\n"
        "  - {select: [{vendors: [10de], classes: ['0403']}], companion: true, whenBound: true}\n"
    )
    outcome = discover(config=config)
    assert [(row["RESOURCE"], row["DEVICE"]) for row in outcome.rows] == [
        ("nvidia.com/CARD", "0000:e1:00.0"),
        ("nvidia.com/SOUND", "0000:e1:00.1"),
    ]


def test_names_that_clash_are_an_error_beside_the_table(tree: HostTree, discover: Discover, tmp_path: Path) -> None:
    for bus, device in ((1, 0x2204), (2, 0x2203)):
        tree.function(f"0000:{bus:02x}:00.0", device=device, driver="vfio-pci", group=bus)
    outcome = discover(config="aliases: {'10de:2204': GA102_X, '10de:2203': GA102_X}\nauto: nvidia")
    assert outcome.code == 78
    assert len(outcome.rows) == 2
    assert outcome.notes[0] == (
        "error[LK702]: model 10de:2204 by rule 1 and model 10de:2203 by rule 1 are both called nvidia.com/GA102_X"
    )


def test_two_models_that_pci_ids_calls_the_same_are_one_resource(
    tree: HostTree, discover: Discover, tmp_path: Path
) -> None:
    (tmp_path / "pci.ids").write_text("10de  NVIDIA\n\t20b1  GA100 [A100 PCIe 40GB]\n\t20f1  GA100 [A100 PCIe 40GB]\n")
    for bus, device in ((1, 0x20B1), (2, 0x20F1)):
        tree.function(f"0000:{bus:02x}:00.0", class_code=0x030200, device=device, driver="vfio-pci", group=bus)
    outcome = discover("-o", "json", config=f"pciIds: {tmp_path}/pci.ids\nauto: nvidia")
    assert outcome.code == 0
    (resource,) = outcome.document["resources"]
    assert resource["name"] == "nvidia.com/GA100_A100_PCIE_40GB"
    assert [device["id"] for device in resource["devices"]] == ["0000:01:00.0", "0000:02:00.0"]


def test_json_has_all_of_it(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44, numa=1)
    tree.function("0000:01:00.0", driver="nvidia", group=1)
    config = "auto: all\naliases: {'10de:2204': CARD}"
    assert discover("-o", "json", config=config).document == {
        "host": str(tree.root),
        "resources": [
            {
                "name": "nvidia.com/CARD",
                "variable": "PCI_RESOURCE_NVIDIA_COM_CARD",
                "socket": "kubevirt-CARD.sock",
                "companion": False,
                "dra": False,
                "devices": [
                    {
                        "id": "0000:e1:00.0",
                        "numaNode": 1,
                        "groups": [44],
                        "functions": ["0000:e1:00.0", "0000:e1:00.1"],
                        "healthy": True,
                        "problem": None,
                        "description": "0000:e1:00.0 display controller 10de:2204",
                    }
                ],
            }
        ],
        "leftOut": [
            {
                "model": "10de:2204",
                "class": "display controller",
                "driver": "nvidia",
                "why": "bound to nvidia, not to a VFIO driver",
                "functions": ["0000:01:00.0"],
            }
        ],
        "virtualFunctions": [],
    }


def test_it_says_what_virtual_functions_would_be_made_and_why_none(tree: HostTree, discover: Discover) -> None:
    sriov: Mapping[str, str | bytes | None] = {"sriov_numvfs": "0\n", "sriov_totalvfs": "8\n"}
    for bus, files in ((3, sriov), (4, {})):
        tree.function(f"0000:0{bus}:00.0", class_code=0x020000, driver="igb", group=bus, files=files)
    making = "resources: [{select: [{classes: ['02']}], virtualFunctions: {count: 4}}]"
    outcome = discover(config=making)
    would = "0000:03:00.0 network controller 10de:2204 would get 4 virtual functions"
    why = "no virtual functions are made: 0000:04:00.0 network controller 10de:2204 can't have virtual functions"
    assert f"note: {would}" in "\n".join(outcome.notes)
    assert f"note: {why}" in "\n".join(outcome.notes)
    document = discover("-o", "json", config=making).document
    assert (document["virtualFunctions"][0], document["resources"], document["leftOut"]) == (would, [], [])


def test_it_says_what_would_be_taken_away(tree: HostTree, discover: Discover) -> None:
    tree.function("0000:03:00.0", class_code=0x020000, driver="igb", group=3)
    tree.vf("0000:03:00.0", "0000:03:10.0", class_code=0x020000, driver="vfio-pci", group=30)
    records = VfRecords(f"{tree.root}/run/launcherkit-plugin/binding/vfs", "")
    records.write(VfRecord(PciAddress.parse("0000:03:00.0"), 1, True, "{}", "made"))
    assert (
        "0000:03:00.0 network controller 10de:2204: its 1 virtual function would be taken away" in discover().notes[0]
    )


def test_json_of_an_unhealthy_device_has_the_reason(tree: HostTree, discover: Discover) -> None:
    tree.function("0000:e1:00.0", driver="vfio-pci", group=44)
    (tree.root / "dev/vfio/44").unlink()
    (resource,) = discover("-o", "json").document["resources"]
    (device,) = resource["devices"]
    assert not device["healthy"]
    assert device["problem"]["reason"] == "node"
    assert "/dev/vfio/44" in device["problem"]["text"]


def test_a_snapshot_is_as_good_as_the_host(tree: HostTree, discover: Discover, tmp_path: Path) -> None:
    tree.card("0000:e1:00", group=44)
    tree.card("0000:01:00", group=12)
    (tmp_path / "host.json").write_text(dump(Host.from_sysfs(tree.root).scan()))
    live, snapshot = discover("-o", "wide"), discover("-o", "wide", host=str(tmp_path / "host.json"))
    assert len(live.rows) == 2
    assert live == snapshot


def test_uuids_are_those_of_the_host_that_is_looked_at(tree: HostTree, discover: Discover, tmp_path: Path) -> None:
    card, uuid = "0000:e1:00.0", "GPU-5a0c0000-0000-4000-8000-000000000001"
    tree.function(card, driver="nvidia", group=44)
    information = tree.root / f"proc/driver/nvidia/gpus/{card}/information"
    information.parent.mkdir(parents=True)
    information.write_text(f"GPU UUID: {uuid}\n")
    config = "resources: [{name: a.b/GPU, use: container, select: [{vendors: [10de]}]}]"
    (row,) = discover(config=config).rows
    assert (row["DEVICE"], row["HEALTH"]) == (uuid, "Healthy")
    by_need = discover(config=config.replace("container,", "any, bind: on-demand,")).rows
    assert [(row["DEVICE"], row["HEALTH"]) for row in by_need] == [(card, "Healthy"), (uuid, "Healthy")]
    snapshot = tmp_path / "host.json"
    snapshot.write_text(dump(Host.from_sysfs(tree.root).scan()))
    (row,) = discover(config=config, host=str(snapshot)).rows
    assert (row["DEVICE"], row["HEALTH"]) == (card, "Unhealthy")
    assert row["ABOUT"].endswith("what its driver has for containers has not been read")


def test_what_the_daemon_has_bound_on_demand_it_would_give_back(tree: HostTree, discover: Discover) -> None:
    card, uuid = "0000:e1:00.0", "GPU-5a0c0000-0000-4000-8000-000000000001"
    tree.function(card, driver="vfio-pci", group=44)
    address, folder = PciAddress.parse(card), tree.root / "run/launcherkit-plugin/binding"
    entry = Entry(address, "nvidia", None, "bound")
    Ledger(str(folder), "").write(Record(address, "vfio-pci", "configuration", (address,), (entry,)))
    CardUuids(str(folder), "").update(card, uuid)
    config = "resources: [{name: a.b/GPU, use: any, bind: on-demand, select: [{vendors: [10de]}]}]"
    rows = discover(config=config).rows
    assert [(row["DEVICE"], row["HEALTH"]) for row in rows] == [(card, "Healthy"), (uuid, "Healthy")]
    shutil.rmtree(folder)
    row = discover(config=config).rows[1]
    assert (row["DEVICE"], row["HEALTH"]) == (card, "Unhealthy")
    assert not folder.exists()


def test_vgpus_that_exist_are_listed_by_type(tree: HostTree, discover: Discover) -> None:
    tree.function("0000:01:00.0", driver="nvidia", group=1, numa=1)
    tree.mdev_type("0000:01:00.0", "nvidia-222", name="GRID T4-1Q", device_api="vfio-pci", available_instances="3")
    tree.mdev("0000:01:00.0", "nvidia-222", UUID, group=50)
    outcome = discover("--auto", "nvidia")
    (row,) = outcome.rows
    assert (row["RESOURCE"], row["DEVICE"], row["NUMA"]) == ("nvidia.com/GRID_T4-1Q", UUID, "1")
    assert "left out: vGPUs are created on it" in outcome.notes[0]


def test_vgpus_that_could_be_made_are_listed_and_none_is_made(tree: HostTree, discover: Discover) -> None:
    tree.function("0000:01:00.0", driver="nvidia", group=1)
    tree.mdev_type("0000:01:00.0", "nvidia-222", name="GRID T4-1Q", device_api="vfio-pci", available_instances="4")
    rows = discover(config="vgpu: {mediatedDevices: [{types: [GRID T4-1Q], mode: dynamic}]}").rows
    assert [row["RESOURCE"] for row in rows] == ["nvidia.com/GRID_T4-1Q"] * 4
    assert {row["HEALTH"] for row in rows} == {"Healthy"}
    assert not (tree.root / "sys/bus/mdev/devices").exists()


def test_a_card_that_is_bound_on_demand_is_healthy_with_its_driver(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44, numa=1, driver="nvidia")
    tree.card("0000:01:00", group=12, numa=0)
    tree.card("0000:41:00", group=30, numa=0, driver="nvidia")
    tree.function("0000:00:1f.0", vendor=0x8086, class_code=0x060100, header_type=0, driver="lpc_ich", group=30)
    outcome = discover(config="resources: [{name: a/GPU, select: [{vendors: [10de]}], bind: on-demand}]")
    rows = [(row["DEVICE"], row["GROUPS"], row["HEALTH"], row["SIBLINGS"]) for row in outcome.rows]
    assert rows == [
        ("0000:01:00.0", "12", "Healthy", "0000:01:00.1"),
        ("0000:41:00.0", "30", "Unhealthy", "0000:41:00.1"),
        ("0000:e1:00.0", "44", "Healthy", "0000:e1:00.1"),
    ]
    assert [row["ABOUT"] for row in outcome.rows if row["HEALTH"] == "Healthy"] == [
        "0000:01:00.0 display controller 10de:2204",
        "0000:e1:00.0 display controller 10de:2204, on nvidia until it is allocated",
    ]
    assert "not-viable: 0000:00:1f.0 ISA bridge 8086:" in outcome.lines[2]
    assert outcome.notes == []


def test_looking_changes_nothing(tree: HostTree, discover: Discover, tmp_path: Path) -> None:
    tree.card("0000:e1:00", group=44, driver="nvidia")
    before = sorted(map(str, tmp_path.rglob("*")))
    folder = tmp_path / "cdi"
    discover(config=f"cdi: {{folder: {folder}}}\nresources: [{{select: [{{vendors: [10de]}}], bind: true}}]")
    (tmp_path / "plugin.yaml").unlink()
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_what_can_steer_a_terminal_is_written_out(tree: HostTree, discover: Discover) -> None:
    tree.function("0000:01:00.0", driver="nvidia", group=1)
    tree.mdev_type("0000:01:00.0", "nvidia-222", name="GRID \x1b[31m T4", device_api="vfio-pci")
    tree.mdev("0000:01:00.0", "nvidia-222", UUID, group=50)
    assert "\x1b" not in "\n".join(discover().lines)


def test_a_wrong_configuration_is_an_error(discover: Discover) -> None:
    outcome = discover(config="auto: amd")
    assert (outcome.code, outcome.lines) == (78, [])
    assert outcome.notes[0].startswith("error[LK701]")


def test_the_clusters_settings_are_said_to_be_missing(discover: Discover) -> None:
    assert discover(config="kubevirt: {cluster: true}").notes[0] == (
        "note: KubeVirt's settings in the cluster are not read here"
    )


def test_variables_stand_in_for_options(tree: HostTree, capfd: pytest.CaptureFixture[str]) -> None:
    tree.card("0000:e1:00", group=44)
    env = {"LAUNCHERKIT_PLUGIN_HOST": str(tree.root), "LAUNCHERKIT_PLUGIN_OUTPUT": "json"}
    assert run(["discover"], env) == 0
    assert json.loads(capfd.readouterr().out)["resources"]


def test_the_program_is_called_by_its_name() -> None:
    assert PROGRAM.name == "launcherkit-plugin"


# What DRA publishes


def test_dra_shows_the_slices_of_what_is_for_it(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44)
    tree.card("0000:01:00", group=12)
    rules = '[{name: a/A, select: [{addresses: ["e1:*"]}], dra: true}, {name: a/B, select: [{addresses: ["01:*"]}]}]'
    config = f"resources: {rules}\ndra: {{driver: gpu.example.com}}"
    done = discover("--dra", "--node", "node1", "-o", "json", config=config)
    (item,) = done.document["items"]
    assert (done.code, item["kind"], item["apiVersion"]) == (0, "ResourceSlice", "resource.k8s.io/v1")
    assert item["metadata"] == {"generateName": "0-gpu.example.com-node1-"}
    assert item["spec"]["driver"] == "gpu.example.com"
    assert item["spec"]["nodeName"] == "node1"
    assert item["spec"]["pool"] == {"name": "node1", "generation": 1, "resourceSliceCount": 1}
    assert [device["name"] for device in item["spec"]["devices"]] == ["pci-0000-e1-00-0"]


def test_dra_shows_all_devices_where_no_rule_is_for_it_and_yaml(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44)
    tree.card("0000:01:00", group=44)
    done = discover("--dra", "--node", "node1")
    listed = yaml.safe_load("\n".join(done.lines))
    counters, devices = (item["spec"] for item in listed["items"])
    assert counters["sharedCounters"] == [{"name": "group-0000-01-00-0", "counters": {"group": {"value": "1"}}}]
    assert [device["name"] for device in devices["devices"]] == ["pci-0000-01-00-0", "pci-0000-e1-00-0"]


def test_the_other_forms_say_what_is_for_dra(tree: HostTree, discover: Discover) -> None:
    tree.card("0000:e1:00", group=44)
    config = "resources: [{name: a/A, select: [{vendors: [10de]}], dra: true}]"
    assert discover("-o", "json", config=config).document["resources"][0]["dra"] is True
    assert discover("-o", "wide", config=config).rows[0]["SOCKET"] == "-"


def test_what_kubectl_would_take_for_a_number_is_quoted_in_yaml(tree: HostTree, discover: Discover) -> None:
    tree.function("0000:01:00.0", device=0x1E04, driver="vfio-pci", group=1)
    found = discover("--dra", "--node", "n")
    assert "          string: '1e04'" in found.lines
    assert "    nodeName: 'n'" in found.lines
    assert "          int: 1" in found.lines, "numbers are not"


@pytest.mark.parametrize("arguments", [("--dra", "-o", "table"), ("-o", "yaml")])
def test_a_form_that_there_is_not_is_wrong_usage(discover: Discover, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        discover(*arguments)
    assert ended.value.code == 2


def test_a_card_of_which_little_is_known_is_left_out_for_what_is() -> None:
    """Its details, or those of its VFs, may not have been read: they hang, or are not there."""
    card, other = function("0000:01:00.0", driver="nouveau"), function("0000:02:00.0", driver="nouveau")
    host = facts(card, other, details={"0000:02:00.0": detail(virtfns=(at("0000:02:00.4"),))})
    (left,) = left_out(host, lambda _: PciRule(select=(Selector(),), name="nvidia.com/GPU"), [])
    assert left.functions == (at("0000:01:00.0"), at("0000:02:00.0"))
    assert left.reason == "bound to nouveau, not to a VFIO driver"


def test_a_card_whose_vf_is_a_vgpu_is_left_out_for_that() -> None:
    card, vf = function("0000:02:00.0", driver="nvidia"), at("0000:02:00.4")
    vgpu = detail(vgpu=VgpuVf(0, ()))
    host = facts(card, details={"0000:02:00.0": detail(virtfns=(vf,)), "0000:02:00.4": vgpu})
    (left,) = left_out(host, lambda _: PciRule(select=(Selector(),), name="nvidia.com/GPU"), [])
    assert left.reason == "vGPUs are created on it"
