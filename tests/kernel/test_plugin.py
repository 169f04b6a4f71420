"""The device plugin on a real kernel: what it hands over is what QEMU opens, its health is the kernel's (K2, K5)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit_lab import sysfs
from launcherkit_lab.devices import AUDIO, DISPLAY
from launcherkit_lab.driver.vgpus import DRIVER, SMALL_NAME, VGPU, Parent
from launcherkit_lab.kubelet import Holding, NotAdmitted
from tests.kernel.guests import slots_with
from tests.kernel.serving import GPU, Serving, run_guest
from tests.libvirt.pod import Pod

pytestmark = pytest.mark.kernel


def test_what_allocate_hands_over_is_all_that_a_guest_needs(
    serving: Serving, card: sysfs.Card, empty_pod: Pod, kernel: Path, tmp_path: Path
) -> None:
    """From a card that the host has to the guest that lists it: bound by configuration, advertised, allocated."""
    everything = {found.display: True for found in sysfs.cards()}
    assert {sysfs.driver(address) for address in card} == {"bochs-drm", "snd_hda_intel"}
    with serving(bind=True) as node:
        node.kubelet.wait_for(GPU, everything)
        assert {sysfs.driver(address) for address in card} == {"vfio-pci"}
        rehearsal = node.rehearsed(GPU, tmp_path)
        (holding,) = node.kubelet.admit("pod", [("compute", GPU, 1)])
        group = sysfs.group(holding.ids[0])
        assert [device.host_path for device in holding.answer.devices] == ["/dev/vfio/vfio", f"/dev/vfio/{group}"]
        assert dict(holding.answer.envs) == {"PCI_RESOURCE_EXAMPLE_COM_GPU": holding.ids[0]}
        listing = run_guest(empty_pod, holding, rehearsal, kernel, tmp_path)
        assert len(slots_with(listing, DISPLAY, AUDIO)) == 1, listing


@pytest.mark.usefixtures("iommufd")
def test_what_allocate_hands_over_of_iommufd_is_all_that_a_guest_needs(
    serving: Serving, bound: Callable[..., None], empty_pod: Pod, kernel: Path, tmp_path: Path
) -> None:
    cards = sysfs.cards()
    for card in cards:
        bound(*card)
    with serving(nodes="cdev") as node:
        node.kubelet.wait_for(GPU, {card.display: True for card in cards})
        rehearsal = node.rehearsed(GPU, tmp_path)
        (holding,) = node.kubelet.admit("pod", [("compute", GPU, 1)])
        (card,) = (card for card in cards if card.display in holding.ids)
        nodes = [device.host_path for device in holding.answer.devices]
        assert nodes == ["/dev/vfio/vfio", "/dev/iommu", *map(sysfs.cdev, card)]
        listing = run_guest(empty_pod, holding, rehearsal, kernel, tmp_path)
        assert len(slots_with(listing, DISPLAY, AUDIO)) == 1, listing


def test_a_card_that_is_bound_on_demand_changes_hands(serving: Serving, card: sysfs.Card) -> None:
    """From the host's display to a pod and back; not while a process has the display open (K8)."""
    (display,) = (path.name for path in (sysfs.DEVICES / card.display / "drm").glob("card*"))
    rule = {"bind": "on-demand", "graceSeconds": 1, "select": [{"addresses": [card.display]}]}
    with serving(**rule) as node:
        node.kubelet.wait_for(GPU, {card.display: True})
        with open(f"/dev/dri/{display}", "rb"):
            with pytest.raises(NotAdmitted, match=rf"/dev/dri/{display} is open in \S+ \(PID {os.getpid()}\)"):
                node.kubelet.admit("too-early", [("compute", GPU, 1)])
            assert [sysfs.driver(address) for address in card] == ["bochs-drm", "snd_hda_intel"]
            node.kubelet.wait_for(GPU, {card.display: False})
        node.kubelet.wait_for(GPU, {card.display: True})
        (holding,) = node.kubelet.admit("pod", [("compute", GPU, 1)])
        assert [sysfs.driver(address) for address in card] == ["vfio-pci", "vfio-pci"]
        nodes = [device.host_path for device in holding.answer.devices]
        assert nodes == ["/dev/vfio/vfio", f"/dev/vfio/{sysfs.group(card.display)}"]
        node.end("pod")
        sysfs.until(lambda: sysfs.driver(card.display) == "bochs-drm", "the display's driver")
        sysfs.until(lambda: sysfs.driver(card.audio) == "snd_hda_intel", "the sound driver")
        node.kubelet.wait_for(GPU, {card.display: True})


