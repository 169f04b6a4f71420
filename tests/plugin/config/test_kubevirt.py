"""KubeVirt's own settings as the configuration (K7)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcherkit.errors import UNREADABLE_FILE, LauncherkitError
from launcherkit_plugin.config.reading import read_config
from launcherkit_plugin.devices.selectors import compile_rules
from launcherkit_plugin.model.config import AUTO, PciRule, Reading, Selector, UsbRule, UsbSelector, VgpuRule
from launcherkit_plugin.model.errors import BAD_PLUGIN_CONFIG
from tests.support.errors import raises_code
from tests.support.facts import function

T4 = {"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/TU104GL_Tesla_T4", "externalResourceProvider": True}
OTHER = {"pciVendorSelector": "10DE:2204", "resourceName": "nvidia.com/GA102"}
VGPU = {"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/GRID_T4-1Q", "externalResourceProvider": True}
PERMITTED = {"pciHostDevices": [T4, OTHER], "mediatedDevices": [VGPU]}


def read(tmp_path: Path, kubevirt: dict[str, Any], labels: dict[str, str] | None = None, **more: Any) -> Reading:
    path = tmp_path / "plugin.yaml"
    path.write_text(yaml.safe_dump({"kubevirt": kubevirt, **more}))
    return read_config(str(path), labels=labels)


def messages(tmp_path: Path, kubevirt: dict[str, Any]) -> list[str]:
    with pytest.raises(LauncherkitError) as raised:
        read(tmp_path, kubevirt)
    assert all(leaf.code == BAD_PLUGIN_CONFIG.code for leaf in raised.value.leaves())
    return [leaf.message.removeprefix(f"{tmp_path}/") for leaf in raised.value.leaves()]


def test_entries_of_an_external_provider_are_ours(tmp_path: Path) -> None:
    config = read(tmp_path, {"permittedHostDevices": PERMITTED}).config
    assert config.pci == (
        PciRule(
            select=(Selector(models=frozenset({(0x10DE, 0x1EB8)})),),
            name="nvidia.com/TU104GL_Tesla_T4",
            when_bound=True,
        ),
    )
    assert config.vgpu.mdevs == (VgpuRule(("GRID T4-1Q",), "nvidia.com/GRID_T4-1Q"),)
    assert config.vgpu.mdevs[0].mode == "static"


def test_the_others_are_left_alone_and_told(tmp_path: Path) -> None:
    usb = {"usb": [{"resourceName": "kubevirt.io/key", "selectors": [{"vendor": "1", "product": "2"}]}]}
    mediated = {"mediatedDevices": [VGPU, VGPU | {"externalResourceProvider": False}]}
    reading = read(tmp_path, {"permittedHostDevices": PERMITTED | usb | mediated})
    path = f"{tmp_path}/plugin.yaml, kubevirt, permittedHostDevices"
    assert [note.text for note in reading.notes] == [
        f"{path}.pciHostDevices.1: nvidia.com/GA102 is left to KubeVirt: it lacks externalResourceProvider: true",
        f"{path}.mediatedDevices.1: nvidia.com/GRID_T4-1Q is left to KubeVirt: it lacks externalResourceProvider: true",
        f"{path}.usb.0: kubevirt.io/key is left to KubeVirt: it lacks externalResourceProvider: true",
    ]


def test_usb_devices_are_read_as_kubevirt_reads_them(tmp_path: Path) -> None:
    """Entries of one name are alternatives, and all selectors of an entry are one device (usb_device.go)."""
    models = [("0529", "0001"), ("08E6", "3437")]
    entries = [
        {
            "resourceName": "kubevirt.io/key",
            "externalResourceProvider": True,
            "selectors": [{"vendor": vendor, "product": product} for vendor, product in models[:count]],
        }
        for count in (2, 1)
    ]
    one, other = UsbSelector(0x0529, 0x0001), UsbSelector(0x08E6, 0x3437)
    config = read(tmp_path, {"permittedHostDevices": {"usb": entries}}).config
    assert config.usb == (UsbRule("kubevirt.io/key", (one, other)), UsbRule("kubevirt.io/key", (one,)))


@pytest.mark.parametrize(
    ("selectors", "wrong"),
    [
        ([], "usb.0.selectors: there are none"),
        ([{"vendor": "1", "product": "0001"}], "usb.0.selectors.0.vendor: an ID"),
    ],
)
def test_what_is_wrong_with_usb_devices_is_named(tmp_path: Path, selectors: list[object], wrong: str) -> None:
    entry = {"resourceName": "kubevirt.io/key", "externalResourceProvider": True, "selectors": selectors}
    with raises_code(BAD_PLUGIN_CONFIG, re.escape(wrong)):
        read(tmp_path, {"permittedHostDevices": {"usb": [entry]}})


def test_what_is_wrong_with_the_others_is_not_our_business(tmp_path: Path) -> None:
    odd = {"pciVendorSelector": "any", "resourceName": "not a name"}
    assert read(tmp_path, {"permittedHostDevices": {"pciHostDevices": [odd, T4]}}).config.pci


@pytest.mark.parametrize("auto", AUTO)
def test_auto_does_not_take_what_is_the_others(tmp_path: Path, auto: str) -> None:
    find = compile_rules(read(tmp_path, {"permittedHostDevices": PERMITTED}, auto=auto).config.pci)
    assert find(function("01:00.0", device=0x2204)) is None
    assert find(function("02:00.0", device=0x1EB8)) is not None
    assert find(function("03:00.0", device=0x2684)) is not None


def test_auto_advertises_no_vgpus_where_kubevirt_does(tmp_path: Path) -> None:
    theirs = {key: value for key, value in VGPU.items() if key != "externalResourceProvider"}
    config = read(tmp_path, {"permittedHostDevices": {"mediatedDevices": [theirs]}}, auto="nvidia").config
    assert config.vgpu.mdevs == ()


def test_models_under_one_name_are_one_rule(tmp_path: Path) -> None:
    more = T4 | {"pciVendorSelector": "10de:1eb9"}
    (rule,) = read(tmp_path, {"permittedHostDevices": {"pciHostDevices": [T4, more]}}).config.pci
    assert rule.select == (Selector(models=frozenset({(0x10DE, 0x1EB8), (0x10DE, 0x1EB9)})),)


def test_what_is_wrong_with_ours_is_reported_whole(tmp_path: Path) -> None:
    bad = {"pciVendorSelector": "10DE", "resourceName": "T4", "externalResourceProvider": True}
    nameless = {"mdevNameSelector": "GRID", "resourceName": "", "externalResourceProvider": True}
    path = "plugin.yaml, kubevirt, permittedHostDevices"
    found = messages(tmp_path, {"permittedHostDevices": {"pciHostDevices": [bad], "mediatedDevices": [nameless]}})
    assert [message.partition(": ")[0] for message in found] == [
        f"{path}.pciHostDevices.0.pciVendorSelector",
        f"{path}.pciHostDevices.0.resourceName",
        f"{path}.mediatedDevices.0.resourceName",
    ]
    assert found[0].endswith("found '10DE'")


def test_written_here_a_key_that_kubevirt_has_not_is_a_slip(tmp_path: Path) -> None:
    slip = {"permittedHostDevices": {"pciHostDevices": [T4 | {"externalResourceProvidr": True}]}}
    (message,) = messages(tmp_path, slip)
    assert message.endswith(
        "pciHostDevices.0.externalResourceProvidr: unknown key; found true; did you mean externalResourceProvider?"
    )


# mediatedDevicesConfiguration


def spread(tmp_path: Path, mediated: dict[str, Any], labels: dict[str, str] | None = None) -> tuple[str, ...]:
    return read(tmp_path, {"mediatedDevicesConfiguration": mediated}, labels).config.vgpu.spread


TYPES: dict[str, Any] = {
    "mediatedDeviceTypes": ["nvidia-222", "nvidia-223"],
    "nodeMediatedDeviceTypes": [
        {"nodeSelector": {"zone": "a"}, "mediatedDeviceTypes": ["nvidia-228"]},
        {"nodeSelector": {"zone": "a", "big": "yes"}, "mediatedDevicesTypes": ["nvidia-230", "nvidia-228"]},
    ],
}


@pytest.mark.parametrize(
    ("labels", "types"),
    [
        ({}, ("nvidia-222", "nvidia-223")),
        ({"zone": "b"}, ("nvidia-222", "nvidia-223")),
        ({"zone": "a"}, ("nvidia-228",)),
        ({"zone": "a", "big": "yes", "more": ""}, ("nvidia-228", "nvidia-230")),
    ],
)
def test_types_are_those_of_all_selectors_that_fit_the_node_or_else_of_every_node(
    tmp_path: Path, labels: dict[str, str], types: tuple[str, ...]
) -> None:
    assert spread(tmp_path, TYPES, labels) == types


def test_the_old_name_of_the_list_is_read_where_the_new_one_is_silent(tmp_path: Path) -> None:
    assert spread(tmp_path, {"mediatedDevicesTypes": ["nvidia-222"]}) == ("nvidia-222",)
    both = {"mediatedDevicesTypes": ["nvidia-222"], "mediatedDeviceTypes": ["nvidia-223"]}
    assert spread(tmp_path, both) == ("nvidia-223",)


def test_types_that_nobody_has_named_are_advertised_under_their_own_names(tmp_path: Path) -> None:
    config = read(tmp_path, {"mediatedDevicesConfiguration": {"mediatedDeviceTypes": ["nvidia-222"]}}).config
    assert config.vgpu.mdevs == (VgpuRule(("nvidia-222",)),)


def test_types_are_made_where_at_least_one_is_ours(tmp_path: Path) -> None:
    mediated = {"mediatedDeviceTypes": ["nvidia-222"]}
    theirs = {"mediatedDevices": [{"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/A"}]}
    settings = {"mediatedDevicesConfiguration": mediated}
    assert read(tmp_path, {**settings, "permittedHostDevices": theirs}).config.vgpu.spread == ()
    assert read(tmp_path, {**settings, "permittedHostDevices": PERMITTED}).config.vgpu.spread == ("nvidia-222",)


def test_a_spread_of_our_own_comes_before_kubevirts(tmp_path: Path) -> None:
    settings = {"mediatedDevicesConfiguration": {"mediatedDeviceTypes": ["nvidia-222"]}}
    assert read(tmp_path, settings, vgpu={"spread": ["nvidia-9"]}).config.vgpu.spread == ("nvidia-9",)


# Who makes vGPUs, KubeVirt or we


MADE: dict[str, Any] = {"mediatedDeviceTypes": ["nvidia-222"]}
GATE = {"featureGates": ["HostDevices", "DisableMDEVConfiguration"]}


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ({"mediatedDevicesConfiguration": MADE}, ()),
        ({"mediatedDevicesConfiguration": {**MADE, "enabled": True}}, ()),
        ({"mediatedDevicesConfiguration": {**MADE, "enabled": False}}, ("nvidia-222",)),
        ({"mediatedDevicesConfiguration": MADE, "developerConfiguration": GATE}, ("nvidia-222",)),
        ({"mediatedDevicesConfiguration": MADE, "developerConfiguration": {"featureGates": []}}, ()),
    ],
)
def test_what_kubevirt_makes_is_not_made_a_second_time(
    tmp_path: Path, settings: dict[str, Any], made: tuple[str, ...]
) -> None:
    (tmp_path / "kubevirt.yaml").write_text(yaml.safe_dump(resource({**settings, "permittedHostDevices": PERMITTED})))
    reading = read(tmp_path, {"file": "kubevirt.yaml"})
    assert reading.config.vgpu.spread == made
    assert reading.config.vgpu.mdevs[0].name == "nvidia.com/GRID_T4-1Q"
    reported = [note.text for note in reading.notes if "mediatedDevicesConfiguration" in note.text]
    assert bool(reported) == (not made)


def test_settings_that_are_written_for_us_are_ours_to_follow(tmp_path: Path) -> None:
    (tmp_path / "kubevirt.yaml").write_text(yaml.safe_dump({"mediatedDevicesConfiguration": MADE}))
    assert read(tmp_path, {"file": "kubevirt.yaml"}).config.vgpu.spread == ("nvidia-222",)
    assert read(tmp_path, {"mediatedDevicesConfiguration": MADE}).config.vgpu.spread == ("nvidia-222",)


# Where the settings come from


def resource(settings: dict[str, Any]) -> dict[str, Any]:
    """A KubeVirt resource as kubectl prints it."""
    configuration = {"developerConfiguration": {"featureGates": ["HostDevices"]}, "futureKey": {"x": 1}, **settings}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"certificateRotateStrategy": {}, "configuration": configuration},
        "status": {"phase": "Deployed"},
    }


@pytest.mark.parametrize(
    "document",
    [
        resource({"permittedHostDevices": PERMITTED}),
        {"kind": "List", "items": [{"kind": "ConfigMap"}, resource({"permittedHostDevices": PERMITTED})]},
        {"permittedHostDevices": PERMITTED},
        resource({"permittedHostDevices": {**PERMITTED, "newKind": []}}),
        resource({"permittedHostDevices": {**PERMITTED, "pciHostDevices": [T4 | {"newKey": 1}, OTHER]}}),
    ],
)
def test_a_file_has_the_resource_a_list_with_it_or_the_settings(tmp_path: Path, document: dict[str, Any]) -> None:
    file = tmp_path / "kubevirt.yaml"
    file.write_text(yaml.safe_dump(document))
    reading = read(tmp_path, {"file": "kubevirt.yaml"})
    assert reading.config == read(tmp_path, {"permittedHostDevices": PERMITTED}).config
    assert reading.files == (f"{tmp_path}/plugin.yaml", str(file))


def test_a_file_of_json_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "kubevirt.json").write_text(json.dumps(resource({"permittedHostDevices": PERMITTED})))
    assert read(tmp_path, {"file": f"{tmp_path}/kubevirt.json"}).config.pci


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "ConfigMap"}, "kubevirt.yaml, kind: 'ConfigMap' is not 'KubeVirt'"),
        ({"items": []}, "kubevirt.yaml: a list with 0 KubeVirt resources, not one"),
        ({"kind": "KubeVirt", "spec": []}, None),
        ({"kind": "KubeVirt", "spec": "x"}, "kubevirt.yaml, the document: Input should be an object; found 'x'"),
        (
            resource({"permittedHostDevices": {"pciHostDevices": {}}}),
            "kubevirt.yaml, permittedHostDevices.pciHostDevices: Input should be a valid list; found an object",
        ),
        (
            resource({"permittedHostDevices": {"pciHostDevices": [{"newKey": 1}]}}),
            "kubevirt.yaml, permittedHostDevices.pciHostDevices.0.resourceName: Field required; found an object",
        ),
    ],
)
def test_a_wrong_file_is_named_with_the_place(tmp_path: Path, document: object, message: str | None) -> None:
    (tmp_path / "kubevirt.yaml").write_text(yaml.safe_dump(document))
    if message is None:
        assert read(tmp_path, {"file": "kubevirt.yaml"}).config.pci == ()
    else:
        assert messages(tmp_path, {"file": "kubevirt.yaml"})[0] == message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with raises_code(UNREADABLE_FILE, match=r"kubevirt\.yaml"):
        read(tmp_path, {"file": "kubevirt.yaml"})


def test_the_clusters_settings_are_handed_in(tmp_path: Path) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("kubevirt: {cluster: true}")
    mediated = TYPES | {"enabled": False}
    settings = resource({"permittedHostDevices": PERMITTED, "mediatedDevicesConfiguration": mediated})
    after = read_config(str(path), kubevirt=settings["spec"]["configuration"], labels={"zone": "a"})
    assert after.config.pci[0].name == "nvidia.com/TU104GL_Tesla_T4"
    assert after.config.vgpu.spread == ("nvidia-228",)
    assert after.notes[0].text.startswith("the cluster's KubeVirt resource, permittedHostDevices")


def test_before_the_cluster_has_told_its_settings_auto_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("auto: all\nkubevirt: {cluster: true}\nresources: [{select: [{vendors: [10de]}]}]")
    before = read_config(str(path))
    assert before.cluster
    assert len(before.config.pci) == 1
    assert before.config.vgpu.mdevs == ()
    without = read_config(str(path), kubevirt={})
    assert len(without.config.pci) == 2
    assert without.config.vgpu.mdevs


def test_a_configuration_of_its_own_does_not_ask_for_the_cluster(tmp_path: Path) -> None:
    assert not read(tmp_path, {"permittedHostDevices": PERMITTED}).cluster


def test_handed_in_settings_are_left_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("kubevirt: {cluster: true}")
    settings = {"permittedHostDevices": PERMITTED, "futureKey": {}}
    read_config(str(path), kubevirt=settings)
    assert "futureKey" in settings


def test_a_name_that_the_file_and_kubevirt_both_have_is_a_clash(tmp_path: Path) -> None:
    written = {"name": T4["resourceName"], "select": [{"vendors": ["10de"]}]}
    with pytest.raises(LauncherkitError, match=r"two resources are called nvidia\.com/TU104GL_Tesla_T4"):
        read(tmp_path, {"permittedHostDevices": PERMITTED}, resources=[written])
