"""What a pod gets that asks for a device, from the configuration to inside its container."""

from __future__ import annotations

import json
from urllib.request import urlopen

import pytest

from launcherkit import Host, translate
from launcherkit.cli.main import run
from tests.kubelet.conftest import Serving
from tests.kubelet.daemonset import PROBE_SOCKET
from tests.kubelet.host import CARDS, VM_GPU, nodes_of
from tests.kubelet.node import Node
from tests.kubelet.pods import IMAGE, Pods, Seen, container
from tests.support.domains import domain, hostdevs

pytestmark = pytest.mark.kubelet


def test_a_container_gets_the_variable_and_the_device_nodes_of_its_device(serving: Serving, pods: Pods) -> None:
    name = pods.run("plain", container("compute", PLAIN=1))
    cards = {card.gpu: card for card in CARDS["gpus.test/PLAIN"]}

    seen = pods.look(name, "compute")

    (given,) = seen.env.values()
    assert seen == Seen({"PCI_RESOURCE_GPUS_TEST_PLAIN": given}, nodes_of(cards[given].group))


def test_the_container_can_open_what_it_was_given_and_no_other_node(serving: Serving, pods: Pods) -> None:
    name = pods.run("opens", container("compute", AUDIO_APART=1))
    script = """
        mknod /tmp/other c 240 1
        for node in /dev/vfio/vfio /dev/vfio/3 /tmp/other; do echo $node: $( (: > $node) 2>&1); done
    """

    container_node, group_node, other = pods.shell(name, "compute", script).splitlines()

    assert container_node == "/dev/vfio/vfio:"
    assert "No such device or address" in group_node, "the stand-in has no driver, but may be opened"
    assert "Operation not permitted" in other


def test_the_node_of_a_sibling_in_another_group_comes_along(serving: Serving, pods: Pods) -> None:
    (card,) = CARDS["gpus.test/AUDIO_APART"]
    assert card.audio_group is not None
    name = pods.run("apart", container("compute", AUDIO_APART=1))

    assert pods.look(name, "compute") == Seen(
        {"PCI_RESOURCE_GPUS_TEST_AUDIO_APART": card.gpu}, nodes_of(card.group, card.audio_group)
    )


def test_each_container_of_a_pod_has_a_device_of_its_own_and_nothing_else(serving: Serving, pods: Pods) -> None:
    name = pods.run("two", container("one", TWO=1), container("other", TWO=1), container("third"))
    cards = {card.gpu: card for card in CARDS["gpus.test/TWO"]}

    seen = [pods.look(name, each) for each in ("one", "other")]

    given = [each.env["PCI_RESOURCE_GPUS_TEST_TWO"] for each in seen]
    assert sorted(given) == sorted(cards)
    assert [each.nodes for each in seen] == [nodes_of(cards[each].group) for each in given]
    assert pods.look(name, "third") == Seen({}, {})


def test_two_devices_for_one_container_share_a_variable_and_have_all_their_nodes(serving: Serving, pods: Pods) -> None:
    name = pods.run("both", container("compute", BOTH=2))
    cards = CARDS["gpus.test/BOTH"]

    seen = pods.look(name, "compute")

    assert sorted(seen.env["PCI_RESOURCE_GPUS_TEST_BOTH"].split(",")) == [card.gpu for card in cards]
    assert seen.nodes == nodes_of(*(card.group for card in cards))


def test_the_kubelet_and_the_metrics_tell_of_what_was_given(serving: Serving, node: Node, pods: Pods) -> None:
    resource = "gpus.test/TOLD"
    (card,) = CARDS[resource]

    name = pods.run("told", container("compute", TOLD=1))

    assert node.holders()[f"{name}/compute"] == {resource: {card.gpu}}
    with urlopen(f"http://{serving.metrics}/metrics") as page:
        lines = page.read().decode().splitlines()
    assert f'launcherkit_plugin_allocations_total{{outcome="done",resource="{resource}"}} 1.0' in lines
    assert f'launcherkit_plugin_devices{{health="healthy",resource="{resource}"}} 1.0' in lines
    serving.plugin.exec("plugin", "launcherkit-plugin", "probe", "readyz", f"--probe-socket={PROBE_SOCKET}")


def test_the_tree_of_the_host_tells_which_vm_holds_the_card(
    serving: Serving, node: Node, pods: Pods, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (card,) = CARDS["gpus.test/TOLD"]
    name = pods.run("virt-launcher-gpu-vm-x2x8p", container("compute", TOLD=1))
    socket = str(node.kubelet_dir / "pod-resources/kubelet.sock")

    assert run(["topology", "--host", str(serving.host.root), "--pods", "--kubelet-socket", socket, "--json"], {}) == 0

    held = json.loads(capfdbinary.readouterr().out)["held"]
    assert [(each["pod"].rpartition("/")[2], each["vm"]) for each in held if each["device"] == card.gpu] == [
        (name, "gpu-vm")
    ]


def test_what_a_vm_pod_gets_is_what_the_translator_in_it_makes_a_card_of(
    serving: Serving, node: Node, pods: Pods
) -> None:
    """The compute container as KubeVirt makes it: limits alone, no root, and no capability but one."""
    (card,) = CARDS[VM_GPU]
    compute = {
        "name": "compute",
        "image": IMAGE,
        "command": ["sleep", "100000"],
        "resources": {"limits": {VM_GPU: "1"}, "requests": {"cpu": "10m", "memory": "16Mi"}},
        "securityContext": {
            "runAsUser": 107,
            "runAsGroup": 107,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
        },
    }
    name = pods.run("virt-launcher-vm", compute, securityContext={"runAsUser": 107, "fsGroup": 107})

    seen = pods.look(name, "compute")

    assert seen == Seen({"PCI_RESOURCE_NVIDIA_COM_RTX_3090": card.gpu}, nodes_of(card.group))
    vmi = {"spec": {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": VM_GPU}]}}}}
    made = translate(domain(), env=seen.env, host=Host.from_sysfs(serving.host.root), vmi=vmi)
    assert [device.source for device in hostdevs(made.domain_xml)] == [card.gpu, f"{card.slot}.1"]
