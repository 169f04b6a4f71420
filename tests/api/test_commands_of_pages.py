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

from tests.api.applying import STAND_INS, applied, crd
from tests.cluster.test_manifests import CRDS, FOREIGN, NAMESPACE
from tests.support.cluster import Cluster, Refused
from tests.support.pages import ROOT, Shell, all_pages, blocks, name_of, steps
from tests.tiers import API

helm = pytest.importorskip("helm_python", reason="Helm's library isn't here: `./dev test api` installs it")
pytestmark = pytest.mark.api

RUN_HERE = {"apply", "create", "delete", "get", "label", "patch"}
"""What kubectl does with an API server alone. The rest needs a kubelet or a controller, and is only parsed."""


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
HELM = [command for command in COMMANDS if command.text.startswith("helm ")]
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


def named(kind: str, name: str, version: str = "v1", namespace: str = "", **more: Any) -> dict[str, Any]:
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **where}, **more}


POD_SPEC = {"containers": [{"name": "it", "image": "registry.example/it:1"}]}
KINDS = [
    *yaml.safe_load_all(CRDS.read_text()),
    *STAND_INS,
    crd("kubevirt.io", "VirtualMachineInstance", "vmi", "Namespaced"),
    crd("nvidia.com", "ClusterPolicy", "", "Cluster"),
]
SCENE = [
    NAMESPACE,
    named("Namespace", "kubevirt"),
    named("Node", "gpu-1"),
    named("KubeVirt", "kubevirt", "kubevirt.io/v1", "kubevirt"),
    named(
        "VirtualMachineInstance",
        "gpu-vm",
        "kubevirt.io/v1",
        "default",
        status={"conditions": [{"type": "Ready", "status": "True"}]},
    ),
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
    return bool(kinds or emptied) and len(kinds) == len(complaints) and set(kinds) <= FOREIGN


def helm_arguments() -> argparse.ArgumentParser:
    """Of the commands of Helm that the pages have; its library has no command line."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, arguments in {
        "install": ("name", "chart"),
        "upgrade": ("name", "chart"),
        "rollback": ("name", "revision"),
        "uninstall": ("name",),
        "history": ("name",),
        "template": ("name", "chart"),
    }.items():
        one = verbs.add_parser(verb)
        for argument in arguments:
            one.add_argument(argument)
        one.add_argument("-n", "--namespace", required=True)
        if "chart" in arguments:
            one.add_argument("--create-namespace", action="store_true")
            one.add_argument("--reset-then-reuse-values", action="store_true")
            one.add_argument("--set", action="append", default=[])
            one.add_argument("-f", "--values", type=Path)
    return parser


def helm_does(config: Any, asked: argparse.Namespace, folder: Path) -> None:
    """What a command of Helm does, by its library.

    Raises:
        helm_python.HelmError: it can't.
    """
    if asked.verb in ("install", "upgrade", "template"):
        values = (config.get_values(asked.name) or {}) if asked.reset_then_reuse_values else {}
        if asked.values is not None:
            values |= yaml.safe_load((folder / asked.values).read_text())
        for each in asked.set:
            values = merged(values, helm.parse_set_string(each))
        chart = str(ROOT / asked.chart)
        if asked.verb == "install":
            config.install(
                chart, asked.name, values, namespace=asked.namespace, create_namespace=asked.create_namespace
            )
        elif asked.verb == "upgrade":
            config.upgrade(chart, asked.name, values)
        else:
            with helm.Chart.load(chart) as loaded:
                loaded.render(values, name=asked.name, namespace=asked.namespace)
    elif asked.verb == "rollback":
        config.rollback(asked.name, version=int(asked.revision))
    elif asked.verb == "uninstall":
        config.uninstall(asked.name)
    else:
        config.history(asked.name)


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Values with others, key by key."""
    both = {key: merged(values[key], more[key]) for key in values.keys() & more.keys() if isinstance(more[key], dict)}
    return values | more | both


@pytest.mark.parametrize("page", list(dict.fromkeys(command.page for command in HELM)), ids=name_of)
def test_helm_does_what_a_page_tells_it_to_do(server: Cluster, page: Path, tmp_path: Path) -> None:
    asked = [helm_arguments().parse_args(command.words) for command in HELM if command.page == page]
    for block in blocks(page):
        if file := block.reported.get("file"):
            (tmp_path / file).write_text(block.text)
    ((name, namespace),) = {(each.name, each.namespace) for each in asked}
    with server.served_to() as address, helm.Config(kube_apiserver=address, namespace=namespace) as config:
        try:
            if asked[0].verb != "install":  # a page on what is installed already
                chart = str(ROOT / next(each.chart for each in asked if "chart" in each))
                config.install(chart, name, {}, namespace=namespace, create_namespace=True)
            for each in asked:
                helm_does(config, each, tmp_path)
        finally:
            config.uninstall(name, ignore_not_found=True)
