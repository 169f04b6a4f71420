"""The arrows between the rooms of the device plugin, and what may be imported where."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.imports import ROOT, Package, imported_by, room

ARROWS: dict[str, set[str]] = {
    "": set(),
    "model": {""},
    "host": {"model"},
    "telemetry": {"", "model", "host", "devices"},
    "devices": {"model", "host"},
    "vgpu": {"model", "host", "devices", "telemetry", "cluster"},
    "binding": {"model", "host", "devices", "telemetry", "cluster"},
    "allocation": {"model", "devices"},
    "kubelet": {"model", "telemetry"},
    "cluster": {"", "model", "host", "telemetry"},
    "config": {"model", "devices"},
}
"""Room to the rooms that it may import."""

TOGETHER = {"daemon", "nodehook", "cli", "__main__"}
"""What puts everything together may import everything."""

THIRD_PARTIES: dict[str, set[str]] = {
    "grpclib": {"kubelet", "nodehook"},
    "google": {"kubelet", "nodehook"},  # google.protobuf
    "prometheus_client": {"telemetry"},
    "pydantic": {"config"},
    "yaml": {"config"},
    "kubernetes": {"cluster"},
    "urllib3": {"cluster"},
}

HEAVY = {"pydantic", "yaml", "kubernetes", "urllib3", "jinja2", "lxml", "libvirt"}
"""Not in the process that serves the kubelet: docs/decisions/0006-the-serving-process-stays-small.md."""

PACKAGE = Package(ROOT / "plugin" / "launcherkit_plugin")
every_module = pytest.mark.parametrize("module", [name for name in PACKAGE.modules if ".proto" not in name])


@every_module
def test_a_room_knows_only_the_rooms_that_its_arrows_lead_to(module: str) -> None:
    if room(module) in TOGETHER:
        return
    assert room(module) in ARROWS, f"a new room: give {room(module)} its arrows above"
    allowed = ARROWS[room(module)] | {room(module)}
    assert [name for name, target in PACKAGE.own_targets(module).items() if room(target) not in allowed] == []


@every_module
def test_a_third_party_is_imported_only_where_it_belongs(module: str) -> None:
    third = PACKAGE.packages_imported_by(module) - set(sys.stdlib_module_names) - {"launcherkit", "launcherkit_plugin"}
    assert [package for package in third if room(module) not in THIRD_PARTIES.get(package, set())] == []


@every_module
def test_the_translators_shells_are_not_reached_into(module: str) -> None:
    """What is shared is the host model, the gRPC server, and what every program of ours has."""
    shared = {"model", "errors", "sources", "resolve", "rpc", "atomic", "process", "render", ""}
    translator = Package(ROOT / "launcherkit")
    targets = {translator.own(name) for name in imported_by(PACKAGE.source_of(module))}
    assert {room(target) for target in targets if target is not None} <= shared


def test_no_two_modules_need_each_other_to_be_imported() -> None:
    assert PACKAGE.cycle() is None


def test_the_translator_knows_nothing_of_the_plugin() -> None:
    translator = Package(ROOT / "launcherkit")
    users = [name for name in translator.modules if "launcherkit_plugin" in translator.packages_imported_by(name)]
    assert users == []


def test_the_process_that_serves_imports_nothing_that_is_large() -> None:
    program = "import sys, launcherkit_plugin.daemon.serve, launcherkit_plugin.cli.serve; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {name.partition(".")[0] for name in done.stdout.split()} & HEAVY == set()
