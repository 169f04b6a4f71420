"""What resources are called (K6), and that each name is one's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcherkit.errors import UNREADABLE_FILE, LauncherkitError, SeveralErrors
from launcherkit_plugin.devices.names import (
    Namer,
    automatic_name,
    clashes,
    variable_name,
    vgpu_name,
)
from launcherkit_plugin.model.config import Config, PciRule, Selector, VgpuRule
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.model.errors import NAME_CLASH
from launcherkit_plugin.model.texts import LONGEST_NAME, check_domain, check_resource_name, check_short_name, type_key
from tests.support.errors import raises_code
from tests.support.facts import AUDIO, function

ANY = PciRule(select=(Selector(),))

TABLE = """\
10de  NVIDIA Corporation
\t1aef  GA102 High Definition Audio Controller
\t2204  GA102 [GeForce RTX 3090]
\t2203  GA102 [GeForce RTX 3090]
\t1eb8  TU104GL [Tesla T4]
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t2204  Not a card of NVIDIA's
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX/7900M]
1af4  Red Hat, Inc.
\t1050  Virtio 1.0 GPU
C 03  Display controller
\t2204  Not a card at all
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "pci.ids"
    path.write_text(TABLE)
    return str(path)


# As NVIDIA's plugin forms them


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("GA102 [GeForce RTX 3090]", "GA102_GEFORCE_RTX_3090"),
        ("TU104GL [Tesla T4]", "TU104GL_TESLA_T4"),
        ("GM206GLM [Quadro M2200 Mobile / M2200]", "GM206GLM_QUADRO_M2200_MOBILE___M2200"),
        ("GeForce 6100 nForce 405/nForce 430", "GEFORCE_6100_NFORCE_405_NFORCE_430"),
        ("USB 3.1 Host-Controller", "USB_3_1_HOSTCONTROLLER"),
        ("  a \t  b  ", "A_B"),
        ("GA102GL [RTX A6000] (rev. 2)", "GA102GL_RTX_A6000_REV__2"),
    ],
)
def test_a_name_is_in_upper_case_with_underscores_and_nothing_odd(text: str, name: str) -> None:
    assert automatic_name(text, 0x2204) == name


@pytest.mark.parametrize("text", ["", "[]", "(-)", "/", "x" * (LONGEST_NAME + 1)])
def test_where_a_name_comes_to_nothing_or_is_too_long_there_is_the_device_id(text: str) -> None:
    assert automatic_name(text, 0x2204) == "2204"
    assert automatic_name(text, 0x1F) == "001f"


@given(st.text(), st.integers(0, 0xFFFF))
@example("\u0149 \u00df \u0131", 1)  # upper case makes two letters, or ASCII, of these
def test_every_automatic_name_is_one_that_kubernetes_takes(text: str, device: int) -> None:
    name = automatic_name(text, device)
    assert check_short_name(name) == name
    assert re.fullmatch("[A-Z0-9_]+|[0-9a-f]{4}", name)


def test_names_are_those_of_the_vendors_own_part_of_the_table(table: str) -> None:
    namer = Namer(Config(), (table,))
    assert namer.function(function("01:00.0", device=0x2204), ANY) == "nvidia.com/GA102_GEFORCE_RTX_3090"
    radeon = function("02:00.0", vendor=0x1002, device=0x744C)
    assert namer.function(radeon, ANY) == "amd.com/NAVI_31_RADEON_RX_7900_XT_7900_XTX_7900M"


def test_a_model_that_the_table_does_not_know_is_called_by_its_device_id(table: str) -> None:
    assert Namer(Config(), (table,)).function(function("01:00.0", device=0x9999), ANY) == "nvidia.com/9999"


def test_without_a_table_device_ids_are_names() -> None:
    assert Namer(Config(), ("/no/such/pci.ids",)).function(function("01:00.0"), ANY) == "nvidia.com/2204"


def test_a_vendor_without_a_domain_has_one_of_ours(table: str) -> None:
    virtio = function("01:00.0", vendor=0x1AF4, device=0x1050)
    assert Namer(Config(), (table,)).function(virtio, ANY) == "1af4.pci.launcherkit.io/VIRTIO_1_0_GPU"


