"""The exec hook as KubeVirt's sidecar-shim runs it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.hosttree import HostTree

HOOK = "launcherkit.hooks.exec_hook:main"

VMI = json.dumps({"spec": {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": "nvidia.com/GA102"}]}}}})
DOMAIN = """<domain type="kvm"><os><type arch="x86_64" machine="q35">hvm</type></os>
  <devices>
    <hostdev type="pci" managed="no">
      <source><address domain="0x0000" bus="0xe1" slot="0x00" function="0x0"></address></source>
      <alias name="ua-gpu-gpu1"></alias>
    </hostdev>
  </devices>
</domain>"""


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """A host with one two-function card, and no /dev/vfio, as a sidecar sees it."""
    tree = HostTree(tmp_path / "host", nodes=False)
    tree.card("0000:e1:00", group=44)
    return tree


def hook(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    return forked.run([HOOK, *arguments], env=dict(env), capture_output=True, check=False, stdin=subprocess.DEVNULL)


def test_a_sidecar_completes_the_hostdevs_that_are_there_with_no_variables(tree: HostTree) -> None:
    result = hook("--vmi", VMI, "--domain", DOMAIN, env={"LAUNCHERKIT_HOST": str(tree.root)})
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(b"<hostdev ") == 2
    assert b'<alias name="ua-gpu-gpu1-fn1"/>' in result.stdout
    assert result.stdout.count(b'multifunction="on"') == 1


def test_a_second_and_third_run_give_the_same_bytes(tree: HostTree) -> None:
    env = {"LAUNCHERKIT_HOST": str(tree.root)}
    first = hook("--vmi", VMI, "--domain", DOMAIN, env=env).stdout
    second = hook("--vmi", VMI, "--domain", first.decode(), env=env).stdout
    third = hook("--vmi", VMI, "--domain", second.decode(), env=env).stdout
    assert first == second == third != b""


def test_a_vmi_that_asks_for_nothing_needs_no_host(tmp_path: Path) -> None:
    nothing = json.dumps({"spec": {"domain": {"devices": {}}}})
    result = hook("--vmi", nothing, "--domain", DOMAIN, env={"LAUNCHERKIT_HOST": str(tmp_path / "absent")})
    completed = DOMAIN.replace('managed="no">', 'managed="no" mode="subsystem">')
    assert (result.returncode, result.stdout, result.stderr) == (0, completed.encode(), b"")


def test_the_hostdevs_of_sriov_interfaces_are_kubevirts_and_only_get_what_they_lack(tmp_path: Path) -> None:
    """Q3, Q5: one that isn't there yet is plugged in later, and on the target of a migration none is."""
    interfaces: list[object] = [
        {"name": name, "sriov": {}, "pciAddress": "KubeVirt's to check"} for name in ("net1", "later")
    ]
    vmi = json.dumps({"spec": {"domain": {"devices": {"interfaces": interfaces}}}})
    document = DOMAIN.replace("ua-gpu-gpu1", "ua-sriov-net1")
    env = {"LAUNCHERKIT_HOST": str(tmp_path / "absent")}
    first = hook("--vmi", vmi, "--domain", document, env=env)
    completed = document.replace('managed="no">', 'managed="no" mode="subsystem">')
    assert (first.returncode, first.stdout, first.stderr) == (0, completed.encode(), b"")
    assert hook("--vmi", vmi, "--domain", completed, env=env).stdout == completed.encode()


def test_what_is_no_vmi_is_refused_with_nothing_on_stdout(tree: HostTree) -> None:
    """Q4: the guest would start without its devices, and nobody would know."""
    for document in ({}, {"apiVersion": "v1", "kind": "Pod", "spec": {}}, {"kind": "List", "items": []}):
        result = hook("--vmi", json.dumps(document), "--domain", DOMAIN, env={"LAUNCHERKIT_HOST": str(tree.root)})
        assert (result.returncode, result.stdout) == (65, b"")
        assert result.stderr.startswith(b"error[LK111]: --vmi: expected a VirtualMachineInstance, found a")


def test_a_misspelt_variable_is_reported(tree: HostTree) -> None:
    env = {"LAUNCHERKIT_HOST": str(tree.root), "LAUNCHERKIT_SIBLNGS": "none", "LAUNCHERKIT_SERVICE_HOST": "10.0.0.1"}
    result = hook("--vmi", VMI, "--domain", DOMAIN, env=env)
    assert result.returncode == 0
    assert result.stderr.decode() == (
        "note: the variable LAUNCHERKIT_SIBLNGS is set, and nothing reads it; did you mean LAUNCHERKIT_SIBLINGS?\n"
    )


def test_text_outside_ascii_survives_any_locale(tree: HostTree) -> None:
    domain = DOMAIN.replace("<devices>", "<description>Größe ☃</description><devices>", 1)
    result = hook("--vmi", VMI, "--domain", domain, env={"LAUNCHERKIT_HOST": str(tree.root), "LC_ALL": "C"})
    assert "Größe ☃" in result.stdout.decode()


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        ([], 2, "usage: onDefineDomain --vmi VMI_JSON --domain DOMAIN_XML"),
        (["--vmi", "{}"], 2, "usage:"),
        (["--vmi", "{}", "--domain"], 2, "usage:"),
        (["--vmi", "{}", "--vmi", "{}"], 2, "usage:"),
        (["--vmi", "{}", "--domain", DOMAIN, "more"], 2, "usage:"),
        (["--vmi", "{", "--domain", DOMAIN], 65, "error[LK111]: --vmi is not JSON"),
        (["--vmi", VMI, "--domain", "<domain>"], 65, "error[LK121]"),
    ],
)
def test_what_is_wrong_is_reported_on_stderr_and_stdout_stays_empty(
    arguments: list[str], code: int, reported: str
) -> None:
    result = hook(*arguments, env={"LAUNCHERKIT_HOST": "none"})
    assert (result.returncode, result.stdout) == (code, b"")
    assert reported in result.stderr.decode()
    assert "help: " in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()


