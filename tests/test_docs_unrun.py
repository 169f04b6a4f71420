"""What the documentation shows and no test runs: each block is read by what reads such a thing, and commands parse.

Examples that run are in `test_docs`.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import launcherkit
from deploy.render import DEPLOY
from launcherkit.request.policy import read_policy_annotation, read_policy_file
from launcherkit.request.vmi import read_vmi
from launcherkit_lab.description import read_description
from launcherkit_plugin.config.reading import read_config, read_layout
from launcherkit_plugin.devices.cdi import cdi_spec
from launcherkit_plugin.dra.inventory import CONTAINER
from launcherkit_plugin.webhook.injection import read_injections
from tests.support.command_lines import PROGRAMS, commands_in, parse
from tests.support.containerfile import read_containerfile
from tests.support.kubernetes_types import wrong
from tests.support.pages import ELSEWHERE, ROOT, Block, all_pages, blocks, name_of, prose, sections, steps


@pytest.fixture(autouse=True)
def with_the_binding_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pages say of GPU instances is read where it is installed, whether it is here or not."""
    monkeypatch.setattr("launcherkit_plugin.config.reading.find_spec", lambda _: True)


OTHER_PROGRAMS = {
    "buildah": "builds an image, which the tier images does",
    "echo": "changes the host's sysfs or its boot",
    "install": "writes to a node's kubelet",
    "pip": "fetches packages",
    **dict.fromkeys(("base64", "openssl", "sha256sum"), "checks a release, which the tier images does"),
}
"""What a block of ``sh`` may have beside our own commands, and why it isn't run."""

NOT_RUN = {
    "a drawing": "nobody reads it but people",
    "the output of another command": "of one that is parsed; it shows a node, a cluster or a machine of its own",
    "a udev rule": "of udev's, which a test has not",
    "units of systemd": "of systemd's, which a test has not",
    "a job of CI": "of a CI service; the commands in it are parsed",
    "a command of cosign": "there is no package of it",
    "a policy of signatures": "skopeo reads it in the tier images",
    "a query": "Prometheus answers it in its tier",
    "a part of a domain": "libvirt reads it in the tier kernel",
}
"""What a block may say that it is without being read by anything, and why."""

_SIDECAR_IMAGE = re.compile(r"\blauncherkit-sidecar:")


def of_type(name: str) -> Callable[[Any], None]:
    """Fails where a value isn't one of Kubernetes's types, or has a command of ours that isn't one."""

    def check(value: Any) -> None:
        assert not list(wrong(value, name))
        parse_inside(value)

    return check


def parse_inside(value: Any) -> None:
    """Parse the commands in a document's strings, and what it gives our images as arguments."""
    if isinstance(value, dict):
        if _SIDECAR_IMAGE.search(str(value.get("image", ""))):
            parse(["launcherkit", "hook", "serve", *value.get("args", ())])
        for item in value.values():
            parse_inside(item)
    elif isinstance(value, list):
        if value and value[0] in [*PROGRAMS]:
            parse(value)
        for item in value:
            parse_inside(item)
    elif isinstance(value, str) and any(f"{program} " in value for program in PROGRAMS) and "\n\n" not in value:
        for words in commands_in(value):
            parse(words)


def is_policy(text: str, folder: Path) -> None:
    (folder / "policy.yaml").write_text(text)
    assert read_policy_file(str(folder / "policy.yaml"))


def is_configuration(text: str, folder: Path) -> None:
    (folder / "plugin.yaml").write_text(text)
    assert read_config(str(folder / "plugin.yaml")).config


def is_machine(text: str, folder: Path) -> None:
    (folder / "my.yaml").write_text(text)
    assert read_description(str(folder / "my.yaml")).cards


def is_layout(text: str, folder: Path) -> None:
    (folder / "layout.yaml").write_text(text)
    assert read_layout(str(folder / "layout.yaml"))


def is_injection(text: str, folder: Path) -> None:
    (folder / "one.yaml").write_text(text)
    assert read_injections(folder)


