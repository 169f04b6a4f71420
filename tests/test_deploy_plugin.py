"""The device plugin's manifests: whole, no more than the plugin needs, and of one mind with its code."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config.incluster_config import SERVICE_TOKEN_FILENAME

from deploy.render import DEPLOY
from launcherkit_plugin import __version__
from launcherkit_plugin.cli import cluster, probe, serve, web
from launcherkit_plugin.cluster.events import EVENTS_PATH
from launcherkit_plugin.cluster.publisher import NODES_PATH, SLICES_PATH
from launcherkit_plugin.cluster.requests import (
    ACCESSREVIEWS_PATH,
    ALL_CLAIMS_PATH,
    CLAIMS_PATH,
    CONFIGMAPS_PATH,
    PAGE_URL,
    TOKENREVIEWS_PATH,
)
from launcherkit_plugin.cluster.serve import KUBEVIRT_PATH, PODS_PATH
from launcherkit_plugin.model.config import NODE, CdiConfig, DraConfig
from tests.support import forked

PLUGIN = DEPLOY / "plugin"
BASE = PLUGIN / "base"
COMPONENTS = {path.name: path for path in sorted((PLUGIN / "components").iterdir())}
KUSTOMIZATIONS = [BASE, *COMPONENTS.values()]
every_kustomization = pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=lambda folder: folder.name)
every_patch = pytest.mark.parametrize(
    "patch", [path for folder in COMPONENTS.values() for path in folder.glob("daemonset.yaml")], ids=str
)


def read(path: Path) -> dict[str, Any]:
    return deepcopy(parsed(path.read_text()))


@cache
def parsed(text: str) -> dict[str, Any]:
    """A document, which many tests look at."""
    (document,) = yaml.safe_load_all(text)
    assert isinstance(document, dict)
    return document


def pod(path: Path) -> dict[str, Any]:
    """The pod's specification in a DaemonSet, or in a patch of one."""
    spec: dict[str, Any] = read(path)["spec"]["template"]["spec"]
    return spec


def container(path: Path, name: str = "plugin") -> dict[str, Any]:
    """One of the pod's containers; empty where a patch doesn't touch it."""
    found: list[dict[str, Any]] = [each for each in pod(path)["containers"] if each["name"] == name]
    return found[0] if found else {}


def mounts(path: Path, name: str = "plugin") -> dict[str, tuple[str, bool]]:
    """By the path in the container: the path on the node, empty if it has none there, and whether it can be written."""
    volumes = {each["name"]: each.get("hostPath", {}).get("path", "") for each in pod(path).get("volumes", [])}
    base = {each["name"]: each.get("hostPath", {}).get("path", "") for each in pod(BASE / "daemonset.yaml")["volumes"]}
    return {
        mount["mountPath"]: ((base | volumes)[mount["name"]], not mount.get("readOnly", False))
        for mount in container(path, name).get("volumeMounts", [])
    }


# Kustomizations


@every_kustomization
def test_a_kustomization_names_every_file_beside_it_and_no_other(folder: Path) -> None:
    kustomization = read(folder / "kustomization.yaml")
    named = {*kustomization.get("resources", []), *(patch["path"] for patch in kustomization.get("patches", []))}
    for generator in kustomization.get("configMapGenerator", []):
        named |= set(generator["files"])
    assert named | {"kustomization.yaml"} == {path.name for path in folder.iterdir()}


@every_kustomization
def test_a_kustomization_is_of_the_kind_that_its_place_asks_for(folder: Path) -> None:
    kustomization = read(folder / "kustomization.yaml")
    kind = ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    if folder != BASE:
        kind = ("kustomize.config.k8s.io/v1alpha1", "Component")
    assert (kustomization["apiVersion"], kustomization["kind"]) == kind


@every_kustomization
def test_no_manifest_has_anchors_which_older_kustomizes_do_not_read(folder: Path) -> None:
    tokens = [token for path in folder.iterdir() for token in yaml.scan(path.read_text())]
    assert not [token for token in tokens if isinstance(token, yaml.AnchorToken | yaml.AliasToken)]


