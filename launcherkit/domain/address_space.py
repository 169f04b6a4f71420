"""Reads the guest's address space from a domain document, and makes the edits that large BARs need (P5)."""

from __future__ import annotations

from lxml import etree

from launcherkit.domain import elements
from launcherkit.domain.edits import Edit, append_children
from launcherkit.domain.guest import is_uefi, read_memory, read_size, read_window
from launcherkit.domain.hostdev import number
from launcherkit.domain.style import Style
from launcherkit.domain.tags import Places
from launcherkit.model.plan import Window
from launcherkit.model.window import AddressSpace

_ROOTS = ("pcie-root", "pci-root")
_MAX_BITS = 64
_QEMU_BITS = 40
"""Physical address bits of QEMU's guest CPUs by default, whatever the host has."""


def read_address_space(root: etree._Element, libvirt: tuple[int, ...] | None = None) -> AddressSpace:
    """Read it from a ``<domain>``.

    Args:
        root: the domain.
        libvirt: the version that will define it; None if unknown. An old one doesn't know ``<maxphysaddr>``.
    """
    cpu = root.find("cpu")
    old = libvirt is not None and not _knows_maxphysaddr(libvirt)
    given = None if cpu is None or old else cpu.find("maxphysaddr")
    passes = given is not None and given.get("mode") == "passthrough"
    named, default = _model(cpu)
    can_pass = given is None and not named and not old and root.get("type") == "kvm"
    emulated = None if given is None else number(given.get("bits"))
    memory, most = read_memory(root), read_size(root.find("maxMemory"))
    features = () if cpu is None else cpu.iterfind("feature[@name='pdpe1gb']")
    off = any(feature.get("policy") in ("disable", "forbid") for feature in features)
    return AddressSpace(
        hole=read_window(root),
        bits=None if passes or can_pass else emulated if emulated and emulated <= _MAX_BITS else _QEMU_BITS,
        can_pass_bits=can_pass,
        memory=None if memory is None else max(memory, most or 0),
        huge_pages=not off and not default,
        uefi=is_uefi(root),
    )


def _knows_maxphysaddr(libvirt: tuple[int, ...]) -> bool:
    from launcherkit.compatibility import compatibility  # few callers know the version

    return libvirt >= compatibility().since("maxphysaddr")


def _model(cpu: etree._Element | None) -> tuple[bool, bool]:
    """Whether the document names the model of the CPU, and whether libvirt does: qemu64, which has no 1 GiB pages."""
    if cpu is None:
        return False, True
    custom = cpu.get("mode", "custom") == "custom"
    named = custom and cpu.find("model") is not None
    return named, custom and not named


def cpu_with_bits(root: etree._Element, style: Style, window: Window) -> list[str]:
    """The ``<cpu>`` to add to a document that needs the host's address bits and has none."""
    if not window.pass_bits or root.find("cpu") is not None:
        return []
    lead = style.indent or ""
    text = f"<cpu>{lead}<maxphysaddr mode='passthrough'/>{lead[: len(lead) - len(style.step)]}</cpu>"
    return [elements.quoted(text, style)]


def window_edits(root: etree._Element, places: Places, style: Style, window: Window) -> tuple[list[Edit], list[str]]:
    """Edits of existing elements, and the texts of elements to add to the devices."""
    edits: list[Edit] = []
    cpu = root.find("cpu")
    if window.pass_bits and cpu is not None:
        text = elements.quoted("<maxphysaddr mode='passthrough'/>", style)
        edits.append(append_children(places.data, places.of(cpu), [text], style, depth=0))
    if window.hole is None:
        return edits, []
    roots = [each for each in root.iterfind("devices/controller[@type='pci']") if each.get("model") in _ROOTS]
    if not roots:
        return edits, [elements.pci_root(window.root, window.hole, style)]
    text = elements.quoted(elements.pci_hole(window.hole), style)
    deeper = style if style.indent is None else style._replace(indent=style.indent + style.step)
    edits.append(append_children(places.data, places.of(roots[0]), [text], deeper, depth=0))
    return edits, []
