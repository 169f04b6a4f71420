"""The commands of the pages that a unit test can't run: kubectl and Helm know each, and the API takes what it can."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.api.applying import applied
from tests.api.test_manifests import taken_whole
from tests.cluster.test_manifests import CRDS, FOREIGN, NAMESPACE
from tests.support.cluster import Cluster, Refused
from tests.support.pages import ROOT, Shell, all_pages, blocks, name_of, steps
from tests.tiers import API

helm = pytest.importorskip("helm_python", reason="Helm's library isn't here: `./dev test api` installs it")
pytestmark = pytest.mark.api

RUN_HERE = {"apply", "create", "delete", "get", "label", "patch"}
"""What kubectl does with an API server alone. The rest needs a kubelet or a controller, and is only parsed."""
ABSENT = {*FOREIGN, "NetworkPolicy", "PrometheusRule"}
"""Kinds of the manifests that this API server doesn't have."""


class Command(NamedTuple):
    """A command of a page that runs elsewhere."""

    page: Path
    line: int
    """Of its block."""
    text: str

    @property
    def words(self) -> list[str]:
        """Its arguments, without the program, and without what is run in a container or done with the output."""
        words = shlex.split(re.sub(r" > \S+$", "", self.text))[1:]
        return words[: words.index("--")] if "--" in words else words

    @property
    def verb(self) -> str:
        words = self.words
        return words[2] if words[0] == "-n" else words[0]


COMMANDS = [
    Command(page, block.line, step.command)
    for page in all_pages()
    for block in blocks(page)
    if block.reported.get("runs") in ("in a cluster", "with Helm")
    for step in steps(block)
]
KUBECTL = [command for command in COMMANDS if command.text.startswith("kubectl ")]
PAGES = list(dict.fromkeys(command.page for command in KUBECTL))


def test_kubectl_knows_every_verb_and_every_option(api: Cluster) -> None:
    wrong = []
    for command in KUBECTL:
        try:
            said = api.kubectl(*command.words, "--help")  # it parses all that is there before it helps
        except Refused as refused:
            said = str(refused)
        if not re.search(rf"^ +kubectl {command.verb}\b", said.partition("Usage:")[2], re.MULTILINE):
            wrong.append(shown(command, said.splitlines()))
    assert not wrong, "\n".join(wrong)


def crd(group: str, kind: str, short: str, scope: str) -> dict[str, Any]:
    """A kind of somebody else's, of which any object is one."""
    plural = f"{kind.lower()}s" if not kind.endswith("y") else f"{kind.lower()[:-1]}ies"
    whatever = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "shortNames": [short] if short else []}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": whatever}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": scope, "names": names, "versions": [version]},
    }


def named(kind: str, name: str, version: str = "v1", namespace: str = "", **more: Any) -> dict[str, Any]:
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **where}, **more}


POD_SPEC = {"containers": [{"name": "it", "image": "registry.example/it:1"}]}
KINDS = [
    *yaml.safe_load_all(CRDS.read_text()),
    crd("kubevirt.io", "VirtualMachineInstance", "vmi", "Namespaced"),
    crd("nvidia.com", "ClusterPolicy", "", "Cluster"),
]
SCENE = [
    NAMESPACE,
    named("Namespace", "kubevirt"),
    named("Node", "gpu-1"),
    named("KubeVirt", "kubevirt", "kubevirt.io/v1", "kubevirt"),
    named("VirtualMachineInstance", "gpu-vm", "kubevirt.io/v1", "default"),
    named("ClusterPolicy", "cluster-policy", "nvidia.com/v1"),
    named(
        "DaemonSet",
        "nvidia-kubevirt-gpu-dp-daemonset",
        "apps/v1",
        "kube-system",
        spec={
            "selector": {"matchLabels": {"name": "it"}},
            "template": {"metadata": {"labels": {"name": "it"}}, "spec": POD_SPEC},
        },
    ),
]


@pytest.fixture(scope="module")
def kinds(api: Cluster) -> Iterator[None]:
    """Other projects' kinds, as far as the pages name them."""
    text = yaml.safe_dump_all(KINDS)
    with applied(api, text):
        api.kubectl("wait", "--for=condition=established", "--timeout=60s", "-f", "-", given=text)
        yield


