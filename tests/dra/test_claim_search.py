"""`launcherkit rehearse --claim`: a node is found exactly if a search through all places finds devices."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from launcherkit.cli.main import run
from launcherkit.errors import CLAIM_NOT_REHEARSED
from launcherkit_plugin.__main__ import run as run_plugin
from launcherkit_plugin.cli.resources import look
from launcherkit_plugin.dra.claim_manifest import KINDS, BusLevel, manifests
from launcherkit_plugin.dra.claim_search import answers, read_claim
from launcherkit_plugin.dra.counters import CounterUse
from launcherkit_plugin.dra.inventory import DraDevice, Taint, inventory
from tests.dra.node import DRIVER
from tests.dra.test_near import CONFIG, GPU, HGX, NIC, SWITCHES, WISH, Switch, brute_force, build
from tests.support.errors import raises_code
from tests.tiers import EXAMPLES

GPU_CODE = "'03"


def devices_of(place: str) -> tuple[DraDevice, ...]:
    offer = look(CONFIG, place, {})
    return inventory(offer.resources, offer.facts)


def found(devices: tuple[DraDevice, ...], counts: Mapping[Any, int], **more: Any) -> dict[str, str] | None:
    return answers(read_claim(manifests("near", counts, DRIVER, **more), "claim"), devices)


@settings(max_examples=int(os.environ.get(EXAMPLES, "40")), deadline=None)
@given(SWITCHES, WISH, st.sampled_from(["pcieSwitch", "numaNode"]), st.sampled_from([None, "numaNode"]))
def test_devices_are_found_exactly_if_there_are_places_for_all(
    board: list[Switch], wish: tuple[int, int, int], near: BusLevel, together: BusLevel | None
) -> None:
    with tempfile.TemporaryDirectory(prefix="board-") as folder:
        devices = devices_of(build(Path(folder), board))
    chosen = found(devices, dict(zip(KINDS, wish, strict=True)), near=near, together=together)
    assert (chosen is not None) == brute_force(board, wish, near, together)
    assert chosen is None or len(set(chosen.values())) == len(chosen) == sum(wish)


@pytest.mark.parametrize(
    ("board", "wish", "near", "together"),
    [
        ([Switch(2, 2, 0, 0), Switch(2, 2, 2, 0), Switch(2, 2, 0, 0)], (3, 3, 3), "numaNode", "numaNode"),
        ([Switch(4, 1, 2, 0), Switch(4, 1, 0, 1)], (4, 2, 2), "pcieSwitch", None),
        ([Switch(2, 2, 0, 0)] * 3 + [Switch(2, 1, 0, 1)], (8, 8, 0), "pcieSwitch", None),
        ([Switch(1, 1, 0, 0)] * 8 + [Switch(1, 0, 0, 0), Switch(0, 1, 0, 0)], (9, 9, 0), "pcieSwitch", None),
    ],
)
def test_what_can_not_be_is_soon_known(
    board: list[Switch], wish: tuple[int, int, int], near: BusLevel, together: BusLevel | None, tmp_path: Path
) -> None:
    """However many orders of the same devices there are to try."""
    devices = devices_of(build(tmp_path, board))
    assert found(devices, dict(zip(KINDS, wish, strict=True)), near=near, together=together) is None


def test_held_and_tainted_devices_are_not_found() -> None:
    devices = devices_of(HGX)
    claim = read_claim(manifests("near", {GPU: 4, NIC: 4}, DRIVER, near="pcieSwitch"), "claim")
    id_of = {device.name: device.id for device in devices}
    first = answers(claim, devices)
    assert first is not None
    gpus = {id_of[name] for request, name in first.items() if request.startswith("gpu")}
    second = answers(claim, devices, gpus)
    assert second is not None
    gpus.add(id_of[second["gpu-0"]])
    assert answers(claim, devices, gpus) is None
    taints = (Taint("launcherkit.io/gone", "", "NoSchedule"),)
    tainted = [device._replace(taints=taints) if device.id in gpus else device for device in devices]
    assert answers(claim, tainted) is None


def test_what_devices_share_is_not_given_twice() -> None:
    devices = devices_of(HGX)
    claim = read_claim(manifests("two", {GPU: 2}, DRIVER), "claim")
    shared = (CounterUse("card", "whole", 1, 1),)
    gpus = [device._replace(counters=shared) for device in devices if GPU_CODE in str(device.attributes["class"])]
    assert answers(claim, gpus) is None
    alone = [*gpus[:2], gpus[2]._replace(counters=())]
    assert answers(claim, alone) == {"gpu-0": gpus[0].name, "gpu-1": gpus[2].name}
    assert answers(claim, alone, {gpus[1].id}) is None
    assert answers(claim, alone, {f"{gpus[1].id}::s-1", f"{gpus[1].id}::s-2"}) is None, "a share of one is in the way"


def with_cel(documents: list[dict[str, Any]]) -> None:
    documents[0]["spec"]["selectors"][0]["cel"]["expression"] += " && true"


def with_count(documents: list[dict[str, Any]]) -> None:
    documents[-1]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2


def without_class(documents: list[dict[str, Any]]) -> None:
    del documents[0]


def with_distinct(documents: list[dict[str, Any]]) -> None:
    documents[-1]["spec"]["devices"]["constraints"] = [{"requests": [], "distinctAttribute": "model"}]


@pytest.mark.parametrize("change", [with_cel, with_count, without_class, with_distinct])
def test_another_form_than_the_printed_one_is_an_error(change: Callable[[list[dict[str, Any]]], None]) -> None:
    documents = manifests("near", {GPU: 2}, DRIVER, near="pcieSwitch")
    change(documents)
    with raises_code(CLAIM_NOT_REHEARSED, "claim.yaml: only what"):
        read_claim(documents, "claim.yaml")


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_the_command_names_the_node_that_has_them(
    output: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    board = tmp_path / "small"
    board.mkdir()
    places = ["--nodes", HGX, build(board, [Switch(1, 1, 0, 0)])]
    config = tmp_path / "plugin.yaml"
    config.write_text(
        yaml.safe_dump({"resources": [{"name": "a/IT", "select": [{"classes": ["03", "02"]}], "bind": "on-demand"}]})
    )
    claim = tmp_path / "claim.yaml"
    for gpus, code, nodes in ((4, 0, ["hgx"]), (5, 1, [])):
        command = ["claim", f"--gpus={gpus}", f"--nics={gpus}", "--near=pcieSwitch", f"--output={output}"]
        assert run_plugin(command, {}) == 0
        claim.write_text(capfd.readouterr().out)
        assert run(["rehearse", "--claim", str(claim), *places, "--config", str(config), "--json"], {}) == code
        said = json.loads(capfd.readouterr().out)
        assert [node["name"] for node in said["nodes"]] == nodes
        assert {error["code"] for error in said["errors"]} == {"LK861"}
    assert run(["rehearse", "--claim", str(claim), *places, "--config", str(config)], {}) == 1
    told = capfd.readouterr()
    assert (told.out, told.err.count("error[LK861]")) == ("", 2)
    assert run_plugin(["claim", "--gpus=1", "--nics=1", "--near=pcieSwitch"], {}) == 0
    claim.write_text(capfd.readouterr().out)
    assert run(["rehearse", "--claim", str(claim), *places, "--config", str(config)], {}) == 0
    told = capfd.readouterr()
    assert ([line.partition(":")[0] for line in told.out.splitlines()], told.err) == (["hgx", "small"], "")
    claim.write_text("kind: Pod\n")
    with raises_code(CLAIM_NOT_REHEARSED, "only what"):
        run(["rehearse", "--claim", str(claim), *places], {})


@pytest.mark.parametrize(("driver", "code"), [("vfio.example.com", 0), ("pci.launcherkit.io", 1), (None, 0)])
def test_devices_of_another_driver_are_not_taken_for_the_claims(
    driver: str | None, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where the configuration says which one the node has."""
    config, claim = tmp_path / "plugin.yaml", tmp_path / "claim.yaml"
    rule = {"name": "a/IT", "select": [{"classes": ["03"]}], "bind": "on-demand"}
    if driver is None:
        config.write_text(yaml.safe_dump({"resources": [rule]}))
    else:
        config.write_text(yaml.safe_dump({"resources": [{**rule, "dra": True}], "dra": {"driver": driver}}))
    assert run_plugin(["claim", "--gpus=1", "--driver=vfio.example.com"], {}) == 0
    claim.write_text(capfd.readouterr().out)
    assert run(["rehearse", "--claim", str(claim), "--nodes", HGX, "--config", str(config)], {}) == code
    refused = "hgx has the DRA driver pci.launcherkit.io, and devices asks for devices of vfio.example.com"
    assert (refused in capfd.readouterr().err) == bool(code)


@pytest.mark.parametrize(
    "more",
    [["--domain", "vm.xml"], ["--program", "QEMU=10.0"], ["--siblings", "none"], ["--policy", "p.yaml"], ["--xml"]],
)
def test_what_a_claim_has_no_use_for_is_a_usage_error(more: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["rehearse", "--claim", "claim.yaml", "--nodes", HGX, *more], {}) == 2
    assert capfd.readouterr().err.startswith("error: launcherkit rehearse: ")
