"""From an allocation to a domain document."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

from launcherkit import AliasPrefixes, Host, Note, Plan, Policy, Translation, __version__, translate
from launcherkit.model.host import HostFacts
from launcherkit.model.policy import Iommufd, NodeCheck, Pairing, Siblings, Topology
from launcherkit.request.dra import DraFiles


def hosts(folder: Path) -> list[Host]:
    assert_type(Host.from_sysfs(), Host)
    assert_type(Host.from_sysfs(folder), Host)
    assert_type(Host.from_snapshot(folder / "host.json"), Host)
    assert_type(Host.from_umockdev("host.umockdev"), Host)
    assert_type(Host.none(), Host)
    assert_type(Host.none() == Host.from_sysfs("/"), bool)
    return [Host.from_sysfs("/"), Host.none()]


def facts(host: Host) -> HostFacts:
    assert_type(host.scan(), HostFacts)
    assert_type(host.scan(details=False), HostFacts)
    assert_type(host.facts([], [], topology=True), HostFacts)
    return host.facts([])


def policy(siblings: Siblings, pairing: Pairing, nodes: NodeCheck, iommufd: Iommufd, topology: Topology) -> Policy:
    prefixes = AliasPrefixes(gpu="ua-gpu-", hostdevice="ua-dev-", usb="ua-usb-")
    assert_type(prefixes.gpu, str)
    ours = Policy(
        siblings=siblings,
        pairing=pairing,
        managed=True,
        alias_prefixes=prefixes,
        extra_prefixes=("PCIDEVICE",),
        sysfs_root="/host",
        node_check=nodes,
        annotations=False,
        topology=topology,
        iommufd=iommufd,
        rom={"10de:2204": "off"},
        driver={"0000:e1:00.0": "nvgrace_gpu_vfio_pci"},
        generic_initiators=False,
    )
    assert_type(ours.siblings, Siblings)
    assert_type(ours.managed, bool)
    assert_type(ours.alias_prefixes, AliasPrefixes)
    assert_type(ours.extra_prefixes, tuple[str, ...])
    assert_type(ours.rom, Mapping[str, str])
    return ours._replace(managed=False)


def whole(domain_xml: bytes, env: Mapping[str, str], vmi: Mapping[str, Any], ours: Policy) -> Translation:
    return translate(
        domain_xml,
        env=env,
        host=Host.from_sysfs(),
        vmi=vmi,
        policy=ours,
        dra=DraFiles("/dra"),
        network_status="[]",
        name=f"a domain for {__version__}",
        libvirt=(11, 0),
        hook=False,
    )


def short() -> bytes:
    translation = translate("<domain/>", env={}, host=Host.none(), vmi='{"spec": {}}')
    assert_type(translation.domain_xml, bytes)
    assert_type(translation.plan, Plan)
    assert_type(translation.notes, tuple[Note, ...])
    for note in translation.notes:
        assert_type(note.topic, str)
        assert_type(note.text, str)
    domain_xml, _plan, _notes = translation
    return domain_xml