@pytest.fixture
def server(api: Cluster, kinds: None) -> Iterator[Cluster]:
    """The API with what the pages take for granted; a page may delete it."""
    with applied(api, yaml.safe_dump_all(SCENE)):
        yield api


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_api_does_what_a_page_tells_kubectl_to_do(server: Cluster, page: Path, tmp_path: Path) -> None:
    folder, aside = tmp_path / "page", tmp_path / "aside"
    refused, undo = [], []
    with shell_with_kubectl(folder, aside) as shell:
        try:
            for block in blocks(page):
                if file := block.reported.get("file"):
                    shell.write(file, block.text)
                if block.language != "console" or not Path(block.reported.get("needs", "/")).exists():
                    continue
                for step in steps(block):
                    command = Command(page, block.line, step.command)
                    if block.reported.get("runs") is None:
                        shell.run(step.command)  # what it gives is tested with the rest of the documentation
                    elif command in KUBECTL and command.verb in RUN_HERE and "token" not in command.words:
                        outcome = shell.run(step.command)
                        undo += undoing(command)
                        if outcome.code and not only_absent(outcome.lines):
                            refused.append(shown(command, outcome.lines))
        finally:
            for words in reversed(undo):
                shell.run(f"kubectl {shlex.join(words)}")
    assert not refused, "\n".join(refused)


def shown(command: Command, lines: Sequence[str]) -> str:
    """A command with its place and what it said."""
    return "\n".join([f"{name_of(command.page)}, line {command.line}: {command.text}", *lines])


def shell_with_kubectl(folder: Path, aside: Path) -> Shell:
    """A shell in a folder with the manifests, and with what the pages leave to the reader, that finds kubectl."""
    folder.mkdir()
    aside.mkdir()
    (folder / "deploy").symlink_to(ROOT / "deploy")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder.parent / "launcherkit").symlink_to(ROOT)
    kustomization: dict[str, Any] = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    kustomization |= {"resources": ["../launcherkit/deploy/plugin/base"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    (folder / "pod.yaml").write_text(yaml.safe_dump(named("Pod", "gpu-pod", spec=POD_SPEC)))
    shell = Shell(folder, aside)
    program = aside / "bin" / "kubectl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {API.program()} kubectl "$@"\n')
    program.chmod(0o755)
    return shell


def undoing(command: Command) -> list[list[str]]:
    """The arguments of kubectl that remove what a command makes."""
    words = [word for word in command.words if word != "--server-side"]
    if command.verb == "apply":
        return [["delete", "--ignore-not-found", *words[words.index("apply") + 1 :]]]
    if command.verb == "create" and "--dry-run=server" not in words:
        at = words.index("create")
        return [[*words[:at], "delete", "--ignore-not-found", *words[at + 1 : at + 3]]]
    return []


def only_absent(lines: Sequence[str]) -> bool:
    """Whether kubectl had nothing to complain about but kinds that this API server doesn't have.

    Its namespaces end at once when they are deleted, and with them what kubectl would delete next.
    """
    # Several complaints of that kind are in brackets, and in one line with the advice of the one before.
    lines = [each.lstrip("[") for line in lines for each in re.split(", (?=resource mapping)", line)]
    emptied = any(re.match('namespace ".*" deleted', line) for line in lines)
    complaints = [line for line in lines if re.match("error|Error|unable|resource mapping", line)]
    if emptied:
        complaints = [
            line for line in complaints if not line.startswith("Error from server (NotFound): error when del")
        ]
    kinds = re.findall(r'no matches for kind "(\w+)"', "\n".join(lines))
    return bool(kinds) and len(kinds) == len(complaints) and set(kinds) <= ABSENT


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in KUBECTL], ids=lambda each: each.text[:12])
def test_helm_installs_the_chart_with_the_values_that_a_page_gives(server: Cluster, command: Command) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("verb", choices=["install"])
    parser.add_argument("name")
    parser.add_argument("chart")
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args(command.words)
    values: dict[str, Any] = {}
    known = yaml.safe_load((ROOT / asked.chart / "values.yaml").read_text())
    for each in asked.set:
        path, _, value = each.partition("=")
        *above, last = path.split(".")
        into, there = values, known
        for key in above:
            into, there = into.setdefault(key, {}), there[key]
        assert last in there, f"{path} is no value of the chart"
        into[last] = yaml.safe_load(value)
    with helm.Chart.load(str(ROOT / asked.chart)) as chart:
        rendered = "\n---\n".join(chart.render(values, name=asked.name, namespace="default").values())
    documents = [document for document in yaml.safe_load_all(rendered) if document]
    assert values["image"]["name"] in rendered
    taken_whole(server, yaml.safe_dump_all(documents), lambda kind: None)