def is_vm(document: Mapping[str, Any]) -> None:
    """A VM with a device, and an annotation for KubeVirt if it has one."""
    assert read_vmi(document).requests
    annotations = document["spec"].get("template", {}).get("metadata", {}).get("annotations", {})
    parse_inside(json.loads(annotations.get("hooks.kubevirt.io/hookSidecars", "[]")))
    if "launcherkit.io/policy" in annotations:
        read_policy_annotation(annotations["launcherkit.io/policy"])


def is_metadata(document: Mapping[str, Any]) -> None:
    """Labels or annotations of a VM's template, which decide something."""
    of_type("V1PodTemplateSpec")(document)
    metadata = document["metadata"]
    for name in metadata.get("labels", {}):
        assert name in (DEPLOY / "plugin.yaml").read_text()
    for text in metadata.get("annotations", {}).values():
        read_policy_annotation(text)


def are_patches(kustomization: Mapping[str, Any]) -> None:
    """Patches for our kustomization: what they change is there."""
    texts = [path.read_text() for path in (DEPLOY / "plugin").rglob("*.yaml")]
    manifests = [each for text in texts for each in yaml.safe_load_all(text) if "metadata" in each]
    for patch in kustomization["patches"]:
        if "target" not in patch:
            changes_what_is_there(yaml.safe_load(patch["patch"]), manifests)
            continue
        target = patch["target"]
        found = [
            document
            for document in manifests
            if (document.get("kind"), document["metadata"]["name"]) == (target["kind"], target["name"])
        ]
        for step in yaml.safe_load(patch["patch"]):
            assert any(has_place(document, step["op"], step["path"]) for document in found), step["path"]
            parse_inside(step["value"])
            if isinstance(step["value"], str) and step["value"].startswith("--"):
                parse(["launcherkit-plugin", "serve", step["value"]])


def changes_what_is_there(change: Mapping[str, Any], manifests: Sequence[Mapping[str, Any]]) -> None:
    """A patch that is merged into an object of ours: of Kubernetes' types, and its containers are there, by name."""
    assert not [*wrong(change, f"V1{change['kind']}")]

    def containers(document: Mapping[str, Any]) -> set[str]:
        spec = document["spec"].get("template", {}).get("spec", {})
        return {each["name"] for each in spec.get("containers", [])}

    ours = [
        each
        for each in manifests
        if (each["kind"], each["metadata"]["name"]) == (change["kind"], change["metadata"]["name"])
    ]
    assert containers(change) <= set[str]().union(*map(containers, ours))


def has_place(document: Any, op: str, path: str) -> bool:
    """Whether a step of a JSON patch has its place in a document: all of it to replace, the parent to add."""
    *parents, last = path.split("/")[1:]
    try:
        for name in parents:
            document = document[int(name) if isinstance(document, list) else name]
        return op == "add" or last in document
    except (KeyError, IndexError):
        return False


def is_the_plugin(document: Mapping[str, Any]) -> None:
    """KubeVirt's plugin as it is deployed."""
    (deployed,) = [
        each for each in yaml.safe_load_all((DEPLOY / "plugin.yaml").read_text()) if each["kind"] == document["kind"]
    ]
    assert within(document, deployed), "deploy/plugin.yaml has another"


def is_the_probe(document: Mapping[str, Any]) -> None:
    """The launcher's probe as it is deployed, but for its times."""
    (pod,) = [each for each in yaml.safe_load_all((DEPLOY / "launcher-pod.yaml").read_text()) if each["kind"] == "Pod"]
    (container,) = pod["spec"]["containers"]
    assert document["livenessProbe"]["exec"] == container["livenessProbe"]["exec"]
    of_type("V1Container")(document)


def within(part: Any, whole: Any) -> bool:
    """Whether a document has all of another's keys, with their values; white space aside."""
    if isinstance(part, dict):
        return all(key in whole and within(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(within, part, whole))
    return str(part).split() == str(whole).split()


def is_cdi(document: Mapping[str, Any]) -> None:
    """A CDI file as the plugin writes it."""
    nodes = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    }
    assert json.loads(cdi_spec(nodes, kind=document["kind"])) == document


