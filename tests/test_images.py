"""The Containerfiles, read strictly: what an image will have in it, whom it runs as, and where that comes from.

No engine is needed: the tier ``images`` builds them.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from runpy import run_path

import pytest

from launcherkit import __version__
from tests.support.containerfile import Containerfile, Stage, copied_from, exec_form, read_containerfile
from tools.release.images import build

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "deploy" / "images"
FILES = {path.name: read_containerfile(path) for path in sorted(IMAGES.glob("*Containerfile"))}
STAGES = [(name, stage) for name, file in FILES.items() for stage in file.stages]
TARGETS = [(name, stage) for name, file in FILES.items() for stage in file.targets()]

every_file = pytest.mark.parametrize("file", FILES.values(), ids=FILES)
every_stage = pytest.mark.parametrize("stage", [stage for _, stage in STAGES], ids=lambda stage: stage.name or "last")
every_target = pytest.mark.parametrize(
    ("file", "stage"),
    [pytest.param(FILES[name], stage, id=f"{name}:{stage.name or 'last'}") for name, stage in TARGETS],
)


def commands(stage: Stage) -> list[list[str]]:
    """The commands of a stage's RUNs, in words."""
    return [shlex.split(command) for step in stage.steps if step.name == "RUN" for command in step.commands]


def test_the_images_are_those_of_launcherkit_and_the_one_of_the_shim() -> None:
    assert [stage.name for stage in FILES["Containerfile"].targets()] == ["plugin", "webhook", "launcher", "sidecar"]
    assert [stage.name for stage in FILES["shim.Containerfile"].targets()] == [""]
    assert FILES["Containerfile"].stages[-1].name == "sidecar"


STORED = '[{"digest": "sha256:1", "size": "1 MB"}]'


