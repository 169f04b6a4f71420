"""SR-IOV interfaces of a VMI: which function is whose, and what is refused (Q5, T1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from lxml import etree

from launcherkit import Host, LauncherkitError, Translation, translate
from launcherkit.errors import (
    BAD_NETWORK_STATUS,
    BAD_PCI_ADDRESS,
    BAD_VMI,
    STALE_HOSTDEV,
    VARIABLE_CLASH,
    VARIABLE_MISSING,
    SeveralErrors,
)
from launcherkit.request.networks import read_network_status
from launcherkit.request.vmi import read_vmi
from tests.support.domains import domain, pci_hostdev
from tests.support.errors import raises_code

VF = [f"0000:3b:00.{function}" for function in range(8)]
NIC, OTHER = "PCIDEVICE_EXAMPLE_COM_NIC", "PCIDEVICE_EXAMPLE_COM_OTHER"


def vmi(*names: str, namespace: str | None = "default", of: Mapping[str, str] = {}, **more: Any) -> dict[str, Any]:
    """A VMI with SR-IOV interfaces, each of the NetworkAttachmentDefinition of its name or of ``of``."""
    interfaces = [{"name": name, "sriov": {}, **more} for name in names]
    networks = [{"name": name, "multus": {"networkName": of.get(name, name)}} for name in names]
    metadata = {} if namespace is None else {"namespace": namespace}
    return {"metadata": metadata, "spec": {"domain": {"devices": {"interfaces": interfaces}}, "networks": networks}}


def run(document: dict[str, Any], env: Mapping[str, str], status: object = None, inside: str = "") -> Translation:
    text = None if status is None else json.dumps(status)
    return translate(domain(inside), env=env, host=Host.none(), vmi=document, network_status=text)


def sources(translation: Translation) -> dict[str, str]:
    """Alias to source of every hostdev of the written document."""
    found = {}
    for hostdev in etree.fromstring(translation.domain_xml).iterfind("devices/hostdev"):
        alias, address = hostdev.find("alias"), hostdev.find("source/address")
        assert alias is not None
        assert address is not None
        bus, slot, function = (int(address.get(key, ""), 16) for key in ("bus", "slot", "function"))
        found[alias.get("name", "")] = f"0000:{bus:02x}:{slot:02x}.{function}"
    return found


def attached(name: str, interface: str, device: str | None) -> dict[str, Any]:
    """An entry as Multus writes it."""
    entry: dict[str, Any] = {"name": name, "interface": interface, "dns": {}}
    return entry if device is None else {**entry, "device-info": {"type": "pci", "pci": {"pci-address": device}}}


def test_every_entry_of_the_variable_is_a_device_even_if_nothing_is_known_of_the_host() -> None:
    """C3's guess would take the lowest function of the slot, and leave the second network without."""
    written = run(vmi("a", "b"), {NIC: f"{VF[2]},{VF[3]}", f"{NIC}_INFO": '{"a": 1}'})
    assert sources(written) == {"ua-sriov-a": VF[2], "ua-sriov-b": VF[3]}
    assert [note.topic for note in written.notes] == ["network-order"]


def test_the_resource_that_the_pods_author_names_decides_and_the_rest_is_answered_by_its_own() -> None:
    env = {NIC: VF[2], OTHER: VF[3], "KUBEVIRT_RESOURCE_NAME_a": "example.com/other"}
    env["KUBEVIRT_RESOURCE_NAME_b"] = "example.com/nic"
    assert sources(run(vmi("a", "b"), env)) == {"ua-sriov-a": VF[3], "ua-sriov-b": VF[2]}


def test_an_interface_whose_name_is_no_text_is_an_error() -> None:
    """JSON can have half of a surrogate pair, of which UTF-8 can make no name of KubeVirt's."""
    with raises_code(BAD_NETWORK_STATUS):
        run(vmi("\ud800"), {NIC: VF[2]}, [attached("default/red", "net1", VF[2])])


def test_a_variable_that_lists_nothing_leaves_the_only_other_one() -> None:
    assert sources(run(vmi("a"), {NIC: VF[2], OTHER: ""})) == {"ua-sriov-a": VF[2]}


