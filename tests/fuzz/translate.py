"""Translations with an oracle of authorisation (S1, S2, T1).

No hostdev leaves whose source was neither in the variables, nor in the document, nor a sibling that the rules name.
"""

from __future__ import annotations

from lxml import etree

from launcherkit import LauncherkitError, Policy, translate
from launcherkit.model.address import PciAddress
from launcherkit.model.policy import NODE_CHECK, PAIRING, SIBLINGS
from tests.fuzz.choices import Choices
from tests.fuzz.hosts import UUIDS, FactsHost, make_host
from tests.support.authorised import siblings_of

ALIASES = ("ua-gpu-a", "ua-gpu-a-fn1", "ua-hostdevice-b", "hostdev0", "ua-sriov-n", "", "ua-gpu-a-2", "x'y")
NAMES = ("a", "b", "a-fn1", "a-2", "\N{SNOWMAN}", "<'\"&>", "a b")
RESOURCES = (*["x.org/X"] * 10, *["x.org/M"] * 4, "aws/secret", "unasked")
MACHINES = (("x86_64", "q35"), ("x86_64", "pc"), ("aarch64", "virt"), ("s390x", "s390-ccw-virtio"))


def run(data: bytes) -> None:
    """Translate what the bytes decide, and hold the result against the rules."""
    choices = Choices(data)
    host = make_host(choices)
    known = sorted(host.functions) or [PciAddress(0, 1, 0, 0), PciAddress(0, 1, 0, 1)]
    listed = choices.some_of(known, 5)
    mdevs = choices.some_of(sorted(host.mdevs) or UUIDS, 2) if choices.flag() else []
    env = {"AWS_SECRET": "0000:01:00.3"}
    if choices.number(8) == 7:
        env["PCI_RESOURCE_UNASKED"] = "0000:09:00.0"
    if listed or choices.flag():
        env["PCI_RESOURCE_X_ORG_X"] = ",".join(map(str, listed))
    if mdevs:
        env["MDEV_PCI_RESOURCE_X_ORG_M"] = ",".join(mdevs)
    there = list(dict.fromkeys(choices.some_of(known, 2)))
    elsewhere = choices.one_of([None, *known])
    managed = choices.one_of(("", " managed='yes'", " managed='no'"))
    document = _document(choices, there, elsewhere, managed)
    policy = Policy(choices.one_of(SIBLINGS), choices.one_of(PAIRING), choices.flag())
    policy = policy._replace(node_check=choices.one_of(NODE_CHECK), extra_prefixes=choices.one_of(((), ("PCIDEVICE",))))
    vmi = _requests(choices)
    try:
        done = translate(document, env=env, host=FactsHost(host), vmi=vmi and _as_vmi(vmi), policy=policy)
    except LauncherkitError as error:
        for leaf in error.leaves():
            assert all((leaf.code, leaf.message, leaf.remedy)), repr(leaf)
            assert "0000:01:00.3" not in leaf.message or PciAddress(0, 1, 0, 3) in host.functions, leaf.message
        return
    if vmi is not None and not any(vmi.values()):
        assert done.domain_xml == document  # Q3
        return
    root = etree.fromstring(done.domain_xml)
    attached = _sources(root)
    allowed = {str(address) for address in (*listed, *there)} | set(mdevs)
    if vmi is None or "unasked" in str(vmi):
        allowed.add("0000:09:00.0")
    held = {str(address) for address in listed or there}
    allowed |= siblings_of(attached, allowed, held, host, policy.siblings)
    assert attached.keys() <= allowed, f"{sorted(attached.keys() - allowed)} by {policy}"
    if elsewhere is not None and elsewhere not in there:
        assert str(elsewhere) not in attached, "another device of the domain has it"
    if not policy.managed and "yes" not in managed:
        assert not root.xpath("devices/hostdev[@managed='yes']")
    aliases = [alias.get("name", "") for alias in root.iterfind("devices/hostdev/alias")]
    ours = [alias for alias in aliases if alias.startswith("ua-")]
    left = {alias.get("name") for alias in etree.fromstring(document).iterfind("devices/hostdev/alias")}
    assert all(ours.count(alias) == 1 for alias in ours if alias not in left), ours


def _sources(root: etree._Element) -> dict[str, bool]:
    """Every source, and whether libvirt manages it."""
    found = {}
    for hostdev in root.iterfind("devices/hostdev"):
        address = hostdev.find("source/address")
        if address is None:
            continue
        managed = hostdev.get("managed") == "yes"
        if hostdev.get("type") == "mdev":
            found[address.get("uuid", "")] = managed
        elif hostdev.get("type") == "pci":
            parts = [int(address.get(key, "0"), 16) for key in ("domain", "bus", "slot", "function")]
            found[str(PciAddress(*parts))] = managed
    return found


def _document(choices: Choices, there: list[PciAddress], elsewhere: PciAddress | None, managed: str) -> bytes:
    arch, machine = choices.one_of(MACHINES)
    parts = [_pci("hostdev mode='subsystem' type='pci'" + managed, "hostdev", each, choices) for each in there]
    if elsewhere is not None and elsewhere not in there:
        parts.append(_pci("interface type='hostdev'" + managed, "interface", elsewhere, choices))
    if choices.flag():
        alias = choices.one_of(ALIASES).replace("'", "&apos;")
        parts.append(
            "<hostdev mode='subsystem' type='usb'><source><vendor id='0x046d'/><product id='0x0825'/></source>"
            f"<alias name='{alias}'/></hostdev>"
        )
    glue = choices.one_of(("\n    ", "", " <!-- <hostdev> -->"))
    return (
        f"<domain type='kvm'><name>x</name><os><type arch='{arch}' machine='{machine}'>hvm</type></os>"
        f"<devices>{glue.join(parts)}</devices></domain>"
    ).encode()


def _pci(opening: str, tag: str, address: PciAddress, choices: Choices) -> str:
    domain, bus, device, function = address
    alias = choices.one_of(ALIASES).replace("'", "&apos;")
    return (
        f"<{opening}><source><address type='pci' domain='{domain:#06x}' bus='{bus:#04x}' slot='{device:#04x}' "
        f"function='{function:#x}'/></source><alias name='{alias}'/></{tag}>"
    )


def _requests(choices: Choices) -> dict[str, list[dict[str, str]]] | None:
    if choices.number(3) == 2:
        return None
    return {
        section: [
            {"name": choices.one_of(NAMES), "deviceName": choices.one_of(RESOURCES)}
            for _ in range(choices.one_of((1, 0, 2, 0)))
        ]
        for section in ("gpus", "hostDevices")
    }


def _as_vmi(devices: dict[str, list[dict[str, str]]]) -> dict[str, object]:
    return {
        "kind": "VirtualMachineInstance",
        "apiVersion": "kubevirt.io/v1",
        "spec": {"domain": {"devices": devices}},
    }