def test_a_card_goes_from_a_container_to_a_vm_and_back_and_to_kata(
    serving: Serving, card: sysfs.Card, empty_pod: Pod, kernel: Path, tmp_path: Path
) -> None:
    """The container has the display's own node, the guest both functions (K10)."""
    names = {"vm": GPU, "container": f"{GPU}-container", "kata": f"{GPU}-kata"}
    rule = {"use": "any", "names": names, "bind": "on-demand", "graceSeconds": 600}
    display = sysfs.DEVICES / card.display / "drm"
    with serving(**rule, select=[{"addresses": [card.display]}]) as node:

        def wait(use: str, *, healthy: bool) -> None:
            node.kubelet.wait_for(names[use], {card.display: healthy})

        def admit(use: str) -> Holding:
            wait(use, healthy=True)
            (holding,) = node.kubelet.admit(use, [("compute", names[use], 1)])
            for other in names.keys() - {use}:
                wait(other, healthy=False)
            return holding

        for number in range(2):
            nodes = [device.host_path for device in admit("container").answer.devices]
            assert nodes == [f"/dev/dri/{path.name}" for path in display.glob("card*")]
            os.close(os.open(nodes[0], os.O_RDWR))
            assert [sysfs.driver(address) for address in card] == ["bochs-drm", "snd_hda_intel"]
            node.end("container")
            use = ("vm", "kata")[number]
            rehearsal = node.rehearsed(GPU, tmp_path)
            holding = admit(use)
            assert [sysfs.driver(address) for address in card] == ["vfio-pci", "vfio-pci"]
            wanted = ["/dev/vfio/vfio", f"/dev/vfio/{sysfs.group(card.display)}"]
            assert [device.host_path for device in holding.answer.devices] == wanted
            if use == "vm":
                listing = run_guest(empty_pod, holding, rehearsal, kernel, tmp_path)
                assert len(slots_with(listing, DISPLAY, AUDIO)) == 1, listing
            else:
                assert (dict(holding.answer.envs), holding.answer.cdi_devices[0].name) == (
                    {},
                    f"{names['kata']}={card.display}",
                )
            node.end(use)
        admit("container")
        assert [sysfs.driver(address) for address in card] == ["bochs-drm", "snd_hda_intel"]


def test_a_card_goes_from_a_container_to_a_vm_with_a_vgpu_and_back_and_whole_to_a_vm(
    serving: Serving, parents: list[Parent], empty_pod: Pod, kernel: Path, tmp_path: Path
) -> None:
    """The driver of the host makes the vGPUs, too, and the card stays with it until a VM gets it whole (K10)."""
    parent, *_ = parents
    names, vgpus = {"vm": GPU, "container": f"{GPU}-container"}, "example.com/VGPU"
    rule = {"select": [{"addresses": [parent.address]}], "use": "any", "names": names, "bind": "on-demand"}
    slots = {"name": vgpus, "types": [SMALL_NAME], "parents": [parent.address], "mode": "dynamic"}
    with serving(**rule, vgpu={"mediatedDevices": [slots], "graceSeconds": 1}) as node:

        def wait(**healthy: bool) -> None:
            for use, wanted in healthy.items():
                name = names.get(use, vgpus)
                holds = lambda: set(node.kubelet.devices(name).values()) == {wanted}  # noqa: B023, E731
                node.kubelet.wait(holds, f"{name}: {node.kubelet.devices(name)}")

        def in_container() -> None:
            wait(container=True)
            (holding,) = node.kubelet.admit("container", [("cuda", names["container"], 1)])
            nodes = [device.host_path for device in holding.answer.devices]
            assert nodes == parent.nodes != []
            for path in nodes:
                os.close(os.open(path, os.O_RDWR))
            wait(vm=False, vgpu=False)
            assert (sysfs.driver(parent.address), parent.made()) == (DRIVER, set())
            node.end("container")

        in_container()
        wait(vgpu=True)
        rehearsal = node.rehearsed(vgpus, tmp_path)
        (holding,) = node.kubelet.admit("vm", [("compute", vgpus, 1)])
        wait(vm=False, container=False)
        assert (sysfs.driver(parent.address), parent.made()) == (DRIVER, set(holding.ids))
        listing = run_guest(empty_pod, holding, rehearsal, kernel, tmp_path)
        assert list(listing.values()).count(VGPU) == 1, listing
        node.end("vm")
        sysfs.until(lambda: not parent.made(), "the vGPU removed")

        in_container()
        wait(vm=True)
        node.kubelet.admit("vm", [("compute", GPU, 1)])
        assert sysfs.driver(parent.address) == "vfio-pci"
        node.end("vm")
        in_container()


def test_each_pod_has_a_card_of_its_own(serving: Serving, bound: Callable[..., None]) -> None:
    cards = sysfs.cards()
    for card in cards:
        bound(*card)
    with serving() as node:
        node.kubelet.wait_for(GPU, {card.display: True for card in cards})
        held = [node.kubelet.admit(f"pod-{card.display}", [("compute", GPU, 1)])[0] for card in cards]
        assert sorted(holding.ids[0] for holding in held) == [card.display for card in cards]
        nodes = [{device.host_path for device in holding.answer.devices} for holding in held]
        assert set.intersection(*nodes) == {"/dev/vfio/vfio"}
        with pytest.raises(NotAdmitted):
            node.kubelet.admit("one-too-many", [("compute", GPU, 1)])


def test_health_follows_the_kernel(serving: Serving, bound: Callable[..., None]) -> None:
    first, second, *_ = sysfs.cards()
    bound(*first, *second)
    with serving() as node:
        node.kubelet.wait_for(GPU, {first.display: True, second.display: True})
        sysfs.unbind(first.display)
        node.kubelet.wait_for(GPU, {first.display: False, second.display: True})
        bound(first.display)
        node.kubelet.wait_for(GPU, {first.display: True, second.display: True})
        for address in second:
            (sysfs.DEVICES / address / "remove").write_text("1")
        try:
            node.kubelet.wait(lambda: not node.kubelet.devices(GPU).get(second.display), "the card gone")
            with pytest.raises(NotAdmitted):
                node.kubelet.call_allocate(GPU, [second.display])
        finally:
            (sysfs.PCI / "rescan").write_text("1")
        sysfs.until(lambda: second in sysfs.cards(), "the card back after a rescan")
        bound(*second)
        node.kubelet.wait_for(GPU, {first.display: True, second.display: True})