@pytest.mark.parametrize("status", [None, [attached("default/a", "net1", VF[2])]])
def test_a_variable_that_answers_nothing_may_list_what_is_no_pci_function(status: object) -> None:
    """As the SR-IOV network device plugin does for auxiliary devices."""
    env = {NIC: VF[2], OTHER: "mlx5_core.sf.4"}
    assert sources(run(vmi("a"), env, status)) == {"ua-sriov-a": VF[2]}
    with raises_code(BAD_PCI_ADDRESS, match=f"{OTHER}, entry 1"):
        run(vmi("a"), env | {"KUBEVIRT_RESOURCE_NAME_a": "example.com/other"})


def test_resources_of_one_variable_are_refused() -> None:
    """E2."""
    names = {"KUBEVIRT_RESOURCE_NAME_a": "example.com/nic", "KUBEVIRT_RESOURCE_NAME_b": "example/com.nic"}
    with raises_code(VARIABLE_CLASH, match=r"example.com/nic and .* of example/com.nic, which have one variable"):
        run(vmi("a", "b"), {NIC: f"{VF[2]},{VF[3]}", **names})


def test_errors_of_networks_and_of_other_requests_are_told_together() -> None:
    document = vmi("a")
    document["spec"]["domain"]["devices"]["gpus"] = [{"name": "gpu", "deviceName": "example.com/GPU"}]
    with pytest.raises(SeveralErrors) as failure:
        run(document, {"PCI_RESOURCE_EXAMPLE_COM_OTHER": "0000:e1:00.0"})
    assert [error.code for error in failure.value.leaves()] == [VARIABLE_MISSING.code] * 2
    with raises_code(BAD_PCI_ADDRESS):
        run(vmi("a"), {NIC: "nonsense"})


def test_where_a_network_was_allocated_its_device_the_gpu_must_have_been_too() -> None:
    """X2: this is no sidecar, so the hostdev of the GPU is of another pod."""
    document = vmi("a")
    document["spec"]["domain"]["devices"]["gpus"] = [{"name": "gpu", "deviceName": "example.com/GPU"}]
    with pytest.raises(SeveralErrors) as failure:
        run(document, {NIC: VF[2]}, inside=pci_hostdev("0000:e1:00.0", alias="ua-gpu-gpu"))
    assert [error.code for error in failure.value.leaves()] == [VARIABLE_MISSING.code, STALE_HOSTDEV.code]


def test_a_hostdev_of_another_function_gets_the_one_that_was_allocated() -> None:
    """X2: among several networks by the status, whatever the document has them on."""
    there = pci_hostdev(VF[2], alias="ua-sriov-red") + pci_hostdev(VF[3], alias="ua-sriov-blue")
    status = [attached("default/red", "net1", VF[3]), attached("default/blue", "net2", VF[2])]
    written = run(vmi("red", "blue"), {NIC: f"{VF[2]},{VF[3]}"}, status, there)
    assert sources(written) == {"ua-sriov-red": VF[3], "ua-sriov-blue": VF[2]}
    unmoved = run(vmi("red", "blue"), {NIC: f"{VF[3]},{VF[2]}"}, inside=there)
    assert sources(unmoved) == {"ua-sriov-red": VF[2], "ua-sriov-blue": VF[3]}


def test_a_hostdev_that_somebody_else_made_is_completed_and_not_doubled() -> None:
    there = pci_hostdev(VF[5], alias="ua-sriov-a")
    written = run(vmi("a"), {}, inside=there)
    assert sources(written) == {"ua-sriov-a": VF[5]}
    assert b"<hostdev type='pci' managed='no' mode='subsystem'>" in written.domain_xml
    with raises_code(VARIABLE_MISSING, match=r"interfaces\[1\] 'b'"):
        run(vmi("a", "b"), {}, inside=there)


def test_a_hostdev_without_boot_order_and_place_gets_those_of_its_interface() -> None:
    """X2: a place that it has is kept."""
    document = vmi("a", pciAddress="0000:07:00.0", bootOrder=3)
    written = run(document, {NIC: VF[5]}, inside=pci_hostdev(VF[5], alias="ua-sriov-a"))
    (function,) = written.plan.devices[0].functions
    assert str(function.guest and function.guest.address) == "0000:07:00.0"
    assert written.domain_xml.count(b"<boot order='3'/>") == 1
    placed = pci_hostdev(VF[5], alias="ua-sriov-a", guest="0000:02:00.0")
    (function,) = run(document, {NIC: VF[5]}, inside=placed).plan.devices[0].functions
    assert str(function.guest and function.guest.address) == "0000:02:00.0"


