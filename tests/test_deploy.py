"""The manifests in deploy/ are what their templates give, ask for no more than they need, and fit the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import TemplateError, UndefinedError

from deploy.admission import cel
from deploy.render import DEPLOY, TEMPLATES, injections, manifests, read_values
from launcherkit import Host, translate
from launcherkit.request.policy import read_policy_file
from tests.support.containerfile import exec_form, read_containerfile

VALUES = read_values()
COMMITTED = {path.name: path.read_text() for path in sorted(DEPLOY.glob("*.yaml")) if path.name != "values.yaml"}
IMAGES = DEPLOY / "images"
every_manifest = pytest.mark.parametrize("name", COMMITTED)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(COMMITTED[name]))


def only(name: str, kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents(name) if document["kind"] == kind]
    return found


def objects(value: object) -> Iterator[dict[str, Any]]:
    """Every mapping in a document, at any depth."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from objects(item)


def test_the_committed_manifests_are_what_the_templates_give() -> None:
    assert manifests(VALUES) == COMMITTED, "run `python deploy/render.py`"


def test_a_value_that_is_missing_is_an_error_and_none_is_idle() -> None:
    for name in VALUES:
        with pytest.raises(UndefinedError):
            manifests({key: value for key, value in VALUES.items() if key != name})