def is_signature(text: str, folder: Path) -> None:
    """The function of the library, with its defaults and the parameters that its table has."""
    name = text.partition("(")[0]
    rows = re.findall(r"^\| `(\w+)` \|", sections(ROOT / "docs/reference/python-api.md")[name], re.MULTILINE)
    signature = inspect.signature(getattr(launcherkit, name))
    kept = [each.replace(annotation=each.empty) for each in signature.parameters.values() if each.name in rows]
    shown = str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))
    assert [each.name for each in kept] == rows
    gives = signature.return_annotation
    gives = gives if isinstance(gives, str) else gives.__name__
    assert " ".join(text.split()) == f"{name}{shown} -> {gives}".replace("'", '"')


def is_selector(text: str, folder: Path) -> None:
    """CEL that selects containers' cards as the deployed class selects those for VMs."""
    (cards, *_) = yaml.safe_load_all((DEPLOY / "plugin/components/dra/deviceclasses.yaml").read_text())
    expression = cards["spec"]["selectors"][0]["cel"]["expression"]
    assert text.strip() == expression.replace('"card"', f'"{CONTAINER}"')


def is_kustomization(document: Mapping[str, Any]) -> None:
    """Ours with components that are there, beside a checkout."""
    for path in [*document["resources"], *document.get("components", ())]:
        assert (DEPLOY.parents[1] / DEPLOY.parent.name / path.removeprefix("../launcherkit/")).is_dir(), path


def is_program(text: str, folder: Path) -> None:
    """A script whose interpreter can parse it."""
    if text.startswith("#!/bin/sh"):
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    else:
        compile(text, "a program", "exec")


def is_toml(text: str, folder: Path) -> None:
    assert tomllib.loads(text)


def of_yaml(check: Callable[[Any], None]) -> Callable[[str, Path], None]:
    return lambda text, folder: check(yaml.safe_load(text))


READERS: Mapping[str, Callable[[str, Path], None]] = {
    "a policy": is_policy,
    "a configuration of the plugin": is_configuration,
    "a layout": is_layout,
    "a machine of the lab": is_machine,
    "an injection": is_injection,
    "a VM": of_yaml(is_vm),
    "metadata of a VM": of_yaml(is_metadata),
    "patches": of_yaml(are_patches),
    "the launcher's probe": of_yaml(is_the_probe),
    "a container": of_yaml(of_type("V1Container")),
    "a pod's spec": of_yaml(of_type("V1PodSpec")),
    "a CDI file": of_yaml(is_cdi),
    "a signature": is_signature,
    "a selector": is_selector,
    "TOML": is_toml,
    "a program": is_program,
}
"""What a block may say that it is, and what reads it."""
KINDS: Mapping[str, Callable[[Any], None] | str] = {
    "VirtualMachine": is_vm,
    "Kustomization": is_kustomization,
    "Plugin": is_the_plugin,
    "KubeVirt": "a command of its page reads it",
    "AdmissionConfiguration": "an API server reads it when it starts",
    "Config": "the same",
}
"""Kinds of documents that Kubernetes's client doesn't know, and what reads them, or why nothing does."""


def shown() -> Iterator[tuple[Path, Block]]:
    """The blocks that don't run."""
    for page in all_pages():
        for block in blocks(page):
            runs = block.language in ("console", "python", "sh") or "prints" in block.reported
            if not runs and not is_message(page, block):
                yield page, block


def is_message(page: Path, block: Block) -> bool:
    """Whether it is the text of an error, which `test_errors` compares."""
    return page.parent.name == "errors" and block.language == "text"


SHOWN = [pytest.param(page, block, id=f"{name_of(page)}:{block.line}") for page, block in shown()]


def documents(block: Block) -> list[Any]:
    """Those of a block that say of which kind they are."""
    if block.language not in ("yaml", "json"):
        return []
    return [each for each in yaml.safe_load_all(block.text) if isinstance(each, dict) and "apiVersion" in each]


