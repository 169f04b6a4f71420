"""The arrows between the packages of the device plugin, and what may be imported where."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.support.imports import PLUGIN as PACKAGE
from tests.support.imports import ROOT, TRANSLATOR, Rules, package_of

ARROWS: dict[str, set[str]] = {
    "": set(),
    "model": set(),
    "file_lock": set(),
    "records": {"file_lock"},
    "host": {"model"},
    "telemetry": {"", "model", "records"},
    "devices": {"model", "host", "records"},
    "vgpu": {"model", "host", "devices", "telemetry"},
    "binding": {"model", "host", "telemetry", "records", "file_lock"},
    "allocation": {"model", "devices"},
    "kubelet": {"model", "telemetry"},
    "cluster": {"model", "telemetry"},
    "http": {"telemetry"},
    "page": {"model", "host", "telemetry", "http"},
    "config": {"model", "host", "devices"},
    "dra": {"model", "devices", "telemetry", "records", "file_lock", "host"},
    "rehearsal": {"model", "devices", "binding", "allocation"},
    # Processes of their own, which share no more with the daemon than how a file is written and a log line looks, and
    # how HTTP is spoken.
    "webhook": {"model", "telemetry", "config", "http"},
    "web": {"model", "telemetry", "http"},
    "nodehook": {"model", "telemetry", "vgpu"},
    # What puts everything together.
    "daemon": {
        "model",
        "host",
        "telemetry",
        "devices",
        "vgpu",
        "binding",
        "allocation",
        "kubelet",
        "cluster",
        "page",
        "http",
        "config",
        "dra",
        "rehearsal",
        "nodehook",
    },
    "cli": {
        "model",
        "host",
        "telemetry",
        "devices",
        "vgpu",
        "binding",
        "kubelet",
        "cluster",
        "config",
        "dra",
        "rehearsal",
        "webhook",
        "web",
        "daemon",
    },
    "__main__": {"", "cli"},
}
"""Package to the packages that it imports. A missing arrow fails a test, and so does one that nothing needs."""

THIRD_PARTIES: dict[str, set[str]] = {
    "grpclib": {"kubelet", "nodehook", "dra"},
    "google": {"kubelet", "nodehook", "dra"},  # google.protobuf
    "prometheus_client": {"telemetry"},
    "h11": {"http", "web", "webhook"},
    "pydantic": {"config", "webhook"},
    "yaml": {"config", "cli"},
    "kubernetes": {"cluster"},
    "urllib3": {"cluster"},
}

HEAVY = {"pydantic", "yaml", "kubernetes", "urllib3", "jinja2", "lxml", "libvirt"}
"""Not in the process that serves the kubelet: docs/decisions/0006-the-serving-process-stays-small.md."""

MODULES = [name for name in PACKAGE.modules if "proto" not in name.split(".")]
SHARED = frozenset(
    {"", "atomic", "diff", "errors", "model", "process", "render", "resolve", "rpc", "sources", "topology"}
)
"""What both distributions have: the host model, its pictures, what both need of gRPC, what every program has."""

RULES = Rules(PACKAGE, ARROWS, beside=(TRANSLATOR, SHARED))


def test_a_package_knows_only_the_packages_that_its_arrows_lead_to() -> None:
    assert {package_of(module) for module in MODULES} - ARROWS.keys() == set(), "new ones: give them arrows above"
    assert {module: broken for module in MODULES if (broken := RULES.broken_by(module))} == {}


def test_every_arrow_is_used() -> None:
    assert RULES.unused() == {}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("binding.binder", "from launcherkit_plugin.daemon.wiring import assemble"),
        ("binding.binder", "import launcherkit_plugin.cli.bind"),
        ("cli.bind", "from launcherkit.cli import main"),
        ("kubelet.server", "import launcherkit.adapters.sidecar"),
    ],
)
def test_a_missing_arrow_is_noticed_inside_a_function_too(module: str, line: str) -> None:
    assert len(RULES.broken_by(module, ast.parse(f"def f():\n    {line}"))) == 1


def test_no_packages_import_each_other_in_a_circle() -> None:
    assert RULES.circle() is None


def test_a_third_party_is_imported_only_where_it_belongs() -> None:
    ours = {*sys.stdlib_module_names, "launcherkit", "launcherkit_plugin"}
    third = [(module, name) for module in MODULES for name in PACKAGE.packages_imported_by(module) - ours]
    assert [(module, name) for module, name in third if package_of(module) not in THIRD_PARTIES.get(name, set())] == []


def test_no_two_modules_need_each_other_to_be_imported() -> None:
    assert PACKAGE.cycle() is None


def test_the_translator_knows_nothing_of_the_plugin() -> None:
    users = [name for name in TRANSLATOR.modules if "launcherkit_plugin" in TRANSLATOR.packages_imported_by(name)]
    assert users == []


def test_the_process_that_serves_imports_nothing_that_is_large() -> None:
    """Nor ssl, with a library of 5 MB, which asyncio and grpclib can do without; nor shutil, for its options."""
    program = """import contextlib, sys
from launcherkit_plugin.__main__ import run
with contextlib.suppress(SystemExit):
    run(["serve"], {})
from launcherkit_plugin.cli.serve import without_ssl
with without_ssl():
    import launcherkit_plugin.daemon.serve, launcherkit_plugin.vgpu.providers
print(*sys.modules)
import ssl"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = done.stdout.split()
    assert {name.partition(".")[0] for name in loaded} & {*HEAVY, "ssl", "hashlib", "_hashlib", "shutil"} == set()
    assert [name for name in loaded if name.startswith("launcherkit_plugin.dra")] == []  # until a rule asks for it
    assert [name for name in loaded if name.startswith("launcherkit.topology")] == []  # another process draws


def test_the_process_that_draws_the_page_imports_nothing_that_is_large() -> None:
    program = "import sys, launcherkit_plugin.page.child; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {*HEAVY, "grpclib", "google", "asyncio"} == set()
