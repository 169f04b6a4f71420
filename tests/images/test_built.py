"""The images as they are built: how large they are, what is in them, and that their programs run."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit import __version__
from tests.support.images import Container, built, configuration, with_shim
from tools.release.images import TARGETS
from tools.release.sbom import NO_DECLARED_LICENCE

pytestmark = pytest.mark.images

MAX_MB = {"sidecar": 120, "plugin": 150, "launcher": 350, "webhook": 80}
"""Over the base."""

Containers = Callable[[str], Container]
every_image = pytest.mark.parametrize("target", TARGETS)


@every_image
def test_an_image_is_no_larger_than_it_may_be(target: str) -> None:
    assert built(target).over_base / 1e6 <= MAX_MB[target]


@every_image
def test_an_image_says_what_it_is_and_what_it_is_made_of(target: str, container: Containers) -> None:
    container(target)
    labels = {
        name.removeprefix("org.opencontainers.image."): text for name, text in configuration(target)["Labels"].items()
    }
    assert labels["title"] == f"launcherkit-{target}"
    assert labels["version"] == __version__
    assert labels["licenses"] == "Apache-2.0"
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", labels["base.digest"])
    assert built(target).base == f"{labels['base.name']}@{labels['base.digest']}"


@every_image
def test_nothing_of_the_build_is_in_an_image(target: str, container: Containers) -> None:
    root = container(target).root
    assert [
        path
        for path in ("etc/pip.conf", "run/ca.crt", "run/packages.py", "build", "src", "wheels")
        if (root / path).exists()
    ] == []
    assert [*root.glob("var/lib/apt/lists/*"), *root.glob("var/cache/apt/*.bin")] == []
    assert [*root.glob("opt/launcherkit/lib/python3*/site-packages/pip*")] == []


def test_only_the_launcher_and_the_device_plugin_are_root(container: Containers) -> None:
    users = {target: container(target).run("id", "-u").strip() for target in TARGETS}
    assert users == {"sidecar": "107", "plugin": "0", "launcher": "0", "webhook": "65532"}


@pytest.mark.parametrize("target", ["sidecar", "launcher"])
def test_the_translator_runs_in_its_images(target: str, container: Containers) -> None:
    assert "2 devices, 4 hostdevs (4 added)" in container(target).run("launcherkit", "demo")
    assert container(target).run("launcherkit", "--version").split()[-1] == __version__


def test_the_shim_is_added_to_the_hook_sidecar_and_finds_the_hook_that_a_pod_mounts(tmp_path: Path) -> None:
    shim = Container(with_shim(tmp_path))
    try:
        # A ConfigMap is mounted there; with none it is launcherkit's own.
        assert "usage: onDefineDomain" in shim.run("/usr/bin/sidecar-shim", "--help")
        (shim.root / "usr/bin/onDefineDomain").write_text("#!/bin/sh\necho mounted\n")
        (shim.root / "usr/bin/onDefineDomain").chmod(0o755)
        assert shim.run("/usr/bin/sidecar-shim").strip() == "mounted"
        assert shim.run("id", "-u").strip() == "107"
    finally:
        shim.close()


def test_the_hook_sidecar_has_what_its_servers_import(container: Containers) -> None:
    container("sidecar").run("python3", "-c", "import launcherkit.hooks.sidecar")


def test_the_device_plugin_reads_its_configuration_and_has_what_speaks_to_the_cluster(container: Containers) -> None:
    plugin = container("plugin")
    config = plugin.root / "tmp" / "plugin.yaml"
    config.write_text("auto: nvidia\n")
    assert "fine" in plugin.run("launcherkit-plugin", "check-config", "/tmp/plugin.yaml")
    plugin.run("/opt/launcherkit/bin/python", "-c", "import launcherkit_plugin.cluster.serve")


def test_the_webhook_has_what_its_server_imports_and_reads_its_injections(container: Containers) -> None:
    webhook = container("webhook")
    folder = webhook.root / "tmp" / "injections"
    folder.mkdir()
    (folder / "one.yaml").write_text("name: one\nwhen: {}\nadd: {containers: [{name: a, image: b}]}\n")
    code = "from pathlib import Path; from launcherkit_plugin.webhook import injection, server\n"
    code += "print(*injection.read_injections(Path('/tmp/injections')))"
    assert webhook.run("/opt/launcherkit/bin/python", "-c", code).strip() == "one"


def test_the_launcher_has_libvirt_with_its_driver_for_qemu_and_no_other(container: Containers) -> None:
    launcher = container("launcher")
    launcher.run("/opt/launcherkit/bin/python", "-c", "import libvirt")
    assert "QEMU emulator" in launcher.run("qemu-system-x86_64", "--version")
    drivers = [path.name for path in launcher.root.glob("usr/lib/*/libvirt/connection-driver/*")]
    assert drivers == ["libvirt_driver_qemu.so"]


@every_image
def test_the_bill_of_packages_lists_what_dpkg_has_with_the_hashes_that_apt_knows(
    target: str, container: Containers
) -> None:
    it = container(target)
    bill = json.loads((it.root / "usr/share/sbom/packages.cdx.json").read_text())
    parts = {part["name"]: part for part in bill["components"]}
    database = f"--admindir={it.root}/var/lib/dpkg"
    query = ["dpkg-query", database, "--show", "--showformat=${Package} ${Version}\\n"]
    installed = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    assert sorted(f"{part['name']} {part['version']}" for part in bill["components"]) == sorted(installed)
    own = {"launcher": ["libvirt0", "qemu-system-x86"], "plugin": ["pci.ids"]}.get(target, [])
    for name in ["python3", *own]:  # what the build itself installs is of the very lists that it has
        ((algorithm, digest),) = [(each["alg"], each["content"]) for each in parts[name]["hashes"]]
        assert algorithm == "SHA-256"
        assert re.fullmatch("[0-9a-f]{64}", digest)


@every_image
def test_the_bill_of_materials_lists_what_is_installed(target: str, container: Containers) -> None:
    root = container(target).root
    bill = json.loads((root / f"usr/share/sbom/launcherkit-{target}.cdx.json").read_text())
    (site,) = (root / "opt/launcherkit/lib").glob("python3*/site-packages")
    installed = {path.name.removesuffix(".dist-info").replace("_", "-").lower() for path in site.glob("*.dist-info")}
    assert installed == {f"{part['name'].replace('_', '-').lower()}-{part['version']}" for part in bill["components"]}
    own = {"launcherkit", "launcherkit-plugin"} if target in ("plugin", "webhook") else {"launcherkit"}
    assert own == {part["name"] for part in bill["components"] if part["purl"].startswith("pkg:pypi/launcherkit")}
    unlicensed = {part["name"] for part in bill["components"] if not part.get("licenses")}
    assert unlicensed <= NO_DECLARED_LICENCE