def program(path: Path, script: str) -> None:
    """A stand-in."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_base_that_is_made_has_apt_which_ubuntus_smallest_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(
        tmp_path / "apt-get", '. /etc/os-release; echo "Ubuntu|$VERSION_CODENAME|deb http://mirror.example noble main"'
    )
    program(tmp_path / "mmdebstrap", f'echo "$@" >"{tmp_path}/made"')
    program(tmp_path / "buildah", f"[ \"$3\" = --filter ] && echo '[]' || echo '{STORED}'")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(build(["sidecar"]))
    assert "--include=apt" in (tmp_path / "made").read_text().split()


def test_images_are_built_of_sources_that_came_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "buildah", f"[ $1 = build ] && echo \"$@\" >'{tmp_path}/built' || echo '{STORED}'")
    monkeypatch.setenv("PATH", str(tmp_path))
    (image,) = build(["sidecar"], base="registry.example/debian@sha256:1")
    assert image.name == "registry.example/launcherkit-sidecar:" + __version__
    labels = re.findall(r"--label=org.opencontainers.image.(\S+?)=", (tmp_path / "built").read_text())
    assert labels == ["version", "source", "base.name", "base.digest"]


def test_a_base_that_is_not_here_is_fetched_and_said_with_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = f"[ -e '{tmp_path}/fetched' ] && echo '{STORED}'"
    program(tmp_path / "buildah", f"case $1 in pull) >'{tmp_path}/fetched' ;; build) ;; *) {stored} ;; esac")
    monkeypatch.setenv("PATH", str(tmp_path))
    (image,) = build(["sidecar"], base="registry.example/debian:bookworm-slim")
    assert image.base == "registry.example/debian:bookworm-slim@sha256:1"


@every_file
def test_a_base_is_a_stage_or_pinned_or_given_by_the_builder(file: Containerfile) -> None:
    names = {stage.name for stage in file.stages}
    for stage in file.stages:
        if stage.base not in names:
            argument = re.fullmatch(r"\$\{(\w+)\}", stage.base)
            assert argument, f"FROM {stage.base} can't be changed by the builder"
            default = file.arguments[argument[1]]
            if default and "launcherkit" not in default:  # our own images have the builder's tags
                assert re.fullmatch(r"[\w./-]+:(?!latest)[\w.-]+", default)


@every_stage
def test_a_command_is_a_plain_one_and_fetches_only_by_the_package_managers(stage: Stage) -> None:
    for step in stage.steps:
        if step.name == "RUN":
            assert not re.search(r"[|;`]|\$\(|<<|&(?!&)(?<!&&)", step.rest), f"line {step.line}: a failure could hide"
    for command in commands(stage):
        assert command[0] not in {"curl", "wget", "git", "sudo", "cd", "sh", "bash"}
        assert not any("://" in word for word in command)


@every_stage
def test_pip_installs_by_hash_or_what_is_there_already(stage: Stage) -> None:
    for command in commands(stage):
        if Path(command[0]).name == "pip":
            assert "--require-hashes" in command or {"--no-index", "--no-deps"} <= set(command), command


@every_stage
def test_apt_brings_nothing_that_was_not_asked_for_and_leaves_no_lists(stage: Stage) -> None:
    for step in stage.steps:
        if step.name == "RUN" and "apt-get install" in step.rest:
            assert step.commands[0] == "apt-get update", f"line {step.line}: a cached layer would have old lists"
            assert "--no-install-recommends" in step.rest
            assert "--yes" in step.rest


@every_target
def test_an_image_is_made_of_stages_that_leave_no_lists_and_have_no_pip(file: Containerfile, stage: Stage) -> None:
    for layer in file.chain(stage):
        for step in layer.steps:
            if step.name == "RUN" and "apt-get install" in step.rest:
                assert "rm -rf /var/lib/apt/lists/*" in step.rest, f"line {step.line}"
        assert not any("pip" in word for command in commands(layer) for word in command)
        assert "build" not in layer.name


@every_target
def test_an_image_names_its_user_by_number_and_starts_without_a_shell(file: Containerfile, stage: Stage) -> None:
    user, entrypoint = stage.last("USER"), stage.last("ENTRYPOINT")
    assert user
    assert re.fullmatch(r"\d+:\d+", user.rest), "runAsNonRoot can't be checked by name"
    assert entrypoint
    assert exec_form(entrypoint)


@every_target
def test_an_image_is_labelled(file: Containerfile, stage: Stage) -> None:
    if stage.name:  # the shim's are those of the sidecar that it is built on
        label = stage.last("LABEL")
        assert label
        assert f'org.opencontainers.image.title="launcherkit-{stage.name}"' in label.rest


@every_target
def test_an_image_has_its_bill_of_materials(file: Containerfile, stage: Stage) -> None:
    copied = [step.rest for layer in file.chain(stage) for step in layer.steps if step.name == "COPY"]
    if not stage.name:
        assert file.arguments["SIDECAR_IMAGE"] == "launcherkit-sidecar"  # which has one, of the same packages
    else:
        environment = f"{stage.name}-environment"
        assert f"--from={environment} /sbom/ /usr/share/sbom/" in copied
        commands = [line for made in file.stages if made.name == environment for line in made.steps[-1].commands]
        (lists,) = (line for line in commands if line.startswith("/bill/bin/cyclonedx-py environment "))
        assert lists.endswith(f"--output-file /sbom/launcherkit-{stage.name}.cdx.json /opt/launcherkit")


@every_target
def test_whatever_installs_packages_writes_a_bill_of_them(file: Containerfile, stage: Stage) -> None:
    for layer in file.chain(stage):
        for step in layer.steps:
            if step.name == "RUN" and "apt-get install" in step.rest:
                installs, writes = step.commands[1:3]
                assert installs.startswith("apt-get install")
                assert writes == "python3 /run/packages.py /usr/share/sbom/packages.cdx.json", f"line {step.line}"


def test_a_package_is_named_as_scanners_look_it_up() -> None:
    found = run_path(str(IMAGES / "packages.py"))
    python = found["Package"]("python3", "3.11.2-1+b1", "amd64", "python3-defaults", "3.11.2-1")
    libvirt = found["Package"]("libvirt0", "1:9.0.0-4", "amd64", "libvirt", "1:9.0.0-4")
    adduser = found["Package"]("adduser", "3.134", "all", "adduser", "3.134")
    system = {"ID": "debian", "VERSION_ID": "12"}
    text = found["bill"]([adduser, libvirt, python], {adduser[:3]: "c24f"}, system)
    document = json.loads(text)
    assert document["metadata"]["component"] == {"type": "operating-system", "name": "debian", "version": "12"}
    assert [(part["purl"], part.get("hashes")) for part in document["components"]] == [
        ("pkg:deb/debian/adduser@3.134?arch=all&distro=debian-12", [{"alg": "SHA-256", "content": "c24f"}]),
        ("pkg:deb/debian/libvirt0@1%3A9.0.0-4?arch=amd64&distro=debian-12&upstream=libvirt", None),
        (
            "pkg:deb/debian/python3@3.11.2-1%2Bb1?arch=amd64&distro=debian-12&upstream=python3-defaults%403.11.2-1",
            None,
        ),
    ]
    assert text == found["bill"]([adduser, libvirt, python], {adduser[:3]: "c24f"}, system)
    assert text != found["bill"]([adduser, libvirt], {adduser[:3]: "c24f"}, system)


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="needs dpkg")
def test_the_packages_of_a_machine_are_those_that_are_installed_with_hashes_where_apt_knows_them() -> None:
    found = run_path(str(IMAGES / "packages.py"))
    packages = found["installed"]()
    assert "dpkg" in {each.name for each in packages}
    packages = packages[:20]  # apt takes a second for all of them
    hashes = found["known_hashes"](packages)
    assert hashes.keys() <= {each[:3] for each in packages}
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in hashes.values())


def test_only_the_launcher_and_the_device_plugin_are_root() -> None:
    roots = [stage.name for _, stage in TARGETS if (user := stage.last("USER")) and user.rest.startswith("0:")]
    assert roots == ["plugin", "launcher"]


def test_the_sidecar_is_the_user_of_kubevirts_launcher() -> None:
    users = [step.rest for _, stage in TARGETS if stage.name in ("sidecar", "") and (step := stage.last("USER"))]
    assert users == ["107:107"] * 2


@every_file
def test_what_is_copied_is_there(file: Containerfile) -> None:
    names = {stage.name for stage in file.stages}
    for stage in file.stages:
        for step in stage.steps:
            if step.name == "COPY" and (source := copied_from(step)):
                assert source in names
            elif step.name == "COPY":
                *sources, _ = step.rest.split()
                assert [source for source in sources if not (ROOT / source).exists()] == []


def copied_by(name: str) -> set[str]:
    """What a stage has from the checkout."""
    (stage,) = [stage for stage in FILES["Containerfile"].stages if stage.name == name]
    return {word.rstrip("/") for step in stage.steps if step.name == "COPY" for word in step.rest.split()[:-1]}


def test_the_build_has_all_that_the_wheel_is_made_of() -> None:
    copied = copied_by("build")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    needed = [*wheel["packages"], *wheel["force-include"], hook["readme"], hook["path"]]
    needed += project["project"]["license-files"]
    missing = [path for path in needed if not any(path == top or path.startswith(f"{top}/") for top in copied)]
    assert missing == []


def test_the_plugins_build_has_its_folder_and_no_other_image_has_it() -> None:
    assert copied_by("plugin-build") == {"plugin"}
    (chain,) = [file.chain(stage) for file in FILES.values() for stage in file.targets() if stage.name == "plugin"]
    assert "plugin-build" not in [stage.name for stage in chain]


def test_the_device_plugin_has_what_its_distribution_asks_for() -> None:
    pins = (ROOT / "tools" / "requirements" / "plugin.txt").read_text()
    pinned = set(re.findall(r"^([\w-]+)==", pins, re.MULTILINE))
    tools = tomllib.loads((ROOT / "plugin" / "pyproject.toml").read_text())["tool"]
    dependencies = tools["hatch"]["metadata"]["hooks"]["custom"]["dependencies"]
    asked = {re.split(r"[\[<>=!~ ]", dependency)[0] for dependency in dependencies} - {"launcherkit"}
    assert asked | {"grpclib", "protobuf", "pydantic", "pyyaml"} <= pinned
    assert not {"jinja2", "lxml", "libvirt-python", "pytest", "grpcio"} & pinned


def test_no_module_of_the_device_plugin_needs_what_its_image_leaves_out() -> None:
    program = """
