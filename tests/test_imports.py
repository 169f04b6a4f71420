"""What the exec hook really imports. What may import what is in ``[tool.importlinter]``: `./dev lint`."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.hosttree import HostTree
from tests.support.imports import ROOT
from tests.support.samples import sample

T4 = ROOT / "tests" / "data" / "resource" / "tesla-t4"

HEAVY = {"argparse", "dataclasses", "grpclib", "jinja2", "kubernetes", "libvirt", "logging", "pydantic", "yaml"}
"""Every VM start would wait for it; some cost more than the whole hook."""

OTHER_COMMANDS = {"cli", "doctor", "golden", "inputs", "rehearse", "rpc", "show"}
"""Packages of what other commands do."""


def test_the_exec_hook_imports_nothing_heavy_for_a_plain_vm(tmp_path: Path) -> None:
    """Two cards, each a GPU with its audio function and BARs that the default window has room for."""
    tree = HostTree(tmp_path)
    for group in (1, 2):
        tree.function(f"0000:0{group}:00.0", driver="vfio-pci", group=group, files={"resource": T4.read_text()})
        tree.function(f"0000:0{group}:00.1", driver="vfio-pci", group=group, device=0x10F8, class_code=0x040300)
    given = sample(2, 2)
    # -S and a path of our own: an environment's .pth files import what they like, and this looks at what we import.
    paths = [str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    program = (
        f"import sys, os; sys.path[:0] = {paths}; from launcherkit.hooks.exec_hook import run; "
        "run(sys.argv[1:], os.environ); sys.stderr.write(' '.join(sys.modules))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, "--vmi", given.vmi_json, "--domain", given.domain_xml]
    env = {**given.env, "LAUNCHERKIT_HOST": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout.count("<hostdev") == 4
    imported = done.stderr.split()
    assert "lxml.etree" in imported
    assert {name.partition(".")[0] for name in imported} & HEAVY == set()
    assert {f"launcherkit.{name}" for name in OTHER_COMMANDS} & set(imported) == set()


def test_pages_are_shown_without_lxml_and_what_needs_it_says_so() -> None:
    """As in the device plugin's image, whose errors name `launcherkit explain`."""
    program = (
        "import sys, os; sys.modules['lxml'] = None; "
        "from launcherkit.cli.main import run; from launcherkit.process.edge import guarded; "
        "codes = [guarded(lambda: run(line, os.environ), os.environ) for line in (['explain', 'LK204'], ['doctor'])]; "
        "sys.exit(codes != [0, 78])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# LK204: ")
    assert done.stderr.startswith("error: the Python module lxml is not installed\nhelp: Install launcherkit")
