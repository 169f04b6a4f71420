"""CDI: what container runtimes read of our devices."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit.model.address import PciAddress
from launcherkit_plugin.devices.cdi import KIND, CdiFiles, GrantedNodes, cdi_annotation, cdi_name, cdi_spec
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.model.errors import CDI_NOT_WRITTEN
from tests.support.errors import raises_code

CARD = {"0000:e1:00.0": ["/dev/vfio/vfio", "/dev/vfio/44"]}
ADDRESSES = st.builds(PciAddress, st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))


def devices(path: str) -> list[str]:
    return [device["name"] for device in json.loads(Path(path).read_text())["devices"]]


@given(ADDRESSES | st.uuids())
def test_every_id_makes_a_name_that_the_specification_allows(device: PciAddress) -> None:
    vendor, _, rest = cdi_name(str(device)).partition("/")
    kind, _, name = rest.partition("=")
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]", vendor)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]", kind)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*[A-Za-z0-9]", name)


@given(st.lists(ADDRESSES, min_size=1, unique=True))
def test_the_annotation_has_a_key_that_the_specification_allows_and_all_names(devices: list[PciAddress]) -> None:
    names = [cdi_name(str(device)) for device in devices]
    ((key, value),) = cdi_annotation(names).items()
    prefix, _, name = key.partition("/")
    assert prefix == "cdi.k8s.io"
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,61}[A-Za-z0-9]", name)
    assert value.split(",") == names


@pytest.mark.parametrize("annotate", [False, True])
def test_containers_are_annotated_where_that_is_wanted(tmp_path: Path, annotate: bool) -> None:
    nodes = GrantedNodes(CdiFiles(str(tmp_path), "pci"), cdi_only=True, annotate=annotate)
    granted = nodes.grant(Resource("nvidia.com/GPU", "V", {}), CARD)
    named = {"cdi.k8s.io/launcherkit_0000-e1-00.0": "launcherkit.io/vfio=0000:e1:00.0"}
    assert (granted.nodes, granted.annotations) == ((), named if annotate else {})


def test_a_device_has_its_nodes_each_once() -> None:
    assert json.loads(cdi_spec({"a1": ["/dev/vfio/vfio", "/dev/vfio/44", "/dev/vfio/44"]})) == {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": [
            {
                "name": "a1",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": "/dev/vfio/vfio", "permissions": "rwm"},
                        {"path": "/dev/vfio/44", "permissions": "rwm"},
                    ]
                },
            }
        ],
    }


def test_nodes_that_lie_elsewhere_on_the_host_have_both_paths() -> None:
    (device,) = json.loads(cdi_spec({"a1": ["/dev/iommu"]}, "/host/"))["devices"]
    assert device["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/iommu", "hostPath": "/host/dev/iommu", "permissions": "rwm"}
    ]


def test_the_file_follows_the_devices_and_goes_with_the_last(tmp_path: Path) -> None:
    file = CdiFiles(str(tmp_path / "cdi"), "pci")
    file.replace({"": CARD})
    file.add("", {"0000:01:00.0": ["/dev/vfio/vfio", "/dev/vfio/1"]})
    assert devices(file.path()) == ["0000:01:00.0", "0000:e1:00.0"]
    file.replace({"": {"0000:01:00.0": ["/dev/vfio/vfio", "/dev/vfio/2"]}})
    assert devices(file.path()) == ["0000:01:00.0"]
    file.replace({})
    assert list((tmp_path / "cdi").iterdir()) == []


def test_a_device_without_nodes_is_not_offered(tmp_path: Path) -> None:
    file = CdiFiles(str(tmp_path), "pci")
    file.replace({"": {**CARD, "0000:01:00.0": []}})
    assert devices(file.path()) == ["0000:e1:00.0"]


def test_what_is_written_already_is_left_alone_and_what_was_lost_is_written_again(tmp_path: Path) -> None:
    file = CdiFiles(str(tmp_path), "pci")
    file.replace({"": CARD})
    first = Path(file.path()).stat().st_ino
    file.add("", CARD)
    assert Path(file.path()).stat().st_ino == first
    Path(file.path()).unlink()
    file.add("", CARD)
    assert devices(file.path()) == ["0000:e1:00.0"]


def test_a_file_of_an_earlier_daemon_is_replaced_even_by_none(tmp_path: Path) -> None:
    CdiFiles(str(tmp_path), "pci").replace({"": CARD})
    CdiFiles(str(tmp_path), "pci").replace({})
    assert list(tmp_path.iterdir()) == []


def test_providers_have_a_file_each(tmp_path: Path) -> None:
    assert CdiFiles(str(tmp_path), "pci").path() != CdiFiles(str(tmp_path), "mdev").path()


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")
    with raises_code(CDI_NOT_WRITTEN, match="cdi"):
        CdiFiles(str(tmp_path / "cdi"), "pci").replace({"": CARD})