def test_the_place_of_an_interface_is_free_for_nothing_else() -> None:
    """The first root port that is added for a card would stand there."""
    document = vmi("a", pciAddress="0000:00:10.0")
    document["spec"]["domain"]["devices"]["gpus"] = [{"name": "g", "deviceName": "x/gpu"}]
    card = {"PCI_RESOURCE_X_GPU": "0000:e1:00.0,0000:e1:00.1"}
    ports = [controller.guest for controller in run(document, {NIC: VF[5], **card}).plan.controllers]
    assert [str(port) for port in ports] == ["0000:00:11.0"]


def test_interfaces_at_one_place_are_refused() -> None:
    with pytest.raises(LauncherkitError, match=r"interfaces 'b': its pciAddress 0000:07:00.0 is in use"):
        run(vmi("a", "b", pciAddress="0000:07:00.0"), {NIC: f"{VF[2]},{VF[3]}"})


@pytest.mark.parametrize(
    "entries",
    [
        # The names that KubeVirt's own tests have for the networks red and blue, in any order, of whatever definition.
        [attached("x/y", "pod16477688c0e", VF[3]), attached("x/y", "podb1f51a511f1", VF[2])],
        [attached("default/blue", "net1", VF[3]), attached("default/red", "net2", VF[2])],
        [
            attached("default/red", "net1", VF[2]),
            attached("default/blue", "net2", VF[3]),
            attached("o/red", "n", VF[4]),
        ],
    ],
)
def test_the_status_decides_whatever_the_order_of_the_variable(entries: list[dict[str, Any]]) -> None:
    written = run(vmi("red", "blue"), {NIC: f"{VF[4]},{VF[3]},{VF[2]}"}, entries)
    assert sources(written) == {"ua-sriov-red": VF[2], "ua-sriov-blue": VF[3]}
    assert written.notes == ()


def test_the_pods_own_network_has_no_name_with_multus() -> None:
    status = [attached("", "eth0", None), attached("default/red", "net1", VF[3])]
    assert sources(run(vmi("red"), {NIC: f"{VF[2]},{VF[3]}"}, status)) == {"ua-sriov-red": VF[3]}


def test_without_the_vmis_namespace_the_definitions_name_alone_is_compared() -> None:
    """As in the template of a VirtualMachine; with one, another namespace's definition is another network."""
    status = [attached("elsewhere/red", "net1", VF[3])]
    assert sources(run(vmi("red", namespace=None), {NIC: VF[3]}, status)) == {"ua-sriov-red": VF[3]}
    with raises_code(BAD_NETWORK_STATUS, match="no network of default/red"):
        run(vmi("red"), {NIC: VF[3]}, status)


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([attached("default/red", "net1", VF[3])], r"'b': no network of default/blue"),
        ([attached("default/red", "a", VF[2]), attached("default/red", "b", VF[3])], "'a': 2 networks of default/red"),
        ([attached("default/red", "net1", VF[3]), attached("default/blue", "net2", VF[3])], f"{VF[3]} has another"),
        ([attached("default/red", "net1", None), attached("default/blue", "net2", VF[3])], "'a': .* no pci-address"),
        (
            [attached("default/red", "net1", VF[7]), attached("default/blue", "net2", VF[3])],
            f"{VF[7]} was not allocated",
        ),
    ],
)
def test_a_status_that_leaves_a_network_open_is_an_error(entries: list[dict[str, Any]], what: str) -> None:
    """Nothing falls back to a guess, and nothing is attached that wasn't allocated (T1)."""
    with pytest.raises(LauncherkitError, match=what) as failure:
        run(vmi("a", "b", of={"a": "red", "b": "blue"}), {NIC: f"{VF[2]},{VF[3]}"}, entries)
    assert {error.code for error in failure.value.leaves()} == {BAD_NETWORK_STATUS.code}


def test_what_the_document_uses_otherwise_is_not_replaced_by_another_function() -> None:
    """C5: the CNI prepared that one for the network, and no other."""
    taken = (
        "<interface type='hostdev'><source><address type='pci' bus='0x3b' slot='0' function='2'/></source></interface>"
    )
    with pytest.raises(LauncherkitError, match="has 0 device") as failure:
        run(vmi("red"), {NIC: f"{VF[2]},{VF[3]}"}, [attached("default/red", "net1", VF[2])], taken)
    assert "an <interface> or <disk> of the domain has it" in str(failure.value)


