"""The arrows between the packages: what may import what. docs/explanation draws them; this keeps them.

A test of our own rather than import-linter: the rules are one table, and the linter would bring six packages for it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from benchmarks._samples import sample
from tests.support.hosttree import HostTree
from tests.support.imports import ROOT, Rules, imported_by, package_of
from tests.support.imports import TRANSLATOR as PACKAGE

ARROWS: dict[str, set[str]] = {
    # The values, and what everybody may use besides: errors.
    "errors": set(),
    "model": set(),
    # The translator, from left to right. The packages between sources and pipeline know values only.
    "sources": {"model", "diff"},
    "resolve": {"model"},
    "place": {"model"},
    "domain": {"model", "compatibility"},
    "pipeline": {"model", "sources", "resolve", "place", "domain"},
    "": {"model", "sources", "pipeline"},
    # What the shells share.
    "atomic": set(),
    "compatibility": set(),
    "colour": set(),
    "diff": set(),
    "process": {"model", "colour", "diff"},
    "rehearse": {"model", "sources", "domain", "pipeline"},
    "show": {"model", "sources", "resolve", "pipeline", "colour", "rehearse"},
    "doctor": {"model", "sources", "resolve", "domain", "process", "show", "compatibility", "colour"},
    "rpc": set(),
    # What a translation reads from a command line, and `translate` itself: a golden case is run as it runs.
    "inputs": {"model", "sources", "domain", "pipeline", "atomic", "colour", "diff", "process", "show"},
    # The shells.
    "adapters": {"", "model", "sources", "domain", "pipeline", "process", "rpc", "compatibility"},
    "golden": {"sources", "inputs", "atomic", "diff", "process"},
    "cli": {
        "",
        "model",
        "sources",
        "domain",
        "pipeline",
        "atomic",
        "colour",
        "diff",
        "process",
        "rehearse",
        "show",
        "rpc",
        "inputs",
        "golden",
        "doctor",
        "adapters",
        "compatibility",
    },
    "__main__": {"cli"},
}
"""Package or module directly below launcherkit ('' is launcherkit itself) to those that it imports. An arrow that is
missing fails a test, and so does one that nothing needs."""

THIRD_PARTIES: dict[str, set[str]] = {
    "lxml": {"domain", "golden.canonical"},
    "pydantic": {"sources.policy", "sources.schema", "golden.case"},
    "yaml": {"sources.schema"},
    "jinja2": {"sources.template"},
    "libvirt": {"adapters"},
    "grpclib": {"adapters", "rpc"},
    "h2": {"rpc"},  # what grpclib speaks HTTP with
    "google": {"adapters", "rpc"},  # google.protobuf
    "shtab": {"process.completion"},
    "pytest": {"golden.pytest_cases"},  # which pytest itself loads
}
"""Third party to the packages and modules that may import it; what is not named here may not be imported at all."""

T4 = ROOT / "tests" / "data" / "resource" / "tesla-t4"

PURE = {"model", "resolve", "place", "show"}

WORLD = {"os", "sys", "io", "pathlib", "subprocess", "socket", "time", "datetime", "random", "tempfile", "shutil"}
"""What a package without I/O has no use for."""

NOT_ON_THE_HOOK_PATH = {
    "argparse",
    "dataclasses",
    "difflib",
    "grpclib",
    "jinja2",
    "kubernetes",
    "libvirt",
    "logging",
    "pathlib",
    "pydantic",
    "yaml",
}
"""Every VM start would wait for it; some cost more than the whole hook."""


SHELLS = frozenset(f"adapters.{name}" for name in ("define", "domain_hook", "exec_hook", "launcher", "sidecar"))
"""What is run. None of them needs another."""

RULES = Rules(PACKAGE, ARROWS, everywhere=frozenset({"errors"}), shells=SHELLS)


def test_a_package_knows_only_the_packages_that_its_arrows_lead_to() -> None:
    assert {package_of(module) for module in PACKAGE.modules} - ARROWS.keys() == set(), (
        "new ones: give them arrows above"
    )
    assert {module: broken for module in PACKAGE.modules if (broken := RULES.broken_by(module))} == {}


def test_every_arrow_is_used() -> None:
    assert RULES.unused() == {}


def test_an_arrow_that_no_module_needs_is_noticed() -> None:
    more = {**ARROWS, "model": ARROWS["model"] | {"sources"}}
    assert RULES._replace(arrows=more).unused() == {"model": {"sources"}}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("adapters.define", "from launcherkit.adapters.exec_hook import main"),
        ("resolve.claims", "from launcherkit.sources.vmi import read_vmi"),
        ("rpc.server", "import launcherkit.adapters.sidecar"),
    ],
)
def test_a_missing_arrow_is_noticed_inside_a_function_too(module: str, line: str) -> None:
    assert len(RULES.broken_by(module, ast.parse(f"def f():\n    {line}"))) == 1


def test_a_third_party_is_imported_only_where_it_belongs() -> None:
    ours = {*sys.stdlib_module_names, "launcherkit"}
    third = [(module, name) for module in PACKAGE.modules for name in PACKAGE.packages_imported_by(module) - ours]
    wrong = [
        (module, name) for module, name in third if not {package_of(module), module} & THIRD_PARTIES.get(name, set())
    ]
    assert wrong == []


def test_a_pure_room_has_no_way_to_the_world() -> None:
    pure = [module for module in PACKAGE.modules if package_of(module) in PURE]
    assert {module: ways for module in pure if (ways := PACKAGE.packages_imported_by(module) & WORLD)} == {}


def test_no_packages_import_each_other_in_a_circle() -> None:
    assert RULES.circle() is None


def test_no_two_modules_import_each_other_inside_functions_either() -> None:
    assert PACKAGE.cycle(at_once=False) is None


def test_the_exec_hook_imports_nothing_that_every_vm_would_wait_for(tmp_path: Path) -> None:
    """Two cards, each a GPU with its audio function and BARs that the default window has room for."""
    tree = HostTree(tmp_path)
    for group in (1, 2):
        tree.function(f"0000:0{group}:00.0", driver="vfio-pci", group=group, files={"resource": T4.read_text()})
        tree.function(f"0000:0{group}:00.1", driver="vfio-pci", group=group, device=0x10F8, class_code=0x040300)
    given = sample(2, 2)
    # -S and a path of our own: an environment's .pth files import what they like, and this looks at what we import.
    paths = [str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    program = (
        f"import sys, os; sys.path[:0] = {paths}; from launcherkit.adapters.exec_hook import run; "
        "run(sys.argv[1:], os.environ); sys.stderr.write(' '.join(sys.modules))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, "--vmi", given.vmi_json, "--domain", given.domain_xml]
    env = {**given.env, "LAUNCHERKIT_HOST": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.count("<hostdev") == 4
    imported = set(done.stderr.split())
    assert "lxml.etree" in imported
    assert {name.partition(".")[0] for name in imported} & NOT_ON_THE_HOOK_PATH == set()


def test_a_value_off_the_ways_that_are_measured_is_no_named_tuple() -> None:
    """docs/decisions/0001-values-are-named-tuples.md"""
    on_its_way, todo = set[str](), ["adapters.exec_hook"]
    while todo:
        module = todo.pop()
        if module not in on_its_way:
            on_its_way.add(module)
            todo += PACKAGE.own_targets(module).values()
    off = [module for module in PACKAGE.modules if module not in on_its_way and package_of(module) not in PURE]
    at_the_plugins_start = {"process.program": ["Program"], "sources.pci_ids": ["PciNames"]}
    assert {module: names for module in off if (names := _named_tuples(module))} == at_the_plugins_start


def _named_tuples(module: str) -> list[str]:
    classes = [node for node in PACKAGE.source_of(module).body if isinstance(node, ast.ClassDef)]
    return [each.name for each in classes if any(ast.unparse(base) == "NamedTuple" for base in each.bases)]


def test_an_import_is_seen_wherever_it_stands() -> None:
    tree = ast.parse("import a.b\ndef f():\n    from c import d, e\nif TYPE_CHECKING:\n    from g.h import i")
    assert set(imported_by(tree)) == {"a.b", "c.d", "c.e", "g.h.i"}


def test_a_name_is_traced_to_the_module_that_has_it() -> None:
    assert PACKAGE.own("launcherkit.pipeline.translate") == "pipeline"
    assert PACKAGE.own("launcherkit.sources.host") == "sources.host"
    assert PACKAGE.own("launcherkit.__version__") == ""
    assert PACKAGE.own("lxml.etree") is None
