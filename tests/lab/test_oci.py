"""What a container is extras where runc starts it: what its manifest says, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcherkit_lab.container.image import ImageConfig
from launcherkit_lab.container.manifest import pod_of
from launcherkit_lab.container.oci import LOCKED_BYTES, Extras
from launcherkit_lab.container.oci import specification as specification_of
from tests.kernel.pod.manifests import component, launcher, merged, plugin

IMAGE = ImageConfig(("launcherkit", "run"), (), ("PATH=/bin",), "0:0")


def specification(pod: dict[str, Any], root: Path, extras: Extras) -> dict[str, Any]:
    read = pod_of([pod])
    return specification_of(read, read.containers[0], IMAGE, root, extras)


def volumes(pod: dict[str, Any], folder: Path) -> dict[str, Path]:
    return {volume["name"]: folder / volume["name"] for volume in pod["spec"]["volumes"]}


@pytest.fixture
def daemon() -> dict[str, Any]:
    """The plugin's pod with the component `binding`, as a DaemonSet makes it."""
    _, base = plugin()
    template = merged(base, component("binding"))["spec"]["template"]
    return {"kind": "Pod", "metadata": {"name": "plugin", "namespace": "launcherkit"}, "spec": template["spec"]}


def test_a_launcher_has_its_capabilities_its_device_and_the_runtimes_limit(tmp_path: Path) -> None:
    (tmp_path / "kernel").touch()
    *_, pod = launcher("vm", tmp_path / "kernel")
    made = specification(pod, tmp_path, Extras(volumes(pod, tmp_path), {"PCI_RESOURCE_X": "1"}, ["/dev/null"]))
    process = made["process"]
    assert len(process["capabilities"]["effective"]) == 8
    assert "CAP_SYS_RESOURCE" in process["capabilities"]["bounding"]
    assert process["noNewPrivileges"]
    assert process["env"] == ["PATH=/bin", "PCI_RESOURCE_X=1"]
    assert process["args"][:3] == ["launcherkit", "run", "--domain=/etc/launcherkit/domain.xml"]
    assert process["rlimits"] == [{"type": "RLIMIT_MEMLOCK", "soft": LOCKED_BYTES, "hard": LOCKED_BYTES}]
    assert made["root"]["readonly"]
    assert [device["path"] for device in made["linux"]["devices"]] == ["/dev/null"]
    refused, allowed = made["linux"]["resources"]["devices"]
    assert refused == {"allow": False, "access": "rwm"}
    assert (allowed["major"], allowed["minor"]) == (1, 3)
    assert {"type": "pid"} in made["linux"]["namespaces"]


def test_the_plugin_sees_the_nodes_processes_and_writes_where_its_component_says(
    daemon: dict[str, Any], tmp_path: Path
) -> None:
    made = specification(daemon, tmp_path, Extras(volumes(daemon, tmp_path)))
    assert {"type": "pid"} not in made["linux"]["namespaces"]
    assert sorted(made["process"]["capabilities"]["effective"]) == ["CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"]
    assert {"LAUNCHERKIT_PLUGIN_HOST=/host", "POD_NAME=plugin"} <= set(made["process"]["env"])
    writable = {
        mount["destination"] for mount in made["mounts"] if mount["type"] == "bind" and "ro" not in mount["options"]
    }
    assert {"/host/sys/bus/pci", "/host/sys/devices", "/run/launcherkit-plugin"} <= writable
    assert not {"/host/sys/bus", "/host/sys/class", "/dev/vfio"} & writable


def test_a_profile_of_the_node_is_taken_over_as_it_is_and_the_runtimes_own_is_not_known(
    daemon: dict[str, Any], tmp_path: Path
) -> None:
    extras = Extras(volumes(daemon, tmp_path), kubelet_dir=tmp_path)
    assert "seccomp" not in specification(daemon, tmp_path, extras)["linux"]
    patch = component("seccomp")["spec"]["template"]["spec"]
    confined = {**daemon, "spec": merged(daemon["spec"], patch)}
    (tmp_path / "seccomp").mkdir()
    (tmp_path / "seccomp" / "launcherkit-plugin.json").write_text('{"defaultAction": "SCMP_ACT_ERRNO"}')
    assert specification(confined, tmp_path, extras)["linux"]["seccomp"] == {"defaultAction": "SCMP_ACT_ERRNO"}


def test_give_back_changes_the_configuration_alone(daemon: dict[str, Any]) -> None:
    before = {"spec": {"template": {"spec": daemon["spec"]}}}
    after = merged(before, component("give-back"))["spec"]["template"]["spec"]
    assert {volume["name"] for volume in after["volumes"]} == {volume["name"] for volume in daemon["spec"]["volumes"]}
    changed = [new for new, old in zip(after["volumes"], daemon["spec"]["volumes"], strict=True) if new != old]
    assert changed == [{"name": "config", "configMap": {"name": "launcherkit-plugin-give-back"}}]
    assert after["containers"] == daemon["spec"]["containers"]