def test_a_template_can_not_leave_its_sandbox(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml.j2").write_text("a: {{ vm.__class__.__mro__ }}\n")
    with pytest.raises(TemplateError):
        manifests(VALUES, tmp_path)


def test_a_name_with_a_quote_in_it_does_not_change_the_shape_of_a_manifest() -> None:
    tricky = VALUES | {"label": 'example.org/a"b'}
    before = [cel_paths(document) for document in documents("plugin.yaml") if document["kind"] == "Plugin"]
    plugin = [
        document for document in yaml.safe_load_all(manifests(tricky)["plugin.yaml"]) if document["kind"] == "Plugin"
    ]
    assert [cel_paths(document) for document in plugin] == before


def cel_paths(document: dict[str, Any]) -> list[list[str]]:
    return [sorted(each) for each in objects(document)]


# What the containers may do


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every container that a manifest makes, and the one that the admission policy adds."""
    yield "policy", added_container()
    for name in COMMITTED:
        for document in documents(name):
            if document["kind"] in ("Pod", "Deployment"):
                spec = document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]
                yield from ((name, container) for container in spec["containers"])


def added_container() -> dict[str, Any]:
    """What policy and webhook add to a launcher pod: tests/api compares both."""
    name = only("plugin.yaml", "MutatingAdmissionPolicy")["metadata"]["name"]
    text = injections(VALUES)[name]
    for key, value in only("plugin.yaml", "ConfigMap")["data"].items():
        text = text.replace(f"${{{key}}}", value)
    (container,) = yaml.safe_load(text)["add"]["initContainers"]
    found: dict[str, Any] = container
    return found


def untyped(expression: str) -> str:
    return re.sub(r"\bObject[\w.]*\{", "{", expression)


def test_no_container_is_privileged_or_has_more_than_it_needs() -> None:
    for where, container in containers():
        context = container["securityContext"]
        assert not context.get("privileged"), where
        assert context["allowPrivilegeEscalation"] is False, where
        assert context["readOnlyRootFilesystem"] is True, where
        assert context["capabilities"]["drop"] == ["ALL"], where
        assert container["resources"]["limits"]["memory"], where


@every_manifest
def test_nothing_of_the_node_is_mounted_or_shared(name: str) -> None:
    forbidden = {"hostPath", "hostNetwork", "hostPID", "hostIPC"}
    assert [forbidden & set(each) for each in objects(documents(name)) if forbidden & set(each)] == []


def test_the_plugins_container_is_no_root_and_keeps_a_guaranteed_pod_guaranteed() -> None:
    container = added_container()
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_launcher_pod_can_write_only_to_volumes_of_its_own() -> None:
    spec = only("launcher-pod.yaml", "Pod")["spec"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    (state,) = [volume["name"] for volume in spec["volumes"] if "emptyDir" in volume]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    written = {"/run", "/run/lock", "/tmp", "/etc/libvirt/qemu"}
    written |= {f"/var/{folder}/libvirt" for folder in ("lib", "cache", "log")}
    assert {path for path, mount in mounts.items() if mount["name"] == state} == written
    parts = [mount["subPath"] for mount in mounts.values() if mount["name"] == state]
    assert len(parts) == len(set(parts))


def test_the_launcher_pod_may_raise_the_limit_of_locked_memory_and_does_not_call_it_ipc_lock() -> None:
    (container,) = only("launcher-pod.yaml", "Pod")["spec"]["containers"]
    added = container["securityContext"]["capabilities"]["add"]
    assert "SYS_RESOURCE" in added
    assert not {"IPC_LOCK", "SYS_ADMIN", "SYS_RAWIO", "NET_ADMIN"} & set(added)


# What fits what


def sidecars(name: str) -> list[dict[str, Any]]:
    template = only(name, "VirtualMachine")["spec"]["template"]
    asked: list[dict[str, Any]] = json.loads(template["metadata"]["annotations"]["hooks.kubevirt.io/hookSidecars"])
    return asked


@pytest.mark.parametrize("name", ["sidecar.yaml", "sidecar-shim.yaml"])
def test_the_annotation_is_one_that_kubevirt_reads(name: str) -> None:
    known = {"image", "imagePullPolicy", "command", "args", "configMap", "pvc"}
    assert [set(sidecar) - known for sidecar in sidecars(name)] == [set()]


def test_the_hook_of_the_shim_is_in_its_config_map_and_a_shell_takes_it(tmp_path: Path) -> None:
    (sidecar,) = sidecars("sidecar-shim.yaml")
    config_map = only("sidecar-shim.yaml", "ConfigMap")
    assert sidecar["configMap"]["name"] == config_map["metadata"]["name"]
    hook = tmp_path / "hook"
    hook.write_text(config_map["data"][sidecar["configMap"]["key"]])
    assert hook.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", hook], check=True)


def test_what_is_for_the_whole_cluster_brings_no_vm_along() -> None:
    kinds = {name: {document["kind"] for document in documents(name)} for name in COMMITTED}
    assert [name for name in kinds if kinds[name] & {"Pod", "VirtualMachine"} and len(kinds[name]) > 2] == []
    policy = {"ConfigMap", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
    assert kinds["plugin.yaml"] == {"Plugin", *policy}
    assert kinds["kata-licence.yaml"] == policy
    assert kinds["webhook-own-ca.yaml"] == {"MutatingWebhookConfiguration"}


def test_a_claim_that_a_pod_needs_and_no_manifest_makes_is_reported_at_the_top() -> None:
    for name, text in COMMITTED.items():
        head = re.match(r"(#.*\n)+", text)
        for each in objects(documents(name)):
            if claim := each.get("persistentVolumeClaim"):
                assert head, name
                assert f"PersistentVolumeClaim {claim['claimName']}" in head[0], name


def test_without_jinja2_it_is_said_what_to_do() -> None:
    run = [sys.executable, "-S", str(DEPLOY / "render.py")]  # without site-packages
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("deploy/render.py: jinja2 and PyYAML are needed, and ")
    assert "./dev demo && .venv/bin/python deploy/render.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_plugins_condition_names_the_label_and_the_resources_that_the_policy_goes_by() -> None:
    # tests/api has a server decide by the policy; KubeVirt's own evaluator has taken the condition.
    label, beginnings = VALUES["label"], VALUES["resources"]
    assert only("plugin-vm.yaml", "VirtualMachine")["spec"]["template"]["metadata"]["labels"] == {label: "true"}
    assert only("plugin.yaml", "ConfigMap")["data"]["resources"].split(" ") == beginnings
    (hook,) = only("plugin.yaml", "Plugin")["spec"]["domainHooks"]
    by_device = f"exists(d, {json.dumps(beginnings)}.exists(p, d.DeviceName.startsWith(p)))"
    assert " ".join(hook["condition"].split()) == (
        f'"{label}" in vmi.Labels ? vmi.Labels["{label}"] == "true" '
        f": vmi.Spec.Domain.Devices.GPUs.{by_device} || vmi.Spec.Domain.Devices.HostDevices.{by_device}"
    )


def test_a_plugin_has_no_condition_that_launcher_and_handler_would_read_by_different_names() -> None:
    # virt-launcher and the admission webhook know a VMI's fields by Go's names, virt-handler by JSON's; both read the
    # condition of the plugin, virt-launcher alone those of domain hooks, virt-handler alone those of node hooks.
    node = yaml.safe_load((DEPLOY / "plugin" / "components" / "node-hook" / "kubevirt-plugin.yaml").read_text())
    for plugin in (only("plugin.yaml", "Plugin"), node):
        assert "condition" not in plugin["spec"]
        for hook in plugin["spec"].get("domainHooks", []):
            assert set(re.findall(r"\bvmi\.(\w+)", hook["condition"])) <= {"Labels", "Annotations", "Spec"}
        for hook in plugin["spec"].get("nodeHooks", []):
            assert set(re.findall(r"\bvmi\.(\w+)", hook["condition"])) <= {"metadata", "spec"}


def test_the_plugins_container_ends_with_the_pod_because_it_is_a_native_sidecar() -> None:
    # Nobody tells a domain hook that the VM is gone: as an ordinary container it would keep the pod, and its devices.
    assert added_container()["restartPolicy"] == "Always"


def test_beside_the_plugin_the_vm_has_the_sidecar_that_kubevirt_1_9_needs() -> None:
    # KubeVirt#18861.
    assert [sidecar["image"] for sidecar in sidecars("plugin-vm.yaml")] == [added_container()["image"]]
    for path in (DEPLOY / "plugin.yaml", DEPLOY / "plugin" / "components" / "node-hook" / "kustomization.yaml"):
        head = re.match(r"(#.*\n)+", path.read_text())
        assert head, path
        assert "KubeVirt#18861" in head[0], path


def test_the_socket_is_where_kubevirt_allows_it_and_the_container_makes_it() -> None:
    plugin = only("plugin.yaml", "Plugin")
    name = plugin["metadata"]["name"]
    (hook,) = plugin["spec"]["domainHooks"]
    path = hook["sidecar"]["socketPath"]
    folder = f"/var/run/kubevirt-plugin/{name}/"
    assert path.startswith(folder)
    assert path.endswith(".sock")
    assert len(path) < 108
    container = added_container()
    (mount,) = container["volumeMounts"]
    assert (mount["mountPath"], mount["subPath"]) == (folder, name)
    assert container["args"] == ["--domain-hook", name]


def test_the_policy_is_shaped_as_admissionregistration_has_it() -> None:
    # tests/api has a server that knows this kind (Kubernetes 1.36) run it; this is what needs none.
    policy = only("plugin.yaml", "MutatingAdmissionPolicy")
    known = {
        "paramKind",
        "matchConstraints",
        "matchConditions",
        "failurePolicy",
        "reinvocationPolicy",
        "mutations",
    }
    assert policy["apiVersion"] == "admissionregistration.k8s.io/v1"
    assert set(policy["spec"]) == known
    assert policy["spec"]["failurePolicy"] in {"Fail", "Ignore"}
    assert policy["spec"]["reinvocationPolicy"] in {"Never", "IfNeeded"}
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert rule == {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    volume, _, container = (condition["expression"] for condition in policy["spec"]["matchConditions"])
    (mount,) = added_container()["volumeMounts"]
    assert f'"{mount["name"]}"' in volume
    assert f'"{added_container()["name"]}"' in container
    binding = only("plugin.yaml", "MutatingAdmissionPolicyBinding")
    names = [each["name"] for each in only("plugin.yaml", "Plugin")["spec"]["mutatingAdmissionPolicies"]]
    assert names == [policy["metadata"]["name"]] == [binding["spec"]["policyName"]]
    parameters = only("plugin.yaml", "ConfigMap")["metadata"]
    assert {key: binding["spec"]["paramRef"][key] for key in parameters} == parameters


def test_the_expression_of_the_policy_says_the_type_of_every_object() -> None:
    value = {"name": "a", "resources": {"limits": {"cpu": "1"}}, "volumeMounts": [{"name": "b", "readOnly": True}]}
    written = cel(value, "Object.spec.containers")
    assert re.findall(r"([\w.]+)\{", written) == [
        "Object.spec.containers",
        "Object.spec.containers.resources",
        "Object.spec.containers.volumeMounts",
    ]
    assert json.loads(re.sub(r"^(\s*)(\w+):", r'\1"\2":', untyped(written), flags=re.MULTILINE)) == value


def test_the_policy_and_the_domain_of_the_launcher_pod_can_be_used(tmp_path: Path) -> None:
    data = only("launcher-pod.yaml", "ConfigMap")["data"]
    policy = tmp_path / "policy.yaml"
    policy.write_text(data["policy.yaml"])
    assert read_policy_file(str(policy)) == {"siblings": VALUES["siblings"]}
    resource = str(VALUES["resource"]).upper().replace("/", "_").replace(".", "_")
    done = translate(data["domain.xml"], env={f"PCI_RESOURCE_{resource}": "01:00.0"}, host=Host.none())
    assert "<hostdev" in str(done.domain_xml)


def test_the_images_and_manifests_call_commands_that_there_are() -> None:
    stages = {stage.name: stage for stage in read_containerfile(IMAGES / "Containerfile").stages}
    (launcher,) = only("launcher-pod.yaml", "Pod")["spec"]["containers"]
    calls: dict[str, list[str]] = {"sidecar": added_container()["args"], "launcher": launcher["args"]}
    for stage, arguments in calls.items():
        entrypoint = stages[stage].last("ENTRYPOINT")
        assert entrypoint
        program, command, *words = [*exec_form(entrypoint), *arguments]
        parser = ArgumentParser(program)
        import_module(f"launcherkit.cli.{command}").add_arguments(parser, {})
        parser.parse_args(words)  # ends the process where it can't


def test_the_launcher_has_longer_than_the_guest_to_end() -> None:
    spec = only("launcher-pod.yaml", "Pod")["spec"]
    assert spec["terminationGracePeriodSeconds"] > int(str(VALUES["grace"]))
    assert f"--grace={VALUES['grace']}" in spec["containers"][0]["args"]


def test_every_template_has_a_manifest_or_is_part_of_one() -> None:
    parts = [path.name for path in TEMPLATES.glob("_*.j2")]
    rest = "".join(path.read_text() for path in TEMPLATES.glob("[!_]*.j2"))
    assert [part for part in parts if f'"{part}"' not in rest] == []
    assert {path.name.removesuffix(".j2") for path in TEMPLATES.glob("[!_]*.j2")} == set(COMMITTED)
