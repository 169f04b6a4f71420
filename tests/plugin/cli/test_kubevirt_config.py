"""``launcherkit-plugin kubevirt-config``: what KubeVirt must permit, as a patch."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from launcherkit.errors import BAD_SETTING
from launcherkit.host.snapshot import dump
from launcherkit.host.source import Host
from launcherkit.process.edge import guarded
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.config.reading import read_config
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree

UUID = "b4f0fe60-9b5e-4b53-9d5f-5f0a83f21f0d"
CARD = {"pciVendorSelector": "10DE:2204", "resourceName": "nvidia.com/CARD", "externalResourceProvider": True}
CONFIG = "auto: gpu\naliases: {'10de:2204': CARD}"
REPLACES = "note: the patch replaces whole lists; --current FILE keeps what KubeVirt's resource has in them"


class Outcome(NamedTuple):
    code: int
    out: str
    notes: list[str]

    @property
    def permitted(self) -> Any:
        return yaml.safe_load(self.out)["spec"]["configuration"]["permittedHostDevices"]


Permit = Callable[..., Outcome]


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host")


@pytest.fixture
def permit(tree: HostTree, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Permit:
    def permitted(*arguments: str, config: str = CONFIG, current: Any = None) -> Outcome:
        (tmp_path / "plugin.yaml").write_text(config)
        arguments = ("--config", str(tmp_path / "plugin.yaml"), *arguments)
        if "--snapshot" not in arguments:
            arguments = ("--host", str(tree.root), *arguments)
        if current is not None:
            (tmp_path / "now.yaml").write_text(yaml.safe_dump(current))
            arguments = ("--current", str(tmp_path / "now.yaml"), *arguments)
        code = guarded(lambda: run(["kubevirt-config", *arguments], {}), {})
        out, err = capfd.readouterr()
        return Outcome(code, out, err.splitlines())

    return permitted


def kubevirt(**permitted: Any) -> dict[str, Any]:
    """A KubeVirt resource as kubectl lists it."""
    spec = {"configuration": {"permittedHostDevices": permitted, "imagePullPolicy": "Always"}}
    item = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": spec}
    return {"apiVersion": "v1", "kind": "List", "items": [item]}


def test_cards_of_one_model_are_one_entry_of_a_merge_patch(tree: HostTree, permit: Permit) -> None:
    tree.card("0000:01:00", group=12)
    tree.card("0000:e1:00", group=44)
    outcome = permit()
    assert (outcome.code, outcome.notes) == (0, [REPLACES])
    patch = {"spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": [CARD]}}}}
    assert yaml.safe_load(outcome.out) == patch
    assert json.loads(permit("--output", "json").out) == patch


def test_without_a_configuration_it_is_said_what_is_wanted(tree: HostTree, capfd: pytest.CaptureFixture[str]) -> None:
    tree.card("0000:01:00", group=10)
    tree.function("0000:02:00.0", vendor=0x8086, device=0x1521, class_code=0x020000, driver="vfio-pci", group=11)
    selectors = []
    for auto in ("nvidia", "all"):
        assert run(["kubevirt-config", "--host", str(tree.root), "--auto", auto], {}) == 0
        permitted = yaml.safe_load(capfd.readouterr().out)["spec"]["configuration"]["permittedHostDevices"]
        selectors.append({entry["pciVendorSelector"] for entry in permitted["pciHostDevices"]})
    assert selectors == [{"10DE:2204"}, {"10DE:2204", "8086:1521"}]


def test_a_resource_of_several_models_has_an_entry_for_each(tree: HostTree, permit: Permit) -> None:
    tree.card("0000:01:00", group=12)
    tree.function("0000:02:00.0", device=0x1EB8, driver="vfio-pci", group=13)
    rules = "resources: [{name: a.b/GPU, select: [{vendors: [10de], classes: ['03']}]}]"
    entries = permit(config=rules).permitted["pciHostDevices"]
    assert [(entry["pciVendorSelector"], entry["resourceName"]) for entry in entries] == [
        ("10DE:1EB8", "a.b/GPU"),
        ("10DE:2204", "a.b/GPU"),
    ]


def test_vgpus_are_permitted_by_type_before_they_are_made(tree: HostTree, permit: Permit) -> None:
    tree.function("0000:01:00.0", driver="nvidia", group=12)
    tree.mdev_type("0000:01:00.0", "nvidia-222", name="GRID T4-1Q", device_api="vfio-pci", available_instances="4")
    config = "vgpu: {mediatedDevices: [{types: [GRID T4-1Q], mode: dynamic}]}"
    assert permit(config=config).permitted == {
        "mediatedDevices": [
            {
                "mdevNameSelector": "GRID T4-1Q",
                "resourceName": "nvidia.com/GRID_T4-1Q",
                "externalResourceProvider": True,
            }
        ]
    }


def test_a_vf_with_a_vgpu_type_is_a_pci_device(tree: HostTree, permit: Permit) -> None:
    tree.function("0000:01:00.0", device=0x2235, driver="nvidia", group=12)
    tree.vf("0000:01:00.0", "0000:01:00.4", vgpu="558", device=0x2236, driver="nvidia", group=13)
    config = "vgpu: {virtualFunctions: [{types: ['*'], name: a.b/VGPU}]}"
    entry = {"pciVendorSelector": "10DE:2236", "resourceName": "a.b/VGPU", "externalResourceProvider": True}
    assert permit(config=config).permitted == {"pciHostDevices": [entry]}


def test_snapshots_of_several_nodes_give_one_patch(tree: HostTree, permit: Permit, tmp_path: Path) -> None:
    tree.card("0000:01:00", group=12)
    other = HostTree(tmp_path / "other")
    other.function("0000:02:00.0", device=0x1EB8, driver="vfio-pci", group=3)
    other.function("0000:03:00.0", device=0x1EB8, driver="nvidia", group=4)
    files = []
    for name, root in (("gpu-1", tree.root), ("gpu-2", other.root)):
        files.append(str(tmp_path / f"{name}.json"))
        Path(files[-1]).write_text(dump(Host.from_sysfs(root).scan()))
    outcome = permit("--snapshot", *files, config="auto: gpu\naliases: {'10de:2204': CARD, '10de:1eb8': T4}")
    assert [entry["resourceName"] for entry in outcome.permitted["pciHostDevices"]] == [
        "nvidia.com/CARD",
        "nvidia.com/T4",
    ]
    assert f"note: {files[1]}: 1 display controller 10de:1eb8 left out: bound to nvidia" in outcome.notes[0]


def test_the_entries_that_are_there_stay_and_come_first(tree: HostTree, permit: Permit) -> None:
    tree.card("0000:01:00", group=12)
    theirs = {"pciVendorSelector": "8086:1521", "resourceName": "intel.com/NIC"}
    gone = {**CARD, "pciVendorSelector": "10de:1eb8", "resourceName": "nvidia.com/T4"}
    current = kubevirt(pciHostDevices=[theirs, gone], mediatedDevices=[], usb=[{"resourceName": "kubevirt.io/key"}])
    outcome = permit(current=current)
    assert outcome.notes == []
    assert outcome.permitted == {"pciHostDevices": [theirs, gone, CARD]}
    current = kubevirt(**outcome.permitted)
    assert permit(current=current).permitted == outcome.permitted


def test_an_entry_in_another_spelling_is_there_already(tree: HostTree, permit: Permit) -> None:
    tree.card("0000:01:00", group=12)
    same = {**CARD, "pciVendorSelector": "10de:2204"}
    assert permit(current=kubevirt(pciHostDevices=[same])).permitted == {"pciHostDevices": [same]}


def test_what_kubevirt_would_advertise_too_is_reported(tree: HostTree, permit: Permit) -> None:
    tree.card("0000:01:00", group=12)
    own = {"pciVendorSelector": "10DE:2204", "resourceName": "nvidia.com/CARD"}
    other_name = {"pciVendorSelector": "10de:2204", "resourceName": "nvidia.com/GA102"}
    outcome = permit(current=kubevirt(pciHostDevices=[own, other_name]))
    assert outcome.permitted == {"pciHostDevices": [CARD, other_name]}
    itself = "is advertised by KubeVirt itself"
    ours = "and by this plugin under the same name or for the same devices: remove the entry"
    assert outcome.notes == [
        f"note: pciHostDevices: nvidia.com/CARD (10DE:2204) {itself}; the patch leaves it to this plugin",
        f"note: pciHostDevices: nvidia.com/GA102 (10de:2204) {itself}, {ours}",
    ]


def test_what_is_for_dra_needs_no_permission(tree: HostTree, permit: Permit) -> None:
    tree.card("0000:01:00", group=12)
    outcome = permit(config="dra: {all: yes}\n" + CONFIG)
    assert outcome.out == "{}\n"
    why = "KubeVirt asks no permission for claims, but for the extendedResourceName of a DeviceClass"
    assert f"note: 1 resource for DRA left out: {why}" in outcome.notes


def test_what_no_vm_can_have_needs_no_permission_either(tree: HostTree, permit: Permit) -> None:
    tree.card("0000:01:00", group=12)
    outcome = permit(config="resources: [{name: a/X, select: [{classes: ['03']}], use: kata}]")
    assert outcome.out == "{}\n"
    assert "note: 1 resource for containers or Kata left out: KubeVirt's VMs don't request them" in outcome.notes
    assert not any("whole lists" in note for note in outcome.notes)


def test_where_nothing_is_offered_the_patch_is_empty_and_it_is_told_why(permit: Permit) -> None:
    outcome = permit()
    assert (outcome.code, outcome.out) == (0, "{}\n")
    assert outcome.notes == ["note: nothing would be advertised: no PCI function is known here"]


def test_the_patched_resource_is_a_configuration_that_advertises_the_same(
    tree: HostTree, permit: Permit, tmp_path: Path
) -> None:
    tree.card("0000:01:00", group=12)
    (tmp_path / "kubevirt.yaml").write_text(yaml.safe_dump(kubevirt(**permit().permitted)))
    (tmp_path / "again.yaml").write_text("kubevirt: {file: kubevirt.yaml}")
    reading = read_config(str(tmp_path / "again.yaml"))
    assert [rule.name for rule in reading.config.pci] == ["nvidia.com/CARD"]


@pytest.mark.parametrize(
    ("current", "said"),
    [
        ({"spec": {}}, "not a KubeVirt resource: it has no kind"),
        ({"kind": "ConfigMap"}, "kind: 'ConfigMap' is not 'KubeVirt'"),
        (
            kubevirt(pciHostDevices=[{"resourceName": "a.b/c"}]),
            "permittedHostDevices.pciHostDevices.0.pciVendorSelector",
        ),
    ],
)
def test_a_resource_that_is_none_is_refused(tree: HostTree, permit: Permit, current: Any, said: str) -> None:
    tree.card("0000:01:00", group=12)
    outcome = permit(current=current)
    assert (outcome.code, outcome.out) == (78, "")
    assert outcome.notes[0].startswith("error[LK701]: ")
    assert said in outcome.notes[0]


def test_two_resources_of_one_name_leave_standard_output_empty(tree: HostTree, permit: Permit) -> None:
    tree.card("0000:01:00", group=12)
    tree.function("0000:02:00.0", device=0x1EB8, driver="vfio-pci", group=13)
    outcome = permit(config="auto: gpu\naliases: {'10de:2204': CARD, '10de:1eb8': CARD}")
    assert (outcome.code, outcome.out) == (78, "")
    assert outcome.notes[0].startswith("error[LK702]: ")


def test_the_configuration_or_the_resource_is_read_from_standard_input(
    tree: HostTree, permit: Permit, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tree.card("0000:01:00", group=12)
    text = yaml.safe_dump(kubevirt(pciHostDevices=[CARD])).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert permit("--current", "-").permitted == {"pciHostDevices": [CARD]}
    with pytest.raises(SystemExit):
        run(["kubevirt-config", "--config", "-", "--current", "-"], {})
    assert "only one of --config and --current can read standard input" in capfd.readouterr().err


def test_a_form_that_the_variable_of_another_command_asks_for_is_an_error() -> None:
    with raises_code(BAD_SETTING, match="LAUNCHERKIT_PLUGIN_OUTPUT='table' is none of yaml, json"):
        run(["kubevirt-config"], {"LAUNCHERKIT_PLUGIN_OUTPUT": "table"})