def test_a_domain_of_the_configuration_comes_before_ours(table: str) -> None:
    namer = Namer(Config(domains={0x10DE: "gpus.example.com"}), (table,))
    assert namer.function(function("01:00.0"), ANY) == "gpus.example.com/GA102_GEFORCE_RTX_3090"


def test_an_alias_comes_before_the_table(table: str) -> None:
    namer = Namer(Config(aliases={"10de:2204": "BIG"}), (table,))
    assert namer.function(function("01:00.0"), ANY) == "nvidia.com/BIG"
    assert namer.function(function("01:00.1", AUDIO), ANY) == "nvidia.com/GA102_HIGH_DEFINITION_AUDIO_CONTROLLER"


def test_the_name_of_a_rule_comes_before_all(table: str) -> None:
    rule = PciRule(select=(Selector(),), name="example.com/CARD")
    namer = Namer(Config(pci=(rule,), aliases={"10de:2204": "BIG"}), (table,))
    assert namer.function(function("01:00.0"), rule) == "example.com/CARD"


def test_the_configuration_names_a_table_of_its_own(table: str) -> None:
    namer = Namer(Config(pci_ids=table), ("/no/such/pci.ids",))
    assert namer.function(function("01:00.0"), ANY) == "nvidia.com/GA102_GEFORCE_RTX_3090"


def test_a_table_that_was_asked_for_and_is_not_there_is_an_error() -> None:
    with raises_code(UNREADABLE_FILE, match="/no/such"):
        Namer(Config(pci_ids="/no/such/pci.ids")).update([function("01:00.0")])


def test_what_has_been_learned_is_not_looked_up_again(table: str) -> None:
    namer = Namer(Config(), (table,))
    namer.update([function("01:00.0")])
    Path(table).unlink()
    assert namer.function(function("01:00.0"), ANY) == "nvidia.com/GA102_GEFORCE_RTX_3090"
    assert namer.function(function("01:00.0", device=0x1EB8), ANY) == "nvidia.com/1eb8"


# vGPU types


@pytest.mark.parametrize(
    ("type_name", "vendor", "name"),
    [
        ("GRID T4-1Q", 0x10DE, "nvidia.com/GRID_T4-1Q"),
        ("NVIDIA A40-1B", 0x10DE, "nvidia.com/NVIDIA_A40-1B"),
        ("i915-GVTg_V5_4", 0x8086, "intel.com/i915-GVTg_V5_4"),
        ("Dual port (serial)", None, "mdev.launcherkit.io/Dual_port_serial"),
        ("-()-", None, "mdev.launcherkit.io/UNNAMED"),
    ],
)
def test_a_vgpu_type_keeps_its_case_and_dashes(type_name: str, vendor: int | None, name: str) -> None:
    assert vgpu_name(type_name, vendor, Config()) == name


def test_a_vgpu_type_may_have_an_alias() -> None:
    config = Config(aliases={type_key("GRID T4-1Q"): "SMALL"})
    assert vgpu_name("GRID  T4-1Q", 0x10DE, config) == vgpu_name("GRID_T4-1Q", 0x10DE, config) == "nvidia.com/SMALL"


@given(st.text())
def test_every_name_of_a_vgpu_type_is_one_that_kubernetes_takes(type_name: str) -> None:
    check_resource_name(vgpu_name(type_name, None, Config()))