def test_errors_can_be_json_lines(tree: HostTree) -> None:
    env = {"LAUNCHERKIT_HOST": str(tree.root), "LAUNCHERKIT_LOG_FORMAT": "json", "LAUNCHERKIT_SIBLINGS": "all"}
    result = hook("--vmi", VMI, "--domain", DOMAIN, env=env)
    assert (result.returncode, result.stdout) == (78, b"")
    entry = json.loads(result.stderr)
    assert entry["code"] == "LK402"
    assert "LAUNCHERKIT_SIBLINGS" in entry["message"]


def test_a_group_that_is_not_viable_fails_before_the_domain_is_defined(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, nodes=False)
    tree.function("0000:e1:00.0", driver="vfio-pci", group=44)
    tree.function("0000:e1:00.1", class_code=0x040300, device=0x1AEF, driver="snd_hda_intel", group=44)
    result = hook("--vmi", VMI, "--domain", DOMAIN, env={"LAUNCHERKIT_HOST": str(tmp_path)})
    assert (result.returncode, result.stdout) == (65, b"")
    message = result.stderr.decode()
    for part in ("LK204", "group 44", "0000:e1:00.1", "snd_hda_intel", "driver_override"):
        assert part in message


def test_a_reader_that_has_gone_fails_the_hook(tree: HostTree) -> None:
    read, write = os.pipe()
    os.close(read)
    result = forked.run(
        [HOOK, "--vmi", VMI, "--domain", DOMAIN],
        env={"LAUNCHERKIT_HOST": str(tree.root)},
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert result.returncode != 0
    assert b"Traceback" not in result.stderr


def test_help_and_version_are_reported_on_stdout() -> None:
    shown = hook("--help", env={})
    assert shown.returncode == 0
    assert b"LAUNCHERKIT_HOST" in shown.stdout
    assert hook("--version", env={}).stdout.startswith(b"launcherkit ")


def test_the_annotation_of_the_vmi_narrows_the_policy_for_one_vm(tree: HostTree) -> None:
    vmi = json.dumps({"metadata": {"annotations": {"launcherkit.io/policy": "siblings: none"}}, **json.loads(VMI)})
    result = hook("--vmi", vmi, "--domain", DOMAIN, env={"LAUNCHERKIT_HOST": str(tree.root)})
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(b"<hostdev ") == 1
    wider = vmi.replace("siblings: none", "siblings: group")
    refused = hook("--vmi", wider, "--domain", DOMAIN, env={"LAUNCHERKIT_HOST": str(tree.root)})
    assert (refused.returncode, refused.stdout) == (65, b"")
    assert b"LK106" in refused.stderr


# A domain of another node, as the target of a migration gets it (X2)

GPU = "PCI_RESOURCE_NVIDIA_COM_GA102"


@pytest.fixture
def target(tmp_path: Path) -> HostTree:
    """A node with a card at another address, in the container that got it."""
    tree = HostTree(tmp_path / "target")
    tree.card("0000:3b:00", group=7)
    return tree


def test_a_domain_of_another_node_gets_the_devices_of_this_one_and_is_the_same_otherwise(
    tree: HostTree, target: HostTree
) -> None:
    first = hook("--vmi", VMI, "--domain", DOMAIN, env={"LAUNCHERKIT_HOST": str(tree.root)}).stdout.decode()
    env = {"LAUNCHERKIT_HOST": str(target.root), GPU: "0000:3b:00.0"}
    arrived = hook("--vmi", VMI, "--domain", first, env=env)
    assert arrived.stdout.decode() == first.replace('bus="0xe1"', 'bus="0x3b"')
    assert arrived.stderr.decode().count("had 0000:e1:00.") == 2


def test_a_card_that_is_not_like_the_one_before_fails_the_vm_unless_the_policy_lets_it_come(
    tree: HostTree, target: HostTree
) -> None:
    first = hook("--vmi", VMI, "--domain", DOMAIN, env={"LAUNCHERKIT_HOST": str(tree.root)}).stdout.decode()
    target.function("0000:3b:00.2", device=0x1AD8, class_code=0x0C0330, driver="vfio-pci", group=7)
    env = {"LAUNCHERKIT_HOST": str(target.root), GPU: "0000:3b:00.0"}
    refused = hook("--vmi", VMI, "--domain", first, env=env)
    assert (refused.returncode, refused.stdout) == (65, b"")
    assert b"it comes as 0000:3b:00.0, .1 and .2, and the domain has 0000:e1:00.0 and .1" in refused.stderr
    placed = hook("--vmi", VMI, "--domain", first, env={**env, "LAUNCHERKIT_REPLACE": "yes"})
    assert placed.stdout.count(b"<hostdev ") == 3