import importlib, pkgutil, sys
sys.modules.update(lxml=None, jinja2=None, aiohttp=None)
import launcherkit.cli.snapshot, launcherkit_plugin
for module in pkgutil.walk_packages(launcherkit_plugin.__path__, "launcherkit_plugin."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_command_of_the_launcher_needs_what_its_image_leaves_out() -> None:
    """gRPC is for hooks alone, and for asking the kubelet, which only `topology --pods` does."""
    program = """
import importlib, pkgutil, sys
sys.modules.update(grpclib=None, h2=None, google=None, pytest=None)
import launcherkit
GRPC = ("launcherkit.hooks", "launcherkit.rpc", "launcherkit.golden.pytest_cases")
for module in pkgutil.walk_packages(launcherkit.__path__, "launcherkit."):
    if not module.name.startswith(GRPC) and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_pins_that_an_image_installs_exist() -> None:
    named = set(re.findall(r"requirements/(\w+\.txt)", (IMAGES / "Containerfile").read_text()))
    assert named
    assert named <= {path.name for path in (ROOT / "tools" / "requirements").glob("*.txt")}


def test_the_sidecar_has_no_more_packages_than_its_servers_and_a_policy_need() -> None:
    pins = (ROOT / "tools" / "requirements" / "sidecar.txt").read_text()
    assert "tools/requirements/sidecar.txt" in (IMAGES / "Containerfile").read_text()
    pinned = set(re.findall(r"^([\w-]+)==", pins, re.MULTILINE))
    assert {"grpclib", "lxml", "protobuf"} <= pinned
    assert not {"jinja2", "libvirt-python", "pytest", "grpcio", "kubernetes"} & pinned


def test_the_shim_finds_a_hook_of_the_users_before_ours() -> None:
    (stage,) = FILES["shim.Containerfile"].targets()
    path = stage.last("ENV")
    assert path
    folders = path.rest.removeprefix("PATH=").split(":")
    assert folders.index("/usr/bin") < folders.index("/opt/launcherkit/bin")


# The reader itself


@pytest.mark.parametrize(
    "text",
    [
        "FROM a:1\nADD https://example.org/x /x\n",
        "FROM a:1\nCMD launcherkit\n",
        "FROM a:1\nENTRYPOINT launcherkit run\n",
        'FROM a:1\nENTRYPOINT {"a": 1}\n',
        "RUN true\nFROM a:1\n",
        "FROM a:1 as b c\n",
        "FROM a:1\nRUN true \\\n",
    ],
)
def test_a_file_that_is_loose_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "Containerfile"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"line|Expecting"):
        [
            exec_form(step)
            for stage in read_containerfile(path).stages
            for step in stage.steps
            if step.name == "ENTRYPOINT"
        ]


def test_lines_that_go_on_are_one_instruction(tmp_path: Path) -> None:
    path = tmp_path / "Containerfile"
    path.write_text("ARG A=x:1\nFROM ${A} AS one\n# why\nRUN a \\\n    # still why\n    && b\nFROM one\n")
    file = read_containerfile(path)
    assert file.arguments == {"A": "x:1"}
    assert [stage.base for stage in file.stages] == ["${A}", "one"]
    assert [(step.line, step.commands) for step in file.stages[0].steps] == [(4, ["a", "b"])]