@pytest.mark.parametrize(("page", "block"), SHOWN)
def test_a_block_is_what_it_says(page: Path, block: Block, tmp_path: Path) -> None:
    said = block.reported.get("is", "")
    if said in READERS:
        READERS[said](block.text, tmp_path)
    elif found := documents(block):
        for document in found:
            check = KINDS.get(document["kind"], of_type(f"V1{document['kind']}"))
            if not isinstance(check, str):
                check(document)
    elif file := block.reported.get("file"):
        others = [each.text for each in blocks(page) if each != block and each.language in ("console", "yaml")]
        assert any(name in text for name in Path(file).parts for text in others), f"nothing reads {file}"
    else:
        assert said in NOT_RUN, f"what it is can be said in a comment: {sorted([*READERS, *NOT_RUN])}"
        for line in block.text.splitlines():
            if line.startswith("# "):  # root's prompt
                assert all(map(parse, commands_in(line[2:])))
        if block.language == "yaml":
            parse_inside(yaml.safe_load(block.text))


def test_the_text_of_an_error_is_nothing_else() -> None:
    for page in all_pages():
        for line in "".join(block.text for block in blocks(page) if is_message(page, block)).splitlines():
            assert line.startswith(("error[", "help: ", "      ")), f"{name_of(page)}: {line}"


def test_nothing_is_said_of_blocks_that_no_block_says() -> None:
    used = {block.reported.get("is") for _, block in shown()}
    assert used - {None} == READERS.keys() | NOT_RUN.keys()


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, block, id=f"{name_of(page)}:{block.line}")
        for page in all_pages()
        for block in blocks(page)
        if block.language == "sh" or "runs" in block.reported
    ],
)
def test_a_command_that_runs_elsewhere_is_one(page: Path, block: Block) -> None:
    script = block.text
    if block.language == "sh":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    else:
        script = "\n".join(step.command for step in steps(block))
    others = {*OTHER_PROGRAMS, *(beginning.split()[0] for beginning, _ in ELSEWHERE.values())}
    for words in commands_in(script):
        assert parse(words) or Path(words[0]).name in others or "file" in block.reported, words
        if words[0] == "buildah":
            {"build": is_build, "push": is_push}[words[1]](words)


def is_push(words: Sequence[str]) -> None:
    """An image that `./dev images` names so, of this version."""
    name, _, version = words[-1].rpartition("/")[2].rpartition(":")
    assert name in {f"launcherkit-{image}" for image in ("sidecar", "plugin", "launcher", "webhook")}
    assert version == launcherkit.__version__


def is_build(words: Sequence[str]) -> None:
    """An image of ours, with all the arguments that it needs."""
    file = read_containerfile(ROOT / words[words.index("-f") + 1])
    given = {word.partition("=")[0] for before, word in itertools.pairwise(words) if before == "--build-arg"}
    assert given <= file.arguments.keys()
    assert given >= {name for name, default in file.arguments.items() if default is None}


def test_every_command_in_the_text_of_a_page_is_one() -> None:
    wrong_ones = []
    for page in all_pages():
        texts = [prose(page), *(block.text for block in blocks(page) if block.language == "text")]
        for code in (code for text in texts for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)):
            for alternative in alternatives(" ".join(code.split())):
                try:
                    for words in commands_in(alternative):
                        parse(words, whole=False)
                except ValueError as problem:
                    if any(program in alternative for program in (*PROGRAMS, "./dev")):
                        wrong_ones.append(f"{name_of(page)}: {alternative}: {problem}")
    assert not wrong_ones, "\n".join(wrong_ones)


def alternatives(code: str) -> Iterator[str]:
    """A command as it is written in text, ``status [BDF...]`` or ``vgpu list|create``, as commands."""
    code = re.sub(r"\[([A-Z]+)\]", r"\1", code.replace("...", "")).replace(" COMMAND", " completion")
    if choice := re.search(r"(?<= )\w+(?:\|\w+)+(?= |$)", code):
        for one in choice[0].split("|"):
            yield from alternatives(code[: choice.start()] + one + code[choice.end() :])
    else:
        yield code
