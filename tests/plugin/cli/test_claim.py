"""``launcherkit-plugin claim``: a claim for cards that are close together."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from launcherkit_plugin.__main__ import run
from tests.test_deploy_plugin import COMPONENTS

SWITCH, ROOT_COMPLEX = "launcherkit.io/pcieSwitch", "resource.kubernetes.io/pcieRoot"
NUMA = "resource.kubernetes.io/numaNode"

Printed = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Printed:
    def documents(*arguments: str) -> list[dict[str, Any]]:
        assert run(["claim", *arguments], {}) == 0
        out, err = capfd.readouterr()
        assert err == ""
        return list(yaml.safe_load_all(out))

    return documents


def requests(claim: dict[str, Any]) -> list[tuple[str, str]]:
    found = claim["spec"]["devices"]["requests"]
    return [(one["name"], one["exactly"]["deviceClassName"]) for one in found]


def constraints(claim: dict[str, Any]) -> list[tuple[str, list[str]]]:
    return [(one["matchAttribute"], one["requests"]) for one in claim["spec"]["devices"].get("constraints", ())]


def test_each_gpu_has_a_network_card_below_its_switch(printed: Printed) -> None:
    *classes, claim = printed("--gpus", "2", "--nics", "2", "--near", "pcieSwitch", "--name", "train")
    assert [each["metadata"]["name"] for each in classes] == ["gpu.launcherkit.io", "network-function.launcherkit.io"]
    assert (claim["kind"], claim["metadata"]) == ("ResourceClaim", {"name": "train"})
    gpu, nic = "gpu.launcherkit.io", "network-function.launcherkit.io"
    assert requests(claim) == [("gpu-0", gpu), ("nic-0", nic), ("gpu-1", gpu), ("nic-1", nic)]
    assert constraints(claim) == [(SWITCH, ["gpu-0", "nic-0"]), (SWITCH, ["gpu-1", "nic-1"])]


def test_devices_are_dealt_to_those_of_the_rarest_kind(printed: Printed) -> None:
    *_, claim = printed("--gpus", "5", "--nics", "2", "--nvmes", "2", "--near", "pcieRoot", "--together", "numaNode")
    near = [["gpu-0", "gpu-2", "gpu-4", "nic-0", "nvme-0"], ["gpu-1", "gpu-3", "nic-1", "nvme-1"]]
    assert constraints(claim) == [(ROOT_COMPLEX, near[0]), (ROOT_COMPLEX, near[1]), (NUMA, near[0] + near[1])]
    assert [name for name, _ in requests(claim)] == near[0] + near[1]


def test_devices_of_one_kind_are_all_near_each_other(printed: Printed) -> None:
    *_, claim = printed("--gpus", "3", "--near", "pcieSwitch0")
    assert constraints(claim) == [("launcherkit.io/pcieSwitch0", ["gpu-0", "gpu-1", "gpu-2"])]


def test_without_a_wish_and_for_a_single_device_there_is_no_constraint(printed: Printed) -> None:
    assert (
        constraints(printed("--gpus", "2")[-1]) == constraints(printed("--gpus", "1", "--near", "pcieRoot")[-1]) == []
    )


def test_a_template_has_the_same_claim(printed: Printed) -> None:
    wish = ("--gpus", "1", "--nvmes", "1", "--near", "numaNode")
    claim, template = printed(*wish)[-1], printed(*wish, "--template")[-1]
    assert template["kind"] == "ResourceClaimTemplate"
    assert template["spec"] == {"spec": claim["spec"]}


def test_as_json_it_is_one_list(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["claim", "--nics", "1", "--output", "json"], {}) == 0
    assert [each["kind"] for each in json.loads(capfd.readouterr().out)["items"]] == ["DeviceClass", "ResourceClaim"]


def test_the_device_classes_are_those_of_the_component_or_narrower(printed: Printed) -> None:
    deployed = yaml.safe_load_all((COMPONENTS["dra"] / "deviceclasses.yaml").read_text())
    names = {each["metadata"]["name"] for each in deployed}
    *classes, _ = printed("--gpus", "1", "--nics", "1", "--nvmes", "1")
    assert {each["metadata"]["name"] for each in classes} <= names


def test_another_driver_has_its_own_attributes(printed: Printed) -> None:
    (device_class, _) = printed("--gpus", "1", "--driver", "vfio.example.com")
    (selector,) = device_class["spec"]["selectors"]
    assert 'device.driver == "vfio.example.com"' in selector["cel"]["expression"]
    assert 'device.attributes["vfio.example.com"].type' in selector["cel"]["expression"]
    assert "pci.launcherkit.io" not in selector["cel"]["expression"]


def test_the_device_class_of_another_driver_does_not_replace_the_common_one(printed: Printed) -> None:
    (device_class, claim) = printed("--gpus", "1", "--driver", "vfio.example.com")
    (request,) = claim["spec"]["devices"]["requests"]
    assert (
        device_class["metadata"]["name"]
        == request["exactly"]["deviceClassName"]
        == "gpu.launcherkit.io.vfio.example.com"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "a claim has 1 to 32 devices"),
        (["--gpus", "30", "--nics", "3"], "a claim has 1 to 32 devices"),
        (["--gpus", "33"], "'33' is not a number from 0 to 32"),
        (["--gpus", "1", "--name", "A_B"], "'A_B' is not a DNS label"),
        (["--gpus", "1", "--driver", "no driver"], "--driver:"),
        (["--gpus", "1", "--near", "rail"], "rail"),
    ],
)
def test_what_no_claim_can_have_is_refused(
    arguments: list[str], problem: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["claim", *arguments], {})
    out, err = capfd.readouterr()
    assert out == ""
    assert problem in err
