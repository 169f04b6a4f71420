"""A card is the DRA driver's or the device plugin's, never both (D1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.model.address import PciAddress
from launcherkit.process.edge import guarded
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.dra.inventory import check_resources
from launcherkit_plugin.model.device import Device, Resource
from launcherkit_plugin.model.errors import CARD_IN_BOTH_WORLDS
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.provoked import provoked


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path / "host")
    tree.card("0000:e1:00", group=44)
    tree.card("0000:01:00", group=12)
    return tree


def discovered(tree: HostTree, text: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The exit code and the errors of `discover` with a configuration."""
    path = tree.root.parent / "plugin.yaml"
    path.write_text(text)
    code = guarded(lambda: run(["discover", "--config", str(path), "--host", str(tree.root)], {}), {})
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error[")]
    return code, [line.removeprefix("error[").replace("]", "", 1) for line in errors]


def test_two_written_rules_that_select_one_function_are_an_error(
    tree: HostTree, capfd: pytest.CaptureFixture[str]
) -> None:
    rules = '[{name: a/A, select: [{addresses: ["e1:00.0"]}], dra: true}, {name: a/B, select: [{classes: ["03"]}]}]'
    assert discovered(tree, f"resources: {rules}", capfd) == (78, provoked("dra", "LK801"))


def test_it_is_one_in_whichever_order_the_rules_are(tree: HostTree, capfd: pytest.CaptureFixture[str]) -> None:
    rules = '[{name: a/B, select: [{classes: ["03"]}]}, {name: a/A, select: [{addresses: ["e1:00.0"]}], dra: true}]'
    text = "LK801: rule 2 (for DRA) and rule 1 (for the device plugin) both select 0000:e1:00.0"
    assert discovered(tree, f"resources: {rules}", capfd) == (78, [text])


def test_so_are_two_functions_of_one_card(tree: HostTree, capfd: pytest.CaptureFixture[str]) -> None:
    rules = '[{name: a/A, select: [{classes: ["03"]}], dra: true}, {name: a/S, select: [{classes: ["04"]}]}]'
    text = "LK801: 0000:01:00.1 is for DRA by the resource a/A and for the device plugin by a/S"
    assert discovered(tree, f"resources: {rules}", capfd) == (78, [text])


def test_disjoint_cards_are_served_side_by_side(tree: HostTree, capfd: pytest.CaptureFixture[str]) -> None:
    rules = '[{name: a/A, select: [{addresses: ["e1:*"]}], dra: true}, {name: a/B, select: [{addresses: ["01:*"]}]}]'
    assert discovered(tree, f"resources: {rules}", capfd) == (0, [])


def test_what_auto_stands_for_takes_the_rest(tree: HostTree, capfd: pytest.CaptureFixture[str]) -> None:
    rules = '[{name: a/A, select: [{addresses: ["e1:*"]}], dra: true}]'
    assert discovered(tree, f"auto: gpu\nresources: {rules}", capfd) == (0, [])


@pytest.mark.parametrize("whole", [True, False], ids=["the whole card", "a vGPU of another type"])
def test_vgpus_and_their_card_are_one(*, whole: bool) -> None:
    card = "0000:e1:00.0"
    slot = Device("4f2e0b1c-0000-5000-8000-000000000001", card=card)
    other = Device("4f2e0b1c-0000-5000-8000-000000000002", card=card)
    if whole:
        other = Device(card, functions=(PciAddress.parse(card),))
    resources = [Resource("a/V", "V", {slot.id: slot}, dra=True), Resource("a/O", "O", {other.id: other})]
    with raises_code(CARD_IN_BOTH_WORLDS, match="is for DRA by the resource a/V"):
        check_resources(resources)
    check_resources([each._replace(dra=True) for each in resources])