# What Kubernetes takes


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/GA102",
        "a/b",
        "devices.kubevirt.io/GPU",
        "1af4.pci.launcherkit.io/1050",
        "a.b-c/A.b_c-D",
        "a/" + "x" * 61,
    ],
)
def test_a_good_name_is_taken(name: str) -> None:
    assert check_resource_name(name) == name


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("GA102", "<domain>/<NAME>"),
        ("", "<domain>/<NAME>"),
        ("nvidia.com/", "letters, digits"),
        ("/GA102", "a domain consists"),
        ("Nvidia.com/GA102", "a domain consists"),
        ("nvidia..com/GA102", "a domain consists"),
        ("-nvidia.com/GA102", "a domain consists"),
        ("nvidia_.com/GA102", "a domain consists"),
        ("nvidia.com/GA102/2", "letters, digits"),
        ("nvidia.com/_GA102", "begins and ends"),
        ("nvidia.com/GA102.", "begins and ends"),
        ("nvidia.com/GA 102", "letters, digits"),
        ("nvidia.com/GÄ102", "letters, digits"),
        ("kubernetes.io/GA102", "Kubernetes reserves"),
        ("gpu.kubernetes.io/GA102", "Kubernetes reserves"),
        ("requests.nvidia.com/GA102", "Kubernetes reserves"),
        ("a/" + "x" * 62, "62 characters; .* 61"),
        ("a." * 122 + "a/b", "244 characters"),
    ],
)
def test_the_error_of_a_bad_name_says_what_is_wrong_with_it(name: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        check_resource_name(name)


def test_a_name_of_the_greatest_length_has_a_socket_that_can_be_reached() -> None:
    resource = Resource("a/" + "x" * LONGEST_NAME, "", {})
    # sockaddr_un has 108 bytes, the last of them zero
    assert len(f"/var/lib/kubelet/device-plugins/{resource.socket}") == 107


def test_the_domain_of_every_vendor_is_one() -> None:
    for vendor in (0x10DE, 0x1002, 0x8086, 0x15B3, 0x0001, 0xFFFF):
        check_domain(vgpu_name("x", vendor, Config()).partition("/")[0])


# Clashes


def clashes_of(namer: Namer, *resources: Resource) -> list[str]:
    try:
        namer.check(resources)
    except LauncherkitError as error:
        return [leaf.message for leaf in error.leaves() if leaf.code == NAME_CLASH.code]
    return []


def test_two_models_that_the_table_calls_the_same_are_one_resource(table: str) -> None:
    namer = Namer(Config(pci=(ANY,)), (table,))
    names = {namer.function(function("01:00.0", device=device), ANY) for device in (0x2204, 0x2203)}
    assert names == {"nvidia.com/GA102_GEFORCE_RTX_3090"}
    assert clashes_of(namer) == []


def test_two_aliases_of_one_name_are_an_error_that_names_both(table: str) -> None:
    namer = Namer(Config(pci=(ANY,), aliases={"10de:2204": "X", "10de:2203": "X"}), (table,))
    for device in (0x2204, 0x2203):
        namer.function(function("01:00.0", device=device), ANY)
    (message,) = clashes_of(namer)
    assert message == "model 10de:2204 by rule 1 and model 10de:2203 by rule 1 are both called nvidia.com/X"


def test_an_alias_that_is_the_name_of_another_model_is_an_error(table: str) -> None:
    namer = Namer(Config(pci=(ANY,), aliases={"10de:1eb8": "GA102_GEFORCE_RTX_3090"}), (table,))
    for device in (0x2204, 0x1EB8):
        namer.function(function("01:00.0", device=device), ANY)
    (message,) = clashes_of(namer)
    assert "model 10de:2204 by rule 1 and model 10de:1eb8 by rule 1 are both called" in message


def test_models_of_two_vendors_without_a_name_do_not_share_their_device_id(table: str) -> None:
    namer = Namer(Config(pci=(ANY,)), (table,))
    for vendor in (0x1002, 0x1022):
        namer.function(function("01:00.0", vendor=vendor, device=0x9999), ANY)
    (message,) = clashes_of(namer)
    assert message == "model 1002:9999 by rule 1 and model 1022:9999 by rule 1 are both called amd.com/9999"


def test_a_clash_is_over_when_one_of_the_two_has_been_unplugged(table: str) -> None:
    namer = Namer(Config(pci=(ANY,), aliases={"10de:2204": "X", "10de:2203": "X"}), (table,))
    for plugged in ([0x2204], [0x2204, 0x2203], [0x2204]):
        for device in plugged:
            namer.function(function("01:00.0", device=device), ANY)
        assert len(clashes_of(namer)) == len(plugged) - 1


def test_an_alias_takes_two_models_of_one_name_apart(table: str) -> None:
    namer = Namer(Config(pci=(ANY,), aliases={"10de:2203": "OTHER"}), (table,))
    for device in (0x2204, 0x2203):
        namer.function(function("01:00.0", device=device), ANY)
    assert clashes_of(namer) == []


def test_many_models_under_the_name_of_one_rule_are_no_clash(table: str) -> None:
    rule = PciRule(select=(Selector(),), name="example.com/CARD")
    namer = Namer(Config(pci=(rule,)), (table,))
    for device in (0x2204, 0x2203, 0x1EB8):
        namer.function(function("01:00.0", device=device), rule)
    assert clashes_of(namer) == []


def test_a_model_under_two_rules_without_names_is_a_clash(table: str) -> None:
    rules = (PciRule(select=(Selector(numa_nodes=frozenset({0})),)), PciRule(select=(Selector(),), siblings="none"))
    namer = Namer(Config(pci=rules), (table,))
    for rule in rules:
        namer.function(function("01:00.0"), rule)
    (message,) = clashes_of(namer)
    assert "10de:2204 by rule 1 and model 10de:2204 by rule 2" in message


def test_an_automatic_name_that_a_rule_has_is_a_clash(table: str) -> None:
    rules = (PciRule(select=(Selector(),), name="nvidia.com/TU104GL_TESLA_T4"), ANY)
    namer = Namer(Config(pci=rules), (table,))
    namer.function(function("01:00.0"), rules[0])
    namer.function(function("02:00.0", device=0x1EB8), rules[1])
    (message,) = clashes_of(namer)
    assert message == "rule 1 and model 10de:1eb8 by rule 2 are both called nvidia.com/TU104GL_TESLA_T4"


def test_two_vgpu_types_of_one_name_are_a_clash() -> None:
    namer = Namer(Config())
    assert namer.vgpu("GRID T4-1Q", 0x10DE) == namer.vgpu("GRID_T4-1Q", 0x10DE)
    assert clashes_of(namer) == []
    for name in ("GRID T4-1Q", "GRID T4-1Q()"):
        namer.vgpu(name, 0x10DE)
    assert "vGPU type GRID_T4-1Q and vGPU type GRID_T4-1Q() are both called" in clashes_of(namer)[0]


def resource(name: str, prefix: str = "PCI_RESOURCE") -> Resource:
    return Resource(name, variable_name(name, prefix), {})


def test_resources_with_one_socket_are_a_clash() -> None:
    (message,) = clashes_of(Namer(Config()), resource("nvidia.com/X"), resource("amd.com/X"))
    assert message == "the resources nvidia.com/X and amd.com/X have the same socket, kubevirt-X.sock"


def test_resources_with_one_variable_are_a_clash() -> None:
    (message,) = clashes_of(Namer(Config()), resource("nvidia.com/A.B"), resource("nvidia.com/a_b"))
    assert (
        message == "the resources nvidia.com/A.B and nvidia.com/a_b have the same variable, PCI_RESOURCE_NVIDIA_COM_A_B"
    )


def test_two_kinds_of_devices_with_one_name_are_a_clash() -> None:
    found = clashes_of(Namer(Config()), resource("nvidia.com/X"), resource("nvidia.com/X", "MDEV_PCI_RESOURCE"))
    assert found == ["two resources are called nvidia.com/X"]


def test_all_clashes_are_reported_at_once() -> None:
    with pytest.raises(SeveralErrors):
        Namer(Config()).check([resource("a/X"), resource("b/X"), resource("a/A.B"), resource("a/A_B")])


@given(st.lists(st.tuples(st.sampled_from(["a/X", "b/X", "a/X.Y", "a/X_Y", "c/Z"]), st.sampled_from(["P", "Q"]))))
def test_there_is_no_clash_only_where_names_sockets_and_variables_are_all_different(
    named: list[tuple[str, str]],
) -> None:
    resources = [resource(name, prefix) for name, prefix in named]
    distinct = [len(set(values)) for values in zip(*((r.name, r.socket, r.variable) for r in resources), strict=True)]
    unique = all(number == len(resources) for number in distinct)
    assert (list(clashes((r.name, r.variable) for r in resources)) == []) == unique


def test_the_reader_in_the_pod_looks_for_the_variable_that_is_set() -> None:
    from launcherkit.request.environment import Environment

    for prefix in ("PCI_RESOURCE", VgpuRule(()).prefix):
        name = "nvidia.com/GRID_T4-1Q"
        environment = Environment({variable_name(name, prefix): "x"}, ())
        assert environment.variable_for(name) == variable_name(name, prefix)