def test_the_vmis_own_annotation_is_the_tenants_and_not_read() -> None:
    """T1: virt-controller copies a VMI's annotations to its pod, so anybody may write one there."""
    document = vmi("a")
    document["metadata"]["annotations"] = {
        "k8s.v1.cni.cncf.io/network-status": json.dumps([attached("default/a", "net1", VF[7])]),
        "kubevirt.io/network-info": "nonsense",
    }
    assert sources(run(document, {NIC: VF[2]})) == {"ua-sriov-a": VF[2]}


@pytest.mark.parametrize("name", ["x_SECRET", "../x", "a,b", "a=b", "", "PATH", "ä"])
def test_a_tenants_names_reach_no_other_variable(name: str) -> None:
    """T1: whatever it is called, it is answered by what PCIDEVICE_* lists, or not at all."""
    document = vmi("a")
    document["spec"]["domain"]["devices"]["interfaces"][0]["name"] = name
    env = {NIC: VF[2], "PCI_RESOURCE_X": VF[3], "KUBEVIRT_RESOURCE_NAME_PATH": "../../PCI_RESOURCE_X", "PATH": VF[4]}
    try:
        written = run(document, env)
    except LauncherkitError:
        return
    assert set(sources(written).values()) == {VF[2]}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b" \n", "s.json: empty"),
        (b"[", "s.json: line 1, column 2: not JSON"),
        (b"\xff", "s.json: byte 0 is not UTF-8"),
        (b"7", r"s.json: \$: 7 is neither a list of networks"),
        (b"[7]", r"s.json: \$\[0\]: 7 is not an object"),
        (b'{"interfaces": {}}', r"s.json: \$.interfaces: .* is not a list"),
        (b'[{"name": 1}]', r"s.json: \$\[0\].name: 1 is not the name"),
        (b'[{"device-info": 1}]', r"s.json: \$\[0\].device-info: 1 is not an object"),
        (b'[{"device-info": {"pci": {"pci-address": "3b"}}}]', r"s.json: .*pci-address: '3b' is not a PCI address"),
        (b'[{"name": "a", "name": "b"}]', "the key 'name' appears twice"),
    ],
)
def test_a_status_of_another_form_is_an_error_that_names_the_place(text: bytes, what: str) -> None:
    with raises_code(BAD_NETWORK_STATUS, match=what):
        read_network_status(text, "s.json")


@pytest.mark.parametrize(
    ("interface", "key"),
    [
        ({"sriov": {}}, r"interfaces\[0\].name: expected the name of the interface"),
        ({"name": "a", "sriov": {}, "pciAddress": "7"}, r"interfaces\[0\].pciAddress: expected a PCI address"),
        ({"name": "a", "sriov": {}, "pciAddress": 7}, r"interfaces\[0\].pciAddress: expected a PCI address"),
        ({"name": "a", "sriov": {}, "bootOrder": 0}, r"interfaces\[0\].bootOrder: expected a number from 1 on"),
        ({"name": "a", "sriov": {}, "bootOrder": True}, r"interfaces\[0\].bootOrder: expected a number from 1 on"),
        (7, r"interfaces\[0\]: expected an object"),
    ],
)
def test_an_interface_of_another_form_is_an_error_that_hooks_leave_to_kubevirt(interface: object, key: str) -> None:
    document = {"spec": {"domain": {"devices": {"interfaces": [interface]}}}}
    with raises_code(BAD_VMI, match=key):
        read_vmi(document)
    assert read_vmi(document, interfaces=False).requests == ()


@pytest.mark.parametrize("name", [None, [], {}, 7, ""])
def test_a_network_without_a_name_is_an_error_that_hooks_leave_to_kubevirt(name: object) -> None:
    document = vmi("a")
    document["spec"]["networks"].append({"name": name})
    with raises_code(BAD_VMI, match=r"spec.networks\[1\].name: expected the name of the network"):
        read_vmi(document)
    hooked = translate(domain(), env={}, host=Host.none(), vmi=document, hook=True)
    assert sources(hooked) == {}


@pytest.mark.parametrize("more", [{"sriov": None}, {"masquerade": {}}, {"sriov": {}, "state": "absent"}])
def test_other_interfaces_are_not_requests(more: dict[str, Any]) -> None:
    document = {"spec": {"domain": {"devices": {"interfaces": [{"name": "a", **more}]}}, "networks": []}}
    assert read_vmi(document).requests == ()
