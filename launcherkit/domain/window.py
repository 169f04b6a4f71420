"""The guest's address space in a domain document, and the edits that large BARs need (P5)."""

from lxml import etree

from launcherkit.domain.xml import Document, Edit, Style, append_children
from launcherkit.model.address import number
from launcherkit.model.address_space import AddressSpace
from launcherkit.model.domain import MACHINE_ROOTS
from launcherkit.model.plan import Window

_UNITS = {"b": 1, "bytes": 1, "": 1024, "k": 1024, "kib": 1024, "kb": 1000}
_UNITS |= {"m": 1024**2, "mib": 1024**2, "mb": 1000**2, "g": 1024**3, "gib": 1024**3, "gb": 1000**3}
_UNITS |= {"t": 1024**4, "tib": 1024**4, "tb": 1000**4}
"""Bytes for each unit of libvirt's scaled integers, in lower case; KiB by default."""

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
    maxphysaddr = None if cpu is None or old else cpu.find("maxphysaddr")
    named, default = _model(cpu)
    can_pass = maxphysaddr is None and not named and not old and root.get("type") == "kvm"
    memory, most = read_memory(root), read_size(root.find("maxMemory"))
    features = () if cpu is None else cpu.iterfind("feature[@name='pdpe1gb']")
    off = any(feature.get("policy") in ("disable", "forbid") for feature in features)
    return AddressSpace(
        hole=read_window(root),
        bits=None if can_pass else _read_bits(maxphysaddr),
        can_pass_bits=can_pass,
        memory=None if memory is None else max(memory, most or 0),
        huge_pages=not off and not default,
        uefi=is_uefi(root),
    )


def _read_bits(maxphysaddr: etree._Element | None) -> int | None:
    """The physical address bits of the guest's CPUs; None if they are the host's."""
    if maxphysaddr is None:
        return _QEMU_BITS
    if maxphysaddr.get("mode") == "passthrough":
        return None
    bits = number(maxphysaddr.get("bits"))
    return bits if bits and bits <= _MAX_BITS else _QEMU_BITS


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


def is_uefi(root: etree._Element) -> bool:
    """Whether its firmware is UEFI, as far as the document says."""
    os_ = root.find("os")
    return os_ is not None and (os_.get("firmware") == "efi" or os_.find("loader[@type='pflash']") is not None)


def read_size(element: etree._Element | None) -> int | None:
    """A size with its unit, in bytes; None if it isn't one."""
    if element is None:
        return None
    text = (element.text or "").strip()
    unit = _UNITS.get((element.get("unit") or "").lower())
    if unit is None or not (text.isascii() and text.isdigit()) or len(text) > 19:
        return None
    return int(text) * unit


def read_memory(root: etree._Element) -> int | None:
    """``<memory>``, in bytes; with NUMA cells, libvirt takes their sum instead, and adds the DIMMs."""
    cells = []
    for cell in root.iterfind("cpu/numa/cell"):
        text, unit = cell.get("memory", ""), _UNITS.get(cell.get("unit", "").lower())
        if unit is None or not (text.isascii() and text.isdigit()) or len(text) > 19:
            return read_size(root.find("memory"))
        cells.append(int(text) * unit)
    if not cells:
        return read_size(root.find("memory"))
    return sum(cells) + sum(read_size(size) or 0 for size in root.iterfind("devices/memory/target/size"))


def read_window(root: etree._Element) -> int | None:
    """``<pcihole64>`` of the root, in bytes."""
    for controller in root.iterfind("devices/controller"):
        if controller.get("type") == "pci" and controller.get("model") in MACHINE_ROOTS:
            size = read_size(controller.find("pcihole64"))
            if size is not None and controller.get("index", "0") == "0":
                return size
    return None


def cpu_with_bits(root: etree._Element, style: Style, window: Window) -> list[str]:
    """The ``<cpu>`` to add to a document that needs the host's address bits and has none."""
    if not window.pass_bits or root.find("cpu") is not None:
        return []
    lead = style.indent or ""
    text = f"<cpu>{lead}<maxphysaddr mode='passthrough'/>{lead[: len(lead) - len(style.step)]}</cpu>"
    return [style.quoted(text)]


def window_edits(document: Document, style: Style, window: Window) -> tuple[list[Edit], list[str]]:
    """Edits of existing elements, and the texts of elements to add to the devices."""
    edits: list[Edit] = []
    root = document.root
    cpu = root.find("cpu")
    if window.pass_bits and cpu is not None:
        text = style.quoted("<maxphysaddr mode='passthrough'/>")
        edits.append(append_children(document.data, document.span(cpu), [text], style, depth=0))
    if window.hole is None:
        return edits, []
    roots = [each for each in root.iterfind("devices/controller[@type='pci']") if each.get("model") in MACHINE_ROOTS]
    if not roots:
        return edits, [_pci_root(window.root, window.hole, style)]
    text = style.quoted(_pci_hole(window.hole))
    present = roots[0].find("pcihole64")
    if present is not None:
        span = document.span(present)
        return [*edits, (span.start, span.end, text.encode("ascii"))], []
    deeper = style if style.indent is None else style._replace(indent=style.indent + style.step)
    edits.append(append_children(document.data, document.span(roots[0]), [text], deeper, depth=0))
    return edits, []


def _pci_hole(size: int) -> str:
    """The size of the 64-bit window; ``size`` is in bytes."""
    return f"<pcihole64 unit='KiB'>{size >> 10}</pcihole64>"


def _pci_root(model: str, hole: int, style: Style) -> str:
    """The root controller, for a document that leaves it to libvirt; ``hole`` is in bytes."""
    lead = "" if style.indent is None else style.indent + style.step
    end = style.indent or ""
    return style.quoted(f"<controller type='pci' index='0' model='{model}'>{lead}{_pci_hole(hole)}{end}</controller>")
