"""libvirt gives a guest's CPU the host's address bits, whatever its mode (P5): docs/reference/compatibility.md."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from lxml import etree

from tests.libvirt.capabilities import Guests, made_definable
from tests.libvirt.daemon import Libvirt
from tests.libvirt.test_golden_domains import translated

pytestmark = pytest.mark.libvirt

GOLDEN = Path(__file__).parents[1] / "golden"
BITS = "<maxphysaddr mode='passthrough'/>"
CPUS = {
    "": "qemu64",
    f"<cpu>{BITS}</cpu>": "qemu64,host-phys-bits=on",
    f"<cpu><topology sockets='1' cores='1' threads='1'/>{BITS}</cpu>": "qemu64,host-phys-bits=on",
    f"<cpu mode='maximum'>{BITS}</cpu>": "max,host-phys-bits=on",
    f"<cpu mode='custom'><model>qemu64</model>{BITS}</cpu>": "qemu64,host-phys-bits=on",
    f"<cpu mode='custom'><model>EPYC</model>{BITS}</cpu>": "EPYC,monitor=off,host-phys-bits=on",
    f"<cpu><model>EPYC</model>{BITS}</cpu>": "EPYC,monitor=off,host-phys-bits=on",
}
"""CPU of the domain to QEMU's."""


def cpu_of_qemu(libvirt: Libvirt, document: bytes) -> str:
    """What follows ``-cpu``."""
    path = libvirt.folder / "bits.xml"
    path.write_bytes(document)
    words = shlex.split(libvirt("domxml-to-native", "qemu-argv", "--xml", str(path)).replace("\\\n", " "))
    return next(word for option, word in pairwise(words) if option == "-cpu")


def domain(cpu: str) -> bytes:
    head = "<domain type='qemu'><name>bits</name><memory>65536</memory>"
    return f"{head}<os><type arch='x86_64' machine='q35'>hvm</type></os>{cpu}</domain>".encode()


@pytest.mark.parametrize("cpu", CPUS)
def test_a_cpu_of_a_model_or_of_none_becomes_one_with_the_hosts_bits(libvirt: Libvirt, cpu: str) -> None:
    assert cpu_of_qemu(libvirt, domain(cpu)) == CPUS[cpu]


def test_a_cpu_of_mode_host_model_becomes_a_model_with_the_hosts_bits(libvirt: Libvirt) -> None:
    assert "host-phys-bits" not in cpu_of_qemu(libvirt, domain("<cpu mode='host-model'/>"))
    assert cpu_of_qemu(libvirt, domain(f"<cpu mode='host-model'>{BITS}</cpu>")).endswith(",host-phys-bits=on")


def test_a_cpu_of_mode_host_passthrough_is_kept_with_the_element(libvirt: Libvirt) -> None:
    """libvirt makes no command line of it without KVM."""
    kept = etree.fromstring(libvirt.keep(domain(f"<cpu mode='host-passthrough'>{BITS}</cpu>")))
    assert kept.xpath("string(cpu/maxphysaddr/@mode)") == "passthrough"


@pytest.mark.parametrize("case", ["window-host-model", "window-eight-h100-host-model", "window-no-cpu"])
def test_what_a_translation_writes_becomes_the_hosts_bits(
    libvirt: Libvirt, capabilities: dict[str, Guests], case: str
) -> None:
    """Without what the host would have to have: VFIO, firmware, a tap device."""
    root = etree.fromstring(made_definable(translated(GOLDEN / case), capabilities)[0])
    root.set("type", "qemu")
    etree.strip_attributes(root, "firmware")
    etree.strip_elements(root, "hostdev", "interface", with_tail=False)
    assert cpu_of_qemu(libvirt, etree.tostring(root)).endswith(",host-phys-bits=on")
