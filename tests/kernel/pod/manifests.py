"""What is applied: deploy/'s launcher pod as it is, but for what an emulated machine has not got."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from deploy.chart import MERGE_KEYS, PLUGIN
from deploy.render import DEPLOY, manifests
from launcherkit_lab.devices import DISPLAY
from tools.release.images import name_of

RESOURCE = "nvidia.com/EMULATED_GPU"
"""The machine's graphics card, by the name under which a pod asks for it."""
VARIABLE = "PCI_RESOURCE_NVIDIA_COM_EMULATED_GPU"

_DOMAIN = """\
<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>64</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/etc/launcherkit/kernel</kernel>
    <cmdline>pci wait</cmdline>
  </os>
  <features>
    <acpi/>
  </features>
  <devices>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='pty'/>
  </devices>
</domain>
"""


_COMPONENTS = PLUGIN / "components"
NAMESPACE = "launcherkit"


def plugin() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What deploy/plugin has beside its DaemonSet, for a card of this machine; and the DaemonSet of the base."""
    settings = {"plugin.yaml": json.dumps(plugin_config())}  # JSON is YAML
    metadata = {"name": "launcherkit-plugin", "namespace": NAMESPACE}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": settings}
    read = [yaml.safe_load((PLUGIN / "base" / f"{name}.yaml").read_text()) for name in ("namespace", "serviceaccount")]
    daemon_set = yaml.safe_load((PLUGIN / "base" / "daemonset.yaml").read_text())
    daemon_set["spec"]["template"]["spec"]["containers"][0]["image"] = name_of("plugin")
    nothing = yaml.safe_load((_COMPONENTS / "give-back" / "configmap.yaml").read_text())
    return [*read, config_map, nothing], daemon_set


def component(name: str) -> dict[str, Any]:
    """A component's patch of the DaemonSet."""
    patch: dict[str, Any] = yaml.safe_load((_COMPONENTS / name / "daemonset.yaml").read_text())
    return patch


def merged(document: Any, patch: Any, field: str = "") -> Any:
    """A document with a strategic merge patch, as far as components have them."""
    if isinstance(document, dict) and isinstance(patch, dict):
        return document | {key: merged(document.get(key), part, key) for key, part in patch.items()}
    if isinstance(document, list) and field in MERGE_KEYS:
        key = MERGE_KEYS[field]
        changed = {item[key]: merged(item, part) for item in document for part in patch if part[key] == item[key]}
        known = [changed.get(item[key], item) for item in document]
        return known + [part for part in patch if part[key] not in changed]
    return document + patch if isinstance(document, list) and field == "add" else patch


def plugin_config() -> dict[str, Any]:
    """The card is bound to vfio-pci with its whole group and offered by one name."""
    return {
        "resources": [
            {"name": RESOURCE, "select": [{"models": [f"{DISPLAY[0]:04x}:{DISPLAY[1]:04x}"]}], "bind": True},
        ]
    }


def launcher(name: str, kernel: Path, *, raises_limit: bool = True) -> list[dict[str, Any]]:
    """The documents of deploy/launcher-pod.yaml, for a guest with a kernel of 2 KB.

    Changed are: the domain, which is emulated and has no disk; the claim of a disk; the device /dev/kvm; the sizes.

    Args:
        raises_limit: the pod has SYS_RESOURCE, with which libvirt raises the limit of locked memory; without it the
            container runtime's own limit must do.
    """
    values = yaml.safe_load((DEPLOY / "values.yaml").read_text())
    images = {**values["images"], "launcher": name_of("launcher")}
    rendered = manifests({**values, "images": images, "resource": RESOURCE, "vm": name})["launcher-pod.yaml"]
    configuration, pod = yaml.safe_load_all(rendered)
    configuration["data"]["domain.xml"] = _DOMAIN.format(name=name)
    configuration["binaryData"] = {"kernel": base64.b64encode(kernel.read_bytes()).decode()}
    [container] = pod["spec"]["containers"]
    container["resources"]["limits"] |= {"memory": "512Mi"}
    del container["resources"]["limits"][values["kvmResource"]]
    # The next pod is to wait for the card, not for a processor.
    container["resources"]["requests"] = {"cpu": "100m"}
    if not raises_limit:
        container["securityContext"]["capabilities"]["add"].remove("SYS_RESOURCE")
    [disks] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "disks"]
    del disks["persistentVolumeClaim"]
    disks["emptyDir"] = {}
    return [configuration, pod]
