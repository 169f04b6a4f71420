"""Which VFIO driver a function wants: the best alias of the running kernel, as libvirt chooses it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcherkit.host.vfio_aliases import VfioAlias, best_module
from launcherkit.model.address import PciAddress
from launcherkit_plugin.host.drivers import Sysfs
from launcherkit_plugin.host.vfio_variants import choose_drivers, read_vfio_aliases
from launcherkit_plugin.model.errors import NO_VFIO_DRIVER
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree

GPU = "0000:01:00.0"
GB200 = "pci:v000010DEd00002941sv000010DEsd00002046bc03sc02i00"
MODULES_ALIAS = """\
# Aliases extracted from modules themselves.
alias pci:v000010DEd*sv*sd*bc03sc02i00* nouveau
alias vfio_pci:v000010DEd00002941sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
alias symbol:vfio_pci: something
"""


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path)
    tree.driver("vfio-pci")
    tree.modules_alias(MODULES_ALIAS)
    tree.function(GPU, device=0x2941, driver="nvidia", group=44, files={"modalias": GB200 + "\n"})
    return tree


def aliases(*lines: str) -> list[VfioAlias]:
    return [VfioAlias(*line.split()) for line in lines]


ANY = "vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci"


@pytest.mark.parametrize(
    ("lines", "module"),
    [
        ([ANY, "vfio_pci:v000010DEd00002941sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci"], "nvgrace_gpu_vfio_pci"),
        (["vfio_pci:v000010DEd00002941sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci", ANY], "nvgrace_gpu_vfio_pci"),
        (
            [
                "vfio_pci:v000010DEd00002941sv*sd*bc*sc*i* a_vfio_pci",
                "vfio_pci:v000010DEd00002941sv000010DEsd*bc*sc*i* b_vfio_pci",
                "vfio_pci:v000010DEd*sv*sd*bc*sc*i* c_vfio_pci",
            ],
            "b_vfio_pci",
        ),
        ([ANY, "vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci"], None),
        ([ANY], None),
        ([], None),
        (["pci:v000010DEd00002941sv*sd*bc*sc*i* nouveau"], None),
        (["vfio_pci:v000010ded00002941sv*sd*bc*sc*i* lower_vfio_pci"], None),
    ],
)
def test_the_alias_with_the_fewest_wildcards_counts(lines: list[str], module: str | None) -> None:
    assert best_module(GB200, aliases(*lines)) == module


@pytest.mark.parametrize("modalias", ["", "usb:v10DE", "vfio_pci:v000010DEd00002941"])
def test_what_is_no_pci_function_wants_nothing(modalias: str) -> None:
    assert best_module(modalias, aliases("vfio_pci:* x_vfio_pci", "vfio_* y_vfio_pci")) is None


def test_only_aliases_for_vfio_are_read(tree: HostTree) -> None:
    assert [alias.module for alias in read_vfio_aliases(str(tree.root))] == [
        "nvgrace_gpu_vfio_pci",
        "nvgrace_gpu_vfio_pci",
        "mlx5_vfio_pci",
        "vfio_pci",
    ]


def test_the_aliases_are_those_of_the_running_kernel(tree: HostTree) -> None:
    other = tree.root / "lib/modules/6.1.0-old"
    other.mkdir()
    (other / "modules.alias").write_text("alias vfio_pci:v* old_vfio_pci\n")
    assert "old_vfio_pci" not in {alias.module for alias in read_vfio_aliases(str(tree.root))}


def test_where_the_root_has_no_proc_the_kernel_says_its_release(tree: HostTree) -> None:
    (tree.root / "proc/sys/kernel/osrelease").unlink()
    with raises_code(NO_VFIO_DRIVER, match=f"lib/modules/{os.uname().release}/modules.alias: No such file"):
        read_vfio_aliases(str(tree.root))


@pytest.mark.parametrize("name", ["nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"])
def test_the_driver_is_the_one_that_is_loaded_however_it_spells_the_modules_name(tree: HostTree, name: str) -> None:
    tree.driver(name)
    chosen = choose_drivers([PciAddress.parse(GPU)], Sysfs(str(tree.root)), load=True)
    assert chosen == {PciAddress.parse(GPU): name}


def test_a_module_that_is_not_loaded_is_an_error_that_names_it(tree: HostTree) -> None:
    with raises_code(NO_VFIO_DRIVER, match="the module nvgrace_gpu_vfio_pci, which a function wants, is not loaded"):
        choose_drivers([PciAddress.parse(GPU)], Sysfs(str(tree.root)), load=True)


def test_to_say_what_would_be_chosen_nothing_is_loaded(tree: HostTree) -> None:
    chosen = choose_drivers([PciAddress.parse(GPU)], Sysfs(str(tree.root)), load=False)
    assert chosen == {PciAddress.parse(GPU): "nvgrace_gpu_vfio_pci"}
