"""What import-linter can't say: that every third party has a contract, and that whoever may import it does."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

import grimp
import pytest
from grimp import ImportGraph

from tests.support.imports import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
OURS = SETTINGS["root_packages"]
THIRD_PARTIES = {each["name"]: each for each in SETTINGS["contracts"] if each["type"] == "protected"}


@cache
def imports_of_both() -> ImportGraph:
    return grimp.build_graph(*OURS, include_external_packages=True, cache_dir=None)


def third_parties(imports: ImportGraph) -> set[str]:
    """What is imported and is neither ours nor Python's; libvirt isn't among it, which is imported by name."""
    return {module.partition(".")[0] for module in imports.modules} - {*OURS, *sys.stdlib_module_names}


def idle_importers(contract: Mapping[str, Any], imports: ImportGraph) -> list[str]:
    """The modules and packages that may import a third party and don't."""
    importers = {
        module
        for protected in contract["protected_modules"]
        for module in imports.find_modules_that_directly_import(protected)
    }
    allowed = {module: {module, *imports.find_descendants(module)} for module in contract["allowed_importers"]}
    return [module for module, family in allowed.items() if importers.isdisjoint(family)]


def test_every_third_party_has_a_contract_that_says_who_may_import_it() -> None:
    named = {module for contract in THIRD_PARTIES.values() for module in contract["protected_modules"]}
    assert third_parties(imports_of_both()) == named


@pytest.mark.parametrize("name", THIRD_PARTIES)
def test_whoever_may_import_a_third_party_does(name: str) -> None:
    assert idle_importers(THIRD_PARTIES[name], imports_of_both()) == []


def test_a_third_party_and_an_idle_importer_are_noticed() -> None:
    imports = ImportGraph()
    imports.add_import(importer="launcherkit.host.tree", imported="requests")
    imports.add_import(importer="launcherkit.host.tree", imported="os")
    imports.add_module("launcherkit.host")
    imports.add_module("launcherkit.run")
    assert third_parties(imports) == {"requests"}
    contract = {"protected_modules": ["requests"], "allowed_importers": ["launcherkit.host", "launcherkit.run"]}
    assert idle_importers(contract, imports) == ["launcherkit.run"]
