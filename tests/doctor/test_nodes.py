"""Are the device nodes here, and may this user open them (V2)?"""

from __future__ import annotations

from dataclasses import replace

from launcherkit.doctor.facts import Node
from launcherkit.doctor.finding import subject_of_host
from launcherkit.model.address import MdevAddress
from tests.doctor.known import (
    AUDIO,
    GPU,
    NODES,
    finding,
    findings,
    gathered,
    healthy_host,
    host_facts,
    of_vm,
    vm_facts,
)
from tests.support.facts import UUID, at, detail, facts, function, mdev

CDEVS = ("/dev/iommu", "/dev/vfio/devices/vfio3", "/dev/vfio/devices/vfio4")
WITH_CDEVS = healthy_host()._replace(details={at(GPU): detail(vfio_dev="vfio3"), at(AUDIO): detail(vfio_dev="vfio4")})


def test_the_old_set_is_reported() -> None:
    found = finding(vm_facts(), "vfio-nodes")
    assert (found.status, found.seen) == ("ok", "the groups': /dev/vfio/vfio, /dev/vfio/44")


def test_the_new_set_is_reported() -> None:
    found = finding(vm_facts(WITH_CDEVS._replace(nodes=frozenset(CDEVS))), "vfio-nodes")
    assert (found.status, found.seen) == ("ok", f"iommufd's: {', '.join(CDEVS)}")


def test_a_missing_node_fails_by_its_name() -> None:
    found = finding(vm_facts(healthy_host()._replace(nodes=frozenset({"/dev/vfio/vfio"}))), "vfio-nodes")
    assert (found.subject, found.status) == ("/dev/vfio/44", "fail")
    assert "device plugin" in found.remedy


def test_half_of_the_other_set_is_reported_with_what_is_missing() -> None:
    found = findings(vm_facts(WITH_CDEVS._replace(nodes=frozenset(CDEVS[1:]))), "vfio-nodes")
    assert [each.subject for each in found] == ["/dev/vfio/vfio", "/dev/vfio/44"]
    assert "/dev/vfio/devices/vfio3 is there, but not /dev/iommu" in found[0].seen
    found = findings(vm_facts(WITH_CDEVS._replace(nodes=frozenset({"/dev/iommu"}))), "vfio-nodes")
    assert "/dev/iommu is there, but no /dev/vfio/devices" in found[0].seen


def test_a_domain_of_iommufd_with_an_mdev_is_a_mix() -> None:
    host = facts(
        function("0000:3b:00.0", driver="nvidia", group=7), mdevs=[mdev()], nodes=("/dev/vfio/vfio", "/dev/vfio/90")
    )
    subject = replace(of_vm(host), attached=(MdevAddress(UUID),), groups=(), wants_iommufd=True)
    found = findings(vm_facts(host, subject=subject), "vfio-nodes")
    assert [each.status for each in found] == ["fail", "ok"]
    assert "can only go through its IOMMU group" in found[0].seen


def test_a_sidecar_is_told_that_it_is_one() -> None:
    host = healthy_host()._replace(nodes=frozenset())
    sidecar = vm_facts(host, subject=of_vm(host, has_variables=False), gathered=gathered({"container": True}))
    for check in ("vfio-nodes", "node-permissions", "memlock"):
        found = finding(sidecar, check)
        assert found.status == "skipped"
        assert "hook sidecar" in found.seen


def test_a_container_that_was_given_devices_but_no_nodes_fails() -> None:
    host = healthy_host()._replace(nodes=frozenset())
    found = findings(vm_facts(host, gathered=gathered({"container": True})), "vfio-nodes")
    assert [each.status for each in found] == ["fail", "fail"]


def test_a_container_need_not_have_the_nodes_of_other_vms() -> None:
    host = healthy_host()._replace(nodes=frozenset({"/dev/vfio/vfio"}))
    assert finding(host_facts(host, machine={"container": True}), "vfio-nodes").status == "skipped"


def test_a_policy_that_wants_no_nodes_gets_none_checked() -> None:
    host = healthy_host()._replace(nodes=frozenset())
    assert finding(vm_facts(host, subject=of_vm(host, nodes_matter=False)), "vfio-nodes").status == "skipped"


def test_a_host_without_devices_for_vms_still_wants_the_container_node() -> None:
    host = facts(function("0000:02:00.0", 0x020000, driver="igb"), nodes=())
    found = finding(host_facts(host), "vfio-nodes")
    assert (found.status, found.seen) == ("warn", "neither /dev/vfio/vfio nor /dev/iommu is here")
    assert finding(host_facts(host._replace(nodes=frozenset(NODES[:1]))), "vfio-nodes").status == "ok"


def test_owner_and_mode_are_reported() -> None:
    found = findings(vm_facts(), "node-permissions")
    assert [(each.subject, each.status, each.seen) for each in found] == [
        ("/dev/vfio/vfio", "ok", "mode 0600, owner 0:0"),
        ("/dev/vfio/44", "ok", "mode 0600, owner 0:0"),
    ]


def test_a_node_of_another_user_fails_in_a_pod_and_is_warned_of_on_a_host() -> None:
    nodes = {"/dev/vfio/vfio": Node(0o666, 0, 0, True), "/dev/vfio/44": Node(0o600, 0, 0, False)}
    for container, status in ((True, "fail"), (False, "warn")):
        seen = vm_facts(gathered=gathered({"container": container}, nodes=nodes))
        found = findings(seen, "node-permissions")
        assert [each.status for each in found] == ["ok", status]
        assert "can't read and write" in found[1].seen
        assert found[1].remedy


def test_nodes_in_a_snapshot_are_checked_and_their_modes_are_not() -> None:
    host = healthy_host()._replace(nodes=frozenset({"/dev/vfio/vfio"}))
    snapshot = vm_facts(host, gathered=None)
    assert finding(snapshot, "vfio-nodes").status == "fail"
    assert finding(snapshot, "node-permissions").status == "skipped"


def test_the_subject_of_a_host_has_its_mdevs() -> None:
    host = facts(function("0000:3b:00.0", driver="nvidia", group=7), mdevs=[mdev()])
    assert subject_of_host(host).attached == (MdevAddress(UUID),)