@every_patch
def test_a_patch_is_of_the_daemon_set_and_its_container(patch: Path) -> None:
    base = read(BASE / "daemonset.yaml")
    changed = read(patch)
    assert [changed[key] for key in ("apiVersion", "kind")] == [base[key] for key in ("apiVersion", "kind")]
    assert changed["metadata"].items() <= base["metadata"].items()
    added = {"cluster"} if patch.parent.name in ("cluster", "pod-ends", "dra", "node-record") else set()
    added |= {"web"} if patch.parent.name in ("metrics", "page") else set()
    assert {each["name"] for each in pod(patch)["containers"]} <= {"plugin"} | added


@pytest.mark.parametrize("folder", [BASE, COMPONENTS["cluster"], COMPONENTS["metrics"]], ids=lambda folder: folder.name)
def test_the_image_has_the_version_of_the_plugin(folder: Path) -> None:
    (image,) = read(folder / "kustomization.yaml")["images"]
    assert image == {"name": container(BASE / "daemonset.yaml")["image"], "newTag": __version__}


# What the pod may do


def test_without_binding_the_plugin_has_no_capability_and_no_part_of_sysfs() -> None:
    it = container(BASE / "daemonset.yaml")
    assert it["securityContext"] == {
        "runAsUser": 0,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    spec = pod(BASE / "daemonset.yaml")
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


def test_of_the_node_it_can_write_the_folder_of_the_sockets_and_of_the_features() -> None:
    found = mounts(BASE / "daemonset.yaml")
    assert {path: writes for path, writes in found.values() if path} == {
        "/var/lib/kubelet/device-plugins": True,
        "/var/lib/kubelet/pod-resources": False,
        "/dev/vfio": False,
        serve.FEATURES: True,
    }
    assert all(inside == outside for inside, (outside, _) in found.items() if outside)


def test_binding_and_vgpus_alone_add_to_what_the_daemon_may_do_and_they_say_what() -> None:
    for name, folder in COMPONENTS.items():
        for patch in folder.glob("daemonset.yaml"):
            spec = pod(patch)
            more = {key: spec[key] for key in ("hostPID", "hostNetwork", "hostIPC") if key in spec}
            context = container(patch).get("securityContext")
            if name in ("binding", "vgpu"):
                assert more == {"hostPID": True}
                assert context == {"capabilities": {"add": ["DAC_READ_SEARCH", "SYS_PTRACE"]}}
            elif name == "vf-network":
                assert more == {"hostNetwork": True}
                assert context == {"capabilities": {"add": ["DAC_READ_SEARCH", "SYS_PTRACE", "NET_ADMIN"]}}
            elif name == "seccomp":
                assert (more, list(context or ())) == ({}, ["seccompProfile"])
            else:
                assert (more, context) == ({}, None), name


SYSFS = {
    "/sys/bus": False,
    "/sys/devices": True,
    "/sys/class": False,
    "/sys/kernel/iommu_groups": False,
    "/dev/vfio": False,
}
"""What binding and vGPUs both need of the host's trees, and whether to write."""


@pytest.mark.parametrize(
    ("name", "more"), [("binding", {"/sys/bus/pci": True, "/run/launcherkit-plugin": True}), ("vgpu", {})]
)
def test_of_sysfs_a_component_mounts_to_write_what_it_writes(name: str, more: dict[str, bool]) -> None:
    patch = COMPONENTS[name] / "daemonset.yaml"
    found = mounts(patch)
    assert dict(found.values()) == SYSFS | more
    given = options(patch)
    assert given.proc == "/proc"
    for inside, (outside, _) in found.items():
        assert inside == (f"{given.host}{outside}" if outside.startswith(("/sys", "/dev")) else outside)


# docs/reference/plugin-permissions.md


PERMISSIONS = (DEPLOY.parent / "docs" / "reference" / "plugin-permissions.md").read_text()
PATCHES = {"base": BASE / "daemonset.yaml"} | {
    name: folder / "daemonset.yaml" for name, folder in COMPONENTS.items() if (folder / "daemonset.yaml").exists()
}


GROUPS = {
    "kubevirts": "kubevirt.io",
    "tokenreviews": "authentication.k8s.io",
    "subjectaccessreviews": "authorization.k8s.io",
}
"""API groups of resources whose names don't tell."""


def rows(head: str) -> list[list[str]]:
    """The cells of the table whose head begins so, without backquotes."""
    _, _, rest = PERMISSIONS.partition(f"\n| {head}")
    lines = rest.partition("\n\n")[0].replace("`", "").splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_has_every_path_of_the_node_with_the_component_that_mounts_it() -> None:
    reported = {
        (component, path, writes == "yes")
        for components, path, writes, _ in rows("component | path of the node")
        for component in components.split(", ")
    }
    mounted = {
        (name, outside, writes)
        for name, path in PATCHES.items()
        for outside, writes in mounts(path).values()
        if outside
    }
    assert reported == mounted


def test_the_page_has_every_capability_and_namespace() -> None:
    reported = {
        (component, what)
        for components, what, _ in rows("component | capability")
        for component in components.split(", ")
    }
    had = set()
    for name, path in PATCHES.items():
        had |= {(name, key) for key in ("hostPID", "hostIPC", "hostNetwork") if pod(path).get(key)}
        for each in pod(path)["containers"]:
            added = each.get("securityContext", {}).get("capabilities", {}).get("add", ())
            had |= {(name, capability) for capability in added}
    assert reported == had


def test_the_page_has_every_right() -> None:
    reported = set()
    for component, right, *_ in rows("component | right"):
        verbs, _, what = right.replace(", ", ",").partition(" ")
        resource, _, namespace = what.partition(" in the namespace ")
        group = GROUPS.get(resource, "resource.k8s.io" if "resource" in resource else "")
        reported |= {(component, (namespace, group, resource, verb)) for verb in verbs.split(",")}
    components = [name for name, folder in COMPONENTS.items() if (folder / "rbac.yaml").exists()]
    assert reported == {(name, right) for name in components for right in rights(name)}


# The container that speaks to the cluster


def test_without_the_component_there_is_no_token_and_no_right() -> None:
    spec = pod(BASE / "daemonset.yaml")
    assert spec["automountServiceAccountToken"] is False
    assert not any("projected" in volume for volume in spec["volumes"])
    kinds = {
        document["kind"]
        for path in BASE.glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
        if "kind" in document
    }
    assert kinds == {"DaemonSet", "Kustomization", "Namespace", "NetworkPolicy", "ServiceAccount"}
    (account,) = yaml.safe_load_all((BASE / "serviceaccount.yaml").read_text())
    assert account["automountServiceAccountToken"] is False


def test_who_has_the_token_has_nothing_else() -> None:
    patch = COMPONENTS["cluster"] / "daemonset.yaml"
    it = container(patch, "cluster")
    context = it["securityContext"]
    assert context["runAsNonRoot"]
    assert context["runAsUser"] != 0 != context["runAsGroup"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not any(outside for outside, _ in mounts(patch, "cluster").values()), "nothing of the host"
    assert it["image"] == container(BASE / "daemonset.yaml")["image"]


def test_who_has_the_devices_does_not_mount_the_token() -> None:
    patch = COMPONENTS["cluster"] / "daemonset.yaml"
    (token,) = [volume["name"] for volume in pod(patch)["volumes"] if "projected" in volume]
    assert [mount["name"] for mount in container(patch)["volumeMounts"] if mount["name"] == token] == []
    (mount,) = [mount for mount in container(patch, "cluster")["volumeMounts"] if mount["name"] == token]
    assert (mount["mountPath"], mount["readOnly"]) == (os.path.dirname(SERVICE_TOKEN_FILENAME), True)


def test_both_containers_have_the_socket_and_its_group() -> None:
    patch = COMPONENTS["cluster"] / "daemonset.yaml"
    path = options(patch).cluster_socket
    variables = {each["name"]: each.get("value", "given") for each in container(patch, "cluster")["env"]}
    parser = ArgumentParser()
    cluster.add_arguments(parser, variables)
    command, *words = container(patch, "cluster")["args"]
    given = parser.parse_args(words)
    assert (command, given.cluster_socket, given.node) == ("cluster", path, "given")
    for name in ("plugin", "cluster"):
        assert os.path.dirname(path) in mounts(patch, name)
    assert pod(patch)["securityContext"]["fsGroup"]


def test_the_ends_of_pods_are_watched_where_there_is_the_right_to() -> None:
    variables = {
        each["name"]: each["value"] for each in container(COMPONENTS["pod-ends"] / "daemonset.yaml", "cluster")["env"]
    }
    parser = ArgumentParser()
    cluster.add_arguments(parser, variables)
    assert parser.parse_args([]).watch_pods


def given_to_web(*components: str) -> Any:
    """What the web process makes of its arguments, and of the variables that these components give it."""
    containers = [container(COMPONENTS[name] / "daemonset.yaml", "web") for name in components]
    parser = ArgumentParser()
    web.add_arguments(parser, {each["name"]: each.get("value", "given") for it in containers for each in it["env"]})
    command, *words = containers[0]["args"]
    assert command == "web"
    return parser.parse_args(words)


def test_who_has_the_port_has_nothing_else_and_nobody_else_has_one() -> None:
    patch = COMPONENTS["metrics"] / "daemonset.yaml"
    it = container(patch, "web")
    others = container(COMPONENTS["cluster"] / "daemonset.yaml", "cluster")["securityContext"]
    assert it["securityContext"] | {"runAsUser": 0} == others | {"runAsUser": 0}
    socket = given_to_web("metrics").web_socket
    assert mounts(patch, "web") == {os.path.dirname(socket): ("", False)}, "nothing of the host, no token, to read"
    others = [each for path in PATCHES.values() for each in pod(path)["containers"] if each["name"] != "web"]
    assert not any("ports" in each for each in others)
    assert it["image"] == container(BASE / "daemonset.yaml")["image"]


def test_no_two_containers_have_a_user_in_common() -> None:
    """With hostPID the kernel lets processes of one user into each other's files, whatever their containers."""
    containers = {
        each["name"]: each
        for path in [BASE / "daemonset.yaml", *PATCHES.values()]
        for each in pod(path)["containers"]
        if "image" in each
    }
    users = [each["securityContext"]["runAsUser"] for each in containers.values()]
    assert len(containers) == 3
    assert len(set(users)) == 3


def test_the_daemon_and_who_has_the_port_share_a_socket_and_its_group_and_no_other_folder() -> None:
    patch = COMPONENTS["metrics"] / "daemonset.yaml"
    path = options(patch).web_socket
    assert given_to_web("metrics").web_socket == path
    assert mounts(patch) == {os.path.dirname(path): ("", True)}
    assert pod(patch)["securityContext"]["fsGroup"] == container(patch, "web")["securityContext"]["runAsGroup"]
    assert os.path.dirname(path) != os.path.dirname(options(COMPONENTS["cluster"] / "daemonset.yaml").cluster_socket)


def test_over_the_network_the_metrics_can_be_reached_and_nothing_else() -> None:
    labels = read(BASE / "daemonset.yaml")["spec"]["template"]["metadata"]["labels"]
    nobody, scrapers = (read(folder / "networkpolicy.yaml")["spec"] for folder in (BASE, COMPONENTS["metrics"]))
    for policy in (nobody, scrapers):
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        assert policy["policyTypes"] == ["Ingress"]
    (port,) = container(COMPONENTS["metrics"] / "daemonset.yaml", "web")["ports"]
    (rule,) = scrapers["ingress"]
    assert ("ingress" in nobody, [each["port"] for each in rule["ports"]]) == (False, [port["name"]])
    assert given_to_web("metrics").metrics_address == f":{port['containerPort']}"


def test_the_manifests_of_dra_are_of_the_driver_that_the_configuration_has_by_default() -> None:
    driver = DraConfig().driver
    found = {outside for outside, writes in mounts(COMPONENTS["dra"] / "daemonset.yaml").values() if writes}
    kubelet = options(BASE / "daemonset.yaml").kubelet_dir
    assert found == {f"{kubelet}/plugins_registry", f"{kubelet}/plugins/{driver}", CdiConfig().folder}
    variables = {each["name"] for each in container(COMPONENTS["dra"] / "daemonset.yaml")["env"]}
    assert variables == {"NODE_NAME", "POD_UID"}
    for name in ("rbac", "policy", "deviceclasses"):
        text = (COMPONENTS["dra"] / f"{name}.yaml").read_text()
        assert set(re.findall(r"pci\.[a-z.]+", text)) == {driver}


def test_the_page_takes_tokens_of_those_who_have_the_readers_role() -> None:
    (role,) = yaml.safe_load_all((COMPONENTS["page"] / "reader.yaml").read_text())
    assert role["rules"] == [{"nonResourceURLs": [PAGE_URL], "verbs": ["get"]}]
    assert given_to_web("metrics", "page").page == "token"
    assert [each["name"] for each in container(COMPONENTS["page"] / "daemonset.yaml")["env"]] == [NODE]


def test_cdi_files_are_written_where_the_configuration_has_them_by_default() -> None:
    assert mounts(COMPONENTS["cdi"] / "daemonset.yaml") == {CdiConfig().folder: (CdiConfig().folder, True)}


# What fits what


def options(path: Path) -> Any:
    """What the command makes of a container's arguments and variables."""
    it = container(path)
    variables = {each["name"]: each.get("value", "given") for each in it["env"]}
    command, *words = it.get("args", ["serve"])
    assert command == "serve"
    parser = ArgumentParser()
    serve.add_arguments(parser, variables)
    return parser.parse_args(words)


def test_the_arguments_are_ones_that_the_command_has() -> None:
    given = options(BASE / "daemonset.yaml")
    found = mounts(BASE / "daemonset.yaml")
    assert str(Path(given.config).parent) in found
    assert f"{given.kubelet_dir}/device-plugins" in found


def test_the_configuration_is_one_that_the_plugin_takes() -> None:
    (generator,) = read(BASE / "kustomization.yaml")["configMapGenerator"]
    (volume,) = [each for each in pod(BASE / "daemonset.yaml")["volumes"] if "configMap" in each]
    assert volume["configMap"]["name"] == generator["name"]
    assert generator["options"] == {"disableNameSuffixHash": True}
    (file,) = generator["files"]
    assert Path(options(BASE / "daemonset.yaml").config).name == file
    done = forked.run(
        [forked.PLUGIN, "serve", "--config", BASE / file, "--check-config"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_probes_ask_where_the_daemon_answers() -> None:
    path = options(BASE / "daemonset.yaml").probe_socket
    assert os.path.dirname(path) in mounts(BASE / "daemonset.yaml")
    for name, what in (("livenessProbe", "healthz"), ("readinessProbe", "readyz")):
        program, command, *words = container(BASE / "daemonset.yaml")[name]["exec"]["command"]
        parser = ArgumentParser()
        probe.add_arguments(parser, {})
        given = parser.parse_args(words)
        assert (program, command, given.what, given.probe_socket) == ("launcherkit-plugin", "probe", what, path)


def rights(*components: str) -> set[tuple[str, str, str, str]]:
    """Namespace, API group, resource and verb of each right."""
    return {
        (document["metadata"].get("namespace", ""), group, resource, verb)
        for name in components
        for document in yaml.safe_load_all((COMPONENTS[name] / "rbac.yaml").read_text())
        for rule in document.get("rules", [])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_rights_are_those_that_the_code_uses_and_no_more() -> None:
    asked = {(NODES_PATH, "list"), (KUBEVIRT_PATH, "list"), (EVENTS_PATH, "create")}
    asked |= {(NODES_PATH, "watch"), (KUBEVIRT_PATH, "watch"), (EVENTS_PATH, "patch")}
    assert rights("cluster") == {(*of_path(path), verb) for path, verb in asked}
    configmaps = of_path(CONFIGMAPS_PATH.format(read(BASE / "namespace.yaml")["metadata"]["name"]))
    assert rights("node-record") == {(*configmaps, verb) for verb in ("create", "patch")}
    for component in ("pod-ends", "same-device"):
        assert rights(component) == {(*of_path(PODS_PATH), verb) for verb in ("list", "watch")}
    assert rights("binding-conditions") == {(*of_path(ALL_CLAIMS_PATH), verb) for verb in ("list", "watch")}
    assert rights("page") == {(*of_path(path), "create") for path in (TOKENREVIEWS_PATH, ACCESSREVIEWS_PATH)}
    claims = of_path(CLAIMS_PATH.format("a"))[2]
    assert rights("dra") == {
        *((*of_path(SLICES_PATH), verb) for verb in ("list", "watch", "create", "update", "delete")),
        ("", "resource.k8s.io", claims, "get"),
        ("", "resource.k8s.io", f"{claims}/status", "patch"),
        ("", "resource.k8s.io", f"{claims}/driver", "associated-node:patch"),
    }


def of_path(path: str) -> tuple[str, str, str]:
    """Namespace, API group and resource of a path."""
    found = re.fullmatch(r"/(?:api|apis/([^/]+))/v1(?:/namespaces/([^/]+))?/([^/]+)", path)
    assert found
    return found[2] or "", found[1] or "", found[3]


@pytest.mark.parametrize("name", ["cluster", "pod-ends", "same-device", "dra", "binding-conditions", "node-record"])
def test_the_rights_are_given_to_the_pods_account(name: str) -> None:
    documents = list(yaml.safe_load_all((COMPONENTS[name] / "rbac.yaml").read_text()))
    account = read(BASE / "serviceaccount.yaml")["metadata"]
    assert pod(BASE / "daemonset.yaml")["serviceAccountName"] == account["name"]
    names = {(document["kind"], document["metadata"]["name"]) for document in documents if "rules" in document}
    bound = {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in documents if "roleRef" in each}
    assert bound == names
    for binding in (document for document in documents if "subjects" in document):
        assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]


def test_all_that_has_a_namespace_is_in_that_of_the_plugin_but_for_events() -> None:
    own = read(BASE / "namespace.yaml")["metadata"]["name"]
    files = [*BASE.glob("*.yaml"), *(path for folder in COMPONENTS.values() for path in folder.glob("*.yaml"))]
    documents = [document for path in files for document in yaml.safe_load_all(path.read_text())]
    outside = {
        document["metadata"]["name"]
        for document in documents
        if document.get("metadata", {}).get("namespace", own) != own
    }
    assert outside == {"launcherkit-plugin-events"}


def test_the_monitor_finds_the_pods_and_their_port() -> None:
    monitor = read(COMPONENTS["prometheus"] / "podmonitor.yaml")
    labels = read(BASE / "daemonset.yaml")["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (port,) = container(COMPONENTS["metrics"] / "daemonset.yaml", "web")["ports"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == (port["name"], "/metrics")


def test_it_runs_on_every_linux_node_but_where_gpus_are_for_containers() -> None:
    """Also where nothing labels nodes by their devices: no pod at all would be silence."""
    spec = pod(BASE / "daemonset.yaml")
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {"matchExpressions": [{"key": "nvidia.com/gpu.workload.config", "operator": "NotIn", "values": ["container"]}]}
    ]
